"""Step finetune: the baseline drafter trained on the target's own answers."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.eagle3 import specforge, staged
from aerie.eagle3.parity import read_states
from aerie.eagle3.profile import Drafter, Finetune
from aerie.errors import AerieError
from aerie.pagecache import PassBy, copy_tree
from aerie.runbook.step import Context, Json

if TYPE_CHECKING:
    import torch

__all__ = ["doc", "run"]

doc = """\
The trainer is SpecForge: it comes from the project of SGLang, which serves in production, captures with that engine's
kernels, and its export is the format that SGLang reads; vLLM loads it as well, so the tiny and the production profile
share trainer and checkpoint format. speculators is the second choice: the better command line, but it captures with
vLLM only, and its drafters set `norm_before_residual`, which SGLang 0.5.23 does not know. Neither trains a drafter with
MLA attention.

1. Convert every sample of the synthesis into a feature file. The last token is dropped, it has no state; the last
   layer's state goes through the target's final norm, unless the engine gave the one after it (`last_state`), because
   SpecForge applies `lm_head` alone; the mask moves by one
   (`feature_mask` in `aerie/eagle3/specforge.py` says why). Nothing is truncated, and a state that is not finite
   ends the step. Features and states pass by the page cache, where the weights lie that are served next.
   `lm_head` on the state before a generated token must find that token, in 99 of 100 if the answers
   are greedy. Nine answers of ten must have two tokens or more, and the drafter to start from no `norm_output`.
2. Train `finetune.epochs` epochs from the exported baseline, with the baseline's own `vocab_map.pt`. Without the map
   SpecForge 0.2.0 counts a new one from the new data and puts it over the old rows of `lm_head` without a word.

        model: {target_model_path: model, draft_model_config: drafter, draft_checkpoint_path: drafter,
                vocab_mapping_path: vocab_map.pt, torch_dtype: bfloat16}    # float32 where preflight chose it
        data: {hidden_states_path: features, max_length: 107, dataloader_num_workers: 0}    # 107: the longest sample
        training: {strategy: eagle3, num_epochs: 3, max_steps: 750, batch_size: 4, learning_rate: 2.0e-3,
                   ttt_length: 3, attention_backend: sdpa, fsdp_sharding: NO_SHARD, log_interval: 15}
        output_dir: output
        run_id: drafter

   as train.yaml, then in the train environment, from the checkout:

        TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=1 python -m aerie.eagle3.specforge_cpu train -c train.yaml

   (`aerie.eagle3.specforge_cpu` is SpecForge's command line with its one Triton kernel replaced; on a GPU it is
   `python -m specforge.cli`.) The run's own train.yaml and train.log are among the step's files.
3. Hold the step count against samples, batch and epochs. SpecForge drops the samples that fill no batch, other ones in
   every epoch: the evidence has their number.
"""

_MIN_USABLE = 0.9  # of the answers; our choice: none of 800 was too short in runs of the tiny profile
_MIN_AGREEMENT = 0.5  # 0.99 with greedy answers; sampled ones agree less, states shifted by one hardly at all


def run(context: Context) -> Mapping[str, Json]:
    """Write checkpoint/ (SpecForge's own format) and the trainer's configuration and log."""
    drafter = Drafter.model_validate(context.values["drafter"])
    finetune = Finetune.model_validate(context.values["finetune"])
    arithmetic = context.inputs["preflight"].evidence["arithmetic"]
    baseline = staged.folder(context.inputs["baseline-drafter"], "drafter")
    specforge.check_start(json.loads((baseline / "config.json").read_bytes()), str(baseline))
    target = staged.folder(context.inputs["target"], "model")
    synthesis = context.inputs["synthesize"]
    captured = synthesis.evidence["layers"]
    if captured[:-1] != drafter.aux_layers:
        raise AerieError(
            "synthesize",
            seen=captured[:-1],
            expected=f"states of drafter.aux_layers {drafter.aux_layers}",
            remedy="Run synthesize again with this profile.",
        )
    rows = [json.loads(line) for line in (synthesis.path / "samples.jsonl").read_text().splitlines()]
    features = context.scratch / "features"
    features.mkdir()
    # An answer of one token has nothing to draft; more than a few of them would be a target that does not answer.
    usable = [row for row in rows if sum(row["loss_mask"]) > 1]
    check_usable(len(usable), len(rows))
    agreed, generated = _write_features(context, usable, features, layers=len(captured), dtype=arithmetic["dtype"])
    if agreed < _MIN_AGREEMENT * generated:
        raise AerieError(
            "synthesize",
            seen=f"last states of which {agreed} of {generated} have the generated token as their most likely one",
            expected=f"a share of at least {_MIN_AGREEMENT}",
            remedy="The states are shifted, or of another layer or model: look at the capture, then at step parity.",
        )

    plan = specforge.Plan(
        target=target,
        drafter_config=baseline,
        vocab_map=context.inputs["baseline-drafter"].path / "vocab_map.pt",
        features=features,
        start=baseline,
        samples=len(usable),
        epochs=finetune.epochs,
        max_steps=None,
        batch=finetune.batch,
        learning_rate=finetune.learning_rate,
        ttt_length=drafter.ttt_length,
        max_length=max(len(row["input_ids"]) for row in usable),
        dtype=arithmetic["dtype"],
    )
    curve, checkpoint = specforge.train(plan, context.scratch, specforge.CPU, specforge.reporter(context))
    copy_tree(checkpoint, context.out / "checkpoint")
    for name in ("train.yaml", "train.log"):
        shutil.copy(context.scratch / name, context.out / name)
    return {
        "trainer": specforge.trainer(),
        "arithmetic": arithmetic,
        "samples": len(usable),
        "samples_too_short": len(rows) - len(usable),
        "greedy_agreement": agreed / generated,
        "samples_dropped_per_epoch": len(usable) % finetune.batch,
        "tokens": sum(len(row["input_ids"]) - 1 for row in usable),
        "epochs": finetune.epochs,
        "steps": specforge.steps_of(plan),
        "loss": curve.loss,
        "accuracy": curve.accuracy,
    }


def _write_features(
    context: Context, rows: Sequence[Mapping[str, Json]], features: Path, *, layers: int, dtype: str
) -> tuple[int, int]:
    """Write a feature file for each row; (tokens that lm_head finds from the last states, generated tokens)."""
    target, synthesis = staged.folder(context.inputs["target"], "model"), context.inputs["synthesize"].path
    head, norm = (_tensor(target, name).float() for name in ("lm_head.weight", "model.norm.weight"))
    eps = json.loads((target / "config.json").read_bytes())["rms_norm_eps"]
    has_norm = context.inputs["synthesize"].evidence["last_state"] == "after-norm"
    agreed = generated = 0
    with PassBy() as passing:
        for index, row in enumerate(rows):
            check_mask(row)
            states = read_states(synthesis, row, layers)
            last = states[:, -1].float() if has_norm else specforge.after_norm(states[:, -1], norm, eps)
            hits, tokens = agreement(last @ head.T, row)
            agreed, generated = agreed + hits, generated + tokens
            feature = features / f"{index:05d}.ckpt"
            specforge.write_feature(
                feature,
                input_ids=row["input_ids"][:-1],
                loss_mask=specforge.feature_mask(row["loss_mask"])[:-1],
                aux=states[:, :-1],
                last=last,
                dtype=dtype,
            )
            passing.done(synthesis / row["states"])
            passing.done(feature)
            context.progress(index + 1, len(rows), unit="samples", note="features")
    return agreed, generated


def check_usable(usable: int, samples: int) -> None:
    """Raise AerieError where too many answers have less than two tokens: they train nothing, and no loss shows it."""
    if usable < _MIN_USABLE * samples:
        raise AerieError(
            "synthesize",
            seen=f"{samples - usable} of {samples} answers of less than two tokens",
            expected=f"at least {_MIN_USABLE:.0%} with something to draft",
            remedy="Look at the answers: a wrong chat template, or a stop token that comes at once.",
        )


def check_mask(row: Mapping[str, Json]) -> None:
    """Raise AerieError unless the mask is 0 over a prompt, then 1 to the end: what the target generated and no more."""
    mask: Sequence[int] = row["loss_mask"]
    prompt = len(mask) - sum(mask)
    if len(mask) != len(row["input_ids"]) or prompt < 1 or list(mask) != [0] * prompt + [1] * (len(mask) - prompt):
        raise AerieError(
            f"synthesize, sample {row['id']}",
            seen=f"a mask of {len(mask)} entries for {len(row['input_ids'])} tokens, {sum(mask)} of them set",
            expected="zeros over the prompt, then ones over every generated token",
            remedy="Run synthesize again.",
        )


def agreement(logits: "torch.Tensor", row: Mapping[str, Json]) -> tuple[int, int]:
    """(generated tokens that are the most likely one of [T, V] logits, generated tokens) of a sample."""
    prompt = len(row["loss_mask"]) - sum(row["loss_mask"])
    best = logits[prompt - 1 :].argmax(dim=-1).tolist()
    answer = row["input_ids"][prompt:]
    return sum(guess == token for guess, token in zip(best, answer, strict=True)), len(answer)


def _tensor(folder: Path, name: str) -> "torch.Tensor":
    from safetensors import safe_open

    file_name = json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"][name]
    with safe_open(folder / file_name, "pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
    return tensor
