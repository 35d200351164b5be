"""Samples as SpecForge reads them: a file each, with tokens, mask, and states of which the last is after the norm."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from aerie.errors import AerieError
from aerie.runbook.step import Json, write_atomic

if TYPE_CHECKING:
    import torch

__all__ = ["Features", "after_norm", "agreement", "check_mask", "feature_mask", "write_feature"]


class Features:
    """The feature files in a folder, and a line for each in features.jsonl beside it, written after the file: what an
    earlier attempt made is not made again.

    held_out: the numbers of the samples whose files lie in a folder of their own, which the trainer only judges by.
    `there` holds, by the sample's number, how many of its generated tokens its last states find, and how many it has.
    One writer at a time, within its `with`.
    """

    def __init__(self, kept: Path, held_out: Collection[int] = frozenset()) -> None:
        self.folder, self.held_out_folder = kept / "features", kept / "held-out"
        self._held_out = held_out
        for folder in (self.folder, self.held_out_folder):
            folder.mkdir(exist_ok=True)
        self._list = kept / "features.jsonl"
        self.there: dict[int, tuple[int, int]] = {}
        lines = []
        for line in self._list.read_text().splitlines() if self._list.exists() else []:
            try:
                number, hits, tokens, size = json.loads(line)
            except ValueError:  # cut short by a kill
                continue
            # Of a machine that lost its power a file may be shorter than what was written to it.
            if self.path(number).exists() and self.path(number).stat().st_size == size:
                self.there[number] = (hits, tokens)
                lines.append(f"{line}\n")
        write_atomic(self._list, "".join(lines).encode())

    def __enter__(self) -> Self:
        self._file = os.open(self._list, os.O_WRONLY | os.O_APPEND)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._file)

    def path(self, number: int) -> Path:
        """Of a sample's file."""
        return (self.held_out_folder if number in self._held_out else self.folder) / f"{number:06d}.ckpt"

    def add(self, number: int, hits: int, tokens: int) -> None:
        """The sample's file is written."""
        size = self.path(number).stat().st_size
        os.write(self._file, (json.dumps([number, hits, tokens, size]) + "\n").encode())
        self.there[number] = (hits, tokens)


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
    part = path.with_suffix(".part")  # a name that SpecForge does not read
    torch.save(
        {
            "input_ids": torch.tensor(input_ids),
            "loss_mask": torch.tensor(loss_mask),
            "aux_hidden_state": aux.flatten(1).unsqueeze(0).to("cpu", getattr(torch, dtype)).contiguous(),
            "hidden_state": last.unsqueeze(0).to("cpu", getattr(torch, dtype)).contiguous(),
        },
        part,
    )
    os.replace(part, path)


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
