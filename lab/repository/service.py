"""The process that serves the repository, found by its cgroup; and how it goes wrong on demand."""

import json
import subprocess
import sys
from pathlib import Path

from aerie.choice import unknown_name
from aerie.errors import AerieError
from aerie.runbook.step import write_atomic

from .. import cgroups, network
from .build import Repository

__all__ = ["MODES", "chosen", "mode", "start", "stop", "uri"]

NAME = "repository"  # of its cgroup
PORT = 8077
MODES = {
    "normal": "as it should be",
    "gone": "nothing answers",
    "stale": "its index names packages that are not there any more",
    "bad-hash": "its index is not the one that was signed",
    "rotated-key": "another key signs it, and that key is what it offers",
}


def uri(distro: str) -> str:
    """Where hosts find the tree of their distribution."""
    return f"http://{network.GATEWAY}:{PORT}/compute/cuda/repos/{distro}/x86_64/"


def chosen(state: Path) -> Repository | None:
    """The one that this lab serves since its first host; None before."""
    try:
        found = Repository(Path((state / NAME / "folder").read_text()))
    except FileNotFoundError:
        return None
    return found if found.folder.is_dir() else None


def start(state: Path, repository: Repository) -> None:
    """Serve it, normally or in the mode it was left in; nothing happens where it is served already."""
    mode_file = state / NAME / "mode"
    if not mode_file.exists():
        mode_file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(mode_file, b"normal", durable=False)
    write_atomic(mode_file.with_name("folder"), str(repository.folder).encode(), durable=False)
    if mode_file.read_text() == "gone" or cgroups.pids(NAME):
        return
    spec = {
        "address": str(network.GATEWAY), "port": PORT, "folder": str(repository.folder), "mode": str(mode_file),
        "cgroups": [str(path) for path in cgroups.create(NAME)],
    }  # fmt: skip
    with open(mode_file.with_name("serve.log"), "ab") as log:
        argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("serve.py")), json.dumps(spec)]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", check=False, timeout=30)
    if done.returncode != 0:
        raise AerieError(
            "lab repository",
            seen="\n".join(Path(log.name).read_text().splitlines()[-3:]),
            expected=f"to serve at {network.GATEWAY}:{PORT}",
            remedy=f"See who has the port: ss -ltnp sport = :{PORT}",
        )


def stop() -> None:
    """End the process and remove its cgroup, if there are any."""
    cgroups.kill(NAME)
    cgroups.remove(NAME)


def mode(state: Path, repository: Repository, wanted: str) -> None:
    """Serve that variant from the next request on. Raises UsageError for a word that is none of MODES."""
    if wanted not in MODES:
        raise unknown_name("lab.repository", wanted, MODES)
    write_atomic(state / NAME / "mode", wanted.encode(), durable=False)
    if wanted == "gone":
        stop()
    else:
        start(state, repository)
