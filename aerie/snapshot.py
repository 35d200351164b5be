"""What a host is, as one frozen value: the JSON that the probe prints, parsed once.

What the probe could not read is `Unknown` with the reason; it is never False, 0 or an empty list.
`None` means that the host has no such thing (no receipt, no NUMA node), which was seen.
Where a mapping of words may be unknown, Unknown stands first: {"unknown": why} would be such a mapping too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from aerie.errors import AerieError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = [
    "SCHEMA",
    "Acs",
    "AptSource",
    "Base",
    "Cuda",
    "Driver",
    "Engine",
    "EngineService",
    "Environment",
    "Extensions",
    "Filesystem",
    "Gpu",
    "GpuProcess",
    "InstalledExtension",
    "Interconnect",
    "Kernel",
    "Limits",
    "Machine",
    "Module",
    "Os",
    "Package",
    "PciGpu",
    "Python",
    "Receipt",
    "Snapshot",
    "StagedModel",
    "Storage",
    "StoredWheel",
    "Toolkit",
    "Torch",
    "Unattended",
    "Unit",
    "Unknown",
    "Weights",
    "Xid",
    "parse",
    "prepare",
]

SCHEMA = "aerie.snapshot/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Could not be read; `unknown` says why, e.g. "needs root" or "lspci: exit 1"."""

    unknown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """container: systemd-detect-virt's word, e.g. "systemd-nspawn"; None on a real or virtual machine."""

    hostname: str
    machine_id: str | Unknown
    boot_id: str | Unknown
    uptime_s: float
    arch: str  # "x86_64"
    cpus: int
    memory_bytes: int
    shm_bytes: int | Unknown
    container: str | None
    init: str  # comm of process 1, "systemd" where it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Os:
    """As /etc/os-release has it."""

    id: str  # "ubuntu", "debian"
    version_id: str  # "24.04", "13"
    codename: str  # "noble"
    python: str  # "3.12.3", of the interpreter that ran the probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One row of dpkg. status: dpkg's three letters without blanks, "ii" when all is well, "iF" half-configured."""

    version: str
    status: str
    maintainer: str  # tells NVIDIA's packages from the archive's
    is_held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AptSource:
    """One address of one source. signed_by: as written, a keyring's path, or "in the file"; None: it names no key."""

    file: str
    uri: str
    suites: tuple[str, ...]
    signed_by: str | None
    fingerprints: tuple[str, ...] | Unknown  # 40 hex digits each, of the keys in signed_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Unattended:
    """unattended-upgrades. blacklist: its patterns (Python regular expressions, matched at the name's start)."""

    is_enabled: bool
    blacklist: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Soft limits; None is unlimited. memlock and stack in bytes, nofile in files."""

    memlock: int | None
    nofile: int | None
    stack: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One systemd unit."""

    name: str
    active: str  # "active", "inactive", "failed"
    enabled: str  # "enabled", "disabled", "static", "" where it has no such state
    since: str | None  # UTC, ISO 8601; None when it never ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """packages: every one that is installed, by name; of a foreign architecture by name:architecture.

    sysctl: every setting directly in fs, kernel, net.core, net.ipv4 and vm, by its dotted name.
    """

    packages: Mapping[str, Package] | Unknown
    broken_packages: tuple[str, ...] | Unknown  # neither cleanly installed nor cleanly removed, of all packages
    apt_lock_holder: str | Unknown | None  # "apt-get (pid 4711)" while someone holds dpkg's lock
    apt_sources: tuple[AptSource, ...] | Unknown
    apt_key_fingerprints: tuple[str, ...] | Unknown  # trusted for every source: trusted.gpg and trusted.gpg.d
    unattended: Unattended | Unknown | None
    needrestart: str | Unknown | None  # its $nrconf{restart}: "l" list, "i" ask, "a" restart; None: not installed
    sysctl: Mapping[str, str]
    session_limits: Limits | Unknown  # of a new session, by PAM's limits
    governors: tuple[str, ...] | None  # distinct scaling governors; None where the machine offers no choice
    is_time_synchronized: bool | Unknown | None  # None in a container: the clock is the machine's
    failed_units: tuple[str, ...] | Unknown
    root_free_bytes: int
    reboot_required_by: tuple[str, ...]  # packages in /run/reboot-required.pkgs


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """nvidia.ko of one kernel on disk, as modinfo reads it."""

    version: str
    license: str  # "Dual MIT/GPL" for the open flavour, "NVIDIA" for the closed one


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """installed: releases with an image in /boot, oldest first; next_release: the one that boots next."""

    release: str
    next_release: str | Unknown  # in a container: the running one
    installed: tuple[str, ...]
    headers: tuple[str, ...]  # releases whose build folder is there
    cmdline: str
    next_cmdline: str | Unknown  # of the boot loader's default entry (GRUB_CMDLINE_LINUX…)
    loaded_modules: tuple[str, ...]
    blacklisted_modules: tuple[str, ...]  # by modprobe.d
    secure_boot: bool | Unknown | None  # None: no UEFI
    is_signing_key_enrolled: bool | Unknown | None  # None: there is no key of this host yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The NVIDIA driver in its three places: on disk, in the kernel, in the library."""

    loaded_version: str | None  # /proc/driver/nvidia/version; None: not loaded
    loaded_flavour: str | None  # "open" or "closed"
    library_version: str | Unknown | None  # of libnvidia-ml.so.1 by its file name
    nvml_error: str | None  # "18 Driver/Library version mismatch"; None when NVML answers
    cuda_version: str | Unknown | None  # what the driver supports, "13.1"
    modules: Mapping[str, Module] | Unknown  # by kernel release
    dkms: Unknown | Mapping[str, str]  # kernel release -> "590.48.01 installed", of the module nvidia
    # Of an nvidia.ko inside the next kernel's initramfs, where that was made before the module on disk; None: the
    # initramfs holds no such module, or is younger than the one on disk and so cannot hold another.
    initramfs_version: str | Unknown | None
    runfile: str | None  # path that an unmanaged install left
    uvm_disable_hmm: bool | None  # of the loaded nvidia_uvm; None: not loaded
    modprobe_options: Mapping[str, str]  # module -> its options in modprobe.d
    pin_files: tuple[str, ...]  # apt preferences that name nvidia packages


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that uses a GPU. unit: the systemd service or scope it runs in; None outside of one and in a login."""

    pid: int
    name: str
    memory_bytes: int | Unknown
    unit: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as NVML sees it. What the card does not support is None; what failed is Unknown.

    error: why NVML gives no access to the card, "15 GPU is lost"; its names are then empty and its values Unknown.
    """

    index: int
    error: str | None
    uuid: str
    bus_id: str  # "00000000:05:00.0"
    name: str
    serial: str | Unknown | None
    pci_id: str  # "10de:2bb5"
    compute_capability: str  # "12.0"
    memory_bytes: int | Unknown
    bar1_bytes: int | Unknown | None
    link_width: int | Unknown | None
    link_width_max: int | Unknown | None
    link_gen: int | Unknown | None  # drops at idle, so it proves nothing
    link_gen_max: int | Unknown | None
    replays: int | Unknown | None
    persistence: bool | Unknown | None
    ecc: bool | Unknown | None
    ecc_pending: bool | Unknown | None
    ecc_uncorrected: int | Unknown | None
    remap_pending: bool | Unknown | None
    remap_failed: bool | Unknown | None
    mig: bool | Unknown | None
    mig_pending: bool | Unknown | None
    power_limit_mw: int | Unknown | None
    power_limit_default_mw: int | Unknown | None
    power_limit_min_mw: int | Unknown | None
    power_limit_max_mw: int | Unknown | None
    clock_event_reasons: int | Unknown | None  # NVML's bit mask
    addressing_mode: str | Unknown | None  # "none", "hmm", "ats"
    recovery_action: int | Unknown | None  # NVML field 230
    gsp_version: str | Unknown | None
    numa_node: int | Unknown | None
    temperature_c: int | Unknown | None
    utilization_percent: int | Unknown | None
    processes: tuple[GpuProcess, ...] | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class PciGpu:
    """An NVIDIA display or 3D controller on the PCI bus, whatever the driver says of it."""

    bus_id: str  # "0000:05:00.0"
    pci_id: str  # "10de:2bb5"
    driver: str | None  # "nvidia", "nouveau", "vfio-pci"


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One NVRM Xid line of the kernel's log since boot."""

    time: str  # UTC, ISO 8601
    code: int
    bus_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acs:
    """A PCI bridge whose Access Control Services redirect peer traffic. control: its ACS control register."""

    bus_id: str
    control: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """How GPUs reach each other. p2p: "ok" or NVML's reason, for "0>1" (from GPU index 0 to 1)."""

    iommu: str | Unknown  # "off", "pt" or "translated"
    acs: tuple[Acs, ...] | Unknown  # bridges above GPUs with redirecting bits set
    p2p: Unknown | Mapping[str, str]
    topology: Unknown | Mapping[str, str]  # "0>1" -> "internal", "single", "multiple", "hostbridge", "node", "system"
    io_page_faults: int | Unknown  # lines of the kernel's log since boot


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """A CUDA toolkit on disk. nvcc: its full version, "13.1.115"; None where there is no compiler."""

    path: str
    version: str | None  # of version.json, "13.1.1"
    nvcc: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuda:
    """toolkits: everything under /usr/local/cuda-*, /opt/cuda-*; nvcc_in_path: as a non-login shell finds it."""

    toolkits: tuple[Toolkit, ...]
    default_path: str | None  # what /usr/local/cuda leads to
    nvcc_in_path: str | None
    compat_in_ld_path: str | None  # a forward-compatibility libcuda that ldconfig would find


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A Python environment that aerie made. requirements_sha256: of the lock file it was made from."""

    name: str
    path: str
    python: str | Unknown
    requirements_sha256: str | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """environments: under /opt/aerie/environments, by name."""

    system: str
    has_venv: bool
    environments: Mapping[str, Environment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """An environment's torch as its own file says, "2.14.1+cu130". cuda: "13.0"; None: a torch without CUDA."""

    version: str
    cuda: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledExtension:
    """A CUDA extension in an environment. torch, wheel_sha256: of the record that its installation left, None without.

    libraries: device code by path, as it was read then: rows of [units, "sass sm_120", …].
    changed: libraries that are not those that were installed, by size, time and inode.
    """

    environment: str
    package: str
    version: str
    torch: str | None
    wheel_sha256: str | None
    libraries: Mapping[str, tuple[tuple[int | str, ...], ...]]
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWheel:
    """A wheel that was kept. how: "built" or "fetched"; damage: how it differs from its receipt, "" for not at all."""

    package: str
    version: str
    name: str
    how: str
    damage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """torch: of each environment that has one. store: by what the wheel was made from."""

    torch: Mapping[str, Torch | Unknown]
    installed: tuple[InstalledExtension, ...]
    store: Mapping[str, StoredWheel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    """A mounted file system and the disk below it. Disk facts are None where there is no disk (overlay, network)."""

    path: str
    device: str
    type: str
    options: str
    total_bytes: int
    free_bytes: int
    free_inodes: int
    disk: str | None
    readahead_kib: int | None
    scheduler: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """filesystems: every real one, by mount point; the one that a path lies on has the longest matching key.

    Unknown is one whose server does not answer. folders: names of the folders in places for data (/, /srv, /data,
    /mnt, …) and in mount points, and in the folders there, by their parent.
    """

    filesystems: Mapping[str, Filesystem | Unknown]
    folders: Mapping[str, tuple[str, ...] | Unknown]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedModel:
    """A model that was staged, or whose staging began. Paths are relative to its folder.

    verified_at: UTC, ISO 8601; None of one that was never verified to the end. manifest_sha256: of the manifest beside
    the files, None where there is none. is_busy: a staging is at work there.
    """

    model: str
    manifest_sha256: str | None
    verified_at: str | None
    receipt_sha256: str | None
    files: int  # of the manifest
    size_bytes: int
    missing: tuple[str, ...]  # of the manifest's
    unverified: tuple[str, ...]  # there, and never found right
    extra: tuple[str, ...]  # there, and none of the manifest's
    changed: Mapping[str, str]  # by path, how it differs from what was verified: "has 12 bytes of 40"
    parts: Mapping[str, int]  # bytes on disk of files that were begun, by path
    is_busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """tools: what staging needs, and whether it is there. staged: by the folder that holds the model."""

    tools: Mapping[str, bool]
    staged: Mapping[str, StagedModel | Unknown]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineService:
    """What is to serve a model: the unit of its live slot.

    restarts: by systemd, since it was last started; limits: in force, None where no process runs.
    """

    model: str
    unit: str  # "aerie-engine-kimi-k2.5-blue.service"
    engine: str
    version: str
    address: str  # of the front, "127.0.0.1:8000"
    active: str  # "active", "activating", "failed", …
    result: str  # systemd's word for how it last ended: "success", "exit-code", "start-limit-hit"
    restarts: int
    front_active: str
    limits: Limits | None
    key_mode: str | Unknown  # "600 0": mode and owner of the key's file


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """units: aerie-*.service; listening: "address:port" of TCP sockets of their processes.

    services: one for each model that is to be served; () in snapshots that were taken before there were any.
    """

    user: str | None  # of the service account "aerie", None where it does not exist
    user_shell: str | None
    units: tuple[Unit, ...] | Unknown
    listening: tuple[str, ...] | Unknown
    services: tuple[EngineService, ...] | Unknown = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What aerie last did to the host, from /var/lib/aerie/receipt.json."""

    lock: str
    lock_sha256: str
    applied_at: str
    previous_lock: str | None
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A host at one moment. taken_at: UTC, ISO 8601; probe_s: seconds that the probe took on the host."""

    schema: str
    taken_at: str
    probe_s: float
    is_root: bool
    machine: Machine
    os: Os
    base: Base
    kernel: Kernel
    driver: Driver
    gpus: tuple[Gpu, ...] | Unknown
    pci_gpus: tuple[PciGpu, ...] | Unknown
    xids: tuple[Xid, ...] | Unknown
    services: Mapping[str, Unit] | Unknown  # the ones that layers care about, by name without ".service"
    interconnect: Interconnect
    cuda: Cuda
    python: Python
    extensions: Extensions
    storage: Storage
    weights: Weights
    engine: Engine
    receipt: Receipt | Unknown | None


def parse(document: str | bytes) -> Snapshot:
    """The snapshot in this JSON. Raises AerieError when it is not one of this version, naming the place."""
    from pydantic import ValidationError

    try:
        found = _adapter().validate_json(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise _broken(where, first["input"], f"{SCHEMA}: {first['msg']}") from error
    if found.schema != SCHEMA:
        raise _broken("schema", found.schema, SCHEMA)
    return found


def prepare() -> None:
    """Make what `parse` needs, which takes longer than to parse."""
    _adapter()


@cache
def _adapter() -> "TypeAdapter[Snapshot]":
    # Made on first use: importing pydantic and making it take 0.2 s, which tasks without a snapshot need not wait for.
    from pydantic import TypeAdapter

    return TypeAdapter(Snapshot)


def _broken(where: str, seen: object, expected: str) -> AerieError:
    return AerieError(
        f"snapshot: {where}",
        seen=seen,
        expected=expected,
        remedy="Take the snapshot again with this version of aerie.",
    )
