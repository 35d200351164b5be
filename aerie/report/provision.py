"""A play while it runs, as a grid of hosts and layers, and what provisioning came to. Values in, renderables out."""

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aerie.apply import Cell, Grid, Listener
from aerie.layers import LAYERS
from aerie.provision import HostOutcome, Outcome, State
from aerie.report.serving import judged_view
from aerie.report.verification import verification_view
from aerie.report.words import duration
from aerie.upgrade import Upgraded

__all__ = ["json_lines", "outcome_view", "show", "upgraded_view"]

ROWS = 20  # a live table of 200 rows costs 102 ms of CPU a refresh (rich 15)
REFRESH_HZ = 2
HEARTBEAT_S = 30.0
WORDS = {Cell.PENDING: "·", Cell.RUNNING: "runs", Cell.OK: "ok", Cell.CHANGED: "changed", Cell.FAILED: "FAILED"}
CELL_STYLES = {Cell.RUNNING: "bold cyan", Cell.OK: "green", Cell.CHANGED: "yellow", Cell.FAILED: "bold red"}
STATE_STYLES = {State.DONE: "green", State.UNCHANGED: "green", State.REBOOT_PENDING: "yellow"}
NEXT = {
    State.FAILED: "mend what it says, then the same command again: it goes on from what the host has",
    State.UNREACHABLE: "reach it by ssh, then the same command again",
    State.REBOOT_PENDING: "reboot it, then the same command again",
}

HOW_SERVICES_CHANGE = (
    "A service goes on with the engine that it was started with. ./invoke serve starts the lock's in the other slot, "
    "and leads the front there only if it generates and no less of its drafts is accepted than in the last good run."
)


@contextmanager
def show(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[Listener]:
    """A listener that draws a live grid on a terminal, and a dated line per change of a layer elsewhere."""
    if not console.is_interactive:
        yield _Lines(lambda text: console.print(text, soft_wrap=True), clock)
        return
    with Live(console=console, refresh_per_second=REFRESH_HZ, redirect_stdout=False, redirect_stderr=False) as live:

        def draw(grid: Grid) -> None:
            live.update(grid_view(grid, clock()))

        yield draw


def json_lines(stream: IO[str]) -> Listener:
    """A listener that writes a JSON line per change of a layer; the first line names the schema."""

    def write(line: Mapping[str, object]) -> None:
        stream.write(json.dumps(line, sort_keys=True) + "\n")
        stream.flush()

    write({"schema": "aerie.events/1"})
    seen: dict[tuple[str, str], Cell] = {}

    def listen(grid: Grid) -> None:
        for host, layer, cell in _changes(grid, seen):
            line = {"at": _utc(), "kind": "layer", "host": host, "layer": layer, "state": str(cell)}
            write(line | ({"error": grid.rows[host].error} if cell is Cell.FAILED else {}))

    return listen


def grid_view(grid: Grid, now: float) -> RenderableType:
    """Hosts that failed first, then those at work; at most ROWS, and a count of the rest. now: time.monotonic()."""
    order = sorted(grid.rows, key=lambda host: (not grid.rows[host].error, not _is_running(grid, host), host))
    columns = [layer for layer in (*LAYERS, "reboot") if any(layer in row.cells for row in grid.rows.values())]
    table = Table("host", *columns, "now", box=None, pad_edge=False)
    for host in order[:ROWS]:
        row = grid.rows[host]
        cells = [_cell(row.cells.get(column)) for column in columns]
        table.add_row(host, *cells, Text(row.error.splitlines()[0] if row.error else row.task, overflow="ellipsis"))
    rest = [Text(f"… and {len(order) - ROWS} more hosts")] if len(order) > ROWS else []
    failed = sum(bool(row.error) for row in grid.rows.values())
    foot = f"{len(order)} hosts, {failed} failed, {duration(now - grid.started)}"
    return Group(table, *rest, Text(foot, style="bold"))


def outcome_view(outcome: Outcome, command: str, inventory: str = "") -> RenderableType:
    """One line a host, failed ones last with their error and what to do; the verification; the next command.

    command: to go on with ("provision", "upgrade --to NAME"); inventory: as given to the task.
    """
    bad = [host.host for host in outcome.hosts if host.state not in (State.DONE, State.UNCHANGED)]
    again = [Text(f"next: ./invoke {command} --host {','.join(bad)}{_inventory(inventory)}", style="bold")]
    return Group(_ended(outcome, inventory), *(again if bad else []))


def upgraded_view(upgraded: Upgraded, command: str, inventory: str = "") -> RenderableType:
    """As outcome_view; then what services accept, the way back, taken or offered, and what the inventory now says."""
    parts = [_ended(upgraded.outcome, inventory), *map(judged_view, upgraded.judged)]
    if upgraded.judged:
        parts.append(Text(HOW_SERVICES_CHANGE))
    if upgraded.back is not None:
        parts += [Text("taken back:", style="bold"), _ended(upgraded.back, inventory)]
    parts += [Text(f"recorded in {path}") for path in upgraded.recorded]
    if upgraded.failed and upgraded.back is None:
        names = f"--host {','.join(upgraded.failed)}{_inventory(inventory)}"
        parts.append(Text(f"go on: ./invoke {command} {names}", style="bold"))
        if command != "rollback":
            parts.append(Text(f"the way back: ./invoke rollback {names}", style="bold"))
    return Group(*parts)


def _ended(outcome: Outcome, inventory: str) -> RenderableType:
    table = Table("host", "state", "layers", "changed", "reboots", box=box.SIMPLE_HEAD, pad_edge=False)
    for host in sorted(outcome.hosts, key=lambda one: one.state not in (State.DONE, State.UNCHANGED)):
        layers = " ".join(layer for layer in host.layers if layer != "reboot") or "–"
        state = Text(str(host.state), style=STATE_STYLES.get(host.state, "bold red"))
        table.add_row(host.host, state, layers, str(host.changed), "1" if host.rebooted else "0")
    errors = [_error(host) for host in outcome.hosts if host.error]
    counts = {state: sum(host.state is state for host in outcome.hosts) for state in State}
    totals = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    log = f"; log {outcome.folder}" if outcome.folder else ""
    last = Text(f"{totals}; {duration(outcome.wall_s)}{log}", style="bold")
    found = outcome.verification
    verified = [verification_view(found, inventory, with_next=False)] if found else []
    return Group(table, *errors, last, *verified)


class _Lines:
    """One dated line per change of a layer, and a heartbeat while nothing changes."""

    def __init__(self, say: Callable[[Text], None], clock: Callable[[], float]) -> None:
        self._say, self._clock = say, clock
        self._seen: dict[tuple[str, str], Cell] = {}
        self._last = clock()

    def __call__(self, grid: Grid) -> None:
        now = self._clock()
        for host, layer, cell in _changes(grid, self._seen):
            text = f": {grid.rows[host].error}" if cell is Cell.FAILED else ""
            self._say(Text.assemble(f"{_utc()}  {host:<12} {layer:<13} ", (str(cell), CELL_STYLES.get(cell, "")), text))
            self._last = now
        if now - self._last >= HEARTBEAT_S:
            self._last = now
            for host, row in grid.rows.items():
                if _is_running(grid, host):
                    self._say(Text(f"{_utc()}  {host:<12} still at: {row.task}"))


def _changes(grid: Grid, seen: dict[tuple[str, str], Cell]) -> Iterator[tuple[str, str, Cell]]:
    """(host, layer, state) that changed since the last call; `seen` is brought up to date."""
    for host, row in list(grid.rows.items()):
        for layer, cell in list(row.cells.items()):
            if cell is not Cell.PENDING and seen.get((host, layer)) is not cell:
                seen[host, layer] = cell
                yield host, layer, cell


def _is_running(grid: Grid, host: str) -> bool:
    return Cell.RUNNING in grid.rows[host].cells.values()


def _cell(cell: Cell | None) -> Text:
    return Text("" if cell is None else WORDS[cell], style=CELL_STYLES.get(cell, "dim") if cell else "")


def _error(host: HostOutcome) -> Text:
    lines = host.error.strip().splitlines()
    text = Text.assemble((f"{host.host}: ", "bold"), "\n  ".join(lines))
    return text + Text(f"\n  remedy: {NEXT[host.state]}") if host.state in NEXT else text


def _inventory(path: str) -> str:
    return f" --inventory {shlex.quote(path)}" if path else ""


def _utc() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
