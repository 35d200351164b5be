"""What is launched of each extension, and with what its results are compared: one module for each library.

The modules are read by the host's own Python too, which has no torch: they get it as an argument.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["MODULES", "Kernel", "Pair", "Recipe"]

MODULES = {
    "flash-attn": "aerie.extensions.onhost.proofs.flash_attn",
    "sgl-kernel": "aerie.extensions.onhost.proofs.sgl_kernel",
    "sglang-kernel": "aerie.extensions.onhost.proofs.sgl_kernel",  # its name since 0.4
}


class Pair(NamedTuple):
    """The same inputs in two functions. Both give the same tensors in the same order; the reference's are float32.

    launched is called first: memory that the reference left behind would make a launch that did nothing look right.
    """

    launched: Callable[[], Sequence[Any]]
    reference: Callable[[], Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One call into the library. name: with its shape and type, as the evidence has it.

    tolerance: the greatest error that is right, as part of the greatest value; see Launch. prepare: makes the inputs
    on the current GPU, of the torch that it gets. least: the lowest architecture that the library has it for (89).
    """

    name: str
    tolerance: float
    prepare: Callable[[Any], Pair]
    least: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a package is proven, RECIPE of its module. imports: modules, in order.

    library: pattern of the library that a GPU of this architecture runs, below the environment's packages.
    """

    imports: tuple[str, ...]
    library: Callable[[str], str]
    kernels: tuple[Kernel, ...]
