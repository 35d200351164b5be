"""What one host is to build (the document aerie.build/1), and what came of it (aerie.built/1)."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NoReturn

from aerie.errors import AerieError, UsageError

__all__ = ["FOLDER", "REQUEST", "RESULT", "Patch", "Request", "Result", "Source", "is_own"]

REQUEST: Final = "aerie.build/1"
RESULT: Final = "aerie.built/1"
FOLDER: Final = r"^([A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*)?$"  # "", "sgl-kernel", "a/b"; no ".."
# The builder sets these itself: a second value would win or lose by chance. A prefix ends with "_".
_OWN: Final = frozenset({
    "AERIE_", "CC", "CCACHE_", "CMAKE_BUILD_PARALLEL_LEVEL", "CMAKE_CUDA_COMPILER_LAUNCHER",
    "CMAKE_CXX_COMPILER_LAUNCHER", "CPLUS_INCLUDE_PATH", "CUDA_HOME", "CUDA_PATH", "CXX", "FLASH_ATTN_CUDA_ARCHS",
    "HOME", "LC_ALL", "LIBRARY_PATH", "MAX_JOBS", "NVCC_THREADS", "PATH", "PYTORCH_NVCC", "TMPDIR",
    "TORCH_CUDA_ARCH_LIST",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An archive on the host, .tar.gz or .zip, with one folder at its top; sha256: of the archive, 64 hex digits.

    folder: where the package lies below that top, "" for the top itself.
    """

    path: Path
    sha256: str
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A unified diff against the source, paths below the package's folder (-p1); applied without fuzz, in order."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One build. All paths are absolute, and on the host that builds.

    python: the interpreter of the environment that the library is for; torch and what the build needs are in it.
    architectures: compute capabilities, "12.0"; options: variables that the package's own build reads.
    jobs, nvcc_threads: at least 1; budget_bytes: the most that everything in the build may take together, enforced
    where the host lets it; unit_bytes: what one file is expected to take, 0: the budget's share of a job.
    compiler_cache: a folder shared by builds, None for none; work: a folder that the build may empty; out: a folder
    that gets the wheel.
    """

    package: str
    version: str
    source: Source
    python: Path
    cuda_home: Path
    architectures: tuple[str, ...]
    jobs: int
    nvcc_threads: int
    budget_bytes: int
    work: Path
    out: Path
    patches: tuple[Patch, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    unit_bytes: int = 0
    compiler_cache: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; parse gives the same request."""
        return {"schema": REQUEST, **_plain(asdict(self))}

    @staticmethod
    def parse(text: str | bytes) -> "Request":
        """The request of a document. Raises UsageError with the value that is wrong."""
        document = _document(_loaded(text), REQUEST)
        for key, kind in (("source", Source), ("patches", Patch)):
            rows = document.get(key)
            if isinstance(rows, list):
                document[key] = tuple(_record(kind, row, f"{key}[{index}]") for index, row in enumerate(rows))
            elif rows is not None:
                document[key] = _record(kind, rows, key)
        request: Request = _record(Request, document, "document")
        _check(request)
        return request


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a build. error: None where there is a wheel, else AerieError.to_dict() of the first thing wrong.

    wheel: in `out`, None without one; wall_s, cpu_s: of everything that was started; peak_bytes: the most memory that
    all of it took together, by the kernel's count where limited_by names a limit ("" where none could be set: then by
    looking every quarter of a second).
    units_compiled, units_cached: files compiled, and files taken from the cache; held_back_s: summed over files that
    waited for memory; units_again: files that the kernel ended for want of memory and that were compiled alone then.
    device_code: by library in the wheel, what it has code for ("sm_120"; PTX as "compute_120").
    notes: what an operator should know all the same, sentences.
    """

    wheel: Path | None = None
    wheel_sha256: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    units_compiled: int = 0
    units_cached: int = 0
    units_again: int = 0
    held_back_s: float = 0.0
    limited_by: str = ""
    device_code: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: Mapping[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; parse gives the same result."""
        return {"schema": RESULT, **_plain(asdict(self))}

    @staticmethod
    def parse(text: str | bytes) -> "Result":
        """The result of a document. Raises UsageError where it is none."""
        return Result.from_dict(_loaded(text))

    @staticmethod
    def from_dict(told: Mapping[str, Any]) -> "Result":
        """The result of a document that was JSON. Raises UsageError where it is none."""
        document = _document(told, RESULT)
        if document.get("wheel") is None:
            document.pop("wheel", None)
        if document.get("error") is None:
            document.pop("error", None)
        code = document.get("device_code", {})
        document["device_code"] = {name: tuple(architectures) for name, architectures in code.items()}
        result: Result = _record(Result, document, "document")
        return result

    @property
    def failure(self) -> AerieError | None:
        """The error as it can be raised."""
        if self.error is None:
            return None
        told = dict(self.error)
        return AerieError(told["where"], seen=told["seen"], expected=told["expected"], remedy=told["remedy"])


def is_own(name: str) -> bool:
    """Does the builder set this variable itself, so that no option may?"""
    return name in _OWN or any(name.startswith(prefix) for prefix in _OWN if prefix.endswith("_"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def _loaded(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        _wrong("document", str(error), "JSON")


def _document(told: Any, schema: str) -> dict[str, Any]:
    """A document's values, without its schema."""
    if not isinstance(told, Mapping) or told.get("schema") != schema:
        _wrong("schema", told.get("schema") if isinstance(told, Mapping) else told, schema)
    return {key: value for key, value in told.items() if key != "schema"}


def _record(kind: Callable[..., Any], row: object, where: str) -> Any:
    if not isinstance(row, dict):
        _wrong(where, row, "a table")
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(row.keys() - known.keys()):
        _wrong(where, unknown, f"only {', '.join(known)}")
    required = {one.name for one in known.values() if one.default is MISSING and one.default_factory is MISSING}
    if missing := sorted(required - row.keys()):
        _wrong(where, sorted(row), f"{', '.join(missing)} too")
    return kind(**{key: _value(known[key].type, value, f"{where}.{key}") for key, value in row.items()})


def _value(kind: Any, value: object, where: str) -> object:
    text = str(kind)
    if "Path" in text and isinstance(value, str):
        return Path(value)
    if "None" in text and value is None:
        return None
    if kind is float and type(value) is int:
        return float(value)
    if kind == tuple[str, ...] and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if text == "collections.abc.Mapping[str, str]" and not _is_texts(value):
        _wrong(where, value, "a table of texts")
    expected = getattr(kind, "__origin__", None) or (kind if isinstance(kind, type) else Mapping)
    if not isinstance(value, expected) or (isinstance(value, bool) and kind is not bool):
        _wrong(where, value, f"a value of type {getattr(kind, '__name__', kind)}")
    return value


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _check(request: Request) -> None:
    for name in ("source", "python", "cuda_home", "compiler_cache", "work", "out"):
        path = request.source.path if name == "source" else getattr(request, name)
        if path is not None and not path.is_absolute():
            _wrong(name, str(path), "an absolute path")
    if not re.fullmatch(r"[0-9a-f]{64}", request.source.sha256):
        _wrong("source.sha256", request.source.sha256, "64 hex digits")
    if not re.fullmatch(FOLDER, request.source.folder):
        _wrong("source.folder", request.source.folder, "a folder below the top of the source, without ..")
    if not request.architectures or not all(re.fullmatch(r"\d+\.\d[af]?", one) for one in request.architectures):
        _wrong("architectures", list(request.architectures), 'compute capabilities such as "12.0"')
    for name, least in (("jobs", 1), ("nvcc_threads", 1), ("budget_bytes", 1), ("unit_bytes", 0)):
        if getattr(request, name) < least:
            _wrong(name, getattr(request, name), f"{least} or more")
    if own := sorted(filter(is_own, request.options)):
        _wrong("options", own, "none of those that a build sets itself")


def _wrong(where: str, seen: object, expected: str) -> NoReturn:
    remedy = "Build with ./invoke build, which writes this document."
    raise UsageError(f"build: {where}", seen=seen, expected=expected, remedy=remedy)
