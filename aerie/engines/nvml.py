"""NVML of this machine, open for a while."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["handles", "opened"]


@contextmanager
def opened() -> Iterator[Any]:
    """The module pynvml with NVML open, closed at the end; None where there is no driver.

    Raises ModuleNotFoundError in an environment without pynvml.
    """
    pynvml = importlib.import_module("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def handles(pynvml: Any) -> list[Any]:
    """Of every GPU, by index."""
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
