"""Prompts of one's own: lines that are wrong are named, each prompt is one row, and nothing held out is trained on."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerie.eagle3 import apart, own_prompts, pinned, planning
from aerie.eagle3.profile import Profile
from aerie.errors import AerieError, UsageError
from aerie.runbook import spec

LONG = "the quick brown fox jumps over the lazy dog while seven wizards mix potions"  # 14 words


def write(folder: Path, *entries: Any) -> Path:
    path = folder / "own.jsonl"
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in entries))
    return path


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_a_prompt_is_a_users_only_turn_and_comes_once_however_it_is_called(tmp_path: Path) -> None:
    path = write(
        tmp_path, {"prompt": "Hello\u2028you"}, "", {"id": 7, "messages": [user("Hello\u2028you")]}, {"prompt": "Bye"}
    )
    file = own_prompts.read(path)
    assert (file.lines, [row.messages[0]["content"] for row in file.rows]) == (3, ["Hello\u2028you", "Bye"])
    assert file.rows[0].id == file.rows[0].sha256[:16]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting property name"),
        ("[1]", "list instead of an object"),
        ({"prompt": "a", "tools": []}, "tools would not be rendered"),
        ({"prompt": "a", "messages": []}, "messages and prompt"),
        ({"id": "x"}, "neither messages nor prompt"),
        ({"messages": []}, "no list of turns"),
        ({"messages": [{"role": "tool", "content": "a"}]}, 'role "tool", expected one of system, user, assistant'),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "a turn of user without text"),
        ({"messages": [{**user("a"), "name": "b"}]}, "not role and content alone"),
        ({"messages": [assistant("b")]}, "ends with a turn of assistant, expected a user's"),
        ({"conversations": [{"from": "bing", "value": "a"}]}, 'role "bing", expected one of'),
        ({"conversations": [{"from": ["human"], "value": "a"}]}, 'role ["human"], expected one of'),
        ({"conversations": [user("a")]}, "a turn that is not from and value alone"),
        ({"conversations": [], "messages": []}, "messages and conversations"),
        ({"prompt": "a", "conversations": []}, "prompt and conversations"),
        ({"messages": [user("a"), assistant("b"), user("c")], "id": "first"}, "id first again, of another prompt"),
        ({"prompt": "other", "id": "talk#2"}, "id talk#2 again, of another prompt"),
        ({"messages": [{"role": "system", "content": "b"}]}, "ends with a turn of system"),
        ({"prompt": "a", "id": ""}, 'id "" instead of a text or a number'),
        ({"prompt": "another", "id": "first"}, "id first again, of another prompt"),
    ],
)
def test_a_line_that_is_no_prompt_is_named_by_its_number(tmp_path: Path, line: Any, reason: str) -> None:
    talk = {"id": "talk", "messages": [user("x"), assistant("y"), user("z")]}
    path = write(tmp_path, {"prompt": "good", "id": "first"}, "", talk, line)
    with pytest.raises(UsageError) as refused:
        own_prompts.read(path)
    assert str(refused.value.seen).startswith("line 4: ") and reason in str(refused.value.seen)


def test_many_bad_lines_are_counted_and_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 1: .*; line 5: .*; and 2 more"):
        own_prompts.read(write(tmp_path, *["{"] * 7))
    with pytest.raises(UsageError, match="no prompt"):
        own_prompts.read(write(tmp_path, ""))
    with pytest.raises(UsageError, match="No such file"):
        own_prompts.read(tmp_path / "none.jsonl")


def test_a_conversation_is_a_prompt_for_each_answer_and_what_begins_alike_comes_once(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    turns = [system, user("a"), assistant("b"), user("c"), user("d"), assistant("e"), assistant("f"), user("g")]
    shared = {"conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "a"}]}
    gone_on = [*shared["conversations"], {"from": "gpt", "value": "b"}, {"from": "human", "value": "other"}]
    path = write(tmp_path, {"id": "t", "messages": turns}, shared, {"id": "u", "conversations": gone_on})
    file = own_prompts.read(path)
    assert [(one.id, list(one.messages)) for one in file.rows] == [
        ("t#1", turns[:2]),
        ("t#2", turns[:5]),
        ("t#3", turns),
        ("u#2", [*turns[:3], user("other")]),
    ]
    assert (file.lines, file.asked) == (3, 6)
    assert {one.conversation for one in file.rows} == {file.rows[0].sha256}


def test_the_files_last_answer_is_the_targets_to_give(tmp_path: Path) -> None:
    (one,) = own_prompts.read(write(tmp_path, {"messages": [user("a"), assistant("b")]})).rows
    assert (one.messages, one.id) == ((user("a"),), one.sha256[:16])


def test_all_turns_of_a_conversation_are_on_one_side(tmp_path: Path) -> None:
    talks = [
        {"id": f"t{i}", "messages": [user(f"Ask {i}"), assistant("b"), user(f"And {i}"), assistant("c"), user("Why?")]}
        for i in range(30)
    ]
    parts = apart.split(own_prompts.read(write(tmp_path, *talks)).rows, 5)
    held, trained = ({one.id.partition("#")[0] for one in part} for part in (parts.held, parts.train))
    assert (len(parts.held), len(held), held & trained) == (5, 5, set())
    assert (parts.beside, len(parts.train), len(trained)) == (10, 75, 25)
    assert len({one.id.partition("#")[2] for one in parts.held}) > 1  # of several depths


def test_what_goes_on_from_a_held_out_prompt_in_other_spelling_is_not_trained_on(tmp_path: Path) -> None:
    base = [f"Ask {word}" for word in ("one", "two")]
    held = held_text(tmp_path, *base)
    (left,) = [text for text in base if text != held]
    talks = ({"messages": [user(held + "!" * i), assistant("b"), user("More")]} for i in range(1, 40))
    ours = rows(tmp_path, held)[0].sha256
    talk = next(one for one in talks if own_prompts.read(write(tmp_path, one)).rows[0].sha256 > ours)
    parts = apart.split(own_prompts.read(write(tmp_path, {"prompt": held}, {"prompt": left}, talk)).rows, 1)
    assert ([one.messages[0]["content"] for one in parts.train], parts.same) == ([left], 2)


def rows(folder: Path, *texts: str) -> tuple[own_prompts.Asked, ...]:
    return own_prompts.read(write(folder, *({"prompt": text} for text in texts))).rows


def test_what_is_held_out_is_chosen_by_hash_whatever_the_order(tmp_path: Path) -> None:
    texts = [f"Question number {i}" for i in range(40)]
    one, other = (apart.split(rows(tmp_path, *order), 8) for order in (texts, texts[::-1]))
    assert (one.train, one.held) == (other.train, other.held)
    assert (len(one.train), len(one.held)) == (32, 8)
    more = apart.split(rows(tmp_path, *texts, "One more"), 8)
    assert len({row.sha256 for row in more.held} & {row.sha256 for row in one.held}) >= 7
    with pytest.raises(AerieError, match=r"corpus\.held_out: '40 of 40 prompts and conversations'"):
        apart.split(rows(tmp_path, *texts), 40)


def held_text(folder: Path, *texts: str) -> str:
    return apart.split(rows(folder, *texts), 1).held[0].messages[0]["content"]


def test_other_spellings_of_a_held_out_prompt_and_its_long_passages_are_not_trained_on(tmp_path: Path) -> None:
    base = [f"{LONG}, take {word}" for word in ("one", "two")]
    held = held_text(tmp_path, *base)
    (left,) = [text for text in base if text != held]
    parts = apart.split(rows(tmp_path, *base), 1)
    assert (parts.train, parts.same, parts.sharing) == ((), 0, 1)  # both have the 14 words of LONG
    assert parts.commonest == " ".join(LONG.split()[:13])
    ours = rows(tmp_path, held)[0].sha256
    shouted = (f"  {held.upper()}{'!' * count}" for count in range(1, 40))
    spelled = next(text for text in shouted if rows(tmp_path, text)[0].sha256 > ours)  # else it would be the held one
    parts = apart.split(rows(tmp_path, held, left, spelled), 1)
    assert (parts.train, parts.same, parts.sharing) == ((), 1, 1)


def test_a_system_turn_that_all_share_keeps_nothing_out(tmp_path: Path) -> None:
    entries = [{"messages": [{"role": "system", "content": LONG}, user(f"Ask {i}")]} for i in range(4)]
    parts = apart.split(own_prompts.read(write(tmp_path, *entries)).rows, 1)
    assert (len(parts.train), parts.sharing) == (3, 0)


def test_scripts_without_spaces_are_compared_by_their_characters(tmp_path: Path) -> None:
    shared = "请用简单的语言解释潮汐的成因"  # 14 characters
    parts = apart.split(rows(tmp_path, f"{shared}，第一", f"第二：{shared}"), 1)
    assert (parts.train, parts.sharing) == ((), 1)


def kimi(**corpus: Any) -> Profile:
    values = spec.load("eagle3", "kimi-k2.5").values
    assert isinstance(values, Profile)
    dumped = values.model_dump()
    return Profile.model_validate({**dumped, "corpus": dumped["corpus"] | corpus})


@pytest.fixture
def manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the lock pinned the target."""
    monkeypatch.setattr(pinned, "_pinned", lambda chosen: ("/srv/models/x@1", 1))


@pytest.mark.usefixtures("manifest")
def test_a_file_with_enough_prompts_takes_the_obstacle_away(tmp_path: Path) -> None:
    assert "3,583 prompts, from Python's documentation: corpus.prompts" in planning.obstacle("target", kimi())
    path = tmp_path / "many.jsonl"
    path.write_text("".join(f'{{"prompt": "Question {i}"}}\n' for i in range(10_080)))
    assert planning.obstacle("target", kimi(prompts=str(path))) == ""
    few = write(tmp_path, *({"prompt": f"Question {i}"} for i in range(100)), {"prompt": "Question 1"})
    told = planning.obstacle("target", kimi(prompts=str(few)))
    assert told.startswith("it has 20 prompts, of 101 lines of") and told.endswith("for 10,000 of synthesis")
    assert "1 repeated" in told
    talks = tmp_path / "talks.jsonl"
    turns = [user("Ask {i}"), assistant("b"), user("And?")]
    talks.write_text("".join(json.dumps({"messages": turns}).replace("{i}", str(i)) + "\n" for i in range(5_000)))
    told = planning.obstacle("target", kimi(prompts=str(talks)))
    assert (
        told.startswith("it has 9,840 prompts, of 10,000 answers to give in 5,000 lines of") and "80 too near" in told
    )
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a"}\n{"prompts": "b"}\n')
    assert "line 2: prompts would not be rendered" in planning.obstacle("target", kimi(prompts=str(bad)))


@pytest.mark.parametrize(
    ("corpus", "reason"),
    [
        ({"prompts": "own.jsonl"}, "expected an absolute path"),
        ({"prompts": "/own.jsonl", "template_options": None}, "expected the template's thinking mode"),
        ({"prompts": "/own.jsonl", "max_prompt_tokens": 4000}, "expected at most 4160 tokens"),
    ],
)
def test_what_a_profile_must_say_of_its_file(corpus: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        kimi(**corpus)
