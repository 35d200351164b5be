"""vLLM's connector that writes hidden states to files, made to run on a CPU.

The stock one copies with CUDA streams, events and pinned memory; here the copy is a plain one and is done when the
call returns. Which states are taken, and when, stays vLLM's code (0.32.0).
"""

import fcntl
import os

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
    extract_from_kv_cache,
)

__all__ = ["CpuHiddenStatesConnector"]


class _Copied:
    """What the base class asks of a CUDA event; a CPU copy is complete at once."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class CpuHiddenStatesConnector(ExampleHiddenStatesConnector):  # type: ignore[misc]  # vllm is not in this environment
    """Writes {hidden_states [T, layers, H], token_ids [T]} to the file that the response names.

    A lock beside the file is held until it is whole, as with the stock connector.
    """

    def _submit_async_write(self, pending: PendingSave) -> None:
        if not self._is_tp_rank_zero:
            return
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (blocks.unsqueeze(1) * self._block_size + torch.arange(self._block_size)).flatten()
        # The blocks are given to the next request as soon as this returns.
        states = extract_from_kv_cache(self._kv_cache, slots, pending.token_ids.shape[0]).clone().contiguous()
        lock = self._lock_fds.pop(pending.req_id, None)
        if lock is None:
            lock = os.open(f"{pending.filename}.lock", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            save_file({"hidden_states": states, "token_ids": pending.token_ids.clone()}, pending.filename)
        finally:
            os.close(lock)
        self._req_copy_events[pending.req_id] = _Copied()
