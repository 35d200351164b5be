"""What to do about the Xid errors of the driver's log: xid.toml as values, and the one finding of them."""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from aerie.snapshot import Xid

from .case import Case, address, known
from .gpus import lost_at
from .model import Finding, Severity

__all__ = ["Action", "actions", "judge"]

FILE = Path(__file__).with_name("xid.toml")
RANKS = tuple(Severity)  # worst first
CLOSED_MODULE, RECOVERY, RESET = "open-module", "recovery", "reset-gpu"
SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What to do. codes: Xid codes with their names; rank: 0 is the most urgent."""

    name: str
    severity: Severity
    text: str
    codes: Mapping[int, str]
    rank: int


@cache
def actions() -> Mapping[str, Action]:
    """Every action by name, the most urgent first."""
    document = tomllib.loads(FILE.read_text())
    found = {}
    for rank, (name, row) in enumerate(document["action"].items()):
        codes = {one["code"]: one["name"] for one in document["xid"] if one["action"] == name}
        severity = Severity(row["severity"])
        found[name] = Action(name=name, severity=severity, text=row["text"], codes=MappingProxyType(codes), rank=rank)
    return MappingProxyType(found)


def judge(case: Case, mine: Collection[str]) -> Iterator[Finding]:
    """One finding for all Xid lines since boot that nothing else explains. mine: ids of the driver's other findings."""
    xids = [xid for xid in known(case.snapshot.xids) or () if not _is_explained(case, xid, mine)]
    if not xids:
        return
    worst = min(xids, key=lambda xid: _action(xid).rank)
    counts: dict[tuple[int, str], int] = {}
    for xid in xids:
        counts[xid.code, address(xid.bus_id)] = counts.get((xid.code, address(xid.bus_id)), 0) + 1
    ordered = sorted(counts, key=lambda one: (_by_code(one[0]).rank, one))
    seen = "; ".join(_line(code, gpu, counts[code, gpu]) for code, gpu in ordered[:SHOWN])
    yield case.finding(
        "driver.xid",
        seen=seen + (f"; and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""),
        expected="no Xid since boot",
        severity=_severity(case, worst),
        action=_action(worst).text.format(host=case.host, gpu=address(worst.bus_id)),
    )


def _is_explained(case: Case, xid: Xid, mine: Collection[str]) -> bool:
    action = _action(xid).name
    if action == CLOSED_MODULE and "driver.closed-module" in mine:
        return True
    if address(xid.bus_id) in lost_at(case):
        return True  # driver.gpu-lost says the same and what to do
    gpus = [gpu for gpu in known(case.snapshot.gpus) or () if address(gpu.bus_id) == address(xid.bus_id)]
    return action == RECOVERY and any(known(gpu.recovery_action) for gpu in gpus)


def _severity(case: Case, xid: Xid) -> Severity:
    """NVML's recovery action knows better than the log: a GPU that asks for no reset has had it, or never needed it."""
    gpus = [gpu for gpu in known(case.snapshot.gpus) or () if address(gpu.bus_id) == address(xid.bus_id)]
    is_over = _action(xid).name == RESET and any(gpu.recovery_action == 0 for gpu in gpus)
    return Severity.WARN if is_over else _action(xid).severity


def _action(xid: Xid) -> Action:
    return _by_code(xid.code)


def _by_code(code: int) -> Action:
    known_ones = actions()
    return next((action for action in known_ones.values() if code in action.codes), known_ones["look-up"])


def _line(code: int, gpu: str, count: int) -> str:
    name = _by_code(code).codes.get(code, "not in the table")
    return f"Xid {code} on {gpu} ({name})" + (f", {count} times" if count > 1 else "")
