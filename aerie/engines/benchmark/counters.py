"""Acceptance during a measurement, from what the server counted meanwhile, in whichever names its version has."""

from aerie.engines.acceptance import Acceptance
from aerie.engines.adapter import adapter

__all__ = ["acceptance"]


def acceptance(before: str, after: str) -> Acceptance | None:
    """Between two texts of /metrics; None where nothing drafts or nothing counts it."""
    read = adapter("vllm").counters  # of SGLang each answer has its own, and /metrics nothing that adds up
    first, last = read(before), read(after)
    return Acceptance.between(first, last) if first and last else None
