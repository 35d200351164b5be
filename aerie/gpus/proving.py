"""Proving a host's GPUs, from the controller: one round trip, with an end."""

import json
from typing import TYPE_CHECKING

from aerie.remote.code import Code

from .here import LIMIT_S, PARTS
from .proof import Proof, parse

if TYPE_CHECKING:
    from aerie.inventory import Host
    from aerie.lock import Lock

__all__ = ["CODE", "interpreter", "prove"]

CODE = Code("aerie.gpus.onhost.main", ("gpus/__init__.py", "gpus/onhost/*.py"))
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
    request = json.dumps({"python": python, "limit_s": limit_s, "is_collective": bool(python)}).encode()
    return parse(CODE.ask(host, ["prove"], stdin=request, timeout_s=PARTS * limit_s))
