"""On a host that works along: what it has, and its part of a training or of a serving. Over a folder that all share.

    python -m aerie.eagle3.agent hello FOLDER ADDRESS     one JSON document
    python -m aerie.eagle3.agent join FOLDER RANK         until the training ends, or the first host is not heard of
    python -m aerie.eagle3.agent serve FOLDER RANK        a server, so long as the first host is heard of

The first host writes `job.json` and, while it works, `alive`, over and over; each other one <rank>.log and, at its
end, <rank>.ended.json. A server also writes <rank>.alive, and <rank>.ready.json once it has generated.
"""

import hashlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from aerie.eagle3.heard import SILENCE_S, Heard, own_address
from aerie.paths import repository
from aerie.runbook.step import Json, write_atomic

__all__ = ["command", "environment", "hello", "join", "main"]

_POLL_S = 1.0
_TAIL = 40  # lines: torchrun's own summary of a failure has twenty


def main(arguments: Sequence[str]) -> int:
    """Exit status of the verb; 2 for another one."""
    match list(arguments):
        case ["hello", folder, address]:
            sys.stdout.write(json.dumps(hello(Path(folder), address)) + "\n")
            return 0
        case ["join", folder, rank]:
            return join(Path(folder), int(rank))
        case ["serve", folder, rank]:
            from aerie.eagle3 import serving_agent  # the trainer's environment has not all that it imports

            return serving_agent.serve(Path(folder), int(rank))
    return 2


def hello(folder: Path, address: str) -> dict[str, Json]:
    """What must be the same on every host, and what this one has. address: of the first host."""
    import torch

    marker, file = folder / "marker", folder / "wanted.json"
    wanted = json.loads(file.read_bytes()) if file.exists() else {"paths": [], "packages": []}
    return {
        "marker": marker.read_text() if marker.exists() else None,
        "missing": [path for path in wanted["paths"] if not os.path.exists(path)],
        "code": _code(),
        "packages": {name: _version(name) for name in wanted["packages"]},
        "gpus": torch.cuda.device_count(),
        "interface": _interface(address),
    }


def command(job: Mapping[str, Json], rank: int) -> list[str]:
    """The torchrun of one host."""
    options = {
        "--nnodes": job["hosts"],
        "--node_rank": rank,
        "--nproc_per_node": job["processes_each"],
        "--master_addr": job["address"],
        "--master_port": job["port"],
        "--max-restarts": 0,  # a process that ended is another attempt of the step, from the last checkpoint
    }
    given = [f"{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "aerie.eagle3.torchrun", *given, "-m", job["module"], *job["arguments"]]


def environment(job: Mapping[str, Json]) -> dict[str, str]:
    """Beside the variables of the job: the interface on which this host reaches the first one, and no other."""
    interface = _interface(job["address"])
    return dict(job["environment"]) | {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


def join(folder: Path, rank: int) -> int:
    """Exit status of this host's part, which ends with the first host's; written to <rank>.ended.json too."""
    job = json.loads((folder / "job.json").read_bytes())
    with open(folder / f"{rank}.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command(job, rank),
            env={**os.environ, **environment(job)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            _follow(process, folder / "alive")
        finally:
            _end(process)
            with open(folder / f"{rank}.log", encoding="utf-8", errors="replace") as written:
                tail = [line.rstrip() for line in deque(written, maxlen=_TAIL)]
            ended = {"exit_status": process.returncode, "tail": tail}
            write_atomic(folder / f"{rank}.ended.json", json.dumps(ended).encode())
    return process.returncode


def _follow(process: "subprocess.Popen[bytes]", alive: Path) -> None:
    """Wait until the process ends, or the first host says nothing for too long, or that it is over."""
    heard = Heard(alive)
    while process.poll() is None and heard.is_alive(SILENCE_S):
        time.sleep(_POLL_S)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)  # torchrun ends its processes then
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _interface(address: str) -> str:
    """The interface on which this host sends to the address."""
    import psutil

    own = own_address(address)
    found = (name for name, ones in psutil.net_if_addrs().items() if any(one.address == own for one in ones))
    return next(found, "")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _code() -> str:
    """sha256 of aerie's own modules, by path and content."""
    digest = hashlib.sha256()
    root = repository() / "aerie"
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
