"""Proving a host's GPUs, with an end: from the controller in one round trip, or those of this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.errors import AerieError
from aerie.remote.code import Code

from .proof import Proof, parse

if TYPE_CHECKING:
    from aerie.inventory import Host
    from aerie.lock import Lock

__all__ = ["CODE", "interpreter", "prove", "prove_here"]

CODE = Code("aerie.gpus.onhost.main", ("gpus/__init__.py", "gpus/onhost/*.py"))
LIMIT_S = 120.0  # for each part; NCCL's first meeting of 8 GPUs takes some 20 s, a compile in the driver under one
PARTS = 12  # a count, a kernel for each of eight GPUs, the pairs, the collective, and one for its end
ENVIRONMENTS = ("serve", "train")  # those of a lock that hold torch, the serving one first: its NCCL will serve


def interpreter(lock: "Lock") -> str:
    """The interpreter of the lock's environment with torch, on the host; "" where the lock has none."""
    names = [environment.name for environment in lock.python.environments]
    return next((f"/opt/aerie/environments/{name}/bin/python" for name in ENVIRONMENTS if name in names), "")


def prove(host: "Host", *, python: str, limit_s: float = LIMIT_S) -> Proof:
    """Run a kernel on every GPU, copy between all pairs and reduce over all of them, each checked word by word.

    python: an interpreter on the host that has torch; "" leaves the collective out. Takes memory of some 300 MB on each
    GPU for seconds, so idle or not they are disturbed little. Raises as remote.run does, and AerieError.
    """
    return parse(CODE.ask(host, ["prove"], stdin=_request(python, limit_s), timeout_s=PARTS * limit_s))


def prove_here(folder: Path, *, uuids: Sequence[str], python: str, limit_s: float = LIMIT_S) -> Mapping[str, Any]:
    """As `prove`, of the GPUs of this machine with these UUIDs: the document, for `parse`.

    folder: where the code is put; it must not be there yet. Where CUDA_VISIBLE_DEVICES is set already, it stays so.
    """
    for name, content in CODE.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(folder), "prove"],
        input=_request(python, limit_s),
        env={"CUDA_VISIBLE_DEVICES": ",".join(uuids), **os.environ},
        capture_output=True,
        check=False,
        timeout=PARTS * limit_s,
    )
    if ended.returncode:
        raise AerieError(
            "the proof of the GPUs",
            seen=ended.stderr.decode(errors="replace")[-500:] or f"exit code {ended.returncode}",
            expected="an answer, whatever the GPUs do",
            remedy="This is a fault of aerie: report it.",
        )
    document: Mapping[str, Any] = json.loads(ended.stdout)
    return document


def _request(python: str, limit_s: float) -> bytes:
    return json.dumps({"python": python, "limit_s": limit_s, "is_collective": bool(python)}).encode()
