"""Listeners that show a run while it goes: a live table on a terminal, lines elsewhere, JSON lines for programs.

with live.show(console) as listener:
    runner.run("eagle3", listener=listener)
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aerie.report.console import STYLES
from aerie.report.words import duration, size
from aerie.runbook.events import (
    Event,
    GateJudged,
    Listener,
    Noted,
    RunClosed,
    RunOpened,
    StepDone,
    StepFailed,
    StepProgress,
    StepRetry,
    StepReused,
    StepStarted,
)

__all__ = ["EVENTS_SCHEMA", "Board", "JsonLines", "Lines", "show"]

EVENTS_SCHEMA = "aerie.events/1"
HEARTBEAT_S = 30.0  # without a terminal, no longer silence than this while a step runs
ROWS = 20  # 200 rows cost 102 ms of CPU per refresh, 8 rows 4.5 (measured, rich 15): 20 at 2 Hz stay near 2 %
REFRESH_HZ = 2
BAR_WIDTH = 24


@contextmanager
def show(console: Console, clock: Callable[[], float] = time.time) -> Iterator[Listener]:
    """A listener that draws on `console`: a live table where it is interactive, else dated lines."""
    if not console.is_interactive:
        yield Lines(console, clock)
        return
    board = Board(clock)
    with Live(
        console=console, get_renderable=board.view, refresh_per_second=REFRESH_HZ, redirect_stdout=False,
        redirect_stderr=False,
    ):  # fmt: skip
        yield board


class JsonLines:
    """Every event as one line of JSON with the time it was heard; the first line names the schema."""

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.time) -> None:
        self._stream, self._clock = stream, clock
        self._write({"schema": EVENTS_SCHEMA})

    def __call__(self, event: Event) -> None:
        self._write({"at": _utc(self._clock()), **event.to_dict()})

    def _write(self, line: dict[str, object]) -> None:
        self._stream.write(json.dumps(line, sort_keys=True) + "\n")
        self._stream.flush()


class Lines:
    """One dated line per change of state, and a heartbeat while a step runs."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.time) -> None:
        self._console, self._clock = console, clock
        self._last = clock()

    def __call__(self, event: Event) -> None:
        now = self._clock()
        if isinstance(event, StepProgress) and now - self._last < HEARTBEAT_S:
            return
        self._last = now
        word, text = said(event)
        step = getattr(event, "step", "")
        line = Text.assemble(f"{_utc(now)}  {step or 'run':<18}  ", (f"{word:<8}", STYLES.get(word, "")), f"  {text}")
        self._console.print(line, soft_wrap=True)


@dataclass(slots=True)
class _Row:
    """What is known of one step. since: when its attempt was first heard of."""

    word: str = "pending"
    text: str = ""
    since: float = 0.0
    progress: StepProgress | None = None
    heard: float = 0.0


@dataclass(slots=True)
class Board:
    """The state of a run as heard so far, and its picture now."""

    clock: Callable[[], float] = time.time
    head: str = ""
    rows: dict[str, _Row] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        now = self.clock()
        word, text = said(event)
        match event:
            case RunOpened():
                self.head = text
                self.rows = {step: _Row() for step in event.steps}
            case RunClosed():
                self.head = f"{self.head} · {word} after {duration(event.seconds)}"
            case Noted():
                self.notes.append(f"{event.step}: {event.text}")
            case StepProgress():
                row = self._row(event.step)
                row.word, row.progress, row.heard = "running", event, now
                row.since = now - event.elapsed_s  # the job may be older than this controller
            case GateJudged(decision="go"):
                pass
            case StepReused() | StepStarted() | StepDone() | StepFailed() | StepRetry() | GateJudged():
                row = self._row(event.step)
                row.word, row.text, row.progress = word, text, None
                row.since = now if isinstance(event, StepStarted) else row.since
                if isinstance(event, StepFailed):
                    self.notes.append(f"{event.step}, attempt {event.attempt}: {event.message}; log {event.log}")

    def view(self) -> RenderableType:
        """The table now, at most 20 steps of it: what failed or runs, then the latest, the rest as counts."""
        now = self.clock()
        table = Table.grid(padding=(0, 2))
        shown = self._shown()
        for step, row in self.rows.items():
            if step in shown:
                table.add_row(Text(row.word, style=STYLES.get(row.word, "")), step, _picture(row, now))
        hidden = [row.word for step, row in self.rows.items() if step not in shown]
        counts = ", ".join(f"{hidden.count(word)} {word}" for word in dict.fromkeys(hidden))
        parts: list[RenderableType] = [Text(self.head, style="bold"), table]
        if counts:
            parts.append(Text(f"and {counts}"))
        parts += [Text(note, style="yellow") for note in self.notes[-3:]]
        return Group(*parts)

    def _row(self, step: str) -> _Row:
        return self.rows.setdefault(step, _Row())

    def _shown(self) -> set[str]:
        weight = {"failed": 0, "stopped": 0, "waiting": 0, "running": 1, "retry": 1, "pending": 3}
        order = sorted(
            enumerate(self.rows.items()),
            # Steps that are over: the latest first. Steps to come: the next first.
            key=lambda one: (w := weight.get(one[1][1].word, 2), one[0] if w == 3 else -one[0]),
        )
        return {step for _, (step, _) in order[:ROWS]}


def said(event: Event) -> tuple[str, str]:
    """An event as a state word and the rest of the sentence."""
    match event:
        case RunOpened():
            word = "resumed" if event.resumed else "opened"
            return word, f"{event.runbook} · profile {event.profile} · {event.host} · {event.run}"
        case StepReused():
            return "reused", f"result of run {event.origin}"
        case StepStarted():
            about = f", took {duration(event.expected_s)} before" if event.expected_s is not None else ""
            attempt = f"attempt {event.attempt}, " if event.attempt > 1 else ""
            return "running", f"{attempt}{'attached, ' if event.attached else ''}{event.reason}{about}"
        case StepProgress():
            return "running", f"{_amount(event)}{duration(event.elapsed_s)} elapsed, {_age(event.age_s, event.stall_s)}"
        case StepDone():
            files = f", {event.artifacts} files, {size(event.size_bytes)}" if event.artifacts else ""
            return "done", f"{duration(event.seconds)}{files}"
        case StepFailed():
            return "failed", f"attempt {event.attempt} {event.outcome}: {event.message}; log {event.log}"
        case StepRetry():
            return "retry", f"again in {duration(event.delay_s)}, {event.left} retries left"
        case GateJudged():
            word = {"stop": "stopped", "wait": "waiting"}.get(event.decision, event.decision)
            return word, "gate: " + "; ".join(event.reasons)
        case Noted():
            return "note", event.text
        case RunClosed():
            following = f"; next: ./{event.next_command}" if event.next_command else ""
            return event.state, f"after {duration(event.seconds)}{_reasons(event.reasons)}{following}"
        case _:
            return event.kind, ""


def _picture(row: _Row, now: float) -> RenderableType:
    if row.word != "running":
        return Text(row.text)
    progress = row.progress
    if progress is None:
        return Text(f"{duration(now - row.since)} elapsed; {row.text}")
    age = progress.age_s + now - row.heard
    text = Text.assemble(
        f"{_amount(progress)}{duration(now - row.since)} elapsed, ",
        (_age(age, progress.stall_s), "yellow" if _is_old(age, progress.stall_s) else ""),
    )
    if progress.done is None or not progress.total:
        return text
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=progress.total, completed=progress.done, width=BAR_WIDTH), text)
    return line


def _amount(event: StepProgress) -> str:
    if event.done is None:
        return ""
    unit = f" {event.unit}" if event.unit else ""
    amount = f"{event.done:,.0f}{unit}" if event.total is None else f"{event.done:,.0f}/{event.total:,.0f}{unit}"
    if event.unit == "bytes":
        amount = size(event.done) if event.total is None else f"{size(event.done)}/{size(event.total)}"
    rate = ""
    if event.rate:
        rate = f", {size(event.rate)}/s" if event.unit == "bytes" else f", {event.rate:,.3g}{unit}/s"
    eta = f", ETA {duration(event.eta_s)}" if event.eta_s is not None else ""
    note = f"{event.note}: " if event.note else ""
    return f"{note}{amount}{rate}{eta}, "


def _age(age_s: float, stall_s: float | None) -> str:
    text = f"last progress {age_s:.0f} s ago"
    return f"WARN {text}, stopped at {stall_s:.0f} s" if stall_s and _is_old(age_s, stall_s) else text


def _is_old(age_s: float, stall_s: float | None) -> bool:
    return stall_s is not None and age_s > stall_s / 2


def _reasons(reasons: tuple[str, ...]) -> str:
    return ": " + "; ".join(reasons) if reasons else ""


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
