"""The architecture of GPUs as the capability table calls it."""

from collections.abc import Collection

from aerie.engines import nvml
from aerie.errors import AerieError

__all__ = ["ARCHS", "here", "of"]

ARCHS = {"9.0": "sm90", "10.0": "sm100", "12.0": "sm120"}


def of(capabilities: Collection[str]) -> str:
    """Of GPUs with these compute capabilities ("9.0"). Raises AerieError unless it is one, with rows in the table."""
    found = sorted(set(capabilities))
    if len(found) != 1 or found[0] not in ARCHS:
        raise AerieError(
            "GPUs",
            seen=", ".join(found) or "none that NVML shows",
            expected=f"GPUs of one compute capability: {', '.join(ARCHS)}",
            remedy="Run ./invoke plan for the host; other GPUs have no rows in the capability table.",
        )
    return ARCHS[found[0]]


def here() -> str:
    """Of this machine's GPUs, by NVML. Raises AerieError as `of` does, also where there is no driver."""
    with nvml.opened() as pynvml:
        if pynvml is None:
            return of(())
        pairs = [pynvml.nvmlDeviceGetCudaComputeCapability(handle) for handle in nvml.handles(pynvml)]
    return of([f"{major}.{minor}" for major, minor in pairs])
