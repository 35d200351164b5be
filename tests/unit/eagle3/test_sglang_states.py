"""The plugin in SGLang's processes: what it takes of a batch, and the files that come of it."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from aerie.engines.sglang_plugin.hidden_states import Capturer  # noqa: E402
from aerie.engines.states import awaited  # noqa: E402

HIDDEN = 2
LAYERS = (2, 3)  # and the last state


@dataclass
class Request:
    """As much of SGLang's Req as the plugin reads."""

    rid: str
    origin_input_ids: list[int]
    output_ids: list[int] = field(default_factory=list)
    return_hidden_states: bool = True
    is_retracted: bool = False
    ended: bool = False

    def finished(self) -> bool:
        return self.ended


def states(*positions: int) -> Any:
    """[T, 3 x HIDDEN], each number naming its position and place."""
    return torch.tensor([[10 * one + place for place in range(6)] for one in positions], dtype=torch.bfloat16)


def batch(*reqs: Request, extend: dict[str, tuple[int, int]] | None = None) -> Any:
    spans = [extend[req.rid] for req in reqs] if extend else []
    return SimpleNamespace(
        reqs=list(reqs), prefix_lens=[start for start, _ in spans], extend_lens=[length for _, length in spans]
    )


def result(numbers: Any) -> Any:
    return SimpleNamespace(logits_output=SimpleNamespace(hidden_states=numbers), copy_done=None)


def answers(*tokens: int, end: bool = False) -> Any:
    """What SGLang's own code does with a result: one token more for each request."""

    def process(_: Any, given: Any, made: Any) -> None:
        assert made.logits_output.hidden_states is None, "nobody else makes lists of them"
        for req, token in zip(given.reqs, tokens, strict=True):
            if not req.finished():
                req.output_ids.append(token)
                req.ended = end

    return process


@pytest.fixture
def capturer(tmp_path: Path) -> Capturer:
    one = Capturer(tmp_path, LAYERS)
    last = torch.zeros(1, HIDDEN)
    one.add_last(lambda *_: None, None, None, last, None, None, [torch.zeros(1, HIDDEN)] * 2)
    return one


def kept(tmp_path: Path, rid: str) -> tuple[tuple[int, ...], Any]:
    read = awaited(tmp_path / f"{rid}.safetensors")
    numbers = torch.frombuffer(bytearray(read.numbers), dtype=torch.bfloat16)
    assert read.shape[1:] == (len(LAYERS) + 1, HIDDEN)
    return read.token_ids, numbers.view(read.shape[0], 6)


def test_prompt_and_answer_become_one_file_without_the_last_token(tmp_path: Path, capturer: Capturer) -> None:
    a, b = Request("a", [5, 6]), Request("b", [7])
    first = batch(a, b, extend={"a": (0, 2), "b": (0, 1)})
    capturer.prefill(answers(8, 9), None, first, result(states(0, 1, 100)))
    capturer.decode(answers(10, 11, end=True), None, batch(a, b), result(states(2, 101)))
    capturer.decode(answers(0, 0), None, batch(a, b), result(states(3, 102)))  # begun before the end was known
    for rid, tokens, positions in (("a", (5, 6, 8), (0, 1, 2)), ("b", (7, 9), (100, 101))):
        token_ids, numbers = kept(tmp_path, rid)
        assert token_ids == tokens
        assert torch.equal(numbers, states(*positions))


def test_a_prompt_may_come_in_parts(tmp_path: Path, capturer: Capturer) -> None:
    long = Request("long", [5, 6, 7])
    capturer.prefill(lambda *_: None, None, batch(long, extend={"long": (0, 2)}), result(states(0, 1)))
    capturer.prefill(answers(8, end=True), None, batch(long, extend={"long": (2, 1)}), result(states(2)))
    assert torch.equal(kept(tmp_path, "long")[1], states(0, 1, 2))


def test_a_retracted_request_is_taken_anew(tmp_path: Path, capturer: Capturer) -> None:
    req = Request("r", [5, 6])
    capturer.prefill(answers(8), None, batch(req, extend={"r": (0, 2)}), result(states(0, 1)))
    req.is_retracted = True
    capturer.decode(lambda *_: None, None, batch(req), result(states(90)))
    req.is_retracted = False
    capturer.prefill(answers(9, end=True), None, batch(req, extend={"r": (0, 3)}), result(states(20, 21, 22)))
    token_ids, numbers = kept(tmp_path, "r")
    assert token_ids == (5, 6, 8)
    assert torch.equal(numbers, states(20, 21, 22))


def test_who_does_not_ask_gets_no_file_and_shifts_nobody(tmp_path: Path, capturer: Capturer) -> None:
    quiet, asking = Request("quiet", [1, 2], return_hidden_states=False), Request("asking", [5])
    both = batch(quiet, asking, extend={"quiet": (0, 2), "asking": (0, 1)})
    capturer.prefill(answers(8, 9, end=True), None, both, result(states(50, 51, 0)))
    assert torch.equal(kept(tmp_path, "asking")[1], states(0))
    assert [path.name for path in tmp_path.iterdir()] == ["asking.safetensors"]


def test_states_after_a_cached_prefix_are_an_error(capturer: Capturer) -> None:
    with pytest.raises(RuntimeError, match="a prefix was cached"):
        capturer.prefill(answers(8), None, batch(Request("c", [5, 6, 7]), extend={"c": (2, 1)}), result(states(2)))


@pytest.mark.parametrize("packed", [False, True], ids=["list", "one tensor"])
def test_the_last_state_joins_the_chosen_ones(tmp_path: Path, packed: bool) -> None:
    chosen = [torch.ones(3, HIDDEN), torch.full((3, HIDDEN), 2.0)]
    last = torch.full((3, HIDDEN), 3.0)

    def gathered(_: Any, input_ids: Any, hidden: Any, head: Any, about: Any, aux: Any, before: Any) -> Any:
        assert (input_ids, head, about, before) == ("ids", "head", "about", None)
        assert torch.equal(hidden, last)
        return aux if isinstance(aux, torch.Tensor) else torch.cat(aux, dim=-1)

    given = torch.cat(chosen, dim=-1) if packed else chosen
    made = Capturer(tmp_path, LAYERS).add_last(gathered, None, "ids", last, "head", "about", given)
    assert made.tolist() == [[1, 1, 2, 2, 3, 3]] * 3


@pytest.mark.parametrize("is_graph", [True, False])
def test_the_next_pass_cannot_write_into_states_on_their_way(tmp_path: Path, is_graph: bool) -> None:
    buffer = states(0)
    output = SimpleNamespace(logits_output=SimpleNamespace(hidden_states=buffer), can_run_graph=is_graph)
    Capturer(tmp_path, LAYERS).settle(output, None)
    assert (output.logits_output.hidden_states is not buffer) is is_graph
    assert torch.equal(output.logits_output.hidden_states, states(0))
