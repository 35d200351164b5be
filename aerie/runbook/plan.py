"""Which steps would run and why: what the journal and the files say about each, judged without changing anything."""

import hashlib
import importlib
import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from aerie.choice import unknown_name
from aerie.errors import UsageError
from aerie.paths import cache_dir, state_dir
from aerie.runbook import artifacts, keys
from aerie.runbook.budget import Budget, Measured
from aerie.runbook.journal import Entry, Journal
from aerie.runbook.spec import Loaded, Step, module, nest, values_of
from aerie.runbook.step import Decision

__all__ = ["Finding", "Made", "Plan", "PlannedStep", "Present", "Selection", "select"]

_PATIENCE = 3  # times the planned seconds: a plan that is off by half is still seen through


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which steps a person asked for. again: run them even where their result still holds."""

    steps: frozenset[str]
    is_all: bool
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A result that still holds. folder: of the attempt that made it, with evidence.json and out/ in it."""

    seq: int
    run: str
    attempt: int
    key: str
    output: str
    folder: Path
    artifacts: tuple[Mapping[str, Any], ...]
    evidence_sha256: str

    @property
    def evidence(self) -> dict[str, Any]:
        """What the step returned."""
        found: dict[str, Any] = json.loads((self.folder / "evidence.json").read_bytes())
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is known of one step: a result that holds, or why there is none. damages: (seq, what) of spoilt results."""

    parts: Mapping[str, Any]
    made: Made | None
    reason: str
    damages: tuple[tuple[int, artifacts.Damage], ...] = ()

    @property
    def key(self) -> str:
        """The step's key now."""
        return keys.key_of(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One line of a plan. action: done, run, blocked or skipped (not selected). reason: why, in words.

    key: of the step now; origin: the run whose result is used, "" when there is none. budget: what it would take;
    expected_s: by the budget where that can tell, else the median of the step's earlier durations. obstacle: why it
    cannot run with these values, "" where it can. disks: of the plan's disk_free_bytes, those that it may write to; ()
    for every one.
    """

    id: str
    title: str
    action: str
    reason: str
    key: str
    origin: str
    budget: Budget
    expected_s: float | None
    obstacle: str = ""
    disks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would do now. disk_free_bytes: by file system, of the folders that steps write to.

    ram_bytes: of the host; gpu_bytes: of each of its GPUs, None where nobody can say or no step wants one.
    """

    runbook: str
    profile: str
    host: str
    steps: tuple[PlannedStep, ...]
    disk_free_bytes: Mapping[str, int]
    ram_bytes: int
    gpu_bytes: tuple[int, ...] | None = None

    @property
    def to_run(self) -> tuple[PlannedStep, ...]:
        """The steps that will run."""
        return tuple(step for step in self.steps if step.action == "run")

    @property
    def disk_needed_bytes(self) -> int:
        """What the steps that will run may write together: nothing of it is removed meanwhile."""
        return sum(step.budget.disk_bytes for step in self.to_run)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self) | {"disk_needed_bytes": self.disk_needed_bytes}

    def writing_to(self, disk: str) -> tuple[PlannedStep, ...]:
        """The steps that will run and may write to this file system."""
        # A step does not say whether it writes to the state or to the cache folder, so each must have room for all.
        return tuple(step for step in self.to_run if step.budget.disk_bytes and disk in (step.disks or (disk,)))


def select(steps: Sequence[Step], *, from_: str | None, until: str | None, only: Sequence[str],
           again: bool = False) -> Selection:  # fmt: skip
    """The steps from `from_` to `until`, or just those of `only`. Raises UsageError for an unknown name."""
    ids = [step.id for step in steps]
    for option, name in [("--from", from_), ("--until", until), *(("--only", name) for name in only)]:
        if name is not None and name not in ids:
            raise unknown_name(f"{option} {name}", name, ids)
    if only and (from_ or until):
        raise UsageError("--only", seen="with --from or --until", expected="one way to select steps",
                         remedy="Leave one of them out.")  # fmt: skip
    first, last = ids.index(from_) if from_ else 0, ids.index(until) if until else len(ids) - 1
    if first > last:
        raise UsageError(f"--from {from_} --until {until}", seen="nothing between them",
                         expected=f"--from before {until}", remedy="Swap them.")  # fmt: skip
    chosen = frozenset(only or ids[first : last + 1])
    return Selection(steps=chosen, is_all=len(chosen) == len(ids), again=again)


class Present:
    """What holds now for one runbook, profile and host, according to the journal and the files."""

    def __init__(self, journal: Journal, loaded: Loaded, host: str) -> None:
        self._journal = journal
        self._loaded = loaded
        self._host = host
        self._parts = {s.id: keys.parts_of(s, loaded.values) for s in loaded.runbook.steps}

    def examine(self, step: Step, inputs: Mapping[str, str | None]) -> Finding:
        """Whether a result of the step holds. inputs: the output hash of each needed step, None: it must run first."""
        parts = self._parts[step.id]
        if waiting := [need for need, output in inputs.items() if output is None]:
            return Finding(parts=parts, made=None, reason=f"input {waiting[0]} runs first")
        spoilt = self._journal.damaged(step.id)
        damages: list[tuple[int, artifacts.Damage]] = []
        reasons = []
        for entry in self._journal.made(self._loaded.runbook.name, self._host, step.id, keys.key_of(parts)):
            if entry.data["inputs"] != inputs:
                continue
            if entry.seq in spoilt:
                reasons.append(f"artifact {spoilt[entry.seq]}")
                continue
            made = _made(entry)
            if (damage := damage_of(made, deep=False)) is not None:
                damages.append((entry.seq, damage))
                reasons.append(f"artifact {damage}")
                continue
            if (why := _stale(step, made)) is None:
                return Finding(parts=parts, made=made, reason="", damages=tuple(damages))
            reasons.append(why)
        reason = reasons[0] if reasons else self._why(step, parts, inputs)
        return Finding(parts=parts, made=None, reason=reason, damages=tuple(damages))

    def verdict(self, step: Step, made: Made) -> tuple[str, tuple[str, ...]]:
        """The step's gate on this result: go, stop, wait (for an approval) or approved, with reasons."""
        judge = getattr(module(step), "gate", None)
        decision = "go"
        reasons: tuple[str, ...] = ()
        if judge is not None:
            verdict = judge(made.evidence, nest(values_of(self._loaded.values, step.values)))
            decision, reasons = ("go" if verdict.decision is Decision.GO else "stop"), verdict.reasons
        if decision == "go" and step.approval:
            decision, reasons = "wait", (*reasons, step.approval)
        if decision != "go":
            found = self._journal.approvals(self._loaded.runbook.name, self._host, step.id, made.output)
            if found:
                by = found[-1].data
                return "approved", (*reasons, f"approved by {by['by']}: {by['reason']}")
        return decision, reasons

    def expected_s(self, step: Step) -> float | None:
        """Median of how long the step took before; None when it never ended well."""
        seconds = sorted(self._journal.durations_s(self._loaded.runbook.name, self._host, step.id))
        return seconds[len(seconds) // 2] if seconds else None

    def plan(self, selection: Selection) -> Plan:
        """Every step with what would happen to it."""
        outputs: dict[str, str | None] = {}
        planned: list[PlannedStep] = []
        blocker = ""
        for step in self._loaded.runbook.steps:
            finding = self.examine(step, {need: outputs[need] for need in step.needs})
            selected = step.id in selection.steps
            runs = selected and (selection.again or finding.made is None)
            action, reason = ("run", finding.reason or "asked for again") if runs else ("done", "")
            missing = [need for need in step.needs if need not in selection.steps and outputs[need] is None]
            if not selected:
                action, reason = "skipped", finding.reason or "not selected"
            elif missing:
                action, reason = "blocked", f"{', '.join(missing)} not selected and without a result that holds"
            elif runs and blocker:
                action, reason = "blocked", blocker
            outputs[step.id] = finding.made.output if finding.made and not runs else None
            planned.append(self._planned(step, action, reason, finding))
            if action == "done" and finding.made is not None and not blocker:
                decision, reasons = self.verdict(step, finding.made)
                if decision in ("stop", "wait"):
                    blocker = f"gate of {step.id}: {'; '.join(reasons)}"
        free, disks = _disks({step.budget.folder for step in planned})
        return Plan(
            runbook=self._loaded.runbook.name,
            profile=self._loaded.profile,
            host=self._host,
            steps=tuple(replace(step, disks=disks[step.budget.folder]) for step in planned),
            disk_free_bytes=free,
            ram_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            gpu_bytes=_gpus() if any(step.budget.gpus for step in planned if step.action == "run") else None,
        )

    def _why(self, step: Step, parts: Mapping[str, Any], inputs: Mapping[str, str | None]) -> str:
        newest = self._journal.newest(self._loaded.runbook.name, self._host, step.id)
        if newest is None:
            return "never ran"
        before = newest.data
        found = keys.changes(before["parts"], parts)
        found += [f"input {need} changed" for need in inputs if before["inputs"].get(need) != inputs[need]]
        return "; ".join(found)

    def budget(self, step: Step) -> Budget:
        """What the step would take; what the runbook's file says of its disk where nobody counts more."""
        told: Budget | None = None
        if planning := self._planning():
            told = planning.budget(step.id, self._loaded.values, self._measured(step))
        return told or Budget(disk_bytes=step.disk_bytes)

    def timeout_s(self, step: Step) -> float:
        """Seconds after which the step is ended: the runbook's, or more where its budget is of hours."""
        return max(step.timeout_s, _PATIENCE * (self.budget(step).seconds or 0))

    def _planning(self) -> ModuleType | None:
        name = self._loaded.runbook.planning
        return importlib.import_module(name) if name else None

    def _measured(self, step: Step) -> Measured | None:
        # Another profile's result is of other models: the rates of a tiny one say nothing about these.
        newest = self._journal.newest(self._loaded.runbook.name, self._host, step.id, profile=self._loaded.profile)
        try:
            return Measured(evidence=_made(newest).evidence, seconds=newest.data["seconds"]) if newest else None
        except OSError:  # its files were removed since
            return None

    def _planned(self, step: Step, action: str, reason: str, finding: Finding) -> PlannedStep:
        budget = self.budget(step)
        planning = self._planning()
        obstacle = planning.obstacle(step.id, self._loaded.values) if planning else ""
        return PlannedStep(
            id=step.id,
            title=step.title,
            action=action,
            reason=reason,
            key=finding.key,
            origin=finding.made.run if finding.made else "",
            budget=budget,
            expected_s=budget.seconds if budget.seconds is not None else self.expected_s(step),
            obstacle=obstacle,
        )


def damage_of(made: Made, *, deep: bool) -> artifacts.Damage | None:
    """What is wrong with the files of a result; None when they are as they were. deep: hash every one."""
    try:
        seen = hashlib.sha256((made.folder / "evidence.json").read_bytes()).hexdigest()
    except OSError:
        return artifacts.Damage(path="evidence.json", seen="gone")
    if seen != made.evidence_sha256:
        return artifacts.Damage(path="evidence.json", seen="hash differs")
    return artifacts.check(made.folder / "out", made.artifacts, deep=deep)


def _made(entry: Entry) -> Made:
    data = entry.data
    assert entry.attempt is not None, "step.done always belongs to an attempt"
    return Made(
        seq=entry.seq,
        run=entry.run,
        attempt=entry.attempt,
        key=data["key"],
        output=data["output"],
        folder=state_dir() / data["folder"],
        artifacts=tuple(data["artifacts"]),
        evidence_sha256=data["evidence_sha256"],
    )


def _stale(step: Step, made: Made) -> str | None:
    judge = getattr(module(step), "stale", None)
    return None if judge is None else judge(made.evidence)


def _disks(folders: Collection[str]) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """(Free bytes by file system, named by one folder on it; the file systems of each of `folders`).

    "" stands for the state and the cache folder.
    """
    free: dict[str, int] = {}
    by_device: dict[int, str] = {}
    found: dict[str, tuple[str, ...]] = {}
    for folder in ("", *sorted({*folders} - {""})):
        names = []
        for wanted in (Path(folder),) if folder else (state_dir(), cache_dir()):
            existing = next(path for path in (wanted, *wanted.parents) if path.is_dir())
            name = by_device.setdefault(existing.stat().st_dev, str(existing))
            free.setdefault(name, shutil.disk_usage(existing).free)
            names.append(name)
        found[folder] = tuple(dict.fromkeys(names))
    return free, found


def _gpus() -> tuple[int, ...] | None:
    """Memory of each GPU of this machine, empty where there is no driver; None where one does not say."""
    from aerie.probe import nvml

    seen = nvml.read()
    if seen["error"] is not None:
        return () if "Not Found" in seen["error"] else None
    sizes = [card["memory_bytes"] for card in seen["gpus"]]
    return tuple(sizes) if all(isinstance(size, int) for size in sizes) else None
