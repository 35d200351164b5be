"""What a built wheel is stored under: equal keys mean that a build would give the same wheel again."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

__all__ = ["SCHEMA", "SIZING", "BuildKey"]

SCHEMA = "aerie.build-key/1"
# They change how long a build takes and what memory it needs, not what comes out: with them nothing would be found.
SIZING = frozenset({"CMAKE_BUILD_PARALLEL_LEVEL", "MAX_JOBS", "NVCC_THREADS", "SGL_KERNEL_COMPILE_THREADS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildKey:
    """All that decides what a build gives.

    source_sha256: of the source as it is compiled, patches applied, 64 hex digits; options: variables that the build
    reads, without those of its size; python: "3.12"; torch: as it says itself, "2.14.1+cu130"; cuda: nvcc's, "13.1";
    architectures: compute capabilities, "12.0", their order is no matter; platform: where the wheel can be installed,
    "manylinux_2_39_x86_64": what is linked on a new glibc does not load on an older one.
    """

    package: str
    version: str
    source_sha256: str
    options: Mapping[str, str]
    python: str
    torch: str
    cuda: str
    cxx11_abi: bool
    architectures: tuple[str, ...]
    platform: str

    def __post_init__(self) -> None:
        if len(self.source_sha256) != 64 or not set(self.source_sha256) <= set("0123456789abcdef"):
            raise ValueError(f"source_sha256 is {self.source_sha256!r}, not 64 hex digits")
        if not self.architectures:
            raise ValueError("a build has at least one architecture")
        if sizes := sorted(SIZING & self.options.keys()):
            raise ValueError(f"{', '.join(sizes)}: the size of a build is no part of its key")

    @property
    def text(self) -> str:
        """The key as canonical JSON: sorted, without blanks, ASCII; kept beside the wheel to say what it is."""
        document = asdict(self) | {
            "schema": SCHEMA,
            "options": dict(self.options),
            "architectures": sorted(set(self.architectures)),
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @property
    def digest(self) -> str:
        """sha256 of the text, 64 hex digits: the wheel's place in the store."""
        return hashlib.sha256(self.text.encode()).hexdigest()
