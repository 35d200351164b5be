"""Waiting for what a test depends on, and for nothing else."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE_S", "until"]

# It costs nothing when all is well, and a busy machine may let a process stand still for many seconds.
PATIENCE_S = 120.0

T = TypeVar("T")


def until(what: str, holds: Callable[[], T], told: Callable[[], object] = str) -> T:
    """Wait for something to be true; what it was. told: what else a test that fails should say."""
    end = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what} {told()}"
        time.sleep(0.02)
    return found
