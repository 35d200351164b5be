"""SGLang's plugin that writes hidden states to files: those of chosen layers and the last one, of the same pass.

SGLang itself gives out the last state or those of chosen layers, never both (0.5.16 and 0.5.23, read), and as JSON: 11
characters for a number of two bytes, made by the scheduler's own loop, and read at 8 MB of states a second (measured).
Here the last state joins the chosen ones where the engine gathers them, and what a request has becomes a file when it
ends; the answer has no numbers. The last state is the one after the final norm: that is what the engine has there.
"""

import fcntl
import logging
import os
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from aerie.engines.states import header

__all__ = ["FOLDER", "LAYERS", "Capturer", "install"]

FOLDER = "AERIE_CAPTURE_FOLDER"  # variables of the server's environment
LAYERS = "AERIE_CAPTURE_LAYERS"

_TYPES = {torch.bfloat16: "BF16", torch.float32: "F32"}
_WRITERS = 2
_log = logging.getLogger(__name__)


@dataclass
class _Taken:
    """States of one request so far: [positions, width] tensors in order. lock: held until its file is whole."""

    lock: int
    parts: list[torch.Tensor] = field(default_factory=list)

    @property
    def positions(self) -> int:
        return sum(len(part) for part in self.parts)


class Capturer:
    """Hooks for one process of SGLang. layers: ids as the engine counts them, without the last state.

    A request that asks for its states gets <id>.safetensors in the folder: hidden_states [T, layers + 1, H] and
    token_ids [T]. A lock beside it exists before the answer is sent, and is held until the file is whole.
    """

    def __init__(self, folder: Path, layers: Sequence[int]) -> None:
        self._folder, self._layers = folder, list(layers)
        self._hidden = 0
        self._taken: dict[str, _Taken] = {}
        self._writers = ThreadPoolExecutor(max_workers=_WRITERS)

    def choose_layers(self, _: None, *, model: Any, **more: Any) -> None:
        """After the engine chose layers for a drafter, before it captures graphs: ours."""
        model.set_eagle3_layers_to_capture(self._layers)

    def add_last(
        self,
        original: Callable[..., Any],
        processor: Any,
        input_ids: Any,
        hidden_states: torch.Tensor,
        lm_head: Any,
        logits_metadata: Any,
        aux_hidden_states: torch.Tensor | list[torch.Tensor] | None = None,
        hidden_states_before_norm: torch.Tensor | None = None,
    ) -> Any:
        """Around the computing of logits: to it the last state is one of the chosen ones. An idle batch has none."""
        if aux_hidden_states is not None:
            self._hidden = hidden_states.shape[-1]
            if isinstance(aux_hidden_states, torch.Tensor):  # packed, from 0.5.23 on
                aux_hidden_states = torch.cat((aux_hidden_states, hidden_states), dim=-1)
            else:
                aux_hidden_states = [*aux_hidden_states, hidden_states]
        return original(
            processor,
            input_ids,
            hidden_states,
            lm_head,
            logits_metadata,
            aux_hidden_states,
            hidden_states_before_norm,
        )

    def settle(self, output: Any, *_: Any, **__: Any) -> None:
        """After a forward pass: its states are in memory of their own, on the first rank alone."""
        logits = output.logits_output
        if logits.hidden_states is None:
            return
        if torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
            logits.hidden_states = None  # every rank has them all, and one writes
        elif output.can_run_graph:
            # The copy to the host overlaps the next pass, which would write into the graph's own output.
            logits.hidden_states = logits.hidden_states.clone()

    def prefill(self, original: Callable[..., Any], processor: Any, batch: Any, result: Any) -> Any:
        """Around the processing of prompts, or of parts of them."""
        if (states := _arrived(batch, result)) is not None:
            start = 0
            for req, before, length in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True):
                if _wants(req):
                    self._begin(req.rid, before).parts.append(_copy(states[start : start + length]))
                start += length
        return self._end(original(processor, batch, result), batch)

    def decode(self, original: Callable[..., Any], processor: Any, batch: Any, result: Any) -> Any:
        """Around the processing of one generated token of each request."""
        if (states := _arrived(batch, result)) is not None:
            for row, req in enumerate(batch.reqs):
                if _wants(req):
                    self._taken[req.rid].parts.append(_copy(states[row : row + 1]))
        return self._end(original(processor, batch, result), batch)

    def _begin(self, rid: str, before: int) -> _Taken:
        """What is taken of a request whose next states are of positions from `before` on."""
        taken = self._taken.get(rid)
        if taken is None:
            lock = os.open(self._folder / f"{rid}.safetensors.lock", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
            taken = self._taken[rid] = _Taken(lock=lock)
        elif before == 0:
            taken.parts.clear()  # it was retracted for want of cache, and is computed again from its start
        if taken.positions != before:
            raise RuntimeError(f"states of {taken.positions} positions before position {before}: a prefix was cached")
        return taken

    def _end(self, returned: Any, batch: Any) -> Any:
        """Have the states of requests that ended written."""
        for req in batch.reqs:
            if req.finished() and (taken := self._taken.pop(req.rid, None)):
                tokens = [*req.origin_input_ids, *req.output_ids]
                self._writers.submit(self._write, req.rid, taken, tokens)
        return returned

    def _write(self, rid: str, taken: _Taken, tokens: Sequence[int]) -> None:
        try:
            states = torch.cat(taken.parts)
            states = states.view(len(states), len(self._layers) + 1, self._hidden)
            _save(self._folder / f"{rid}.safetensors", states, tokens)
        except Exception:
            _log.exception("the states of request %s are not written", rid)  # who waits for the file sees none
        finally:
            fcntl.flock(taken.lock, fcntl.LOCK_UN)  # a child forked meanwhile would hold it after a close alone
            os.close(taken.lock)


def install() -> None:
    """SGLang's plugin entry: every process runs it, before the modules that it changes have objects."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    capturer = Capturer(Path(os.environ[FOLDER]), [int(layer) for layer in os.environ[LAYERS].split(",")])
    srt, results = "sglang.srt", "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
    setup = "model_executor.model_runner_components.attention_backend_setup.configure_aux_hidden_state_capture"
    HookRegistry.register(f"{srt}.{setup}", capturer.choose_layers, HookType.AFTER)
    HookRegistry.register(f"{srt}.layers.logits_processor.LogitsProcessor.forward", capturer.add_last, HookType.AROUND)
    HookRegistry.register(f"{srt}.model_executor.model_runner.ModelRunner.forward", capturer.settle, HookType.AFTER)
    HookRegistry.register(f"{srt}.{results}.process_batch_result_prefill", capturer.prefill, HookType.AROUND)
    HookRegistry.register(f"{srt}.{results}.process_batch_result_decode", capturer.decode, HookType.AROUND)


def _save(path: Path, states: torch.Tensor, tokens: Sequence[int]) -> None:
    """Write without a copy of the numbers: safetensors makes one, and the scheduler waits for the interpreter."""
    numbers = memoryview(states.view(torch.uint8).numpy()).cast("B")
    token_ids = array("q", tokens[: len(states)])  # the last token was never an input: it has no state
    parts = {
        "hidden_states": (_TYPES[states.dtype], tuple(states.shape), numbers.nbytes),
        "token_ids": ("I64", (len(token_ids),), 8 * len(token_ids)),
    }
    with open(path, "wb") as file:
        for data in (header(parts), numbers, token_ids):
            file.write(data)


def _arrived(batch: Any, result: Any) -> torch.Tensor | None:
    """States of the batch, [positions, width], taken from the result once they are on the host: nobody makes lists of
    them. None where no request asks."""
    logits = result.logits_output
    if logits is None or logits.hidden_states is None or not any(req.return_hidden_states for req in batch.reqs):
        return None
    if result.copy_done is not None:
        result.copy_done.synchronize()
    states: torch.Tensor = logits.hidden_states
    logits.hidden_states = None
    return states


def _wants(req: Any) -> bool:
    # One more pass may have begun before a request was known to have ended.
    return bool(req.return_hidden_states) and not req.finished() and not req.is_retracted


def _copy(states: torch.Tensor) -> torch.Tensor:
    """In plain memory: a part would keep the pinned memory of its whole batch."""
    return states.detach().to("cpu", copy=True)
