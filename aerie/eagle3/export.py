"""Step export: the fine-tuned drafter as the engines load it, and checked as far as files can be."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.eagle3 import compute, head, specforge, staged
from aerie.eagle3.profile import Drafter
from aerie.runbook.step import Context, Json, Verdict, go, stop

if TYPE_CHECKING:
    import torch

__all__ = ["checks", "doc", "gate", "run"]

doc = """\
1. Export the checkpoint with the baseline's config.json and the baseline's `vocab_map.pt`:

        python -m aerie.eagle3.specforge_cpu export --to sglang --checkpoint checkpoint \\
            --draft-config drafter/config.json --vocab-mapping vocab_map.pt --output-dir exported

   (on GPUs `python -m specforge.cli export …`).
   When the drafter has the target's whole vocabulary, remove `d2t` and `t2d`: vLLM refuses weights without a place.
2. Hold the result against the target's config.json, the profile and the baseline drafter. An engine skips a tensor
   that it does not know and ignores a key in the wrong place, and the only symptom is a low acceptance:
   the tensors by name, shape and type; no value that is not finite; `d2t` and `t2d` equal to the baseline's and to
   each other (i + d2t[i], rising, are the ids that t2d marks); the aux layer ids; hidden size and vocabulary of the
   target; the baseline's rotary embedding and number of positions; no `norm_output`, which SpecForge 0.2.0 trains in
   one way and SGLang serves in another.
3. See that the weights moved: an export equal to the baseline is a training that did not arrive.
"""


def run(context: Context) -> Mapping[str, Json]:
    """Write drafter/ (config.json, model.safetensors)."""
    drafter = Drafter.model_validate(context.values["drafter"])
    baseline = staged.folder(context.inputs["baseline-drafter"], "drafter")
    exported = context.out / "drafter"
    specforge.export(
        context.inputs["finetune"].path / "checkpoint",
        baseline / "config.json",
        context.inputs["baseline-drafter"].path / "vocab_map.pt",
        exported,
        compute.launcher(context),
        context.scratch / "export.log",
    )
    target_config = head.text_config(staged.folder(context.inputs["target"], "model"))
    rows = [
        {"name": name, "ok": seen == expected, "seen": seen, "expected": expected}
        for name, seen, expected in checks(exported, baseline, target_config, drafter)
    ]
    return {
        "checks": rows,
        "vocab_unchanged": all(row["ok"] for row in rows if row["name"].startswith(("d2t", "t2d"))),
    }


def gate(evidence: Mapping[str, Json], values: Mapping[str, Json]) -> Verdict:
    """Serve only what passed every check."""
    failed = [row for row in evidence["checks"] if not row["ok"]]
    if failed:
        return stop(*(f"{row['name']}: {row['seen']}, expected {row['expected']}." for row in failed))
    return go(f"All {len(evidence['checks'])} checks of the exported drafter hold.")


def checks(
    exported: Path, baseline: Path, target_config: Mapping[str, Json], drafter: Drafter
) -> Iterator[tuple[str, Json, Json]]:
    """(name, seen, expected) of every check, as JSON values; the check holds when the two are equal."""
    from safetensors.torch import load_file

    config = json.loads((exported / "config.json").read_bytes())
    tensors, before = load_file(exported / "model.safetensors"), load_file(baseline / "model.safetensors")
    vocab_size, hidden = target_config["vocab_size"], target_config["hidden_size"]
    reduced = drafter.draft_vocab_size < vocab_size

    yield "architecture", config.get("architectures"), ["LlamaForCausalLMEagle3"]
    yield "config hidden_size", config.get("hidden_size"), hidden
    yield "config target_hidden_size", config.get("target_hidden_size"), hidden
    yield "config vocab_size", config.get("vocab_size"), vocab_size
    yield "config draft_vocab_size", config.get("draft_vocab_size"), drafter.draft_vocab_size
    yield "config num_hidden_layers", config.get("num_hidden_layers"), 1
    yield "config norm_output", config.get("norm_output"), None
    # A conversion that drops them is silent, and shows only where the context is long.
    started = json.loads((baseline / "config.json").read_bytes())
    yield "config rope", _rope(config), _rope(started)
    yield (
        "config max_position_embeddings",
        config.get("max_position_embeddings"),
        started.get("max_position_embeddings"),
    )
    # vLLM takes the ids from eagle_config too (config/speculative.py, read); SGLang reads them nowhere else.
    aux = config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids")
    yield "config aux layer ids", aux, drafter.aux_layers
    yield "config use_aux_hidden_state", config.get("eagle_config", {}).get("use_aux_hidden_state"), True
    yield (
        "tensor names",
        sorted(tensors),
        sorted(_expected_shapes(config, drafter, hidden, vocab_size, reduced=reduced)),
    )
    for name, shape in _expected_shapes(config, drafter, hidden, vocab_size, reduced=reduced).items():
        if name in tensors:
            yield f"shape {name}", list(tensors[name].shape), shape
    floats = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    yield "tensor types", sorted({str(tensor.dtype) for tensor in floats.values()}), ["torch.bfloat16"]
    yield "tensors with values that are not finite", _not_finite(floats), []
    yield "weights moved", _moved(floats, before), True
    if reduced:
        yield from _map_checks(tensors, before, drafter.draft_vocab_size)


def _rope(config: Mapping[str, Json]) -> dict[str, Json]:
    """Its rotary embedding, however it is written: transformers 5 has rope_parameters for theta and scaling."""
    found = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = found.pop("rope_type", found.pop("type", "default"))
    return {"rope_theta": config.get("rope_theta"), **found, "rope_type": kind}


def _map_checks(
    tensors: "Mapping[str, torch.Tensor]", before: "Mapping[str, torch.Tensor]", draft_vocab_size: int
) -> Iterator[tuple[str, Json, Json]]:
    for name in ("d2t", "t2d"):
        both = name in tensors and name in before
        same = both and tensors[name].shape == before[name].shape
        changed = int((tensors[name] != before[name]).sum()) if same else None
        yield f"{name} entries unlike the baseline's", changed, 0
    if "d2t" in tensors and "t2d" in tensors:
        offsets = tensors["d2t"].tolist()
        ids = [index + offset for index, offset in enumerate(offsets)]
        marked = tensors["t2d"].nonzero().flatten().tolist()
        yield "t2d marks", len(marked), draft_vocab_size
        # Absolute ids in d2t, or an arange, would give ids twice as high or out of range.
        yield "d2t ids that t2d does not mark", sorted(set(ids) ^ set(marked)), []
        yield "d2t ids in rising order", ids == sorted(set(ids)), True


def _expected_shapes(
    config: Mapping[str, Json], drafter: Drafter, hidden: int, vocab_size: int, *, reduced: bool
) -> dict[str, list[int]]:
    inner = config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {
        "fc.weight": [hidden, 3 * hidden],
        "lm_head.weight": [drafter.draft_vocab_size, hidden],
        "norm.weight": [hidden],
        "midlayer.hidden_norm.weight": [hidden],
        "midlayer.input_layernorm.weight": [hidden],
        "midlayer.post_attention_layernorm.weight": [hidden],
        # The layer reads the embedding and the hidden state side by side.
        "midlayer.self_attn.q_proj.weight": [queries, 2 * hidden],
        "midlayer.self_attn.k_proj.weight": [keys, 2 * hidden],
        "midlayer.self_attn.v_proj.weight": [keys, 2 * hidden],
        "midlayer.self_attn.o_proj.weight": [hidden, queries],
        "midlayer.mlp.gate_proj.weight": [inner, hidden],
        "midlayer.mlp.up_proj.weight": [inner, hidden],
        "midlayer.mlp.down_proj.weight": [hidden, inner],
    }
    if reduced:
        shapes |= {"d2t": [drafter.draft_vocab_size], "t2d": [vocab_size]}
    return shapes


def _not_finite(tensors: "Mapping[str, torch.Tensor]") -> list[str]:
    return sorted(name for name, tensor in tensors.items() if not bool(tensor.isfinite().all()))


def _moved(tensors: "Mapping[str, torch.Tensor]", before: "Mapping[str, torch.Tensor]") -> bool:
    return any(name not in before or not bool((tensor == before[name]).all()) for name, tensor in tensors.items())
