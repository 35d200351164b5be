"""What a lock holds.

Every field of a layer's table is also the variable `<layer>_<field>` of the layer's role, with the same type.
docs/lock.md is made from the texts under the fields.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from aerie.extensions.build_key import SIZING
from aerie.extensions.onhost.request import FOLDER, is_own
from aerie.layers import LAYERS

__all__ = [
    "MOST_DRAFT_TOKENS",
    "SCHEMA",
    "Base",
    "Cuda",
    "CudaPackage",
    "Driver",
    "Engine",
    "EngineModel",
    "Extension",
    "ExtensionSource",
    "ExtensionWheel",
    "Extensions",
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
MOST_DRAFT_TOKENS = 16
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Fingerprint = Annotated[str, Field(pattern=r"^[0-9A-F]{40}$")]
Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")]
Wheel = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]+\])?==[0-9]")]
System = Annotated[str, Field(pattern=r"^[a-z]+-\d+(\.\d+)*$")]
ModelName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")]
PackageName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
WheelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._+!]+(-[A-Za-z0-9._+!]+){4,5}\.whl$")]


def _left_to_a_lock(name: str) -> str:
    if name in SIZING or is_own(name):
        raise ValueError(f"{name}, expected none of those that a build sets for its host")
    return name


OptionName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$"), AfterValidator(_left_to_a_lock)]
FindingId = Annotated[str, Field(pattern=rf"^({'|'.join(LAYERS)})\.[a-z0-9]+(-[a-z0-9]+)*$")]
URI_OR_INDEX = r"^(https?://[^\s?#]+|/.+)?$"
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


class ExtensionWheel(_Table):
    """A prebuilt wheel of an extension. What it really holds is read before it is installed."""

    name: WheelName
    """Of the file; it says for which Python, platform, CUDA and torch it is."""
    uri: Annotated[str, Field(pattern=URI_OR_INDEX)] = ""
    """Where it lies, https://… or a path on the host; "" is the package index that the host's pip uses."""
    sha256: Sha256
    """Of the file."""


class ExtensionSource(_Table):
    """The source of an extension: a source distribution, or an archive of the repository that has it."""

    uri: Annotated[str, Field(pattern=URI_OR_INDEX)] = ""
    """Where it lies, https://… or a path on the host; "" is the package index that the host's pip uses."""
    sha256: Sha256
    """Of the file."""
    folder: Annotated[str, Field(pattern=FOLDER)] = ""
    """Where the package lies below the one folder at the archive's top; "" is that folder itself."""


class Extension(_Table):
    """One package with CUDA code."""

    name: PackageName
    """As package indexes have it: "flash-attn"."""
    version: Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.+!]*$")]
    """Exactly."""
    environment: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    """The environment of `[python]` that it belongs to."""
    from_: Literal["auto", "wheel", "source"] = Field("auto", alias="from")
    """"auto" takes a wheel that has code for the host's GPUs and builds where none has; the others allow one only."""
    wheels: tuple[ExtensionWheel, ...] = ()
    """Prebuilt ones; the first that fits is taken."""
    source: ExtensionSource | None = None
    """What is built."""
    options: dict[OptionName, str] = {}
    """Variables for the build, without those that it sets for its host: compilers, folders, architectures, jobs."""
    patches: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.patch$")], ...] = ()
    """Files in `roles/extensions/files/patches/<name>/<version>/`, in the order in which they are applied."""
    module: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")]
    """What is imported to prove that it loads."""
    unused: tuple[str, ...] = ()
    """Libraries that no GPU of these hosts uses, as patterns of paths in the wheel: they need no code for it."""

    @model_validator(mode="after")
    def _can_be_had(self) -> "Extension":
        if self.from_ == "source" and self.source is None:
            raise ValueError("from 'source' without a source, expected [extensions.packages.source]")
        if self.from_ == "wheel" and not self.wheels:
            raise ValueError("from 'wheel' without wheels, expected one or more")
        if not self.wheels and self.source is None:
            raise ValueError("neither wheels nor a source, expected one of them")
        return self


class Extensions(_Table):
    """CUDA extensions of Python environments: taken as wheels, or built on a host once and installed everywhere."""

    required: tuple[PackageName, ...] = ()
    """Packages that a host must have, by their names below."""
    store: Annotated[str, Field(pattern=r"^/")] = "/var/lib/aerie/wheels"
    """The folder on hosts with the wheels that were fetched or built."""
    compiler_cache: Annotated[str, Field(pattern=r"^/")] = "/var/cache/aerie/ccache"
    """The folder on hosts where a build finds again what it compiled before."""
    tools: tuple[str, ...] = ("ccache", "g++", "python3-dev")
    """Packages of the distribution that a build needs."""
    packages: tuple[Extension, ...] = ()
    """Packages that can be had."""

    @model_validator(mode="after")
    def _has_each_once(self) -> "Extensions":
        names = [one.name for one in self.packages]
        if len(set(names)) < len(names):
            raise ValueError(f"packages {', '.join(names)}, expected each name once")
        return self


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


class EngineModel(_Table):
    """How one model is served as a service."""

    environment: str = "serve"
    """The environment with the engine, by its name in `[[python.environments]]`."""
    port: Annotated[int, Field(ge=1024, le=65_533)] = 8000
    """Where clients reach it, on `bind`; the two ports after it are the slots' own, on the loopback."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """In which it computes; "float32" is for processors without bfloat16."""
    max_model_len: Annotated[int, Field(ge=128)] = 131_072
    """Tokens of a request, its answer included."""
    max_num_seqs: Annotated[int, Field(ge=1)] = 48
    """Requests at once."""
    kv_cache_gib: Annotated[int, Field(ge=1)] = 4
    """Memory for keys and values where a processor serves."""
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Of each GPU's memory, for weights, keys and values; SGLang's own choice left 4,578 tokens on 8 × 96 GB."""
    threads: Annotated[int, Field(ge=1)] = 8
    """OpenMP threads."""
    trust_code: bool = False
    """Whether the engine may run code in the model's folder, which its manifest pins: Kimi-K2.5's tokenizer is code."""
    draft_tokens: Annotated[int, Field(ge=1, le=MOST_DRAFT_TOKENS)] = 3
    """Drafts per verify step, with a drafter."""
    ready_timeout_s: Annotated[int, Field(ge=30)] = 2400
    """From the start to the first generation: a cold load of 547 GB took 25 minutes."""


class Engine(_Table):
    """What engines run as."""

    user: str = "aerie"
    """The service account."""
    bind: str = "127.0.0.1"
    """The address that engines listen on."""
    models: dict[ModelName, EngineModel] = {}
    """How models of `[weights.models]` are served, by name; one that is not there is served by the defaults."""


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
    extensions: Extensions = Extensions()
    storage: Storage = Storage()
    weights: Weights = Weights()
    engine: Engine = Engine()
    severity: dict[FindingId, Literal["fatal", "warn", "info"]] = {}
    """Severities of findings on hosts of this lock, instead of the catalogue's."""
