"""A killed synthesis goes on: what is whole is there, what is not is asked for again."""

import json
import struct

import pytest

from aerie.eagle3.samples import Samples, has_begun
from aerie.engines.bench import Prompt
from aerie.engines.states import States, read_kept
from aerie.pagecache import PassBy

PROMPTS = [Prompt(id=name, input_ids=(number, 5)) for number, name in enumerate("abc")]


def row(number):
    prompt = PROMPTS[number]
    ids = [*prompt.input_ids, 7, 2]
    return {"id": prompt.id, "input_ids": ids, "loss_mask": [0, 0, 1, 1], "states": f"states/{number:05d}.safetensors"}


def states(number, value=1.0):
    numbers = struct.pack("<24f", *([value] * 24))
    return States(dtype="F32", shape=(3, 4, 2), token_ids=tuple(row(number)["input_ids"][:-1]), numbers=numbers)


@pytest.fixture
def interrupted(tmp_path):
    """A folder with samples a and b, as a killed synthesis leaves it."""
    with Samples(tmp_path, PROMPTS) as samples, PassBy() as passing:
        for number in (0, 1):
            samples.add(row(number), states(number), passing)
    return tmp_path


def there(folder):
    with Samples(folder, PROMPTS) as samples:
        return samples.there


def test_what_is_whole_is_not_asked_for_again(interrupted):
    with Samples(interrupted, PROMPTS) as samples, PassBy() as passing:
        assert samples.there == {"a": row(0), "b": row(1)}
        samples.add(row(2), states(2), passing)
        assert list(samples.there) == ["a", "b", "c"]
    assert list(there(interrupted)) == ["a", "b", "c"]


def test_only_samples_are_a_beginning(interrupted, tmp_path):
    assert has_begun(interrupted)
    (tmp_path / "new").mkdir()
    assert not has_begun(tmp_path / "new")
    with Samples(tmp_path / "new", []):
        assert not has_begun(tmp_path / "new")


def test_a_line_that_a_kill_cut_short_costs_that_sample_alone(interrupted):
    rows = interrupted / "rows.jsonl"
    rows.write_bytes(rows.read_bytes()[:-9])
    with Samples(interrupted, PROMPTS) as samples, PassBy() as passing:
        assert list(samples.there) == ["a"]
        samples.add(row(2), states(2), passing)
    assert list(there(interrupted)) == ["a", "c"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "states/00000.safetensors").unlink(),
        lambda folder: (folder / "states/00000.safetensors").write_bytes(b""),
        lambda folder: (folder / "states/00000.safetensors").write_bytes(
            (folder / "states/00001.safetensors").read_bytes()
        ),
        lambda folder: (folder / "rows.jsonl").write_text(
            "".join(json.dumps(one) + "\n" for one in (row(0) | {"input_ids": [9, 5, 7, 2]}, row(1)))
        ),
    ],
    ids=["gone", "empty", "of-other-tokens", "of-another-prompt"],
)
def test_a_sample_whose_states_are_not_its_own_is_asked_for_again(interrupted, spoil):
    spoil(interrupted)
    assert list(there(interrupted)) == ["b"]


def test_states_that_are_not_finite_are_asked_for_again(tmp_path):
    with Samples(tmp_path, PROMPTS) as samples, PassBy() as passing:
        samples.add(row(0), states(0, float("nan")), passing)
    assert there(tmp_path) == {}


def test_states_become_evidence_as_they_are(interrupted, tmp_path):
    with Samples(interrupted, PROMPTS) as samples:
        pass
    samples.move_states(tmp_path / "evidence")
    assert read_kept(tmp_path / "evidence" / "00001.safetensors") == states(1)
