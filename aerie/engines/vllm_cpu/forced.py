"""Forced acceptance for vLLM's CPU build, to measure what a verify step costs.

vLLM's own `rejection_sample_method: synthetic` starts and then kills the engine at the first request on a CPU
("Synthetic acceptance not supported with CPU sampling", 0.32.0); this replaces the greedy kernel instead. Drafting,
verification and everything else of a step stay the engine's; only which drafts count as accepted is forced.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["ForcedLength", "greedy_sample", "install"]


class ForcedLength:
    """How many drafts the next verify step accepts, so that the mean is the length in a file minus 1.

    Deterministic: 2.5 gives 1, 2, 1, 2, … drafts. The file is read again when its time stamp changes.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp = -1
        self._drafts = 0.0
        self._owed = 0.0

    def next(self) -> int:
        """Drafts to accept in one verify step of one request."""
        stamp = os.stat(self._path).st_mtime_ns
        if stamp != self._stamp:
            with open(self._path) as file:
                self._drafts = float(file.read()) - 1
            self._stamp, self._owed = stamp, 0.0
        self._owed += self._drafts
        # The small term keeps a sum such as 10 x 0.1 from falling just short of the whole draft that it is.
        whole = int(self._owed + 1e-9)
        self._owed -= whole
        return whole


def greedy_sample(
    length: ForcedLength,
    output_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_argmax: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    is_greedy: torch.Tensor | None,
    *_unused: object,
) -> None:
    """Fill `output_token_ids` [requests, k + 1] as vLLM's greedy rejection kernel does, acceptance forced.

    The first drafts as they are, then the target's token at the first refused position, or the bonus token when
    none was refused; the rest stays as it is (the caller's mark for "no token"). vLLM passes the arguments by position.
    """
    start = 0
    for row, end in enumerate(cu_num_draft_tokens.tolist()):
        if is_greedy is None or bool(is_greedy[row]):
            accepted = min(length.next(), end - start)
            output_token_ids[row, :accepted] = draft_token_ids[start : start + accepted]
            refused = start + accepted
            output_token_ids[row, accepted] = target_argmax[refused] if refused < end else bonus_token_ids[row, 0]
        start = end


def install() -> None:
    """vLLM's plugin entry: replace the kernel before vLLM binds it (its workers load plugins first)."""
    from vllm.utils import cpu_triton_utils

    length = ForcedLength(os.environ["AERIE_FORCED_LENGTH_FILE"])
    cpu_triton_utils._rejection_greedy_sample_kernel_impl = functools.partial(greedy_sample, length)
