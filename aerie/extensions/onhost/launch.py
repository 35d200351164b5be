"""In an environment, on one GPU, in a process of its own: imports an extension, then launches what its recipe names.

A kernel that fails leaves its process without a GPU, and a library may end it: so each look is a process, and what it
saw is a line of JSON as soon as it saw it, in a file, for libraries print what they like.
"""

import importlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["main"]

POISON_BYTES = 256 << 20


def main(arguments: Sequence[str]) -> int:
    """`FILE MODULE import|launch`: where to tell, the recipe's module, and how far to go. 0 also where a kernel failed.

    What an import raises is not caught: the traceback is what the one who asked wants to see.
    """
    file, module, verb = arguments
    recipe = importlib.import_module(module).RECIPE
    with open(file, "w", encoding="utf-8", buffering=1) as out:

        def tell(document: Mapping[str, Any]) -> None:
            out.write(json.dumps(document) + "\n")

        import torch

        tell({"torch": torch.__version__})
        for name in recipe.imports:
            tell({"importing": name})
            importlib.import_module(name)
        tell({"loaded": _loaded()})
        if verb == "launch":
            _launch(torch, recipe.kernels, tell)
    return 0


def _loaded() -> list[str]:
    """Libraries in this process, whole paths: of two that could be meant, this is the one that was taken."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        fields = [line.split(maxsplit=5) for line in maps]
    return sorted({row[5].strip() for row in fields if len(row) == 6 and ".so" in row[5]})


def _launch(torch: Any, kernels: Sequence[Any], tell: Callable[[Mapping[str, Any]], None]) -> None:
    major, minor = torch.cuda.get_device_capability()
    tell({"arch": f"sm_{major}{minor}", "gpu": torch.cuda.get_device_name()})
    for kernel in kernels:
        if major * 10 + minor < kernel.least:
            continue
        tell({"launching": kernel.name})
        started = time.monotonic()
        try:
            error = _error(torch, kernel)
        # Whatever it is: a launch that CUDA refused, a check of the library, a shape that it does not know.
        except Exception as failure:
            tell({"kernel": kernel.name, "error": f"{type(failure).__name__}: {_first_line(failure)}"})
            return
        wall_s = round(time.monotonic() - started, 3)
        tell({"kernel": kernel.name, "max_error": error, "tolerance": kernel.tolerance, "wall_s": wall_s})


def _error(torch: Any, kernel: Any) -> float | None:
    """The greatest error over all tensors of a kernel; None where one holds what is no number."""
    pair = kernel.prepare(torch)
    # What the allocator hands out next is this: a kernel that wrote nothing is seen.
    torch.full((POISON_BYTES // 4,), float("nan"), device="cuda")
    found = [one.detach().float() for one in pair.launched()]
    torch.cuda.synchronize()
    wanted = [one.detach() for one in pair.reference()]
    if [one.shape for one in found] != [one.shape for one in wanted]:
        raise ValueError(f"results of shape {[tuple(one.shape) for one in found]}")
    errors = [_relative(one, two) for one, two in zip(found, wanted, strict=True)]
    return None if None in errors else max(error for error in errors if error is not None)


def _relative(found: Any, wanted: Any) -> float | None:
    if not bool(found.isfinite().all()):
        return None
    return float((found - wanted).abs().max() / wanted.abs().max())


def _first_line(error: Exception) -> str:
    """CUDA's errors go on with hints for debugging."""
    return (str(error).strip() or "no message").splitlines()[0]
