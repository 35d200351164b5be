"""What a lock holds.

Every field of a layer's table is also the variable `<layer>_<field>` of the layer's role, with the same type.
docs/lock.md is made from the texts under the fields.
"""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from aerie.layers import LAYERS

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
    "Weights",
    "WeightsModel",
]

SCHEMA = "aerie.lock/1"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Fingerprint = Annotated[str, Field(pattern=r"^[0-9A-F]{40}$")]
Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")]
Wheel = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]+\])?==[0-9]")]
System = Annotated[str, Field(pattern=r"^[a-z]+-\d+(\.\d+)*$")]
ModelName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")]
FindingId = Annotated[str, Field(pattern=rf"^({'|'.join(LAYERS)})\.[a-z0-9]+(-[a-z0-9]+)*$")]
# What a location looks like, and the words for it.
LOCATIONS = {
    "hub": (r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*", "organization/name"),
    "http": (r"https?://[^\s?#]+", "an address, http:// or https://, without query"),
    "s3": (r"https?://[^\s?#/]+/[^\s?#]+", "https://<server>/<bucket>/<prefix>"),
    "folder": (r"/[^\0\n]+", "an absolute path"),
}


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Repository(_Table):
    """A flat apt repository, trusted by the checksum of its key."""

    uri: str
    """Where Packages and Release lie; it must be the tree of the host's own distribution."""
    key_uri: str
    """A keyring in binary OpenPGP, or a `cuda-keyring` .deb, of which only the keyring inside is used."""
    key_sha256: Sha256
    """Of the file at `key_uri`."""
    key_fingerprint: Fingerprint
    """Of the key in that keyring, 40 hexadecimal digits."""


class Base(_Table):
    """Package management, limits, governor and time."""

    packages: tuple[str, ...] = ()
    """Packages of the distribution that must be there, in any version."""
    sysctl: dict[str, str] = {}
    """Kernel parameters by name, as `sysctl -n` writes their values."""
    memlock: int = -1
    """Bytes that a session may lock in memory; -1 is unlimited."""
    nofile: int = 1_048_576
    """Files that a session may have open."""
    stack: int = -1
    """Bytes of a session's stack; -1 is unlimited."""
    governor: str = "performance"
    """Of every processor that offers a choice."""
    unattended_blacklist: tuple[str, ...] = ("linux-", "nvidia", "libnvidia", "cuda", "libcuda")
    """What unattended upgrades must leave alone: starts of package names."""
    time_synchronized: bool = True
    """Must the clock follow a time server?"""


class Kernel(_Table):
    """Which kernel boots, and how."""

    series: tuple[str, ...] = ()
    """A release must start with one of them: "6.8" allows 6.8.0-31-generic. Empty allows every kernel."""
    image: str = ""
    """The meta package of the kernel; "" leaves the kernel's package alone."""
    headers: str = ""
    """The meta package of its headers; "" takes the headers of the installed kernels."""
    cmdline: tuple[str, ...] = ()
    """Words that the command line must have; "iommu=pt" also forbids other values of iommu."""
    blacklist: tuple[str, ...] = ("nouveau",)
    """Modules that must not load."""


class Driver(_Table):
    """The NVIDIA driver. Names of packages follow from version and flavour."""

    version: Version
    """As NVML reports it, "590.48.01"."""
    flavour: Literal["open", "closed"] = "open"
    """Of the kernel modules; GPUs of the Blackwell generation have open ones only."""
    repository: Repository
    """The one origin of every NVIDIA package."""
    uvm_disable_hmm: bool = True
    """The option of nvidia_uvm without which CUDA does not start on hosts with 6 to 8 such GPUs."""
    persistence: bool = True
    """Must GPUs stay initialised while nobody uses them?"""
    packages: dict[str, Sha256] = {}
    """Checksums of the proven package files by package name, where they are known."""

    @property
    def branch(self) -> int:
        """590 of "590.48.01"."""
        return int(self.version.split(".")[0])


class Interconnect(_Table):
    """How GPUs reach the host and each other over PCIe."""

    iommu: tuple[Literal["off", "pt", "translated"], ...] = ("pt", "off")
    """What it may be; full translation hangs NCCL."""
    acs: Literal["cleared", "any"] = "cleared"
    """"cleared" lets GPUs talk without a detour over the root complex."""
    link_width: int = 16
    """Lanes of each GPU's link."""
    link_gen: int = 5
    """PCIe generation that each GPU's link can reach; at idle it is lower."""
    p2p: bool = True
    """Must every GPU read and write every other one's memory?"""


class CudaPackage(_Table):
    """One package of the toolkit, exactly."""

    name: str
    """Of the deb, "cuda-nvcc-13-1"."""
    version: str
    """With the deb's revision, "13.1.115-1"."""


class Cuda(_Table):
    """The CUDA toolkit."""

    release: Version
    """"13.1.1"."""
    nvcc: Version
    """The compiler's full version, "13.1.115"."""
    min_driver: Version
    """Below it, code compiled by this toolkit is not run right: PTX of 13.1 on a 580 driver gives wrong data."""
    source: Literal["apt", "wheels"] = "apt"
    """Where the toolkit comes from; "wheels" is for hosts that only reach a package index."""
    path: str
    """The toolkit's folder."""
    packages: tuple[CudaPackage, ...] = ()
    """Of source "apt"."""
    wheels: tuple[Wheel, ...] = ()
    """Requirement lines of source "wheels", each with its version: "nvidia-cuda-nvcc==13.1.115"."""


class PythonEnvironment(_Table):
    """A hash-locked environment."""

    name: str
    """Of its folder in /opt/aerie/environments."""
    requirements: str
    """Path of its lock file from the repository's root."""
    sha256: Sha256
    """Of that file."""


class Python(_Table):
    """The host's own Python, and environments made from it."""

    version: str = "3.11"
    """python3 must be at least this."""
    environments: tuple[PythonEnvironment, ...] = ()
    """One for each purpose: what serving and training pin contradicts each other."""


class Storage(_Table):
    """Where weights and captured states lie."""

    path: str = "/srv/aerie"
    """The folder."""
    device: str = ""
    """A disk to mount there; "" uses what is mounted."""
    filesystem: Literal["ext4", "xfs"] = "ext4"
    """Of that disk."""
    min_free_gb: int = 700
    """Gigabytes (10⁹ bytes) that must be free."""
    readahead_kib: int = 4096
    """Of the disk below."""
    scheduler: str = "none"
    """Of the disk below."""


class WeightsModel(_Table):
    """One model: where its files come from, and the manifest that says what they are."""

    source: Literal["hub", "http", "s3", "folder"]
    """What kind of place the files come from."""
    location: str
    """Repository of a hub, "organization/name"; address of the folder, for http and s3; path of a folder."""
    revision: Annotated[str, Field(pattern=r"^([0-9a-f]{40})?$")] = ""
    """The hub's commit, never a branch or tag; "" where none was chosen yet, and for other sources."""
    manifest_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Of `inventory/manifests/<name>.manifest.json`; "" while none was made: `./invoke weights.manifest` makes it."""

    @model_validator(mode="after")
    def _fits_the_source(self) -> "WeightsModel":
        form, expected = LOCATIONS[self.source]
        if not re.fullmatch(form, self.location):
            raise ValueError(f"location {self.location!r} of source {self.source!r}, expected {expected}")
        if self.revision and self.source != "hub":
            raise ValueError(f"revision {self.revision!r}, expected none, as source {self.source!r} has no commits")
        if self.manifest_sha256 and self.source == "hub" and not self.revision:
            raise ValueError("a manifest_sha256 without a revision, expected the commit that the manifest is of")
        return self


class Weights(_Table):
    """Models, and where they lie."""

    path: Annotated[str, Field(pattern=r"^/")] = "/srv/aerie/weights"
    """The folder with a folder for each staged model."""
    required: tuple[ModelName, ...] = ()
    """Models that a host must hold, by their names below."""
    parallel: Annotated[int, Field(ge=1, le=64)] = 16
    """Files that are fetched at the same time."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8378
    """Where hosts give what they hold to each other while several are staged."""
    hub: Annotated[str, Field(pattern=r"^(https?://[^\s?#]+)?$")] = ""
    """Address of the hub or its mirror, to which tokens are sent; "" is the hub library's own, or HF_ENDPOINT."""
    token_file: Annotated[str, Field(pattern=r"^(/.+)?$")] = ""
    """File on hosts with the hub's token, of mode 0600; "" where no model needs one."""
    models: dict[ModelName, WeightsModel] = {}
    """Models that can be staged, by name."""


class Engine(_Table):
    """What engines run as."""

    user: str = "aerie"
    """The service account."""
    bind: str = "127.0.0.1"
    """The address that engines listen on."""


class Lock(_Table):
    """Everything that a host must be."""

    schema_: Literal["aerie.lock/1"] = Field(alias="schema")
    """The version of this format."""
    name: str
    """As the file is called."""
    systems: Annotated[tuple[System, ...], Field(min_length=1)]
    """Systems that it is for: "ubuntu-24.04", "debian-13"."""
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    """Of the processor."""
    base: Base = Base()
    kernel: Kernel = Kernel()
    driver: Driver
    interconnect: Interconnect = Interconnect()
    cuda: Cuda
    python: Python = Python()
    storage: Storage = Storage()
    weights: Weights = Weights()
    engine: Engine = Engine()
    severity: dict[FindingId, Literal["fatal", "warn", "info"]] = {}
    """Severities of findings on hosts of this lock, instead of the catalogue's."""
