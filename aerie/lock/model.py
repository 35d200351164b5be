"""What a lock holds.

Every field of a layer's table is also the variable `<layer>_<field>` of the layer's role, with the same type.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "SCHEMA",
    "Base",
    "Cuda",
    "CudaPackage",
    "Driver",
    "Engine",
    "Interconnect",
    "Kernel",
    "Lock",
    "Python",
    "PythonEnvironment",
    "Repository",
    "Storage",
]

SCHEMA = "aerie.lock/1"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Fingerprint = Annotated[str, Field(pattern=r"^[0-9A-F]{40}$")]
Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Repository(_Table):
    """A flat apt repository. key_sha256: of the file at key_uri.

    key_uri: a keyring, binary OpenPGP, or a cuda-keyring .deb, of which only the keyring inside is used.
    """

    uri: str
    key_uri: str
    key_sha256: Sha256
    key_fingerprint: Fingerprint


class Base(_Table):
    """memlock and stack: -1 is unlimited, else bytes. packages: tools that operators of such hosts expect."""

    packages: tuple[str, ...] = ()
    sysctl: dict[str, str] = {}
    memlock: int = -1
    nofile: int = 1_048_576
    stack: int = -1
    governor: str = "performance"
    unattended_blacklist: tuple[str, ...] = ("linux-", "nvidia", "libnvidia", "cuda", "libcuda")
    time_synchronized: bool = True


class Kernel(_Table):
    """series: a release must start with one of them ("6.8" allows 6.8.0-31-generic); empty allows every kernel.

    image and headers: the meta packages; "" leaves the kernel's package alone and takes headers of installed kernels.
    cmdline: words that the command line must have; "iommu=pt" also forbids other values of iommu.
    """

    series: tuple[str, ...] = ()
    image: str = ""
    headers: str = ""
    cmdline: tuple[str, ...] = ()
    blacklist: tuple[str, ...] = ("nouveau",)


class Driver(_Table):
    """uvm_disable_hmm: the option of nvidia_uvm without which CUDA does not start on hosts with 6 to 8 such GPUs.

    packages: sha256 by package name of the files that were proven, where known; names and versions follow from
    version and flavour.
    """

    version: Version
    flavour: Literal["open", "closed"] = "open"
    repository: Repository
    uvm_disable_hmm: bool = True
    persistence: bool = True
    packages: dict[str, Sha256] = {}

    @property
    def branch(self) -> int:
        """590 of "590.48.01"."""
        return int(self.version.split(".")[0])


class Interconnect(_Table):
    """iommu: what it may be. acs: "cleared" lets peers talk without a detour over the root complex."""

    iommu: tuple[Literal["off", "pt", "translated"], ...] = ("pt", "off")
    acs: Literal["cleared", "any"] = "cleared"
    link_width: int = 16
    link_gen: int = 5
    p2p: bool = True


class CudaPackage(_Table):
    """One package of the toolkit, exactly."""

    name: str
    version: str


class Cuda(_Table):
    """release: "13.1.1"; nvcc: its full version, "13.1.115". source: where the toolkit comes from.

    min_driver: below it, code compiled by this toolkit is not run right (PTX of 13.1 on a 580 driver gives wrong data).
    packages: of source "apt". wheels: requirement lines of source "wheels", each with its version.
    """

    release: Version
    nvcc: Version
    min_driver: Version
    source: Literal["apt", "wheels"] = "apt"
    path: str
    packages: tuple[CudaPackage, ...] = ()
    wheels: tuple[str, ...] = ()


class PythonEnvironment(_Table):
    """A hash-locked environment. requirements: path of its lock file from the repository's root."""

    name: str
    requirements: str
    sha256: Sha256


class Python(_Table):
    """version: at least this, of the host's own python3. environments: made under /opt/aerie/environments."""

    version: str = "3.11"
    environments: tuple[PythonEnvironment, ...] = ()


class Storage(_Table):
    """path: the folder for weights and captured states. device: a disk to mount there, "" uses what is mounted."""

    path: str = "/srv/aerie"
    device: str = ""
    filesystem: Literal["ext4", "xfs"] = "ext4"
    min_free_gb: int = 700
    readahead_kib: int = 4096
    scheduler: str = "none"


class Engine(_Table):
    """user: the service account. bind: the address that engines listen on."""

    user: str = "aerie"
    bind: str = "127.0.0.1"


class Lock(_Table):
    """Everything that a host must be. severity: finding id -> severity here, instead of the catalogue's."""

    schema_: Literal["aerie.lock/1"] = Field(alias="schema")
    name: str
    systems: tuple[str, ...]  # "ubuntu-24.04", "debian-13"
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    base: Base = Base()
    kernel: Kernel = Kernel()
    driver: Driver
    interconnect: Interconnect = Interconnect()
    cuda: Cuda
    python: Python = Python()
    storage: Storage = Storage()
    engine: Engine = Engine()
    severity: dict[str, Literal["fatal", "warn", "info"]] = {}
