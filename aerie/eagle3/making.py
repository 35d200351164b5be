"""The training of a target that is made: a number of steps, from which a later attempt goes on where one is killed."""

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.eagle3 import kept_state
from aerie.eagle3.profile import Shape, Target
from aerie.errors import AerieError
from aerie.runbook.step import Context

if TYPE_CHECKING:
    import torch
    from transformers.modeling_utils import PreTrainedModel

__all__ = ["PAD", "Trained", "batches", "learning_rate_share", "train"]

PAD = 0
_WARMUP_STEPS = 20
_STABLE_SHARE = 0.4  # of the steps at the full learning rate before it falls linearly
_SAVE_S = 60.0  # between two states that are kept: what a kill costs at the most


@dataclass(slots=True, kw_only=True)
class Trained:
    """losses: of every step; tokens: trained on, without padding; tok_s: of this attempt."""

    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    tok_s: float = 0.0


def train(
    context: Context,
    target: Target,
    size: Shape,
    model: "PreTrainedModel",
    ways: Sequence[Sequence[list[int]]],
    *,
    save_s: float = _SAVE_S,
) -> Trained:
    """Train `model` in place, on its device; goes on from what an earlier attempt kept.

    ways: per template, the exchange about every name. Raises AerieError on a loss that is not finite.
    """
    import torch

    dtype = context.inputs["preflight"].evidence["arithmetic"]["dtype"]
    optimizers = _optimizers(model, size.learning_rate, dtype)
    state = context.kept / "training.pt"
    trained = _resumed(state, model, optimizers)
    begun, started = trained.tokens, time.monotonic()
    saved = started
    model.train()
    for batch in islice(batches(ways, target), len(trained.losses), size.steps):
        step = len(trained.losses)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * learning_rate_share(step, size.steps)
        tokens = torch.tensor(batch, device=model.device)
        loss = _step(model, optimizers, tokens)
        if not math.isfinite(loss):
            raise AerieError(
                f"target, step {step + 1}",
                seen=loss,
                expected="a finite loss",
                remedy="Lower the target's learning_rate in the profile.",
            )
        trained.losses.append(loss)
        trained.tokens += int((tokens != PAD).sum())
        context.progress(step + 1, size.steps, unit="steps", note=f"loss {loss:.3f}")
        if time.monotonic() - saved >= save_s:
            _keep(state, model, optimizers, trained)
            saved = time.monotonic()
    trained.tok_s = (trained.tokens - begun) / (time.monotonic() - started)
    return trained


def _step(model: "PreTrainedModel", optimizers: "Sequence[torch.optim.Optimizer]", tokens: "torch.Tensor") -> float:
    """The loss of one step on [rows, T] tokens."""
    import torch

    logits = model(input_ids=tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    value: float = loss.item()
    return value


def _keep(
    path: Path, model: "PreTrainedModel", optimizers: "Sequence[torch.optim.Optimizer]", trained: Trained
) -> None:
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "losses": trained.losses,
        "tokens": trained.tokens,
    }
    kept_state.write(path, state)


def _resumed(path: Path, model: "PreTrainedModel", optimizers: "Sequence[torch.optim.Optimizer]") -> Trained:
    state = kept_state.read(path, model.device)
    if state is None:
        return Trained()
    model.load_state_dict(state["model"])
    for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(kept)
    return Trained(losses=state["losses"], tokens=state["tokens"])


def _optimizers(model: "PreTrainedModel", learning_rate: float, dtype: str) -> "list[torch.optim.Optimizer]":
    # Muon for the matrices inside the layers, AdamW for the rest: a lower loss in the same number of steps.
    # dtype: of Muon's own products; the weights and gradients are fp32 everywhere.
    import torch

    from aerie.eagle3.muon import Muon

    matrices: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        inner = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        (matrices if inner else rest).append(parameter)
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=2 * learning_rate, weight_decay=0.05, dtype=getattr(torch, dtype)),
        torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.05),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def learning_rate_share(step: int, steps: int) -> float:
    """The share of the learning rate at `step` (from 0) of `steps`: warm-up, stable, then linear to 2 %."""
    warm = min(1.0, (step + 1) / _WARMUP_STEPS)
    left = 1 - step / steps
    return warm * min(1.0, max(0.02, left / (1 - _STABLE_SHARE)))


def batches(ways: Sequence[Sequence[list[int]]], target: Target) -> Iterator[list[list[int]]]:
    """Batches without end of whole exchanges, padded to the longest, of at most batch x sequence tokens.

    ways: per template, the exchange about every name; each pass over the names asks in another way. An exchange longer
    than a sequence is cut.
    """
    # One exchange a row, as it is served: packed one after the other, hardly any prompt would come first.
    shuffled = random.Random(target.seed)
    order = list(range(len(ways[0])))
    budget = target.batch * target.sequence
    turn = 0
    while True:
        shuffled.shuffle(order)
        exchanges = [ways[(index + turn) % len(ways)][index][: target.sequence] for index in order]
        exchanges.sort(key=len)  # stable: those of one length stay shuffled
        batches: list[list[list[int]]] = [[]]
        for row in exchanges:
            if (len(batches[-1]) + 1) * len(row) > budget:
                batches.append([])
            batches[-1].append(row)
        shuffled.shuffle(batches)
        for batch in batches:
            longest = max(len(row) for row in batch)
            yield [row + [PAD] * (longest - len(row)) for row in batch]
        turn += 1
