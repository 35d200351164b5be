"""What the probe makes of NVML's answers. The library is a stand-in here; lab hosts have one behind the real pynvml."""

from types import SimpleNamespace

import pynvml
import pytest

from aerie.probe import nvml

MIB = 1 << 20
# Values of one card of a public report of an 8-GPU host (RTX PRO 6000 Blackwell Server Edition, driver 595.58.03).
CARD = {
    "nvmlDeviceGetUUID": "GPU-00000000-0000-4000-8000-000000000000",
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:05:00.0", pciDeviceId=0x2BB510DE),
    "nvmlDeviceGetName": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "nvmlDeviceGetSerial": "1325025000000",
    "nvmlDeviceGetCudaComputeCapability": (12, 0),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=97887 * MIB),
    "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Total=131072 * MIB),
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetPcieReplayCounter": 0,
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetEccMode": [1, 0],
    "nvmlDeviceGetTotalEccErrors": 2,
    "nvmlDeviceGetRemappedRows": (3, 4, 1, 0),
    "nvmlDeviceGetMigMode": [0, 1],
    "nvmlDeviceGetPowerManagementLimit": 450000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 600000,
    "nvmlDeviceGetPowerManagementLimitConstraints": [300000, 600000],
    "nvmlDeviceGetCurrentClocksEventReasons": 1,
    "nvmlDeviceGetAddressingMode": 1,
    "nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=2))],
    "nvmlDeviceGetGspFirmwareVersion": b"590.48.01",
    "nvmlDeviceGetNumaNodeId": 0,
    "nvmlDeviceGetTemperature": 34,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=7),
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1, usedGpuMemory=None)],
    "nvmlDeviceGetGraphicsRunningProcesses": [],
    "nvmlDeviceGetP2PStatus": 0,
    "nvmlDeviceGetTopologyCommonAncestor": 40,
}


class Library:
    """pynvml with another library behind it: an answer by function name, an exception is raised."""

    def __init__(self, count=1, lost=(), init=None, **changes):
        self._answers = {**CARD, **changes}
        self._count, self._lost, self._init = count, lost, init
        self.is_open = False

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            return getattr(pynvml, name)
        return lambda *arguments: self._answer(name, arguments)

    def _answer(self, name, arguments):
        answer = self._answers[name]
        if callable(answer):
            answer = answer(*arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def nvmlInit(self):  # noqa: N802 - pynvml's name
        if self._init:
            raise pynvml.NVMLError(self._init)
        self.is_open = True

    def nvmlShutdown(self):  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self):  # noqa: N802
        return self._count

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index in self._lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlErrorString(self, code):  # noqa: N802
        return {3: "Not Supported", 9: "Driver Not Loaded", 15: "GPU is lost", 999: "Unknown Error"}.get(
            code, "Driver/library version mismatch"
        )

    def nvmlSystemGetCudaDriverVersion_v2(self):  # noqa: N802
        return 13010


def test_every_value_of_a_card():
    library = Library()
    found = nvml.answers(library, "590.48.01")
    assert (found["error"], found["library_version"], found["cuda_version"]) == (None, "590.48.01", "13.1")
    assert not library.is_open
    (gpu,) = found["gpus"]
    assert gpu.pop("processes") == [
        {"pid": 1, "name": gpu_name_of_1(), "memory_bytes": {"unknown": "NVML: not available"}, "unit": None}
    ]
    assert gpu == {
        "index": 0,
        "error": None,
        "uuid": "GPU-00000000-0000-4000-8000-000000000000",
        "bus_id": "00000000:05:00.0",
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "serial": "1325025000000",
        "pci_id": "10de:2bb5",
        "compute_capability": "12.0",
        "memory_bytes": 97887 * MIB,
        "bar1_bytes": 131072 * MIB,
        "link_width": 16,
        "link_width_max": 16,
        "link_gen": 1,
        "link_gen_max": 5,
        "replays": 0,
        "persistence": True,
        "ecc": True,
        "ecc_pending": False,
        "ecc_uncorrected": 2,
        "remap_pending": True,
        "remap_failed": False,
        "mig": False,
        "mig_pending": True,
        "power_limit_mw": 450000,
        "power_limit_default_mw": 600000,
        "power_limit_min_mw": 300000,
        "power_limit_max_mw": 600000,
        "clock_event_reasons": 1,
        "addressing_mode": "hmm",
        "recovery_action": 2,
        "gsp_version": "590.48.01",
        "numa_node": 0,
        "temperature_c": 34,
        "utilization_percent": 7,
    }


def gpu_name_of_1():
    with open("/proc/1/comm") as file:
        return file.read().strip()


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, None),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, None),
        (pynvml.NVML_ERROR_UNKNOWN, {"unknown": "NVML: 999 Unknown Error"}),
        (pynvml.NVML_ERROR_GPU_IS_LOST, {"unknown": "NVML: 15 GPU is lost"}),
    ],
    ids=["not-supported", "older-library", "failed", "lost-meanwhile"],
)
def test_not_supported_is_told_from_failed(code, value):
    found = nvml.answers(Library(nvmlDeviceGetEccMode=pynvml.NVMLError(code)), "590.48.01")
    assert found["gpus"][0]["ecc"] == value
    assert found["gpus"][0]["ecc_pending"] == value
    assert found["gpus"][0]["mig"] is False


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "18 Driver/library version mismatch"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "9 Driver Not Loaded"),
    ],
)
def test_why_nvml_says_nothing(code, words):
    found = nvml.answers(Library(init=code), "590.48.01")
    assert found["error"] == words
    assert found["library_version"] == "590.48.01"
    assert set(found["gpus"]) == set(found["p2p"]) == set(found["cuda_version"]) == {"unknown"}


def test_a_lost_card_keeps_its_number_and_the_others_stay():
    found = nvml.answers(Library(count=3, lost={1}), "590.48.01")
    assert [gpu["error"] for gpu in found["gpus"]] == [None, "15 GPU is lost", None]
    assert found["gpus"][1]["uuid"] == ""
    assert found["gpus"][1]["ecc"] == {"unknown": "NVML: 15 GPU is lost"}
    assert sorted(found["p2p"]) == ["0>2", "2>0"]


def test_peers_must_read_and_write():
    def status(one, other, direction):
        return 5 if (one, other, direction) == (1, 0, pynvml.NVML_P2P_CAPS_INDEX_WRITE) else 0

    found = nvml.answers(Library(count=2, nvmlDeviceGetP2PStatus=status), "590.48.01")
    assert found["p2p"] == {"0>1": "ok", "1>0": "write: not supported"}
    assert found["topology"] == {"0>1": "node", "1>0": "node"}


def test_a_field_that_failed_alone_is_unknown():
    broken = [SimpleNamespace(nvmlReturn=pynvml.NVML_ERROR_UNKNOWN, value=None)]
    found = nvml.answers(Library(nvmlDeviceGetFieldValues=broken), "590.48.01")
    assert found["gpus"][0]["recovery_action"] == {"unknown": "NVML: 999 Unknown Error"}
