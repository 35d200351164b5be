"""The pure parts of the serving steps: what they compare, count and drop."""

import asyncio
import json
import struct
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from aerie.eagle3 import serve_base, serving
from aerie.eagle3.divergences import divergence, gap_nats
from aerie.eagle3.measured import forced_arm
from aerie.eagle3.samples import Samples
from aerie.eagle3.synthesize import Extraction, sample, unique
from aerie.engines.adapter import Answer, Question
from aerie.engines.bench import Prompt
from aerie.engines.states import header, read_kept
from aerie.errors import AerieError
from aerie.pagecache import PassBy
from aerie.runbook.step import Decision
from aerie.weights import load


@pytest.mark.parametrize(
    ("base", "other", "position"),
    [
        ([5, 6, 7], [5, 6, 7], None),
        ([5, 6, 7], [5, 9, 7], 1),
        ([5, 6], [5, 6, 7], 2),
        ([5, 6, 7], [5], 1),
        ([], [5], 0),
    ],
    ids=["equal", "differs", "other-longer", "other-shorter", "at-once"],
)
def test_divergence(base, other, position):
    assert divergence(base, other) == position


@pytest.mark.parametrize(
    ("tokens", "gap"),
    [
        ([1, 2], 0.25),
        ([2, 1], 0.25),
        ([1, 3], 2.0),  # a third token is not excused by two others that are close
        ([1, 9], 3.0),  # not among the best: at least as far as the last of them
        ([1, None], 3.0),
    ],
)
def test_gap_is_to_the_worse_of_the_two_tokens(tokens, gap):
    assert gap_nats({1: -0.5, 2: -0.75, 3: -2.5, 4: -3.5}, tokens) == gap


@pytest.mark.parametrize(("length", "name"), [(2.0, "forced-2.0"), (2, "forced-2.0"), (2.5, "forced-2.5")])
def test_name_of_a_forced_arm(length, name):
    assert forced_arm(length) == name


def prompt(name, *tokens):
    return Prompt(id=name, input_ids=tokens)


def test_repeated_prompts_are_dropped_and_the_first_kept():
    a, b, again = prompt("a", 1, 2), prompt("b", 3), prompt("c", 1, 2)
    assert unique([a, b, again]) == (a, b)


def test_loss_counts_on_the_response_alone():
    assert sample(7, prompt("os.path/1", 3, 4), [8, 9, 2]) == {
        "id": "os.path/1",
        "input_ids": [3, 4, 8, 9, 2],
        "loss_mask": [0, 0, 1, 1, 1],
        "states": "states/00007.safetensors",
    }


@pytest.mark.parametrize("folder", ["", "elsewhere"], ids=["named-from-the-folder", "named-as-a-whole"])
def test_a_sample_is_kept_with_its_states_and_the_engines_file_goes(tmp_path, folder):
    captured, kept = tmp_path / "captured", tmp_path / "kept"
    written = (tmp_path / folder if folder else captured) / "7f.safetensors"
    for one in (captured, kept, written.parent):
        one.mkdir(exist_ok=True)
    numbers = struct.pack("<12H", *range(12))
    parts = {"hidden_states": ("BF16", (3, 2, 2), 24), "token_ids": ("I64", (3,), 24)}
    written.write_bytes(header(parts) + numbers + struct.pack("<3q", 3, 4, 8))
    written.with_name("7f.safetensors.lock").touch()

    async def ask(question):
        return Answer(token_ids=(8, 9), states_file=written if folder else Path(written.name))

    one = prompt("p", 3, 4)
    with Samples(kept, [one]) as samples, PassBy() as passing:
        extraction = Extraction(
            client=SimpleNamespace(ask=ask), captured=captured, layers=2, samples=samples, passing=passing
        )
        tokens, written_bytes, kept_bytes = asyncio.run(extraction.take(0, one, Question(path="/", body={})))
    row = samples.there["p"]
    assert (tokens, row["input_ids"], row["loss_mask"]) == (2, [3, 4, 8, 9], [0, 0, 1, 1])
    states = read_kept(kept / row["states"])
    assert (states.shape, states.token_ids, states.numbers) == ((3, 2, 2), (3, 4, 8), numbers)
    assert (written_bytes > 48, kept_bytes) == (True, (kept / row["states"]).stat().st_size)
    assert list(tmp_path.rglob("7f*")) == []


def test_states_of_another_request_are_not_kept(tmp_path):
    parts = {"hidden_states": ("BF16", (1, 2, 1), 4), "token_ids": ("I64", (1,), 8)}
    (tmp_path / "7f").write_bytes(header(parts) + struct.pack("<2Hq", 1, 2, 5))
    (tmp_path / "7f.lock").touch()

    async def ask(question):
        return Answer(token_ids=(8,), states_file=Path("7f"))

    one = prompt("p", 3)
    with Samples(tmp_path, [one]) as samples, PassBy() as passing:
        extraction = Extraction(
            client=SimpleNamespace(ask=ask), captured=tmp_path, layers=2, samples=samples, passing=passing
        )
        with pytest.raises(AerieError, match="another request's states"):
            asyncio.run(extraction.take(0, one, Question(path="/", body={})))
    assert samples.there == {}


def test_prompts_are_read_in_order_and_too_few_are_an_error(tmp_path):
    path = tmp_path / "prompts.held.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{i}", "prompt": "x", "input_ids": [i]}) + "\n" for i in range(3)))
    assert serving.read_prompts(path, 2) == (prompt("p0", 0), prompt("p1", 1))
    with pytest.raises(AerieError, match="'3 prompts', expected at least 4"):
        serving.read_prompts(path, 4)


@pytest.mark.parametrize(("seconds", "decision"), [(1.0, Decision.GO), (600.0, Decision.STOP)])
def test_serving_stops_after_weights_that_came_in_cold(seconds: float, decision: Decision) -> None:
    done = load.Load(size_bytes=10 * 10**9, seconds=seconds, major_faults=100, read_bytes=10 * 10**9)
    verdict = serve_base.gate({"load": asdict(load.judge(done))}, {})
    assert verdict.decision == decision
    assert verdict.reasons[0].startswith("weights: streamed, " if decision is Decision.GO else "weights: cold, ")
