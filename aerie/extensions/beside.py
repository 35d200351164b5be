"""What runs on a host beside a build, by its snapshot: the controller's side of running.py."""

from collections.abc import Iterator
from typing import Any

from aerie.findings.case import known
from aerie.snapshot import Snapshot, Unknown

__all__ = ["asked", "unseen"]


def asked(snapshot: Snapshot) -> list[dict[str, Any]]:
    """What may take more memory while a build goes on, as the host is asked for it: engines, and what is on a GPU."""
    gpus = known(snapshot.gpus) or ()
    services = known(snapshot.engine.services) or ()
    # An engine that starts gets a worker for each GPU; nobody sees them before.
    workers = {one.unit: len(gpus) if one.active == "activating" else 1 for one in services}
    found = {unit: set[int]() for unit in workers}
    alone = set()
    for process in (process for gpu in gpus for process in known(gpu.processes) or ()):
        if process.unit is None:
            alone.add(process.pid)
        else:
            found.setdefault(process.unit, set()).add(process.pid)
    rows = [
        {"unit": unit, "pids": sorted(pids), "workers": max(len(pids), workers.get(unit, 0))}
        for unit, pids in found.items()
    ]
    return rows + [{"unit": None, "pids": [pid], "workers": 1} for pid in sorted(alone)]


def unseen(snapshot: Snapshot) -> Iterator[str]:
    """A sentence for each thing that may run there and was not seen: nothing is reserved for it."""
    told: list[tuple[str, object]] = [(f"on GPU {gpu.index}", gpu.processes) for gpu in known(snapshot.gpus) or ()]
    for where, what in (*told, ("of engines", snapshot.engine.services)):
        if isinstance(what, Unknown):
            yield f"what runs {where} could not be read ({what.unknown}), so no memory is reserved for it"
