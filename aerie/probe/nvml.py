"""What NVML says: the GPUs, their ways to each other, and why it says nothing where it does not."""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any, Callable

from .processes import name_of, unit_of
from .reading import reading, unknown

__all__ = ["answers", "read", "version_of"]

LIBRARY = "libnvidia-ml.so.1"  # found as pynvml finds it
P2P = {
    0: "ok", 1: "chipset not supported", 2: "GPU not supported", 3: "topology not supported",
    4: "disabled by a registry key", 5: "not supported", 6: "unknown",
}  # fmt: skip
TOPOLOGY = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
ADDRESSING = {0: "none", 1: "hmm", 2: "ats"}
RECOVERY_ACTION = 230


def read() -> dict[str, Any]:
    """library_version, error, cuda_version, gpus, p2p and topology, as the snapshot has them."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        # As pynvml would say. It takes 0.15 s to compile, which a host without the library need not wait for.
        return _silent("12 NVML Shared Library Not Found", None, None)
    library = reading(_library_version)
    import pynvml

    return answers(pynvml, library)


def answers(pynvml: Any, library: Any) -> dict[str, Any]:
    """As `read`, of this module; library: the version of the library that it calls."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        said = _words(pynvml, error)
        return _silent(said, library, unknown(f"NVML: {said}"))
    try:
        handles = [_handle(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        good = {index: handle for index, handle in enumerate(handles) if not isinstance(handle, str)}
        return {
            "library_version": library,
            "error": None,
            "cuda_version": reading(_cuda_version, pynvml),
            "gpus": [_gpu(pynvml, index, handle) for index, handle in enumerate(handles)],
            "p2p": reading(_pairs, good, lambda one, other: _p2p(pynvml, one, other)),
            "topology": reading(_pairs, good, lambda one, other: _topology(pynvml, one, other)),
        }
    finally:
        pynvml.nvmlShutdown()


def _words(pynvml: Any, error: Any) -> str:
    """Number and text as nvidia-smi has them, "18 Driver/library version mismatch": pynvml has words of its own."""
    try:
        return f"{error.value} {pynvml.nvmlErrorString(error.value)}"
    except pynvml.NVMLError:
        return f"{error.value} {error}"


def version_of(path: str) -> str | None:
    """The version in a library's name, "590.48.01" of libnvidia-ml.so.590.48.01."""
    match = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path)
    return match[1] if match else None


def _silent(error: str, library: Any, other: Any) -> dict[str, Any]:
    missing = unknown(f"NVML: {error}")
    return {
        "library_version": library,
        "error": error,
        "cuda_version": other,
        "gpus": missing,
        "p2p": missing,
        "topology": missing,
    }


def _library_version() -> str:
    """By the name of the file that the dynamic linker chose."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libnvidia-ml.so" in line}
    for path in paths:
        version = version_of(os.path.realpath(path))
        if version:
            return version
    raise ValueError(f"no version in {', '.join(sorted(paths))}")


def _cuda_version(pynvml: Any) -> str:
    number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{number // 1000}.{number % 1000 // 10}"


def _handle(pynvml: Any, index: int) -> Any:
    """NVML's handle of a GPU, or its words why there is none."""
    try:
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return _words(pynvml, error)


class _Card:
    """Questions about one GPU. error: why there is no access to it, None when there is."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self.pynvml, self._handle = pynvml, handle
        self.error = handle if isinstance(handle, str) else None

    def ask(self, question: Callable[..., Any], *arguments: Any, take: Callable[[Any], Any] = lambda it: it) -> Any:
        """The answer; None for what the card or its driver does not support, unknown for what failed."""
        if self.error:
            return unknown(f"NVML: {self.error}")
        try:
            return take(question(self._handle, *arguments))
        except (self.pynvml.NVMLError_NotSupported, self.pynvml.NVMLError_FunctionNotFound):
            return None
        except self.pynvml.NVMLError as failure:
            return unknown(f"NVML: {_words(self.pynvml, failure)}")
        except Exception as failure:
            return unknown(f"NVML: {type(failure).__name__}: {failure}")

    def word(self, question: Callable[..., Any], take: Callable[[Any], Any] = str) -> str:
        """An answer that is part of a card's identity; "" when there is none."""
        answer = self.ask(question, take=take)
        return answer if isinstance(answer, str) else ""

    def item(self, question: Callable[..., Any], at: int, take: Callable[[Any], Any] = bool) -> Any:
        """One of several values that NVML gives together."""
        return self.ask(question, take=lambda answer: take(answer[at]))


def _gpu(pynvml: Any, index: int, handle: Any) -> dict[str, Any]:
    """The snapshot's Gpu. What the card does not support is None, what fails is unknown."""
    card = _Card(pynvml, handle)
    return {
        "index": index,
        "error": card.error,
        "uuid": card.word(pynvml.nvmlDeviceGetUUID),
        "bus_id": card.word(pynvml.nvmlDeviceGetPciInfo, lambda pci: pci.busId),
        "name": card.word(pynvml.nvmlDeviceGetName),
        "serial": card.ask(pynvml.nvmlDeviceGetSerial),
        "pci_id": card.word(pynvml.nvmlDeviceGetPciInfo, lambda pci: _pci_id(pci.pciDeviceId)),
        "compute_capability": card.word(pynvml.nvmlDeviceGetCudaComputeCapability, lambda pair: f"{pair[0]}.{pair[1]}"),
        "memory_bytes": _or_unknown(card.ask(pynvml.nvmlDeviceGetMemoryInfo, take=lambda memory: memory.total)),
        "bar1_bytes": card.ask(pynvml.nvmlDeviceGetBAR1MemoryInfo, take=lambda memory: memory.bar1Total),
        "numa_node": card.ask(pynvml.nvmlDeviceGetNumaNodeId),
        "gsp_version": card.ask(pynvml.nvmlDeviceGetGspFirmwareVersion, take=_gsp),
        "addressing_mode": card.ask(pynvml.nvmlDeviceGetAddressingMode, take=_addressing),
        "persistence": card.ask(pynvml.nvmlDeviceGetPersistenceMode, take=bool),
        "mig": card.item(pynvml.nvmlDeviceGetMigMode, 0),
        "mig_pending": card.item(pynvml.nvmlDeviceGetMigMode, 1),
        "processes": _or_unknown(card.ask(lambda gpu: _processes(pynvml, gpu))),
        **_link_and_power(pynvml, card),
        **_health(pynvml, card),
    }


def _link_and_power(pynvml: Any, card: _Card) -> dict[str, Any]:
    limits = pynvml.nvmlDeviceGetPowerManagementLimitConstraints
    return {
        "link_width": card.ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth),
        "link_width_max": card.ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth),
        "link_gen": card.ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
        "link_gen_max": card.ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
        "replays": card.ask(pynvml.nvmlDeviceGetPcieReplayCounter),
        "power_limit_mw": card.ask(pynvml.nvmlDeviceGetPowerManagementLimit),
        "power_limit_default_mw": card.ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit),
        "power_limit_min_mw": card.item(limits, 0, int),
        "power_limit_max_mw": card.item(limits, 1, int),
    }


def _health(pynvml: Any, card: _Card) -> dict[str, Any]:
    uncorrected = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    return {
        "ecc": card.item(pynvml.nvmlDeviceGetEccMode, 0),
        "ecc_pending": card.item(pynvml.nvmlDeviceGetEccMode, 1),
        "ecc_uncorrected": card.ask(pynvml.nvmlDeviceGetTotalEccErrors, *uncorrected),
        "remap_pending": card.item(pynvml.nvmlDeviceGetRemappedRows, 2),
        "remap_failed": card.item(pynvml.nvmlDeviceGetRemappedRows, 3),
        "clock_event_reasons": card.ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons),
        "recovery_action": card.ask(lambda gpu: _field(pynvml, gpu, RECOVERY_ACTION)),
        "temperature_c": card.ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        "utilization_percent": card.ask(pynvml.nvmlDeviceGetUtilizationRates, take=lambda rates: rates.gpu),
    }


def _or_unknown(answer: Any) -> Any:
    return unknown("NVML: not supported") if answer is None else answer


def _pci_id(number: int) -> str:
    """NVML gives device and vendor in one word, 0x2bb510de."""
    return f"{number & 0xFFFF:04x}:{number >> 16:04x}"


def _addressing(answer: Any) -> str:
    value = int(getattr(answer, "value", answer))
    return ADDRESSING.get(value, str(value))


def _gsp(answer: Any) -> str:
    value = getattr(answer, "value", answer)
    return value.decode() if isinstance(value, bytes) else str(value)


def _field(pynvml: Any, handle: Any, field: int) -> int:
    answer = pynvml.nvmlDeviceGetFieldValues(handle, [field])[0]
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(answer.nvmlReturn)
    return int(answer.value.uiVal)


def _processes(pynvml: Any, handle: Any) -> list[dict[str, Any]]:
    found = {}
    for question in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            answers = question(handle)
        except pynvml.NVMLError_NotSupported:
            continue
        for process in answers:
            found[process.pid] = {
                "pid": process.pid,
                "name": name_of(process.pid),
                "memory_bytes": unknown("NVML: not available")
                if process.usedGpuMemory is None
                else process.usedGpuMemory,
                "unit": unit_of(process.pid),
            }
    return [found[pid] for pid in sorted(found)]


def _pairs(handles: dict[int, Any], ask: Callable[[Any, Any], str]) -> dict[str, str]:
    """An answer for every ordered pair, "0>1"."""
    return {f"{one}>{other}": ask(handles[one], handles[other]) for one in handles for other in handles if one != other}


def _p2p(pynvml: Any, one: Any, other: Any) -> str:
    """Whether `one` may read and write the memory of `other`: "ok", or NVML's reason."""
    # Not by pynvml's names: in 13.615 NVML_P2P_CAPS_INDEX_READ is a tuple, `0,`, which ctypes refuses.
    for direction, index in (("read", 0), ("write", 1)):
        try:
            status = pynvml.nvmlDeviceGetP2PStatus(one, other, index)
        except pynvml.NVMLError as error:
            return f"{direction}: {_words(pynvml, error)}"
        if status != 0:
            return f"{direction}: {P2P.get(status, status)}"
    return "ok"


def _topology(pynvml: Any, one: Any, other: Any) -> str:
    try:
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
    except pynvml.NVMLError as error:
        return _words(pynvml, error)
    return TOPOLOGY.get(level, str(level))
