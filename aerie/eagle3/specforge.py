"""SpecForge around its command line: feature files and configuration in, training log, checkpoint and export out.

Nothing here imports SpecForge but `vocabulary_map`: it runs as a process of its own, with its log beside its result.
"""

import ast
import importlib.metadata
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from aerie.errors import AerieError
from aerie.runbook.step import Context, Json, write_atomic

if TYPE_CHECKING:
    import torch

__all__ = [
    "CPU",
    "Curve",
    "Launcher",
    "Plan",
    "after_norm",
    "draft_config",
    "export",
    "feature_mask",
    "reporter",
    "steps_of",
    "train",
    "trainer",
    "vocabulary_map",
    "write_feature",
]

_LOG_LINES = 15  # of a failed process, in the error
_RUN_ID = "drafter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How SpecForge is started: the module with its command line, its environment, its device's training options."""

    module: str
    environment: Mapping[str, str]
    options: Mapping[str, Json]


# Without the shim, on GPUs, a launcher is Launcher(module="specforge.cli", environment={}, options={}).
CPU = Launcher(
    module="aerie.eagle3.specforge_cpu",
    environment={"TORCHDYNAMO_DISABLE": "1"},
    options={"attention_backend": "sdpa", "fsdp_sharding": "NO_SHARD"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One training. start: an exported drafter whose weights it begins with; None begins at random ones.

    vocab_map is not optional: on a start from weights without it SpecForge 0.2.0 counts a new map from the new data,
    keeps the rows of lm_head where they were, and says nothing.
    """

    target: Path
    drafter_config: Path
    vocab_map: Path
    features: Path
    start: Path | None
    samples: int
    epochs: int
    max_steps: int | None
    batch: int
    learning_rate: float
    ttt_length: int
    max_length: int
    dtype: str  # of weights, states and loss in the training, as step preflight chose it; an export is bf16 always


@dataclass(slots=True)
class Curve:
    """What the trainer logged. loss: [step, loss] of every logged step; accuracy: per drafted position, the last."""

    loss: list[tuple[int, float]] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)

    def read(self, line: str) -> int | None:
        """Take in one line of the log; the step that it reports, if it is one.

        Raises AerieError on a loss that is not finite.
        """
        match = re.match(r"step (\d+): (\{.*\})\s*$", line)
        if not match:
            return None
        step = int(match[1])
        # The trainer prints a dict's repr, in which a broken loss is the bare name nan or inf.
        metrics = ast.literal_eval(re.sub(r"\b(nan|inf)\b", "'\\1'", match[2]))
        loss = float(metrics["loss"])
        if not math.isfinite(loss):
            raise AerieError(
                f"trainer, step {step}",
                seen=loss,
                expected="a finite loss",
                remedy="Lower the learning rate, and look for states that are not finite.",
            )
        self.loss.append((step, loss))
        positions = sorted(
            (int(key.removeprefix("acc_")), value) for key, value in metrics.items() if _is_accuracy(key)
        )
        self.accuracy = [float(value) for _, value in positions]
        return step


def _is_accuracy(key: str) -> bool:
    return re.fullmatch(r"acc_\d+", key) is not None


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


def steps_of(plan: Plan) -> int:
    """Optimiser steps of `plan`. Each epoch drops the samples that fill no batch, after a shuffle of its own."""
    steps = plan.samples // plan.batch * plan.epochs
    return steps if plan.max_steps is None else min(steps, plan.max_steps)


def train(
    plan: Plan, folder: Path, launcher: Launcher, progress: Callable[[int, int, Curve], None]
) -> tuple[Curve, Path]:
    """(curve, checkpoint folder) of a finished training in `folder`, which gets the configuration and the log too.

    progress is called with (steps done, steps, curve so far). Raises AerieError when SpecForge fails, when a loss is
    not finite, and when it ends at another step than planned.
    """
    steps = steps_of(plan)
    model: dict[str, Json] = {
        "target_model_path": str(plan.target),
        "draft_model_config": str(plan.drafter_config),
        "vocab_mapping_path": str(plan.vocab_map),
        "torch_dtype": plan.dtype,
    }
    if plan.start is not None:
        model["draft_checkpoint_path"] = str(plan.start)
    config = {
        "model": model,
        "data": {"hidden_states_path": str(plan.features), "max_length": plan.max_length, "dataloader_num_workers": 0},
        "training": {
            "strategy": "eagle3",
            "num_epochs": plan.epochs,
            "max_steps": steps,
            "batch_size": plan.batch,
            "learning_rate": plan.learning_rate,
            "ttt_length": plan.ttt_length,
            "log_interval": max(1, steps // 50),
            **launcher.options,
        },
        "output_dir": str(folder / "output"),
        "run_id": _RUN_ID,
    }
    path = folder / "train.yaml"
    write_atomic(path, yaml.safe_dump(config).encode())
    curve = Curve()

    def on_line(line: str) -> None:
        step = curve.read(line)
        if step is not None:
            progress(step, steps, curve)

    _run(["train", "-c", str(path)], folder / "train.log", launcher, on_line)
    checkpoint = (folder / "output" / f"{_RUN_ID}-latest").resolve()
    if not checkpoint.name.endswith(f"-step{steps}"):
        raise AerieError(
            "trainer",
            seen=checkpoint.name,
            expected=f"a checkpoint of step {steps}",
            remedy=f"Read {folder / 'train.log'}: samples were dropped, or the training stopped early.",
        )
    return curve, checkpoint


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
    _run(arguments, log, launcher, lambda line: None)
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
    heads = max(1, hidden // 96)
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


def feature_mask(loss_mask: Sequence[int]) -> list[int]:
    """SpecForge's loss mask for a sample, from the mask of the tokens that the target generated.

    SpecForge 0.2.0 shifts tokens and targets but not the mask: its position t reads token t+1 and learns to draft
    token t+2. It counts where token t+1 is a generated one, which begins with the last token of the prompt, as in
    serving; the mask as it stands would leave out the draft of the second token (SpecForge issue 885).
    """
    return [*loss_mask[1:], 0]


def after_norm(states: "torch.Tensor", weight: "torch.Tensor", eps: float) -> "torch.Tensor":
    """The target's final RMS norm of [T, H] states, in fp32: SpecForge applies lm_head alone, engines hand out less."""
    import torch

    exact = states.float()
    return exact * torch.rsqrt(exact.pow(2).mean(dim=-1, keepdim=True) + eps) * weight.float()


def write_feature(
    path: Path,
    *,
    input_ids: Sequence[int],
    loss_mask: Sequence[int],
    aux: "torch.Tensor",
    last: "torch.Tensor",
    dtype: str,
) -> None:
    """One offline sample of SpecForge: T tokens and mask entries, aux [T, 3, H], last [T, H] after the final norm.

    dtype: of the states in the file. SpecForge multiplies them as they are, so it has to be that of the training.
    Raises AerieError when lengths differ or a state is not finite.
    """
    import torch

    if not len(input_ids) == len(loss_mask) == len(aux) == len(last):
        raise AerieError(
            f"sample {path.stem}",
            seen=f"{len(input_ids)} tokens, {len(loss_mask)} mask entries, {len(aux)} and {len(last)} states",
            expected="one state and one mask entry per token",
            remedy="Capture the states again.",
        )
    if not (torch.isfinite(last).all() and torch.isfinite(aux).all()):
        raise AerieError(
            f"sample {path.stem}",
            seen="a hidden state that is not finite",
            expected="finite states",
            remedy="Capture the states again, in bf16 or fp32: fp16 overflows silently.",
        )
    torch.save(
        {
            "input_ids": torch.tensor(input_ids),
            "loss_mask": torch.tensor(loss_mask),
            "aux_hidden_state": aux.flatten(1).unsqueeze(0).to(getattr(torch, dtype)).contiguous(),
            "hidden_state": last.unsqueeze(0).to(getattr(torch, dtype)).contiguous(),
        },
        path,
    )


def _run(arguments: list[str], log: Path, launcher: Launcher, on_line: Callable[[str], None]) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **launcher.environment}
    command = [sys.executable, "-m", launcher.module, *arguments]
    last: deque[str] = deque(maxlen=_LOG_LINES)
    with (
        open(log, "w", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                last.append(line.rstrip())
                on_line(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise AerieError(
            f"specforge {arguments[0]}",
            seen=f"exit status {process.returncode}",
            expected="0",
            remedy=f"Its log is {log}; the last lines:\n" + "\n".join(last),
        )
