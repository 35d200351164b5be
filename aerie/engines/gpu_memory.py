"""GPU memory as NVML counts it, around the life of a server: a stop is done when the memory is free again.

SIGTERM to SGLang's launcher alone left 56,922 MiB in its scheduler's hands, twice (0.5.16 on an H200, 2026-11-30).
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from aerie.engines import nvml

if TYPE_CHECKING:
    from aerie.findings import Finding

__all__ = ["held_after", "used_bytes"]

TOLERANCE_BYTES = 512 << 20  # a driver's own share moves by some MiB when contexts come and go
TIMEOUT_S = 20.0  # the driver frees a process's memory within a second or two of its end
_EVERY_S = 0.2


def used_bytes() -> Mapping[int, int]:
    """Memory in use of each GPU of this machine, by index; empty where there is no driver."""
    with nvml.opened() as pynvml:
        if pynvml is None:
            return {}
        memory = map(pynvml.nvmlDeviceGetMemoryInfo, nvml.handles(pynvml))
        return {index: int(one.used) for index, one in enumerate(memory)}


def held_after(
    before: Mapping[int, int],
    *,
    host: str = "localhost",
    read: Callable[[], Mapping[int, int]] = used_bytes,
    timeout_s: float = TIMEOUT_S,
) -> "Finding | None":
    """Waits until each GPU has no more memory in use than `before` a server started; the finding when that fails."""
    deadline = time.monotonic() + timeout_s
    while held := _held(before, read()):
        if time.monotonic() >= deadline:
            from aerie.findings import catalogue  # a host that measures its own engine has no catalogue

            return catalogue.make(
                "engine.gpu-memory-held",
                seen=", ".join(f"GPU {index}: {size >> 20} MiB" for index, size in held.items()),
                expected=f"no more than {TOLERANCE_BYTES >> 20} MiB above what was used before the start",
                host=host,
            )
        time.sleep(_EVERY_S)
    return None


def _held(before: Mapping[int, int], now: Mapping[int, int]) -> dict[int, int]:
    more = {index: size - before.get(index, 0) for index, size in now.items()}
    return {index: size for index, size in more.items() if size > TOLERANCE_BYTES}
