"""Acceptance during a measurement, from what the server counted meanwhile, in whichever names its version has."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from aerie.engines.acceptance import Acceptance
from aerie.engines.adapter import adapter
from aerie.engines.counts import of_meta_info

__all__ = ["acceptance"]


def acceptance(before: str, after: str, metas: Sequence[Mapping[str, Any]]) -> Acceptance | None:
    """Between two texts of /metrics, or the sum of what the answers told of themselves; None where neither counts.

    SGLang's /metrics has gauges of the last interval and nothing that adds up: there the answers count, those of the
    native interface and, where the server adds them, of the OpenAI one.
    """
    read = adapter("vllm").counters
    first, last = read(before), read(after)
    if first and last:
        return Acceptance.between(first, last)
    told = [one for meta in metas if (one := of_meta_info(meta)) is not None]
    return reduce(lambda one, other: one + other, told) if told else None
