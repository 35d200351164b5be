"""Environments beside the controller's own: hash-locked, named by their content, made once and reused; or given.

Each that is made lies under cache_dir()/environments/<name>-<hash>. It is made from requirements/<name>.txt by uv,
which took 23 s where pip took 73 s for the engine's (2 cores, local wheels, 2026-11). Old ones are never removed.
"""

import ast
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import AerieError, UsageError
from .paths import cache_dir, repository
from .runbook.step import write_atomic

__all__ = [
    "PYTHON",
    "Environment",
    "Progress",
    "ensure",
    "find",
    "find_python",
    "given",
    "locked_hash",
    "locked_packages",
    "uv_options",
]

PYTHON = "3.11"  # what requirements/engine.txt and train.txt are locked for: torch's hash is that of its cp311 wheel
POLL_S = 0.5
ASK_S = 60.0  # for the packages of a Python that is given; 0.1 s is usual, a cold network disk takes longer
TAIL_LINES = 10
OLDEST = (3, 11)  # of a Python that is given: what the code of the steps is written for
# The first of a name on sys.path is what an import finds.
ASK = """\
import importlib.metadata, json, sys
found = {}
for one in importlib.metadata.distributions():
    if one.name:
        found.setdefault(one.name, one.version)
json.dump({"python": sys.version_info[:3], "prefix": sys.prefix, "packages": found}, sys.stdout)
"""

Progress = Callable[[int, int, str], None]
"""(packages in place, packages wanted, what is going on); called about twice a second while something is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An environment that is whole. packages: normalised name to version, as installed.

    hash: sha256, hex, of the lock that it was made from; of one that was given, over what is installed in it.
    """

    path: Path
    python: Path
    hash: str
    packages: Mapping[str, str]


def find(name: str) -> Environment | None:
    """The environment that fits requirements/<name>.txt now, or None if it is not made yet. Builds nothing."""
    digest = locked_hash(name)
    path = _path(name, digest)
    try:
        packages = json.loads((path / "ready.json").read_text())["packages"]
    except (OSError, ValueError, KeyError):
        return None
    python = path / "bin" / "python"
    # A link to a Python that was since removed does not exist.
    return Environment(path=path, python=python, hash=digest, packages=packages) if python.exists() else None


def ensure(name: str, progress: Progress = lambda done, total, note: None) -> Environment:
    """The environment that fits requirements/<name>.txt, made if need be; an unfinished one is made anew.

    Waits while another process makes the same one. Raises AerieError with the last lines of what failed.
    """
    if (found := find(name)) is not None:
        return found
    requirements = _requirements(name)
    path = _path(name, locked_hash(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path.with_suffix(".lock"), progress) as lock:
        if (found := find(name)) is None:
            if path.exists():
                shutil.rmtree(path)
            _run(name, [_uv(), "venv", "--quiet", "--no-project", "--python", find_python() or PYTHON, str(path)], lock)
            _install(name, path, requirements, lock, progress)
            ready = {"schema": "aerie.environment/1", "packages": _installed(path)}
            write_atomic(path / "ready.json", json.dumps(ready, sort_keys=True).encode())
            found = find(name)
    assert found is not None, f"{path}: written just now"
    return found


@cache
def given(python: str) -> Environment:
    """The environment of an interpreter that is there already, as container images and hosts without a network have.

    Runs it once. Raises UsageError where it does not run, or is too old for the code of steps.
    """
    where, expected = f"interpreter {python}", f"a Python {'.'.join(map(str, OLDEST))} or newer that runs"
    remedy = "Give the absolute path of the environment's bin/python."
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        argv = [python, "-P", "-c", ASK]
        asked = subprocess.run(argv, capture_output=True, text=True, check=False, env=variables, timeout=ASK_S)
        answer = json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        said = asked.stderr.strip().splitlines()[-1:] if isinstance(error, ValueError) else [str(error)]
        raise UsageError(where, seen="; ".join(said) or "no answer", expected=expected, remedy=remedy) from error
    version = tuple(answer["python"])
    if version < OLDEST:
        raise UsageError(where, seen=".".join(map(str, version)), expected=expected, remedy=remedy)
    packages = {_normalised(name): number for name, number in answer["packages"].items()}
    content = json.dumps({"python": version, "machine": platform.machine(), "packages": packages}, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return Environment(path=Path(answer["prefix"]), python=Path(python), hash=digest, packages=packages)


def find_python() -> str | None:
    """The Python that environments are made with. None: this machine has none of version PYTHON, and uv downloads it.

    The download is uv's own default; no machine that this was tried on needed it (Ubuntu 24.04 will: it has 3.12).
    """
    if sys.version_info[:2] == tuple(int(part) for part in PYTHON.split(".")):
        return str(getattr(sys, "_base_executable", sys.executable))  # surely works; outlives the controller's .venv
    argv = [_uv(), "python", "find", "--no-project", "--no-python-downloads", PYTHON]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def locked_hash(name: str) -> str:
    """What the environment `name` is named by: sha256 over its locked requirements, Python and machine."""
    digest = hashlib.sha256(_requirements(name).read_bytes())
    digest.update(f"\n{PYTHON} {sys.platform} {platform.machine()}".encode())
    return digest.hexdigest()


def locked_packages(name: str) -> Mapping[str, str]:
    """What requirements/<name>.txt would install: normalised name to version."""
    pins = re.findall(r"^([\w.\-]+)==([^\s;\\]+)", _requirements(name).read_text(), re.MULTILINE)
    return {_normalised(package): version for package, version in pins}


def uv_options(pip_settings: str) -> tuple[list[str], dict[str, str]]:
    """The package sources of `pip config list` as uv's arguments and environment variables.

    uv does not read pip's configuration, where a company's index or a folder of wheels is usually named.
    """
    settings = _parse(pip_settings)
    arguments = []
    for key, option in (
        ("index-url", "--index-url"),
        ("extra-index-url", "--extra-index-url"),
        ("find-links", "--find-links"),
        ("trusted-host", "--allow-insecure-host"),
    ):
        for value in settings.get(key, "").split():
            arguments += [option, value]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        arguments.append("--no-index")
    variables = {}
    for key, variable in (("cert", "SSL_CERT_FILE"), ("proxy", "ALL_PROXY"), ("default-timeout", "UV_HTTP_TIMEOUT")):
        if key in settings:
            variables[variable] = settings[key]
    return arguments, variables


def _parse(pip_settings: str) -> dict[str, str]:
    """`pip config list` by option. Lines are SECTION.OPTION='value'; pip lets :env: win over install over global."""
    found: dict[tuple[int, str], str] = {}
    sections = ("global", "install", ":env:")
    for line in pip_settings.splitlines():
        key, separator, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if separator and section in sections:
            found[sections.index(section), option] = str(ast.literal_eval(value))
    return {option: found[rank, option] for rank, option in sorted(found)}


def _requirements(name: str) -> Path:
    folder = repository() / "requirements"
    path = folder / f"{name}.txt"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.txt")))
        raise UsageError(f"environment {name}", seen="no such requirements", expected=f"one of {known}", remedy="")
    return path


def _path(name: str, digest: str) -> Path:
    return cache_dir() / "environments" / f"{name}-{digest[:12]}"


def _uv() -> str:
    # uv is one of the controller's own requirements, so it lies beside this Python.
    return str(Path(sys.executable).with_name("uv"))


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[int]:
    started = time.monotonic()
    with open(path, "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(0, 1, f"waiting for another process that makes it, {time.monotonic() - started:.0f} s")
                time.sleep(POLL_S)
        yield file.fileno()


def _install(name: str, path: Path, requirements: Path, lock: int, progress: Progress) -> None:
    pip = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    sources, variables = uv_options(pip.stdout)
    # As pip does, any source may serve any version; what is installed is fixed by its hash all the same.
    options = ["--no-deps", "--require-hashes", "--compile-bytecode", "--index-strategy", "unsafe-best-match"]
    python = str(path / "bin" / "python")
    argv = [_uv(), "pip", "install", "--python", python, *options, *sources, "-r", str(requirements)]
    total = sum(1 for line in requirements.read_text().splitlines() if re.match(r"[\w.\-]+==", line))

    def watch(note: str) -> None:
        progress(len(_installed(path)), total, note)

    try:
        _run(name, argv, lock, variables, watch)
    except AerieError as error:
        if not _is_torch_missing(str(error.seen)):
            raise
        # torch's CPU builds lie on PyTorch's own index, which a plain pip configuration does not name; uv knows
        # it. Written from uv's documentation: no machine that this was tried on could reach that index.
        _run(name, [*argv, "--torch-backend", "cpu"], lock, variables, watch)


def _is_torch_missing(output: str) -> bool:
    return re.search(r"\btorch(==| was not found|\b.*\bno version)", " ".join(output.split())) is not None


def _run(
    name: str,
    argv: Sequence[str],
    lock: int,
    variables: Mapping[str, str] | None = None,
    watch: Callable[[str], None] = lambda note: None,
) -> None:
    """Run `argv` to its end, calling `watch` meanwhile; raises AerieError with its last lines."""
    with tempfile.TemporaryFile("w+") as output:
        # The child holds the lock too: if this process is killed outright, the next one waits for the orphan
        # instead of removing the folder under it.
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(variables or {})},
            pass_fds=[lock],
        )
        try:
            while _is_running(child):
                watch(_note(child.pid))
        except BaseException:
            child.terminate()
            child.wait()
            raise
        output.seek(0)
        tail = "\n".join(output.read().splitlines()[-TAIL_LINES:])
    if child.returncode != 0:
        raise AerieError(
            f"environment {name}",
            seen=tail or f"{argv[0]} ended with {child.returncode}",
            expected=f"every package of requirements/{name}.txt installed for Python {PYTHON}",
            remedy=_remedy(tail),
        )


def _is_running(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(timeout=POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _note(pid: int) -> str:
    """What changes while the child works, also within one large file: bytes written by it and its children."""
    import psutil

    written = 0
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            written += one.io_counters().write_chars
    except psutil.Error:
        return "ending"
    return f"{written / 1e6:.0f} MB written"


def _remedy(tail: str) -> str:
    if _is_torch_missing(tail):
        return (
            "torch's CPU build was not found: name a source that has it, e.g. "
            "pip config set global.find-links FOLDER-WITH-THE-WHEEL, then start again."
        )
    if "interpreter" in tail.lower():
        return f"Install Python {PYTHON} (python{PYTHON}) and start again."
    return "Check the package sources (pip config list), the network and the disk, then start again."


def _installed(path: Path) -> dict[str, str]:
    found = {}
    for info in path.glob("lib/python*/site-packages/*.dist-info"):
        package, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        found[_normalised(package)] = version
    return found


def _normalised(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
