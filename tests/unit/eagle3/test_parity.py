"""The parity gate, and that states of other tokens or another length are never compared."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerie.eagle3 import parity
from aerie.engines.adapter import LastState
from aerie.engines.states import States, pack
from aerie.errors import AerieError
from aerie.runbook.step import Context, Decision, Input

VALUES = {"parity": {"samples": 4, "max_mean_rel": 0.02}}


def evidence(mean_rel: float) -> dict[str, Any]:
    layers = {"2": {"mean_rel": mean_rel / 2}, "6": {"mean_rel": mean_rel}}
    return {"mean_rel": mean_rel, "reference_bf16_mean_rel": 0.006, "layers": layers}


@pytest.mark.parametrize(
    ("mean_rel", "decision"),
    [(0.006, Decision.GO), (0.02, Decision.STOP), (0.3, Decision.STOP), (float("nan"), Decision.STOP)],
    ids=["bf16", "at the limit", "rotary bug", "not a number"],
)
def test_gate(mean_rel: float, decision: Decision) -> None:
    assert parity.gate(evidence(mean_rel), VALUES).decision is decision


def test_a_stop_names_the_worst_layer() -> None:
    assert "layer 6 is the worst with 0.3000, bf16 alone makes 0.0060" in parity.gate(evidence(0.3), VALUES).reasons[0]


def store(folder: Path, states: Any, token_ids: list[int]) -> None:
    torch = pytest.importorskip("torch")
    dtype = {torch.bfloat16: "BF16", torch.float32: "F32"}[states.dtype]
    numbers = states.contiguous().view(torch.uint8).numpy().tobytes()
    kept = States(dtype=dtype, shape=tuple(states.shape), token_ids=tuple(token_ids), numbers=numbers)
    (folder / "states").mkdir(exist_ok=True)
    (folder / "states" / "a.safetensors").write_bytes(pack(kept))


ROW = {"id": "a", "input_ids": [5, 6, 7, 8], "loss_mask": [0, 0, 1, 1], "states": "states/a.safetensors"}


@pytest.mark.parametrize(
    ("shape", "token_ids", "message"),
    [
        ((3, 4, 8), [5, 6, 9], "states of other tokens"),
        ((2, 4, 8), [5, 6], r"expected \[3, 4, hidden size\]"),
        ((3, 3, 8), [5, 6, 7], r"expected \[3, 4, hidden size\]"),
    ],
    ids=["other tokens", "too short", "a layer missing"],
)
def test_states_that_are_not_the_samples_own_are_refused(
    tmp_path: Path, shape: tuple[int, ...], token_ids: list[int], message: str
) -> None:
    torch = pytest.importorskip("torch")
    store(tmp_path, torch.zeros(shape), token_ids)
    with pytest.raises(AerieError, match=message):
        parity.read_states(tmp_path, ROW, 4)


def whole_model_states(model: Any, last_state: LastState) -> list[Any]:
    """After 0, 1, … layers, as an engine captures them."""
    torch = pytest.importorskip("torch")
    before_norm: list[Any] = []
    model.model.norm.register_forward_hook(lambda module, args, output: before_norm.append(args[0]))
    with torch.no_grad():
        states = model.model(torch.tensor([ROW["input_ids"]]), output_hidden_states=True, use_cache=False).hidden_states
    if last_state == "before-norm":
        states = (*states[:-1], before_norm[0])
    return [state[0] for state in states]


@pytest.mark.parametrize(
    ("shift", "given", "taken", "decision"),
    [
        (0, "before-norm", "before-norm", Decision.GO),
        (0, "after-norm", "after-norm", Decision.GO),
        (0, "after-norm", "before-norm", Decision.STOP),
        (1, "before-norm", "before-norm", Decision.STOP),
    ],
    ids=["own", "normed", "norm mistaken", "layers off by one"],
)
def test_parity_of_a_real_model(
    tmp_path: Path, shift: int, given: LastState, taken: LastState, decision: Decision
) -> None:
    seen = parity.run(prepared(tmp_path, shift, given, taken))
    assert (seen["samples"], seen["positions"]) == (1, 3)
    assert parity.gate(seen, VALUES).decision is decision


def test_a_run_that_was_cut_short_goes_on_behind_the_last_layer_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = prepared(tmp_path, 0, "before-norm", "before-norm")
    whole = parity.run(context)
    assert not (tmp_path / "layer.pt").exists(), "a short one keeps nothing"
    monkeypatch.setattr(parity, "_SAVE_S", 0.0)
    layers: list[float] = []

    def progress(context: Context, done: float, *_given: Any, **_more: Any) -> None:
        layers.append(done)
        if layers == [0, 1, 2, 3, 4]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Context, "progress", progress)
    with pytest.raises(KeyboardInterrupt):
        parity.run(context)
    assert parity.run(context) == whole
    assert layers == [0, 1, 2, 3, 4, 4, 5, 6], "after three layers it was kept"


def prepared(tmp_path: Path, shift: int, given: LastState, taken: LastState) -> Context:
    """A step with a real model and states of it. given, taken: where the last state is, and is said to be."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    torch.nn.init.uniform_(model.model.norm.weight, 2, 4)  # as it is made it would change almost nothing
    model.save_pretrained(tmp_path / "target" / "model")
    synthesis = tmp_path / "synthesize"
    synthesis.mkdir()
    states = whole_model_states(model, given)
    served = torch.stack([states[layer - shift] for layer in (2, 3, 4, 6)], dim=1)
    store(synthesis, served[:3], [5, 6, 7])
    (synthesis / "samples.jsonl").write_text(json.dumps(ROW) + "\n")
    return Context(
        run="r",
        step="parity",
        attempt=1,
        values=VALUES,
        inputs={
            "preflight": Input(path=tmp_path, evidence={"device": {"type": "cpu"}}),
            "target": Input(path=tmp_path / "target", evidence={}),
            "synthesize": Input(path=synthesis, evidence={"layers": [2, 3, 4, 6], "last_state": taken}),
        },
        out=tmp_path,
        scratch=tmp_path,
        kept=tmp_path,
        interpreters={},
        progress_file=tmp_path / "progress.json",
    )
