"""The layers of a host, in the order in which they are applied and checked."""

__all__ = ["LAYERS"]

LAYERS = (
    "base",
    "kernel",
    "driver",
    "interconnect",
    "cuda",
    "python",
    "extensions",
    "storage",
    "weights",
    "engine",
)
