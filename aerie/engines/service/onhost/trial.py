"""Asks a slot the fixed prompts, one after the other at temperature 0, and counts what of its drafts was accepted."""

import hashlib
import json
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

from aerie.engines import counts
from aerie.engines.acceptance import Acceptance
from aerie.errors import AerieError

from . import asking, regression, state
from .definition import Service

__all__ = ["COUNT", "TOKENS", "measure"]

# Those that ./invoke bench asks by default, so that a fall can be looked into with the same ones.
PROMPTS: Final = Path(__file__).parents[2] / "benchmark" / "prompts.jsonl"
COUNT: Final = 24
LATE_S: Final = 2.0  # vLLM hands an answer out before it counts it
TOKENS: Final = 32  # of each answer, whether or not it ends before: about ten seconds in all for a large model


def measure(service: Service, url: str, key: str) -> regression.Run:
    """The run of a service with a drafter. url: its slot's, to which nobody else is led yet.

    Prompts that do not fit its context, answers without a verify step, and those during which the engine answered
    somebody else too are left out. Raises AerieError where none is left, or the engine does not answer.
    """
    texts = _prompts()
    found: dict[str, Acceptance] = {}
    for text in texts:
        try:
            ids = asking.tokens(url, service.model, key, text)
            if len(ids) + TOKENS > service.context:
                continue
            counted = _vllm(service, url, key, ids) if service.engine == "vllm" else _sglang(url, key, ids)
        except asking.NotYet as error:
            raise AerieError(url, seen=str(error), expected="an answer", remedy="See the unit's journal.") from error
        if counted and counted.verify_steps:
            found[_digest(text)[:16]] = counted
    if not found:
        raise AerieError(
            url,
            seen=f"no verify step in {len(texts)} answers",
            expected="counts of accepted drafts",
            remedy="Nobody else may use the slot meanwhile; see its log for the speculative configuration.",
        )
    identity = regression.identity_of(service, _digest(json.dumps([TOKENS, *texts])))
    return regression.Run(at=state.now(), identity=identity, prompts=found)


def _vllm(service: Service, url: str, key: str, ids: list[int]) -> Acceptance | None:
    """The difference of its counters; None where it generated more than this answer meanwhile."""
    body = {"model": service.model, "prompt": ids, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    before = asking.metrics(url)
    made = asking.post(f"{url}/v1/completions", body, key)["usage"]["completion_tokens"]
    wanted, end = _generated(before) + made, time.monotonic() + LATE_S
    while _generated(after := asking.metrics(url)) < wanted and time.monotonic() < end:
        time.sleep(0.05)
    first, last = counts.of_metrics(before), counts.of_metrics(after)
    if first is None or last is None or _generated(after) != wanted:
        return None
    return Acceptance.between(first, last)


def _generated(metrics: str) -> float:
    return asking.total(metrics, "vllm:generation_tokens_total")


def _sglang(url: str, key: str, ids: list[int]) -> Acceptance | None:
    """As its own interface tells it with the answer."""
    sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": sampling}
    meta: dict[str, Any] = asking.post(f"{url}/generate", body, key)["meta_info"]
    return counts.of_meta_info(meta)


@cache
def _prompts() -> tuple[str, ...]:
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    return tuple(row["prompt"] for row in rows[:COUNT])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
