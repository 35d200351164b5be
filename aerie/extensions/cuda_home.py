"""CUDA for building out of wheels, in the user's cache: for hosts and machines that reach a package index only.

Made from requirements/cuda.txt, named by its hash, and put together as the role cuda does it on hosts.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from aerie.environments import uv_options
from aerie.errors import AerieError
from aerie.paths import cache_dir, repository

__all__ = ["RELEASE", "ensure", "find"]

RELEASE: Final = "13.1.1"  # of requirements/cuda.in
TAIL_LINES: Final = 5


def find() -> Path | None:
    """The toolkit of requirements/cuda.txt where it is made already: what CUDA_HOME is to be."""
    path = _path()
    return path if (path / ".aerie-wheels").exists() else None


def ensure() -> Path:
    """The same, made where it is not: 9 s and 1.6 GB of wheels (2 cores, an index nearby, 2026-11).

    Waits while another process makes it. Raises AerieError with the last lines of what failed.
    """
    if (found := find()) is not None:
        return found
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if find() is None:
            _make(path)
    return path


def _make(path: Path) -> None:
    wheels = Path(f"{path}.wheels")
    for left in (path, wheels):
        if left.exists():
            shutil.rmtree(left)
    wheels.mkdir()
    shutil.copyfile(_requirements(), wheels / "requirements.txt")
    pip = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    sources, variables = uv_options(pip.stdout)
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--index-strategy", "unsafe-best-match"]
    uv = str(Path(sys.executable).with_name("uv"))
    # Into the cache's own file system by hard links: nvcc looks for its libraries beside its real path, so a tree of
    # symbolic links would not do.
    argv = [uv, "pip", "install", "--python", sys.executable, "--target", str(wheels / "tree"), *options, *sources]
    _run([*argv, "--requirement", str(wheels / "requirements.txt")], variables)
    assemble = repository() / "roles/cuda/files/assemble.py"
    _run([sys.executable, str(assemble), str(path), RELEASE], {})


def _run(argv: list[str], variables: dict[str, str]) -> None:
    environment = {**os.environ, **variables}
    done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-TAIL_LINES:])
        raise AerieError(
            "CUDA from wheels", seen=tail or f"{argv[0]} ended with {done.returncode}",
            expected="a toolkit of requirements/cuda.txt",
            remedy="Check the package sources (pip config list), the network and the disk, then start again.",
        )  # fmt: skip


def _path() -> Path:
    digest = hashlib.sha256(_requirements().read_bytes())
    # The same wheels give another toolkit once they are put together otherwise.
    digest.update((repository() / "roles/cuda/files/assemble.py").read_bytes())
    digest.update(f"{sys.platform} {platform.machine()}".encode())
    return cache_dir() / "cuda" / f"{RELEASE}-{digest.hexdigest()[:12]}"


def _requirements() -> Path:
    return repository() / "requirements/cuda.txt"
