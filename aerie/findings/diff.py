"""Judging a host: its snapshot against its lock, layer by layer. Pure: no clock, no host, no file of the host."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aerie.lock import Lock, with_variables
from aerie.snapshot import Snapshot

from . import (
    base,
    cuda,
    driver,
    engine,
    extensions,
    gpus,
    interconnect,
    kernel,
    python,
    storage,
    unknowns,
    weights,
    xid,
)
from .case import Case
from .catalogue import rows
from .model import Finding, Severity

if TYPE_CHECKING:
    from aerie.inventory import Host

__all__ = ["diff", "in_order", "judged_layers"]

OF_GPUS = ("driver", "interconnect", "cuda", "extensions")


def diff(lock: Lock, snapshot: Snapshot, host: "Host") -> tuple[Finding, ...]:
    """Every finding of the host, the fatal ones first, then by layer. Consequences of a cause reported are left out.

    host: its role variables go before the lock's values, its GPUs are what it ought to have; waivers are the plan's.
    """
    case = Case(host=host.name, lock=with_variables(lock, host.variables), snapshot=snapshot, gpus=host.gpus)
    found = [*base.judge(case), *kernel.judge(case)]
    if case.has_gpus:
        found += _of_gpu_host(case, {finding.id for finding in found})
    for judge in (python.judge, storage.judge, weights.judge, engine.judge):
        found += judge(case)
    ids = {finding.id for finding in found}
    if "driver.module-missing" in ids:  # not a kernel to boot "when it suits"
        found = [finding for finding in found if finding.id != "kernel.reboot-pending"]
    return in_order([*found, *unknowns.judge(case, ids)])


def in_order(findings: "list[Finding]") -> tuple[Finding, ...]:
    """The fatal ones first; within a severity as the catalogue has them, which is by layer."""
    severities, ids = list(Severity), list(rows())
    return tuple(sorted(findings, key=lambda finding: (severities.index(finding.severity), ids.index(finding.id))))


def judged_layers(gpu_count: int) -> tuple[str, ...]:
    """The layers that have findings; those of GPUs only on a host that has some."""
    layers = dict.fromkeys(row.layer for row in rows().values())
    return tuple(layer for layer in layers if gpu_count or layer not in OF_GPUS)


def _of_gpu_host(case: Case, causes: set[str]) -> Iterator[Finding]:
    software = list(driver.judge(case, causes))
    yield from software
    ids = {finding.id for finding in software}
    cards = list(gpus.judge(case, ids))
    yield from cards
    ids |= {finding.id for finding in cards}
    yield from xid.judge(case, ids)
    yield from interconnect.judge(case, causes | ids)
    yield from cuda.judge(case, causes | ids)
    yield from extensions.judge(case)
