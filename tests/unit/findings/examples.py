"""Hosts that differ from the healthy one in one thing: one example for each finding, and more where it has faces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aerie import lock as locks
from aerie.findings import Finding, diff
from aerie.inventory import Gpus, Host, Waiver
from aerie.lock import Lock
from aerie.snapshot import Snapshot
from tests.snapshots import GONE, healthy, read, snapshot_with

__all__ = [
    "EXAMPLES",
    "GPU_IDS",
    "REQUIRED",
    "TINY",
    "Example",
    "a_host",
    "bare",
    "judge",
    "lock_with",
    "package",
    "served",
    "staged",
]

LOCK = "ubuntu2404-cuda131"
BUS_IDS = tuple(gpu.bus_id for gpu in healthy().pci_gpus)  # type: ignore[union-attr]
SERIALS = tuple(str(gpu.serial) for gpu in healthy().gpus)  # type: ignore[union-attr]
PAIRS = tuple(healthy().interconnect.p2p)  # type: ignore[arg-type]
NVIDIA = "NVIDIA Corporation <cudatools@nvidia.com>"
UBUNTU = "Ubuntu Core Developers <ubuntu-devel-discuss@lists.ubuntu.com>"
NEXT = "6.8.0-90-generic"
MINE = "driver/modules/6.8.0-88-generic"
PACKAGES = "base/packages"
STALE = "AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"
GPU_IDS = tuple(range(8))
PIN = "b" * 64
TARGET = f"/srv/aerie/weights/tiny@{PIN[:12]}"
MODEL = {"source": "folder", "location": "/srv/models/tiny", "manifest_sha256": PIN}
TINY = {"weights/models": {"tiny": MODEL}}
REQUIRED = {**TINY, "weights/required": ["tiny"]}
TOOLS = ("ccache", "g++", "python3-dev")
WHEEL = "tinycuda-1.0-py3-none-any.whl"
TINYCUDA = {"name": "tinycuda", "version": "1.0", "environment": "serve", "module": "tinycuda"}
EXTENSION = {
    "extensions/required": ["tinycuda"],
    "extensions/packages": [{**TINYCUDA, "wheels": [{"name": WHEEL, "sha256": "d" * 64}]}],
}
BUILT = {**EXTENSION, "extensions/packages": [{**TINYCUDA, "source": {"sha256": "e" * 64}}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A host: `changes` to the healthy snapshot, `lock` to the shipped lock (by "table/field"), `host` to its entry."""

    id: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    lock: Mapping[str, Any] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)
    seen: str | None = None
    name: str = ""


def package(version: str, maintainer: str = NVIDIA, status: str = "ii") -> dict[str, Any]:
    """A package as the snapshot has it."""
    return {"version": version, "status": status, "maintainer": maintainer, "is_held": False}


def served(**differences: Any) -> dict[str, Any]:
    """Changes after which a model is served, as it should be but for these differences."""
    service = {
        "model": "tiny", "unit": "aerie-engine-tiny-blue.service", "engine": "vllm", "version": "0.33.0",
        "address": "127.0.0.1:8000", "active": "active", "result": "success", "restarts": 0, "front_active": "active",
        "limits": {"memlock": None, "nofile": 1_048_576, "stack": None}, "key_mode": "600 0",
    }  # fmt: skip
    return {"engine/services": [service | differences]}


def each_gpu(key: str, value: Any) -> dict[str, Any]:
    return {f"gpus/{index}/{key}": value for index in GPU_IDS}


def stack(version: str) -> dict[str, Any]:
    """Changes after which every package of the driver is at this version."""
    names = [
        name for name, row in read("healthy")["base"]["packages"].items() if row["version"].startswith("590.48.01")
    ]
    return {f"{PACKAGES}/{name}/version": f"{version}-1ubuntu1" for name in names}


def bare() -> dict[str, Any]:
    """Changes after which no driver, no toolkit and no repository of NVIDIA is there."""
    document = read("healthy")
    ours = [name for name, row in document["base"]["packages"].items() if row["maintainer"] == NVIDIA]
    gone: dict[str, Any] = {f"{PACKAGES}/{name}": GONE for name in ours}
    driver = {
        "loaded_version": None, "loaded_flavour": None, "library_version": None, "nvml_error": "12 library not found",
        "cuda_version": None, "modules": {}, "dkms": {}, "uvm_disable_hmm": None, "modprobe_options": {},
        "pin_files": [],
    }  # fmt: skip
    unread = {"unknown": "12 library not found"}
    return {
        **gone,
        **{f"driver/{key}": value for key, value in driver.items()},
        **{f"pci_gpus/{index}/driver": None for index in GPU_IDS},
        "base/apt_sources/2": GONE,
        "gpus": unread,
        "interconnect/p2p": unread,
        "interconnect/topology": unread,
        "cuda/toolkits": [],
        "cuda/default_path": None,
        "cuda/nvcc_in_path": None,
    }


def no_driver() -> dict[str, Any]:
    of_toolkit = ("cuda/", f"{PACKAGES}/cuda", f"{PACKAGES}/libcu")
    return {key: value for key, value in bare().items() if not key.startswith(of_toolkit)}


def no_toolkit() -> dict[str, Any]:
    return {key: value for key, value in bare().items() if key.startswith("cuda/")}


def staged(place: str = TARGET, **differs: Any) -> dict[str, Any]:
    """The model tiny as it is on a host that holds it, with what differs."""
    whole = {
        "model": "tiny", "manifest_sha256": PIN, "verified_at": "2026-11-30T05:00:00Z", "receipt_sha256": "d" * 64,
        "files": 2, "size_bytes": 80, "missing": [], "unverified": [], "extra": [], "changed": {},
        "parts": {}, "is_busy": False,
    }  # fmt: skip
    return {"weights/staged": {place: {**whole, **differs}}}


def extension(tools: tuple[str, ...] = TOOLS, **differs: Any) -> dict[str, Any]:
    """A host that has the extension tinycuda as it was installed, and what builds need, with what differs."""
    row = {
        "environment": "serve", "package": "tinycuda", "version": "1.0", "torch": "2.14.1+cu130",
        "wheel_sha256": "d" * 64, "libraries": {"tinycuda/ops.so": [[3, "sass sm_120"]]}, "changed": [],
    }  # fmt: skip
    tools = {f"{PACKAGES}/{name}": package("1", UBUNTU) for name in tools}
    torch = {"serve": {"version": "2.14.1+cu130", "cuda": "13.0"}}
    return {**tools, "extensions/torch": torch, "extensions/installed": [{**row, **differs}]}


def weights_disk(**changes: Any) -> dict[str, Any]:
    disks = read("healthy")["storage"]["filesystems"]
    return {"storage/filesystems": {**disks, "/srv/aerie": {**disks["/srv/aerie"], **changes}}}


def lock_with(changes: Mapping[str, Any]) -> Lock:
    """The shipped lock with these changes, by "table/field"."""
    tables = locks.load(LOCK).model_dump(mode="json", by_alias=True)
    for path, value in changes.items():
        place = tables
        *parents, last = path.split("/")
        for key in parents:
            place = place[key]
        place[last] = value
    return Lock.model_validate(tables)


def a_host(**changes: Any) -> Host:
    """gpu01 of the inventory with all that it may say of its GPUs."""
    gpus = Gpus(count=8, model="RTX PRO 6000 Blackwell", bus_ids=BUS_IDS, serials=SERIALS)
    values: dict[str, Any] = {"name": "gpu01", "address": "192.0.2.11", "user": "ubuntu", "connection": "ssh"}
    return Host(**{**values, "lock": LOCK, "gpus": gpus, **changes})


def judge(example: Example) -> tuple[Finding, ...]:
    """The findings of that host."""
    return diff(lock_with(example.lock), snapshot_of(example), a_host(**example.host))


def snapshot_of(example: Example) -> Snapshot:
    return snapshot_with(example.changes)


def waiver(finding: str, expires: str) -> Waiver:
    return Waiver.model_validate({"finding": finding, "reason": "ticket 4711", "expires": expires})


def example(id: str, changes: Mapping[str, Any] | None = None, seen: str | None = None, **more: Any) -> Example:  # noqa: A002
    return Example(id=id, changes=changes or {}, seen=seen, **more)


def xid(code: int, gpu: int = 0, text: str = "") -> dict[str, Any]:
    return {"time": "2026-11-30T01:00:00Z", "code": code, "bus_id": BUS_IDS[gpu], "text": text}


def lost(index: int) -> dict[str, Any]:
    """Changes after which NVML gives no access to this GPU: its names are empty, its values unknown."""
    card = read("healthy")["gpus"][index]
    words = dict.fromkeys(("uuid", "bus_id", "name", "pci_id", "compute_capability"), "")
    unread = {key: {"unknown": "15 GPU is lost"} for key in card if key not in words and key != "index"}
    return {f"gpus/{index}": {**unread, **words, "index": index, "error": "15 GPU is lost"}}


def source(uri: str, signed_by: str, key: str) -> dict[str, Any]:
    file = f"/etc/apt/sources.list.d/{uri.split('/')[-3]}-too.list"
    return {"file": file, "uri": uri, "suites": ["/"], "signed_by": signed_by, "fingerprints": [key]}


def process(pid: int, name: str, unit: str | None) -> dict[str, Any]:
    return {"pid": pid, "name": name, "memory_bytes": 90 << 30, "unit": unit}


CUDA_UBUNTU = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/"
CUDA_DEBIAN = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
KEY = "EB693B3035CD5710E231E123A4B469963BF863CC"
FIRST = BUS_IDS[3]
OLD_TOOLKIT = {"path": "/usr/local/cuda-13.0", "version": "13.0.2", "nvcc": "13.0.88"}
SERVE = {"name": "serve", "requirements": "requirements/serve.txt", "sha256": "a" * 64}

EXAMPLES: tuple[Example, ...] = (
    # base
    example("base.unsupported-system", {"os/version_id": "22.04"}, "ubuntu-22.04 x86_64",
            name="older-ubuntu"),
    example("base.unsupported-system", {"machine/arch": "aarch64"}, "ubuntu-24.04 aarch64", name="other-processor"),
    example("base.apt-broken", {"base/broken_packages": ["nvidia-dkms-open"]}, "nvidia-dkms-open"),
    example("base.apt-locked", {"base/apt_lock_holder": "apt-get (pid 4711)"}, "apt-get (pid 4711)"),
    example("base.apt-source-conflict", {"base/apt_sources/1": source(CUDA_UBUNTU, "/etc/apt/keyrings/x.gpg", KEY)},
            "/etc/apt/sources.list.d/ubuntu2404-too.list: /etc/apt/keyrings/x.gpg; "
            "/etc/apt/sources.list.d/cuda-ubuntu2404-x86_64.sources: /usr/share/keyrings/cuda-archive-keyring.gpg"),
    example("base.apt-key-stale", {"base/apt_key_fingerprints/0": STALE}, "7FA2AF80 in trusted for every source"),
    example("base.unattended-upgrades-unsafe", {"base/unattended/blacklist": ["linux-"]},
            "on, may upgrade nvidia*, libnvidia*, cuda*, libcuda*"),
    example("base.needrestart-automatic", {"base/needrestart": "a"}),
    example("base.limits-low", {"base/session_limits/memlock": 8388608, "base/session_limits/nofile": 1024},
            "memlock 8388608, nofile 1024"),
    example("base.sysctl-drift", {"base/sysctl/vm.swappiness": "60"}, "vm.swappiness = 60",
            lock={"base/sysctl": {"vm.swappiness": "10"}}),
    example("base.governor-slow", {"base/governors": ["performance", "schedutil"]}, "schedutil"),
    example("base.time-unsynchronized", {"base/is_time_synchronized": False}),
    example("base.failed-units", {"base/failed_units": ["mdmonitor.service"]}, "mdmonitor.service"),
    example("base.packages-missing", {f"{PACKAGES}/mokutil": GONE}, "without mokutil"),
    example("base.packages-missing", {f"{PACKAGES}/mokutil/status": "rc"}, "without mokutil", name="removed"),
    example("base.unknown", {"base/is_time_synchronized": {"unknown": "timedatectl: exit 1"},
                             "gpus/3/ecc": {"unknown": "999 Unknown Error"}},
            "base.is_time_synchronized (timedatectl: exit 1); gpus[3].ecc (999 Unknown Error)"),
    # kernel
    example("kernel.series-mismatch", lock={"kernel/series": ["6.17"]}, seen="6.8.0-88-generic runs"),
    example("kernel.headers-missing", {"kernel/headers/1": GONE}, "none for 6.8.0-88-generic"),
    example("kernel.cmdline-drift", seen="without pcie_aspm=off",
            lock={"kernel/cmdline": ["iommu=pt", "pcie_aspm=off"]}),
    example("kernel.cmdline-drift", {"kernel/cmdline": "ro", "interconnect/iommu": "translated"}, "without iommu=pt",
            name="the-iommu-is-its-consequence"),
    example("kernel.nouveau-loaded", {"kernel/loaded_modules/1": "nouveau"}),
    example("kernel.nouveau-loaded",
            {"kernel/loaded_modules": ["nouveau"], "kernel/blacklisted_modules": [], "driver/loaded_version": None,
             "driver/loaded_flavour": None, "driver/nvml_error": "9 driver not loaded", "driver/uvm_disable_hmm": None,
             "gpus": {"unknown": "9 driver not loaded"}},
            name="it-explains-an-unloaded-driver"),
    example("kernel.nouveau-not-blacklisted", {"kernel/blacklisted_modules": []}, "nouveau may load"),
    example("kernel.secure-boot-unenrolled", {"kernel/secure_boot": True, "kernel/is_signing_key_enrolled": False},
            "Secure Boot on, /var/lib/shim-signed/mok/MOK.der not enrolled"),
    example("kernel.secure-boot-unenrolled", {"kernel/secure_boot": True}, "Secure Boot on, no signing key yet",
            name="no-key-yet"),
    example("kernel.reboot-pending",
            {"kernel/next_release": NEXT, "kernel/installed/0": NEXT, "kernel/headers/0": NEXT,
             f"driver/modules/{NEXT}": {"version": "590.48.01", "license": "Dual MIT/GPL"},
             f"driver/dkms/{NEXT}": "590.48.01 installed"},
            "6.8.0-88-generic runs"),
    # driver: software
    example("driver.not-installed", no_driver(), "no package"),
    example("driver.not-loaded",
            {"driver/loaded_version": None, "driver/loaded_flavour": None, "driver/nvml_error": "9 driver not loaded",
             "driver/uvm_disable_hmm": None, "gpus": {"unknown": "9"}, "interconnect/p2p": {"unknown": "9"}},
            "not loaded"),
    example("driver.version-mismatch", {"driver/loaded_version": "590.44.01", "gpus": {"unknown": "18"},
                                        "interconnect/p2p": {"unknown": "18"},
                                        "driver/nvml_error": "18 Driver/library version mismatch"},
            "package 590.48.01, library 590.48.01, loaded 590.44.01", name="module-of-before"),
    example("driver.version-mismatch",
            {**stack("590.44.01"), "driver/loaded_version": "590.44.01", "driver/library_version": "590.44.01",
             f"{MINE}/version": "590.44.01", f"{PACKAGES}/nvidia-driver-pinning-590.48.01": GONE,
             f"{PACKAGES}/nvidia-driver-pinning-590.44.01": package("590.44.01-1")},
            "package 590.44.01, library 590.44.01, loaded 590.44.01", name="not-yet-upgraded"),
    example("driver.version-mismatch", {"driver/library_version": "580.95.05"},
            "package 590.48.01, library 580.95.05, loaded 590.48.01", name="a-library-from-elsewhere"),
    example("driver.closed-module",
            {f"{MINE}/license": "NVIDIA", "driver/loaded_flavour": "closed", "driver/nvml_error": "6 not found",
             "gpus": {"unknown": "6"}, "interconnect/p2p": {"unknown": "6"}, "xids": [xid(169)]},
            "closed: nvidia.ko for 6.8.0-88-generic, loaded module"),
    example("driver.runfile", {"driver/runfile": "/usr/bin/nvidia-uninstall"}, "/usr/bin/nvidia-uninstall"),
    example("driver.mixed-flavours", {f"{PACKAGES}/nvidia-dkms": package("590.48.01-1ubuntu1")},
            "open: nvidia-dkms-open, nvidia-driver-open, nvidia-open; closed: nvidia-dkms"),
    example("driver.mixed-origins", {f"{PACKAGES}/libnvidia-gl": package("590.48.01-0ubuntu0.24.04.1", UBUNTU)}),
    example("driver.pin-missing", {f"{PACKAGES}/nvidia-driver-pinning-590.48.01": GONE, "driver/pin_files": []},
            "no pinning package"),
    example("driver.module-missing",
            {"kernel/next_release": NEXT, "kernel/installed/0": NEXT, "kernel/headers/0": NEXT},
            f"{NEXT}: no line of dkms status"),
    example("driver.initramfs-stale", {"driver/initramfs_version": "580.95.05"}, "580.95.05 for 6.8.0-88-generic"),
    example("driver.persistence-off", each_gpu("persistence", False), "all 8 GPUs: off"),
    example("driver.fabricmanager-present",
            {f"{PACKAGES}/nvidia-fabricmanager": package("590.48.01-1"),
             "base/failed_units": ["nvidia-fabricmanager.service"]},
            "nvidia-fabricmanager"),
    example("driver.repository-missing", {"base/apt_sources/2": GONE}, "no such source"),
    example("driver.repository-wrong", {"base/apt_sources/1": source(CUDA_DEBIAN, "/x.gpg", KEY)}, CUDA_DEBIAN,
            name="tree-of-another-system"),
    example("driver.repository-wrong", {"base/apt_sources/2/fingerprints": ["0" * 40]},
            f"{CUDA_UBUNTU} with key 00000000", name="another-key"),
    example("driver.repository-wrong", lock={"driver/repository/uri": CUDA_DEBIAN}, seen=f"lock: {CUDA_DEBIAN}",
            name="the-lock-names-another-system"),
    example("driver.uvm-hmm", {**each_gpu("addressing_mode", "hmm"), "driver/uvm_disable_hmm": False,
                               "driver/modprobe_options": {}},
            "addressing mode HMM on GPU 0, 1, 2, 3, 4, 5, 6, 7, loaded without the option, not in modprobe.d"),
    example("driver.nvml-failed", {"driver/nvml_error": "999 Unknown Error", "gpus": {"unknown": "999 Unknown Error"},
                                   "interconnect/p2p": {"unknown": "999 Unknown Error"}}, "999 Unknown Error"),
    # driver: cards
    example("driver.gpu-missing", {"gpus/3": GONE, "pci_gpus/3/driver": None},
            f"NVML shows 7, without {FIRST} (bound to no driver)"),
    example("driver.gpu-lost", {**lost(3), "xids": [xid(79, 3)]}, f"{FIRST}: 15 GPU is lost"),
    example("driver.gpu-lost", {**lost(3), "gpus/3/bus_id": BUS_IDS[3], "xids": [xid(79, 3)]},
            f"{FIRST}: 15 GPU is lost", name="with-its-address"),
    example("driver.ecc-off", {"gpus/3/ecc": False, "gpus/3/ecc_pending": False}, f"GPU 3 ({FIRST}): off"),
    example("driver.ecc-pending", {"gpus/3/ecc": False}, f"GPU 3 ({FIRST}): off now, on at the next boot"),
    example("driver.ecc-errors", {"gpus/3/ecc_uncorrected": 2}, f"GPU 3 ({FIRST}): 2 uncorrectable"),
    example("driver.remap-pending", {"gpus/3/remap_pending": True}, f"GPU 3 ({FIRST}): remapping pending"),
    example("driver.remap-failed", {"gpus/3/remap_pending": True, "gpus/3/remap_failed": True},
            f"GPU 3 ({FIRST}): remapping failed"),
    example("driver.mig-on", {"gpus/3/mig_pending": True}, f"GPU 3 ({FIRST}): on at the next reset"),
    example("driver.recovery-needed", {"gpus/3/recovery_action": 2, "xids": [xid(154, 3)]},
            f"GPU 3 ({FIRST}): node reboot"),
    example("driver.power-limit", {"gpus/3/power_limit_mw": 450000}, f"GPU 3 ({FIRST}): 450 W", name="below-default"),
    example("driver.power-limit", seen="all 8 GPUs: 600 W", host={"gpus": Gpus(count=8, power_limit_w=500)},
            name="not-the-inventorys"),
    example("driver.throttled", {"gpus/3/clock_event_reasons": 0x48},
            f"GPU 3 ({FIRST}): hardware slowdown, hardware thermal slowdown"),
    example("driver.xid", {"xids": [xid(79, 3)]}, f"Xid 79 on {FIRST} (GPU has fallen off the bus)"),
    # interconnect
    example("interconnect.gpu-missing", {"gpus/3": GONE, "pci_gpus/3": GONE},
            f"7 on the bus, without {FIRST}, serial {SERIALS[3]}"),
    example("interconnect.gpu-missing", {"gpus/3/name": "NVIDIA RTX 6000 Ada Generation"},
            f"7 RTX PRO 6000 Blackwell; GPU 3 ({FIRST}): NVIDIA RTX 6000 Ada Generation", name="another-model"),
    example("interconnect.bar1-small", {"gpus/3/bar1_bytes": 256 << 20}, f"GPU 3 ({FIRST}): 256 MiB of 97887 MiB"),
    example("interconnect.link-narrow", {"gpus/3/link_width": 8}, f"GPU 3 ({FIRST}): x8"),
    example("interconnect.link-gen-low", {"gpus/3/link_gen_max": 4}, f"GPU 3 ({FIRST}): generation 4 at most"),
    example("interconnect.acs-redirecting", {"interconnect/acs": [{"bus_id": "0000:00:01.1", "control": 29}]},
            "0000:00:01.1 (0x001d)"),
    example("interconnect.iommu-translating", {"interconnect/iommu": "translated"}, "translated"),
    example("interconnect.p2p-broken", {f"interconnect/p2p/{PAIRS[0]}": "chipset not supported"},
            f"chipset not supported: {PAIRS[0]}"),
    example("interconnect.io-page-faults", {"interconnect/io_page_faults": 12}, "12 since boot"),
    # cuda
    example("cuda.not-installed", no_toolkit(), "no toolkit with nvcc"),
    example("cuda.version-mismatch", {"cuda/toolkits/0/nvcc": "13.1.80", "cuda/toolkits/0/version": "13.1.0"},
            "13.1.0 (nvcc 13.1.80) at /usr/local/cuda-13.1"),
    example("cuda.version-mismatch", {f"{PACKAGES}/libcublas-13-1/version": "13.2.2.2-1"}, "libcublas-13-1 13.2.2.2-1",
            name="one-library"),
    example("cuda.version-mismatch", {"cuda/toolkits": [OLD_TOOLKIT]},
            "13.0.2 (nvcc 13.0.88) at /usr/local/cuda-13.0", name="another-toolkit"),
    example("cuda.nvcc-not-in-path", {"cuda/nvcc_in_path": None}),
    example("cuda.metapackage-installed", {f"{PACKAGES}/cuda-13-1": package("13.1.1-1")}, "cuda-13-1"),
    example("cuda.compat-in-path", {"cuda/compat_in_ld_path": "/usr/local/cuda-13.1/compat/libcuda.so.1"}),
    example("cuda.ptx-jit", lock={"cuda/min_driver": "595.58.03"}, seen="driver 590.48.01, toolkit 13.1.1"),
    # extensions
    example("extensions.tools-missing", extension(tools=TOOLS[1:]), "without ccache", lock=BUILT),
    example("extensions.not-installed", {**extension(), "extensions/installed": []},
            "tinycuda: nothing in environment serve", lock=EXTENSION),
    example("extensions.version-mismatch", extension(version="0.9"), "tinycuda: 0.9, the lock has 1.0",
            lock=EXTENSION),
    example("extensions.version-mismatch", extension(version="0.9"), "tinycuda: 0.9, the lock has 1.0",
            lock={**EXTENSION, "extensions/required": []}, name="not-required"),
    example("extensions.changed", extension(changed=["tinycuda/ops.so"]),
            "tinycuda: tinycuda/ops.so written or gone since", lock=EXTENSION),
    example("extensions.changed", extension(torch=None, wheel_sha256=None, libraries={}),
            "tinycuda: installed by other hands, never looked into", lock=EXTENSION, name="other-hands"),
    example("extensions.other-torch", extension(torch="2.13.0+cu130"),
            "tinycuda: built for torch 2.13.0+cu130, the environment has 2.14.1+cu130", lock=EXTENSION),
    example("extensions.no-device-code", extension(libraries={"tinycuda/ops.so": [[3, "sass sm_90", "sass sm_100f"]]}),
            "tinycuda: tinycuda/ops.so has no code for sm_120: sass sm_100f, sass sm_90", lock=EXTENSION),
    example("extensions.ptx-only", extension(libraries={"tinycuda/ops.so": [[3, "ptx sm_90", "sass sm_90"]]}),
            "tinycuda: tinycuda/ops.so has only PTX for sm_120, which the driver would have to compile: "
            "ptx sm_90, sass sm_90", lock=EXTENSION),
    example("extensions.compiler-mismatch",
            {**extension(torch="2.9.1+cu128"),
             "extensions/torch": {"serve": {"version": "2.9.1+cu128", "cuda": "12.8"}}},
            "nvcc 13.1.115, torch 2.9.1+cu128 with CUDA 12.8 in serve", lock=BUILT),
    example("extensions.store-damaged", {"extensions/store": {"e" * 64: {
        "package": "tinycuda", "version": "1.0", "name": WHEEL, "how": "built", "damage": "3 bytes of 40"}}},
            f"{WHEEL}: 3 bytes of 40"),
    # python, storage
    example("python.too-old", lock={"python/version": "3.13"}, seen="3.12.3"),
    example("python.environment-missing", seen="without serve",
            lock={"python/environments": [SERVE]}),
    example("python.environment-drift",
            {"python/environments/serve": {"name": "serve", "path": "/opt/aerie/environments/serve", "python": "3.12.3",
                                           "requirements_sha256": "b" * 64}},
            "serve of bbbbbbbbbbbb",
            lock={"python/environments": [SERVE]}),
    example("storage.path-missing", {"storage/filesystems": {"/": read("healthy")["storage"]["filesystems"]["/"]}},
            "/srv/aerie lies on /",
            lock={"storage/device": "/dev/nvme1n1"}),
    example("storage.path-missing", {"storage/filesystems": {"/": read("healthy")["storage"]["filesystems"]["/"]},
                                     "storage/folders": {"/": ["srv"], "/srv": []}}, "no folder /srv/aerie",
            name="no-folder"),
    example("storage.path-missing", lock={"storage/path": "/data/models/aerie"}, seen="no folder /data/models/aerie",
            name="no-folder-above"),
    example("base.unknown", {"storage/folders": {"/": ["data"], "/data": {"unknown": "no answer within 0.3 s"}}},
            "folder /data/weights (no answer within 0.3 s)", lock={"storage/path": "/data/weights"}, name="slow-place"),
    example("storage.free-low", weights_disk(free_bytes=547 * 10**9), "547 GB free on /srv/aerie"),
    example("storage.readahead-low", weights_disk(readahead_kib=128), "128 KiB on nvme1n1"),
    example("storage.scheduler-wrong", weights_disk(scheduler="mq-deadline"),
            "mq-deadline on nvme1n1"),
    # weights
    example("weights.tools-missing", {"weights/tools/aria2c": False}, "no aria2c", lock=TINY),
    example("weights.not-staged", lock=REQUIRED, seen="tiny: nothing"),
    example("weights.not-staged", lock={**REQUIRED, "weights/models": {"tiny": {**MODEL, "manifest_sha256": ""}}},
            seen="tiny: nothing, and the lock has no manifest of it", name="no-manifest"),
    example("weights.not-staged", staged(verified_at=None, missing=["b"]), lock=REQUIRED,
            seen="tiny: begun: 1 of 2 files verified", name="begun"),
    example("weights.not-staged", staged(verified_at=None, missing=["b"], parts={"b": 9}, is_busy=True), lock=REQUIRED,
            seen="tiny: being staged: 1 of 2 files verified", name="busy"),
    example("weights.manifest-mismatch", staged(manifest_sha256="c" * 64), lock=REQUIRED,
            seen="tiny: manifest cccccccccccc beside the files"),
    example("weights.manifest-mismatch", staged("/srv/aerie/weights/tiny@cccccccccccc", manifest_sha256="c" * 64),
            lock=REQUIRED, seen="tiny: manifest cccccccccccc", name="of-another-lock"),
    example("weights.incomplete", staged(missing=["b"]), "tiny: b not there", lock=REQUIRED),
    example("weights.incomplete", staged(unverified=["a", "b"]), "tiny: a, b never verified", lock=REQUIRED,
            name="never-verified"),
    example("weights.changed", staged(changed={"b": "has 3 bytes of 40"}), "tiny: b has 3 bytes of 40", lock=REQUIRED),
    example("weights.changed", staged(changed={"b": "has 3 bytes of 40"}), "tiny: b has 3 bytes of 40", lock=TINY,
            name="not-required"),
    example("weights.extra-files", staged(extra=["old/model-00001-of-00002.safetensors"]),
            "tiny: old/model-00001-of-00002.safetensors", lock=REQUIRED),
    example("weights.partials-left", staged(parts={"b": 2 * 10**9, "c": 10**9}), "tiny: 2 of 3.0 GB", lock=REQUIRED),
    example("base.unknown", {"weights/staged": {TARGET: {"unknown": "no answer within 5 s"}}},
            f"weights.staged[{TARGET}] (no answer within 5 s)", lock=REQUIRED, name="weights-do-not-answer"),
    # engine
    example("engine.user-missing", {"engine/user": None, "engine/user_shell": None}, "no account aerie"),
    example("engine.user-shell", {"engine/user_shell": "/bin/bash"}, "/bin/bash"),
    example("engine.bind-open", {"engine/listening": ["0.0.0.0:8000", "127.0.0.1:8001"]}, "0.0.0.0:8000"),
    example("engine.service-failed", served(active="failed", result="start-limit-hit", restarts=2, limits=None),
            "tiny: aerie-engine-tiny-blue.service failed (start-limit-hit)"),
    example("engine.service-down", served(active="inactive", limits=None),
            "tiny: aerie-engine-tiny-blue.service inactive"),
    example("engine.service-down", served(front_active="failed"), "tiny: aerie-front.service failed", name="front"),
    example("engine.restarting", served(restarts=2), "tiny: 2 restarts, active"),
    example("engine.limits-low", served(limits={"memlock": 65536, "nofile": 1024, "stack": None}),
            "tiny: memlock 65536, nofile 1024"),
    example("engine.key-open", served(key_mode="644 0"), "tiny: mode 644, owner 0"),
    example("engine.key-open", served(key_mode="600 998"), "tiny: mode 600, owner 998", name="of-another"),
    example("engine.gpus-busy", served() | {"gpus/3/processes": [
        {"pid": 7, "name": "python", "memory_bytes": 1, "unit": None},
        {"pid": 8, "name": "python", "memory_bytes": 1, "unit": "aerie-engine-tiny-blue.service"},
    ]}, "GPU 3: python (pid 7)"),
)  # fmt: skip
