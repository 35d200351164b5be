"""Everything that can be wrong with a runbook, its profile or an override, by message and line."""

import pytest

from aerie.errors import UsageError
from aerie.runbook import spec
from aerie.runbook.yamlfile import SpecError
from tests.runbook_fixture.quick import Quick

LOOK = "{id: look, title: Look around, module: tests.runbook_fixture.look, timeout_s: 120}"


def problems(quick: Quick, *overrides: str) -> list[str]:
    """The messages, with the folder of the files taken off."""
    with pytest.raises(SpecError) as error:
        spec.load("quick", overrides=overrides, directory=quick.directory)
    assert error.value.exit_code == 2
    return [line.replace(f"{quick.directory}/quick/", "") for line in str(error.value).splitlines()]


def test_a_good_one_loads(quick: Quick) -> None:
    loaded = spec.load("quick", directory=quick.directory)
    assert [step.id for step in loaded.runbook.steps] == ["look", "fetch", "train", "judge", "tell"]
    assert spec.values_of(loaded.values, ["fetch.words", "limit"]) == {"fetch.words": 10, "limit": 0.5}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (LOOK, LOOK.replace("timeout_s", "timeouts"),
         "runbook.yml:7: steps[0].timeouts: an unknown key, expected one of approval, backoff_s, disk_bytes,"
         " environment, id, module, needs, retries, stall_s, timeout_s, title, values. Did you mean timeout_s?"),
        (", timeout_s: 120}", "}",
         "runbook.yml:7: steps[0].timeout_s: nothing, expected a value. The key is required."),
        (LOOK, LOOK.replace("120", '"120"'), "runbook.yml:7: steps[0].timeout_s: '120', expected number"),
        (LOOK, LOOK.replace("120", "-1"), "runbook.yml:7: steps[0].timeout_s: -1, expected greater than 0"),
        (LOOK, LOOK.replace("120", "20, retries: true"), "runbook.yml:7: steps[0].retries: True, expected integer"),
        (LOOK, LOOK.replace("120", "20, environment: gpu"),
         "runbook.yml:7: steps[0].environment: 'gpu', expected 'controller', 'train' or 'engine'"),
        (LOOK, LOOK.replace("120", "20, id: look"), "runbook.yml:7: steps[0].id: again, first on line 7, expected each"
         " key once"),
        ("id: tell,", "id: look,", "runbook.yml:11: steps[4].id: look, expected an id that no other step has"),
        ("needs: [fetch]", "needs: [fetsch]",
         "runbook.yml:9: steps[2].needs[0]: fetsch, expected an earlier step: look, fetch. Did you mean fetch?"),
        ("needs: [look]", "needs: [train]", "runbook.yml:8: steps[1].needs[0]: train, expected an earlier step: look"),
        ("values: [limit]", "values: [limits]",
         "runbook.yml:10: steps[3].values[0]: limits, expected a value of the profile: fetch, train, limit, names,"
         " environments. Did you mean limit?"),
        ("values: [train]", "values: [train.word]",
         "runbook.yml:9: steps[2].values[0]: train.word, expected a value of train: words, seconds. Did you"
         " mean words?"),
        ("values: [limit]", "values: [limit.low]",
         "runbook.yml:10: steps[3].values[0]: limit.low, expected nothing inside limit"),
        ("module: tests.runbook_fixture.tell", "module: tests.runbook_fixture.tells",
         "runbook.yml:11: steps[4].module: tests.runbook_fixture.tells (ModuleNotFoundError: No module named"
         " 'tests.runbook_fixture.tells'), expected a module that imports without heavy libraries"),
        ("module: tests.runbook_fixture.tell", "module: tests.runbook_fixture.behaviour",
         "runbook.yml:11: steps[4].module: tests.runbook_fixture.behaviour, expected a module with `doc`, a text, and"
         " `run`, a function"),
        ("profile:Profile", "profile:Profil",
         "runbook.yml:4: profile: tests.runbook_fixture.profile:Profil (AttributeError: module"
         " 'tests.runbook_fixture.profile' has no attribute 'Profil'), expected module:Class that can be imported"),
        ("profile:Profile", "quick:Quick", "runbook.yml:4: profile: tests.runbook_fixture.quick:Quick, expected a"
         " pydantic model"),
        ("name: quick", "name: slow", "runbook.yml:2: name: slow, expected quick, the name of its folder"),
        ("aerie.runbook/1", "aerie.runbook/2", "runbook.yml:1: schema: 'aerie.runbook/2', expected 'aerie.runbook/1'"),
        ("title: Five", "title: [Five", "runbook.yml:4: document: expected ',' or ']', but got ':', expected YAML"),
    ],
)  # fmt: skip
def test_a_wrong_runbook(quick: Quick, old: str, new: str, message: str) -> None:
    text = quick.spec.read_text()
    assert old in text
    quick.spec.write_text(text.replace(old, new, 1))
    assert message in problems(quick)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("words: 10", "words: 0", "profiles/small.yml:1: fetch.words: 0, expected greater than or equal to 1"),
        ("words: 10", "words: ten", "profiles/small.yml:1: fetch.words: 'ten', expected integer"),
        ("words: 10", "words: 1.5", "profiles/small.yml:1: fetch.words: 1.5, expected integer"),
        ("limit:", "limits:", "profiles/small.yml:3: limits: an unknown key, expected one of environments, fetch,"
         " limit, names, train. Did you mean limit?"),
        ("limit: 0.5", "names: []", "profiles/small.yml:1: limit: nothing, expected a value. The key is required."),
        ("limit: 0.5", "limit: 0.5\nlimit: 0.6", "profiles/small.yml:4: limit: again, first on line 3, expected each"
         " key once"),
        ("limit: 0.5", "limit: 0.5\nnames: &a [*a]",
         "profiles/small.yml:4: names[0]: an alias to what it stands in, expected values that end"),
        ("limit: 0.5", "limit: !!python/object:os.system 1",
         "profiles/small.yml:3: limit: could not determine a constructor for the tag"
         " 'tag:yaml.org,2002:python/object:os.system', expected a plain value"),
    ],
)  # fmt: skip
def test_a_wrong_profile(quick: Quick, old: str, new: str, message: str) -> None:
    quick.change(quick.profile, old, new)
    assert message in problems(quick)


def test_an_empty_profile(quick: Quick) -> None:
    quick.profile.write_text("# nothing\n")
    assert problems(quick) == ["profiles/small.yml:1: document: an empty file, expected a mapping"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.words=many", "--set train.words=many: train.words: 'many', expected integer"),
        ("trian.words=3", "--set trian.words=3: trian: an unknown key, expected one of environments, fetch, limit,"
         " names, train. Did you mean train?"),
        ("train.word=3", "--set train.word=3: train.word: an unknown key, expected one of seconds, words. Did you mean"
         " words?"),
        ("limit", "--set limit: --set: 'limit', expected a.b=value, the value in YAML"),
        ("limit=[", "--set limit=[: --set: 'limit=[', expected a.b=value, the value in YAML"),
        ("limit.low=1", "--set limit.low=1: limit.low: 0.5, expected limit to be a mapping"),
        ("limit=2", "--set limit=2: limit: 2, expected less than or equal to 1"),
    ],
)  # fmt: skip
def test_a_wrong_override(quick: Quick, override: str, message: str) -> None:
    assert message in problems(quick, override)


def test_overrides_are_yaml_and_the_last_one_wins(quick: Quick) -> None:
    loaded = spec.load("quick", overrides=["limit=0.1", "limit=0.2", "names=[a, b]"], directory=quick.directory)
    assert spec.values_of(loaded.values, ["limit", "names"]) == {"limit": 0.2, "names": ["a", "b"]}


def test_everything_wrong_is_said_at_once(quick: Quick) -> None:
    quick.change(quick.spec, "needs: [fetch]", "needs: [fetsch]")
    quick.change(quick.spec, "values: [limit]", "values: [limits]")
    quick.change(quick.profile, "words: 10", "words: 0")
    assert len(problems(quick, "train.words=0")) == 4


@pytest.mark.parametrize(
    ("name", "profile", "message"),
    [
        ("quik", None, "runbook quik: 'quik', expected one of quick. Did you mean quick?"),
        ("quick", "smal", "profile smal: 'smal', expected one of small. Did you mean small?"),
    ],
)
def test_unknown_names(quick: Quick, name: str, profile: str | None, message: str) -> None:
    with pytest.raises(UsageError) as error:
        spec.load(name, profile, directory=quick.directory)
    assert str(error.value) == message


def test_nest_puts_values_back_where_they_came_from() -> None:
    assert spec.nest({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}
