"""Acceptance during a measurement, from what the server counted meanwhile, in whichever names its version has."""

from aerie.engines import vllm
from aerie.engines.acceptance import Acceptance

__all__ = ["acceptance"]


def acceptance(before: str, after: str) -> Acceptance | None:
    """Between two texts of /metrics; None where nothing drafts or nothing counts it."""
    first, last = vllm.counters(before), vllm.counters(after)
    return Acceptance.between(first, last) if first and last else None
