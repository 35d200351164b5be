"""A staging before, while and after it runs: hosts, bytes, rates, sources. Values in, renderables out."""

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aerie.report.hosts import fold
from aerie.report.words import MISSING, duration, size
from aerie.weights.fanout import Listener, Outcome
from aerie.weights.following import HostResult, Progress, State
from aerie.weights.staging import HostPlan, HostState, StagePlan

__all__ = ["json_lines", "outcome_view", "plan_view", "progress_view", "show"]

ROWS = 20
REFRESH_HZ = 2
HEARTBEAT_S = 30.0
JSON_S = 5.0
SHOWN_FILES = 2
STILL_S = 10.0  # without a new byte, that is said
STYLES = {
    "staged": "green", "done": "green", "unchanged": "green", "to-stage": "bold", "running": "bold cyan",
    "fetching": "bold cyan", "verifying": "bold cyan", "warming": "bold cyan", "waiting": "dim", "stopped": "yellow",
    "no-contact": "yellow", "blocked": "bold red", "unreachable": "bold red", "failed": "bold red",
}  # fmt: skip
NEXT = {
    State.FAILED: "mend what it says, then the same command again: it goes on from what the host has",
    State.UNREACHABLE: "reach it by ssh, then the same command again",
    State.STOPPED: "the same command again",
}


def plan_view(plan: StagePlan, inventory: str = "", *, with_next: bool = True) -> RenderableType:
    """What would be fetched where, and what stands in the way; the last line is the next command, where wanted."""
    head = f"{plan.model} · manifest {plan.manifest_sha256[:12]} · {plan.files} files, {size(plan.size_bytes)}"
    table = _table("host", "state", "verified", "to fetch", "free", "in memory")
    for host in plan.hosts:
        table.add_row(host.host, _word(host.state), *_cells(host, plan))
    problems = [_problem(host.host, host.error) for host in plan.hosts if host.error]
    stale = [
        Text(f"{host.host}: {size(bytes_)} in a partial file that nobody goes on with: {path} (--sweep-partials)")
        for host in plan.hosts
        if host.look
        for path, bytes_ in host.look.stale.items()
    ]
    return Group(
        Text(head, style="bold"), table, *problems, *stale, Text(_totals(plan), style="bold"),
        *(_next_of_plan(plan, inventory) if with_next else []),
    )  # fmt: skip


@contextmanager
def show(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[Listener]:
    """A listener that draws a live table on a terminal, and a dated line per change of a state elsewhere."""
    if not console.is_interactive:
        yield _Lines(lambda text: console.print(text, soft_wrap=True), clock)
        return
    began = clock()
    with Live(console=console, refresh_per_second=REFRESH_HZ, redirect_stdout=False, redirect_stderr=False) as live:

        def draw(hosts: Sequence[Progress]) -> None:
            live.update(progress_view(hosts, clock(), began))

        yield draw


def json_lines(stream: IO[str], clock: Callable[[], float] = time.monotonic) -> Listener:
    """A listener that writes a JSON line per change of a host's state, and every few seconds while bytes move."""

    def write(line: Mapping[str, object]) -> None:
        stream.write(json.dumps(line, sort_keys=True) + "\n")
        stream.flush()

    write({"schema": "aerie.events/1"})
    seen: dict[str, tuple[State, float]] = {}

    def listen(hosts: Sequence[Progress]) -> None:
        for one in hosts:
            state, at = seen.get(one.host, (None, 0.0))
            if state is one.state and (one.state.is_end or clock() - at < JSON_S):
                continue
            seen[one.host] = one.state, clock()
            write({"at": _utc(), "kind": "stage", **_document(one)})

    return listen


def progress_view(hosts: Sequence[Progress], now: float, began: float) -> RenderableType:
    """Hosts that failed first, then the slowest; at most ROWS, and a count of the rest. Times by time.monotonic()."""
    order = sorted(hosts, key=lambda one: (one.state is not State.FAILED, one.state.is_end, one.bytes_verified))
    table = _table("host", "state", "on disk", "verified", "rate", "left", "now")
    for one in order[:ROWS]:
        share = f"{one.bytes_on_disk / one.bytes_total:.0%}" if one.bytes_total else MISSING
        table.add_row(
            one.host,
            _word(one.state),
            f"{size(one.bytes_on_disk)} of {size(one.bytes_total)} {share}",
            f"{one.files_verified} of {one.files}" if one.files else MISSING,
            f"{size(one.rate_bytes_s)}/s" if one.rate_bytes_s else MISSING,
            duration(one.eta_s),
            Text(_doing(one, now), overflow="ellipsis"),
        )
    rest = [Text(f"… and {len(order) - ROWS} more hosts")] if len(order) > ROWS else []
    rate, ended = sum(one.rate_bytes_s for one in hosts), sum(one.state.is_end for one in hosts)
    foot = f"{len(hosts)} hosts, {ended} ended, {size(rate)}/s in all, {duration(now - began)}"
    return Group(table, *rest, Text(foot, style="bold"))


def outcome_view(outcome: Outcome, command: str, inventory: str = "") -> RenderableType:
    """One line a host, failed ones last with their error and what to do; the last line is the next command.

    command: to go on with, "stage --model M"; inventory: as given to the task.
    """
    table = _table("host", "state", "from", "took", "retries", "in memory")
    for host in sorted(outcome.hosts, key=lambda one: one.host in outcome.failed):
        sources = ", ".join(f"{name} {size(count)}" for name, count in host.by_source.items() if count)
        took = duration(host.seconds) if host.seconds else MISSING
        table.add_row(host.host, _word(host.state), sources or MISSING, took, str(host.retries), _warmth(host))
    errors = [_problem(host.host, host.error, NEXT.get(host.state, "")) for host in outcome.hosts if host.error]
    counts = {state: sum(host.state is state for host in outcome.hosts) for state in State}
    totals = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    last = f"{totals}; {size(outcome.size_bytes)} each at {outcome.target}; {duration(outcome.wall_s)}"
    bad = shlex.quote(fold(outcome.failed)) if outcome.failed else ""
    good = shlex.quote(fold([host.host for host in outcome.hosts]))
    then = f"{command} --host {bad}" if bad else f"verify --layer weights --host {good}"
    return Group(table, *errors, Text(last, style="bold"), _command(then, inventory))


class _Lines:
    """One dated line per change of a host's state, and a heartbeat with figures while bytes move."""

    def __init__(self, say: Callable[[Text], None], clock: Callable[[], float]) -> None:
        self._say, self._clock = say, clock
        self._seen: dict[str, State] = {}
        self._last = clock()

    def __call__(self, hosts: Sequence[Progress]) -> None:
        now = self._clock()
        changed = [one for one in hosts if self._seen.get(one.host) is not one.state]
        is_due = now - self._last >= HEARTBEAT_S
        for one in changed or ([one for one in hosts if not one.state.is_end] if is_due else []):
            figures = f"{size(one.bytes_on_disk)} of {size(one.bytes_total)}, {one.files_verified} files verified"
            rate = f", {size(one.rate_bytes_s)}/s, {duration(one.eta_s)} left" if one.rate_bytes_s else ""
            note = f"; {one.note}" if one.state is State.NO_CONTACT else ""
            self._say(Text.assemble(f"{_utc()}  {one.host:<12} ", _word(one.state), f": {figures}{rate}{note}"))
            self._seen[one.host], self._last = one.state, now


def _cells(host: HostPlan, plan: StagePlan) -> tuple[str, ...]:
    look = host.look
    if look is None:
        return (MISSING,) * 4
    kept = f", {size(look.bytes_partial)} begun" if look.bytes_partial else ""
    if look.bytes_resident is not None:
        memory = f"{look.bytes_resident / plan.size_bytes:.0%}" if plan.size_bytes else MISSING
    else:
        memory = "no" if look.why_not_warm else MISSING
    why = f" ({look.why_not_warm})" if look.why_not_warm else ""
    return (
        f"{look.files_verified} of {look.files}",
        f"{size(look.bytes_to_fetch)}{kept}",
        size(look.bytes_free),
        memory + why,
    )


def _totals(plan: StagePlan) -> str:
    counts = {state: sum(host.state is state for host in plan.hosts) for state in HostState}
    words = ", ".join(f"{count} {str(state).replace('-', ' ')}" for state, count in counts.items() if count)
    fetched = max((host.look.bytes_to_fetch for host in plan.hosts if host.look and host.is_usable), default=0)
    how = ""
    if fetched and plan.seeder:
        others = ", the others from each other" if plan.is_shared else ""
        how = f"; up to {size(fetched)} a host, {plan.seeder} from the source{others}"
    return f"{len(plan.hosts)} host{'s' if len(plan.hosts) > 1 else ''}: {words}{how}"


def _next_of_plan(plan: StagePlan, inventory: str) -> list[Text]:
    names = shlex.quote(fold([host.host for host in plan.hosts]))
    if plan.at_work:
        return [_command(f"stage --model {plan.model} --host {names}", inventory)]
    return [_command(f"verify --layer weights --host {names}", inventory)]


def _command(words: str, inventory: str) -> Text:
    path = f" --inventory {shlex.quote(inventory)}" if inventory else ""
    return Text(f"next: ./invoke {words}{path}", style="bold", no_wrap=True, overflow="ignore")


def _doing(one: Progress, now: float) -> str:
    if one.state is State.NO_CONTACT:
        return one.note
    files = [f"{active.path} {_verb(active.stage)} {active.source}" for active in one.active[:SHOWN_FILES]]
    more = f" and {len(one.active) - SHOWN_FILES} more" if len(one.active) > SHOWN_FILES else ""
    still = f"no byte for {duration(now - one.moved_at)}; " if one.active and now - one.moved_at > STILL_S else ""
    return still + ", ".join(files) + more


def _verb(stage: str) -> str:
    return "being verified, from" if stage == "verifying" else "from"


def _warmth(host: HostResult) -> str:
    return f"{host.warm} ({host.why_not_warm})" if host.why_not_warm else host.warm or MISSING


def _document(one: Progress) -> dict[str, object]:
    return {
        "host": one.host,
        "state": str(one.state),
        "bytes_total": one.bytes_total,
        "bytes_on_disk": one.bytes_on_disk,
        "bytes_verified": one.bytes_verified,
        "bytes_resident": one.bytes_resident,
        "files": one.files,
        "files_verified": one.files_verified,
        "rate_bytes_s": one.rate_bytes_s,
        "eta_s": one.eta_s,
        "retries": one.retries,
        "active": [
            {
                "path": file.path,
                "bytes": file.bytes,
                "size_bytes": file.size_bytes,
                "source": file.source,
                "stage": file.stage,
            }
            for file in one.active
        ],
    }


def _problem(host: str, text: str, remedy: str = "") -> Text:
    lines = Text.assemble((f"{host}: ", "bold"), "\n  ".join(text.strip().splitlines()))
    return lines + Text(f"\n  remedy: {remedy}") if remedy else lines


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=column in ("host", "state"))
    return table


def _word(state: State | HostState) -> Text:
    return Text(str(state), style=STYLES.get(str(state), ""))


def _utc() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
