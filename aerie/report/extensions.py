"""Extensions before, while and after they are brought to hosts. Values in, renderables and lines out."""

import json
import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from aerie.extensions.applying import HostResult, Listener, Outcome, State
from aerie.extensions.decide import Action, Build
from aerie.extensions.plans import BuildPlan, Row
from aerie.report.words import duration, size

__all__ = ["json_lines", "lines", "outcome_view", "plan_view"]

HEARTBEAT_S = 30.0
STYLES = {
    "nothing": "green", "install": "bold", "build": "bold", "after": "bold", "refused": "bold red",
    "unreachable": "bold red", "unknown": "bold red", "done": "green", "unchanged": "green", "failed": "bold red",
}  # fmt: skip


def plan_view(plan: BuildPlan, inventory: str = "", *, with_next: bool = True) -> RenderableType:
    """What would be done for each package on each host and why; the last line is the next command, where wanted."""
    parts: list[RenderableType] = [_row(row) for row in plan.rows]
    counts = {action: sum(row.state == action for row in plan.rows) for action in dict.fromkeys(STYLES)}
    totals = ", ".join(f"{count} {action}" for action, count in counts.items() if count)
    parts.append(Text(totals, style="bold"))
    if with_next and plan.at_work:
        parts.append(Text(f"next: {_command(plan, inventory)}"))
    return Group(*parts)


def outcome_view(outcome: Outcome, inventory: str = "") -> RenderableType:
    """How it ended for each package on each host; the last line is the next command."""
    parts = [_ended(one) for one in outcome.results]
    counts = {state: sum(one.state is state for one in outcome.results) for state in State}
    totals = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    parts.append(Text(f"{totals} in {duration(outcome.wall_s)}", style="bold"))
    bad = [one.host for one in outcome.results if one.state in (State.FAILED, State.UNREACHABLE)]
    if bad:
        parts.append(Text("next: mend what it says, then the same command again: it goes on from what is there"))
    else:
        hosts = ",".join(dict.fromkeys(one.host for one in outcome.results))
        words = ["./invoke", "verify", "--host", hosts, "--layer", "extensions", "--deep"]
        words += ["--inventory", inventory] if inventory else []
        parts.append(Text(f"next: {shlex.join(words)}   launches kernels on every GPU"))
    return Group(*parts)


def lines(write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Listener:
    """A listener that tells what is new in a line each, and at least every half minute that something goes on."""
    told: dict[tuple[str, str], tuple[str, float]] = {}

    def listen(row: Row, note: str) -> None:
        key = (row.host.name, row.package.name)
        kind, now = note.split(",")[0].rstrip("0123456789. "), clock()
        last, at = told.get(key, ("", 0.0))
        is_count = note[:1].isdigit() and last[:1].isdigit()  # "12 compiled, 3 from the cache" follows another such
        if (kind == last or is_count) and now - at < HEARTBEAT_S:
            return
        told[key] = (kind, now)
        write(f"{datetime.now(tz=UTC):%H:%M:%S}  {row.host.name}  {row.package.name}: {note}")

    return listen


def json_lines(stream: IO[str]) -> Listener:
    """A listener that writes an event a line."""

    def listen(row: Row, note: str) -> None:
        event = {"kind": "build", "host": row.host.name, "package": row.package.name, "note": note}
        stream.write(json.dumps({"at": f"{datetime.now(tz=UTC):%Y-%m-%dT%H:%M:%SZ}", **event}) + "\n")
        stream.flush()

    return listen


def _row(row: Row) -> Text:
    state = "attach" if row.job == "running" else row.state
    text = Text.assemble(
        (f"{row.host.name}  ", "bold"), (state, STYLES.get(state, "bold cyan")),
        f"  {row.package.name} {row.package.version} in environment {row.package.environment}",
    )  # fmt: skip
    if row.error:
        text.append(f"\n  {row.error}")
    for reason in row.decision.reasons if row.decision else ():
        text.append(f"\n  {reason}")
    made = row.decision.build if row.decision else None
    if made and row.decision and (row.decision.action is Action.BUILD or row.decision.falls_back):
        _add_build(text, made, only_if=row.decision.falls_back)
    for words in row.damaged:
        text.append(f"\n  store: {words}", style="yellow")
    return text


def _add_build(text: Text, made: Build, *, only_if: bool) -> None:
    sizing = made.sizing
    about = (
        f"about {duration(made.estimate.seconds)} ({made.estimate.basis})" if made.estimate else "time not known yet"
    )
    jobs = f"{sizing.jobs} job{'s' * (sizing.jobs > 1)}"
    threads = f"{sizing.nvcc_threads} nvcc thread{'s' * (sizing.nvcc_threads > 1)}"
    memory = f"{size(sizing.memory_bytes)} at most of {size(sizing.budget_bytes)}"
    head = "would build where it has no code" if only_if else "build"
    text.append(f"\n  {head}: {jobs} of {threads}, {memory}, {about}")
    for reason in sizing.reasons:
        text.append(f"\n    {reason}")
    for warning in sizing.warnings:
        text.append(f"\n    {warning}", style="yellow")


def _ended(one: HostResult) -> Text:
    text = Text.assemble(
        (f"{one.host}  ", "bold"), (str(one.state), STYLES[one.state]), f"  {one.package} {one.version}"
    )
    if one.state is State.DONE:
        how = "built and installed" if one.build else "installed"
        text.append(f": {how} {one.wheel} in {duration(one.seconds)}, with device code read and imported")
    if one.state is State.DONE and one.proof:
        text.append(f"\n  {len(one.proof['launches'])} launches agree with plain torch, GPUs: {len(one.proof['gpus'])}")
    if one.build:
        text.append(
            f"\n  {one.build['units_compiled']} files compiled, {one.build['units_cached']} from the cache, "
            f"{duration(one.build['cpu_s'])} of processors, {size(one.build['peak_bytes'])} at most"
        )
    if one.was_attached:
        text.append("\n  attached to a job that ran already")
    if one.replaced:
        text.append(f"\n  made anew, for the store's was damaged: {one.replaced}", style="yellow")
    for words in one.notes:
        text.append(f"\n  {words}", style="yellow")
    if one.error:
        text.append(f"\n  {one.error}")
    return text


def _command(plan: BuildPlan, inventory: str) -> str:
    hosts = ",".join(dict.fromkeys(row.host.name for row in plan.at_work))
    packages = list(dict.fromkeys(row.package.name for row in plan.at_work))
    words = ["./invoke", "build", "--host", hosts]
    words += ["--package", packages[0]] if len(packages) == 1 else []
    words += ["--rebuild"] if plan.rebuild else []
    return shlex.join([*words, *(["--inventory", inventory] if inventory else [])])
