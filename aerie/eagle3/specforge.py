"""SpecForge around its command line: features and configuration in, training log, checkpoint and export out.

Nothing here imports SpecForge but `vocabulary_map`: it runs as a process of its own, with its log beside its result.
"""

import importlib.metadata
import json
import math
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from aerie.eagle3.checkpoints import RUN_ID, Checkpoints
from aerie.eagle3.compute import Launcher
from aerie.eagle3.curve import Curve
from aerie.eagle3.head import Head
from aerie.eagle3.running import run
from aerie.eagle3.stopping import Enough, Patience, best, ended_early
from aerie.errors import AerieError
from aerie.runbook.step import Context, Json, write_atomic

if TYPE_CHECKING:
    import torch

__all__ = [
    "Plan",
    "Trained",
    "check_start",
    "draft_config",
    "export",
    "reporter",
    "steps_of",
    "steps_per_epoch",
    "train",
    "trainer",
    "vocabulary_map",
]

_SAVES = 20  # checkpoints of a training: what a kill costs is at most a twentieth of it
_CHECKPOINTS = 3  # that lie on the disk at once; the best one by held-out samples may be a fourth


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One training. target: whose lm_head and embedding it uses; start: an exported drafter whose weights it begins
    with, None begins at random ones; batch: samples of each process in a step; held_out: features that the drafter is
    judged by after every epoch, None judges by none; patience: with it those evaluations may end the training early.

    vocab_map is not optional: on a start from weights without it SpecForge 0.2.0 counts a new map from the new data,
    keeps the rows of lm_head where they were, and says nothing.
    """

    target: Head
    drafter_config: Path
    vocab_map: Path
    features: Path
    held_out: Path | None
    start: Path | None
    samples: int
    epochs: int
    max_steps: int | None
    batch: int
    learning_rate: float
    ttt_length: int
    max_length: int
    dtype: str  # of weights, states and loss in the training, as step preflight chose it; an export is bf16 always
    patience: Patience | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished training. checkpoint: the folder of the one that goes on, of step `kept`: the best one by the held-out
    samples, or the last one where there are none; steps: that were done, fewer than planned where it ended early.
    """

    curve: Curve
    checkpoint: Path
    kept: int
    steps: int


def trainer() -> Json:
    """{name, version} of the installed SpecForge."""
    return {"name": "specforge", "version": importlib.metadata.version("specforge")}


def check_start(config: Mapping[str, Json], where: str) -> None:
    """Raise AerieError for a drafter that SpecForge 0.2.0 trains in another way than engines serve it.

    config: config.json of the drafter that the training starts from.
    """
    if "norm_output" in config or "norm_output" in (config.get("eagle_config") or {}):
        raise AerieError(
            f"{where}/config.json",
            seen="the key norm_output",
            expected="no norm_output",
            remedy="SpecForge 0.2.0 drops the norm before lm_head where it is false, and where it is true trains what "
            "SGLang then serves as EAGLE-3.1 (SpecForge issue 879): start from a drafter without the key.",
        )


def steps_per_epoch(samples: int, batch: int, launcher: Launcher) -> int:
    """Optimiser steps of one epoch, which drops the samples that fill no batch, after a shuffle of its own.

    Raises AerieError where there are none.
    """
    # Every process gets as many samples; the first ones of the shuffle twice where they do not divide.
    steps = math.ceil(samples / launcher.processes) // batch
    if steps == 0:
        raise AerieError(
            "training",
            seen=f"{samples} samples for {launcher.processes} processes with a batch of {batch} each",
            expected="a batch of samples for each process",
            remedy="Lower the batch in the profile, or take more samples.",
        )
    return steps


def steps_of(plan: Plan, launcher: Launcher) -> int:
    """Optimiser steps of `plan`."""
    steps = steps_per_epoch(plan.samples, plan.batch, launcher) * plan.epochs
    return steps if plan.max_steps is None else min(steps, plan.max_steps)


def train(plan: Plan, folder: Path, launcher: Launcher, progress: Callable[[int, int, Curve], None]) -> Trained:
    """A training in `folder`, which gets the configuration and the log too, to its end.

    Goes on from the last checkpoint there, if it is of this very training. progress is called with (steps done,
    steps, curve so far). Raises AerieError when SpecForge fails, when a loss is not finite, and when it ends at another
    step than planned or without the checkpoint of its best evaluation.
    """
    steps, interval, log = steps_of(plan, launcher), _interval(plan, launcher), folder / "train.log"
    plan.target.write(folder / "target")
    there = Checkpoints(folder=folder / "output", processes=launcher.processes)
    curve = _so_far(_configuration(plan, folder, launcher, steps), folder)

    def on_line(line: str) -> None:
        step = curve.read(line)
        if step is not None:
            progress(step, steps, curve)
        if ended_early(curve.evaluations, plan.patience, steps):
            raise Enough

    # Before anything is forgotten: the evaluation that ends a training leaves no checkpoint, for it is not the best.
    if done := _done(plan, there, curve, steps, interval):
        return done
    start = _take_up(there, curve, folder, interval)
    with suppress(Enough):
        run(["train", "-c", str(folder / "train.yaml"), *_start(plan, start)], log, launcher, on_line, _needed(plan))
    if done := _done(plan, there, curve, steps, interval):
        return done
    raise AerieError(
        "trainer",
        seen=f"checkpoints of steps {', '.join(map(str, there.whole()))}, that of step {there.best()} as the best one",
        expected=f"one of step {steps}, and that of step {best(curve.evaluations)} as the best one",
        remedy=f"Read {log}: samples were dropped, or the training ended by itself.",
    )


def _so_far(configuration: Json, folder: Path) -> Curve:
    """What the log says of this very training; nothing of another one is left."""
    log, path = folder / "train.log", folder / "train.yaml"
    curve = Curve()
    if path.exists() and yaml.safe_load(path.read_bytes()) == configuration and log.exists():
        for line in log.read_text(encoding="utf-8").splitlines():
            curve.read(line)
    else:  # of another number of GPUs, say, with which SpecForge cannot go on
        shutil.rmtree(folder / "output", ignore_errors=True)
        log.unlink(missing_ok=True)
    write_atomic(path, yaml.safe_dump(configuration).encode())
    return curve


def _take_up(there: Checkpoints, curve: Curve, folder: Path, interval: int | None) -> Path | None:
    """The checkpoint from which the training goes on, None for its begin; what came after is forgotten."""
    step = there.to_go_on_from(curve.evaluations, interval)
    curve.cut(step)
    if step:
        there.forget_after(step)
        return there.whole()[step]
    shutil.rmtree(there.folder, ignore_errors=True)
    (folder / "train.log").unlink(missing_ok=True)
    return None


def _done(plan: Plan, there: Checkpoints, curve: Curve, steps: int, interval: int | None) -> Trained | None:
    """The training, where it has come to its end with the checkpoint of its best evaluation."""
    early, the_best = ended_early(curve.evaluations, plan.patience, steps), best(curve.evaluations)
    kept = the_best or steps
    checkpoint = there.whole().get(kept)
    is_over = early or there.to_go_on_from(curve.evaluations, interval) == steps
    if not is_over or checkpoint is None or there.best() != the_best:
        return None
    return Trained(curve=curve, checkpoint=checkpoint, kept=kept, steps=early or steps)


def _configuration(plan: Plan, folder: Path, launcher: Launcher, steps: int) -> Json:
    """train.yaml."""
    model = {
        "target_model_path": str(folder / "target"),
        "lm_head_key": plan.target.lm_head,
        "embedding_key": plan.target.embedding,
        "draft_model_config": str(plan.drafter_config),
        "vocab_mapping_path": str(plan.vocab_map),
        "torch_dtype": plan.dtype,
    }
    return {
        "model": model,
        "data": {
            "hidden_states_path": str(plan.features),
            **({"eval_hidden_states_path": str(plan.held_out)} if plan.held_out else {}),
            "max_length": plan.max_length,
            "dataloader_num_workers": launcher.readers,
        },
        "training": {
            "strategy": "eagle3",
            "num_epochs": plan.epochs,
            "max_steps": steps,
            "batch_size": plan.batch,
            "learning_rate": plan.learning_rate,
            "ttt_length": plan.ttt_length,
            "log_interval": max(1, steps // 50),
            "save_interval": math.ceil(steps / _SAVES),
            "max_checkpoints": _CHECKPOINTS,
            **({"eval_interval": interval} if (interval := _interval(plan, launcher)) else {}),
            **launcher.options,
        },
        "deployment": {"trainer": _topology(launcher)},
        "output_dir": str(folder / "output"),
        "run_id": RUN_ID,
    }


def _interval(plan: Plan, launcher: Launcher) -> int | None:
    """Steps between two evaluations: an epoch, so that the last step is evaluated too; None without any."""
    return steps_per_epoch(plan.samples, plan.batch, launcher) if plan.held_out else None


def _needed(plan: Plan) -> list[Path]:
    """What every process reads."""
    others = (plan.drafter_config, plan.vocab_map, plan.features, plan.held_out, plan.start)
    return [*plan.target.trainer_files.values(), *(path for path in others if path)]


def _topology(launcher: Launcher) -> Json:
    topology: dict[str, Json] = {"nproc_per_node": launcher.processes_each}
    if launcher.together:
        topology |= {"nnodes": launcher.hosts, "master_addr": launcher.together.address}
    return topology


def _start(plan: Plan, checkpoint: Path | None) -> list[str]:
    """Where the training begins, as SpecForge takes it: at a checkpoint of its own, or at a drafter's weights."""
    if checkpoint:
        return [f"training.resume_from={checkpoint}"]
    return [f"model.draft_checkpoint_path={plan.start}"] if plan.start else []


def reporter(context: Context) -> Callable[[int, int, Curve], None]:
    """What `train` is given as its progress, for a step's watchdog and screen."""

    def report(done: int, steps: int, curve: Curve) -> None:
        accuracy = "/".join(f"{share:.2f}" for share in curve.accuracy)
        context.progress(done, steps, unit="steps", note=f"loss {curve.loss[-1][1]:.3f}, accuracy {accuracy}")

    return report


def export(
    checkpoint: Path, drafter_config: Path, vocab_map: Path, folder: Path, launcher: Launcher, log: Path
) -> None:
    """Write the drafter of `checkpoint` to `folder` as SGLang and vLLM load it."""
    arguments = ["export", "--to", "sglang", "--checkpoint", str(checkpoint), "--draft-config", str(drafter_config)]
    arguments += ["--output-dir", str(folder), "--vocab-mapping", str(vocab_map)]
    run(arguments, log, launcher, lambda line: None)
    config = json.loads((folder / "config.json").read_bytes())
    if config["draft_vocab_size"] == config["vocab_size"]:
        _drop_map(folder / "model.safetensors")


def _drop_map(weights: Path) -> None:
    # vLLM 0.32.0 has no place for the maps when no vocabulary is reduced: "There is no module or parameter named
    # 'draft_id_to_target_id'". SpecForge always writes them.
    from safetensors.torch import load_file, save

    tensors = {name: tensor for name, tensor in load_file(weights).items() if name not in ("d2t", "t2d")}
    write_atomic(weights, save(tensors, metadata={"format": "pt"}))


def draft_config(target: Mapping[str, Json], *, draft_vocab_size: int, aux_layers: Sequence[int]) -> Json:
    """config.json of a one-layer Llama drafter for the target with this config.json."""
    hidden = target["hidden_size"]
    # 128 is what the attention kernels of GPUs are made for.
    heads = hidden // 128 if hidden % 128 == 0 else max(1, hidden // 96)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "target_hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "initializer_range": 0.02,
        "rms_norm_eps": target["rms_norm_eps"],
        "max_position_embeddings": target["max_position_embeddings"],
        "rope_theta": 10_000.0,
        "vocab_size": target["vocab_size"],
        "draft_vocab_size": draft_vocab_size,
        "tie_word_embeddings": False,
        "bos_token_id": target["bos_token_id"],
        "eos_token_id": target["eos_token_id"],
        "pad_token_id": target["pad_token_id"],
        "torch_dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(aux_layers), "use_aux_hidden_state": True},
    }


def vocabulary_map(counts: Mapping[int, int], draft_vocab_size: int, vocab_size: int) -> "dict[str, torch.Tensor]":
    """{d2t, t2d} for the most frequent tokens: d2t[i] is what to add to draft id i, t2d marks the ids that are kept."""
    from specforge.data.preprocessing import process_token_dict_to_mappings

    with redirect_stdout(sys.stderr):  # it prints its own statistics
        d2t, t2d = process_token_dict_to_mappings(Counter(counts), draft_vocab_size, vocab_size)
    return {"d2t": d2t, "t2d": t2d}
