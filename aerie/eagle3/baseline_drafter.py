"""Step baseline-drafter: a drafter trained briefly on generic text, in the place of a published one."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.eagle3 import compute, head, specforge, staged
from aerie.eagle3.features import Features, feature_mask, write_feature
from aerie.eagle3.profile import Baseline, Drafter, Staged
from aerie.errors import AerieError
from aerie.pagecache import PassBy
from aerie.runbook.step import Context, Json, write_atomic

if TYPE_CHECKING:
    import torch

__all__ = ["doc", "run", "stale"]

doc = """\
Production starts from a published drafter (`baseline.staged` in the profile): this step then only brings it to the
host, every file verified, and takes the vocabulary map out of its weights. Else a stand-in is made. Like a published
one it was not trained on this target's answers: what the fine-tuning adds is then visible, and how much says nothing
about a real published drafter.

1. Run the target by transformers over `baseline.samples` pieces of Python's manual (`generic.jsonl`), teacher-forced,
   and keep the hidden states after the layers `drafter.aux_layers` and the last one, after its norm.
2. Count the tokens and keep the `drafter.draft_vocab_size` most frequent ones: `vocab_map.pt`, {d2t, t2d}.
3. Train `baseline.steps` steps with SpecForge, as step `finetune` does but without `draft_checkpoint_path`, and export
   as step `export` does: SGLang's format, which vLLM loads as well.

An attempt that is cut short keeps its features, and the training its checkpoints, as in step `finetune`.

The map belongs to the drafter for good: row i of its `lm_head` means token i + d2t[i].
"""


def run(context: Context) -> Mapping[str, Json]:
    """Write vocab_map.pt; where nothing is staged also drafter/ and the trainer's configuration and log."""
    baseline = Baseline.model_validate(context.values["baseline"])
    return _published(context, baseline.staged) if baseline.staged else _trained(context, baseline)


def stale(evidence: Mapping[str, Json]) -> str | None:
    """A staged drafter is no longer as it was verified."""
    return staged.why_stale(evidence)


def _published(context: Context, chosen: Staged) -> Mapping[str, Json]:
    import torch

    found = staged.stage(context, chosen)
    mapping = staged.vocabulary_map(Path(found["folder"]))
    torch.save(mapping, context.out / "vocab_map.pt")
    return {"staged": found, "vocab": {"target": len(mapping["t2d"]), "draft": len(mapping["d2t"])}}


def _trained(context: Context, baseline: Baseline) -> Mapping[str, Json]:
    """Write drafter/ (config.json, model.safetensors), vocab_map.pt and the trainer's configuration and log."""
    assert baseline.samples and baseline.steps and baseline.batch and baseline.learning_rate, "the profile's check"
    drafter = Drafter.model_validate(context.values["drafter"])
    arithmetic = context.inputs["preflight"].evidence["arithmetic"]
    target = staged.folder(context.inputs["target"], "model")
    target_config = head.text_config(target)
    rows = _pick(context.inputs["target"].path / "generic.jsonl", baseline.samples)
    counts = Counter(
        token for row in rows for token, counted in zip(row["input_ids"], row["loss_mask"], strict=True) if counted
    )

    import torch

    mapping = specforge.vocabulary_map(counts, drafter.draft_vocab_size, target_config["vocab_size"])
    torch.save(mapping, context.out / "vocab_map.pt")
    # SpecForge goes on with the very files alone, times included, that a training began with.
    if not (vocab_map := context.kept / "vocab_map.pt").exists():
        shutil.copy(context.out / "vocab_map.pt", part := context.kept / "vocab_map.part")
        os.replace(part, vocab_map)
    config = context.kept / "drafter.json"
    shape = specforge.draft_config(
        target_config, draft_vocab_size=drafter.draft_vocab_size, aux_layers=drafter.aux_layers
    )
    write_atomic(config, json.dumps(shape).encode())
    with Features(context.kept) as features:
        _write(context, target, rows, features, drafter.aux_layers)

    launcher = compute.launcher(context)
    per_epoch = specforge.steps_per_epoch(len(rows), baseline.batch, launcher)
    plan = specforge.Plan(
        target=head.of(target),
        drafter_config=config,
        vocab_map=vocab_map,
        features=features.folder,
        held_out=None,
        start=None,
        samples=len(rows),
        epochs=-(-baseline.steps // per_epoch),
        max_steps=baseline.steps,
        batch=baseline.batch,
        learning_rate=baseline.learning_rate,
        ttt_length=drafter.ttt_length,
        max_length=max(len(row["input_ids"]) for row in rows),
        dtype=arithmetic["dtype"],
    )
    trained = specforge.train(plan, context.kept, launcher, specforge.reporter(context))
    exported = context.out / "drafter"
    specforge.export(trained.checkpoint, config, vocab_map, exported, launcher, context.scratch / "export.log")
    for name in ("train.yaml", "train.log"):
        shutil.copy(context.kept / name, context.out / name)
    kept = sum(count for token, count in counts.items() if mapping["t2d"][token])
    return {
        "trainer": specforge.trainer(),
        "arithmetic": arithmetic,
        "samples": len(rows),
        "tokens": sum(len(row["input_ids"]) for row in rows),
        "steps": baseline.steps,
        "loss": trained.curve.loss,
        "accuracy": trained.curve.accuracy,
        "vocab": {
            "target": target_config["vocab_size"],
            "draft": drafter.draft_vocab_size,
            "covered_share": kept / counts.total(),
        },
    }


def _pick(path: Path, samples: int) -> list[Json]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    if len(rows) < samples:
        raise AerieError(
            "baseline.samples",
            seen=samples,
            expected=f"at most {len(rows)}, the pieces of text there are",
            remedy="Lower baseline.samples in the profile.",
        )
    # Spread over the whole manual, which is in the order of its topics.
    return [rows[index * len(rows) // samples] for index in range(samples)]


def _write(context: Context, target: Path, rows: Sequence[Json], features: Features, aux_layers: Sequence[int]) -> None:
    """Write the feature file of each row that has none yet."""
    dtype = context.inputs["preflight"].evidence["arithmetic"]["dtype"]
    missing = [number for number in range(len(rows)) if number not in features.there]
    states = _states(context, target, [rows[number] for number in missing], aux_layers, dtype)
    with PassBy() as passing:
        for number, (row, aux, last) in zip(missing, states, strict=True):
            write_feature(
                features.path(number),
                input_ids=row["input_ids"],
                loss_mask=feature_mask(row["loss_mask"]),
                aux=aux,
                last=last,
                dtype=dtype,
            )
            features.add(number, hits=0, tokens=0)  # the text is the manual's, and nothing of it was generated
            passing.done(features.path(number))
            context.progress(len(features.there), len(rows), unit="samples", note="hidden states")


def _states(
    context: Context, target: Path, rows: Sequence[Json], aux_layers: Sequence[int], dtype: str
) -> "Iterator[tuple[Json, torch.Tensor, torch.Tensor]]":
    """Per row: [T, 3, H] after the aux layers and [T, H] after the final norm, computed in `dtype`."""
    import torch

    model = compute.model(context, target, dtype).model
    with torch.no_grad():
        for row in rows:
            tokens = torch.tensor([row["input_ids"]], device=model.device)
            output = model(input_ids=tokens, output_hidden_states=True, use_cache=False)
            aux = torch.stack([output.hidden_states[layer][0] for layer in aux_layers], dim=1)
            yield row, aux, output.last_hidden_state[0]
