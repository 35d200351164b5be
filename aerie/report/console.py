"""Plans, runs and reports as what rich draws on a terminal. Values in, renderables out; nothing is printed here."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from aerie.report.words import MISSING, duration, number, size, spread

if TYPE_CHECKING:  # a plan of hosts is shown without the runbooks' journal and runner
    from aerie.runbook.budget import Budget
    from aerie.runbook.plan import Plan
    from aerie.runbook.runner import RunResult
    from aerie.runbook.state import RunSummary
    from aerie.runbook.step import Json

__all__ = ["STYLES", "open_console", "plan_view", "report_view", "result_view", "runs_view"]

# The word says it; the colour only says it again.
STYLES = {
    "done": "green", "reused": "green", "serve": "bold green", "healthy": "green", "ok": "green",
    "run": "bold", "running": "bold cyan", "retry": "yellow", "waiting": "yellow", "skipped": "dim", "pending": "dim",
    "blocked": "yellow", "stopped": "bold red", "failed": "bold red", "lost": "bold red",
}  # fmt: skip
PLAN_WORDS = {"done": "done", "run": "will run", "blocked": "blocked", "skipped": "skipped"}
SPELLED = str.maketrans(
    {"τ": "tau", "Σ": "sum", "×": "x", "–": "-", "·": "-", "…": "...", "→": "->", "≤": "<=", "≥": ">="}
)


class _Spelled(io.TextIOBase):
    """A stream that cannot hold Unicode: what has a spelling is spelled, the rest becomes "?"."""

    encoding = "ascii"  # rich then draws its tables in ASCII

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.translate(SPELLED).encode("ascii", "replace").decode("ascii"))

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def open_console(stream: IO[str], environ: Mapping[str, str]) -> Console:
    """A console on `stream` that moves the cursor only on a terminal, and colours only where it is wanted."""
    is_terminal = stream.isatty()
    is_dumb = environ.get("TERM", "") in ("dumb", "unknown")
    wants_colour = environ.get("FORCE_COLOR", "0") not in ("", "0") and not environ.get("NO_COLOR")
    is_unicode = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "").startswith("utf")
    return Console(
        file=stream if is_unicode else _Spelled(stream),  # type: ignore[arg-type]
        # rich 15 takes FORCE_COLOR, even "0", for a terminal: a Live would then write cursor codes into CI logs.
        force_terminal=is_terminal,
        force_interactive=is_terminal and not is_dumb,
        color_system="auto" if is_terminal else "standard" if wants_colour else None,
        no_color=bool(environ.get("NO_COLOR")),
        width=None if is_terminal or "COLUMNS" in environ else 120,
        highlight=False,
        markup=False,
        emoji=False,
    )


def plan_view(plan: "Plan") -> RenderableType:
    """Totals, one line a step with the reason, totals again."""
    counts = {action: sum(step.action == action for step in plan.steps) for action in PLAN_WORDS}
    totals = ", ".join(f"{count} {PLAN_WORDS[action]}" for action, count in counts.items() if count)
    known = [step.expected_s for step in plan.steps if step.action == "run" and step.expected_s is not None]
    told = "" if len(known) == counts["run"] else f"{len(known)} of them "
    about = f"; {told}about {duration(sum(known))}" if known else ""
    head = Text(f"{plan.runbook} · profile {plan.profile} · {plan.host}: {totals}{about}", style="bold")
    table = _table("state", "step", "why", *((name, "right") for name, _ in _takes(plan)), ("time", "right"))
    for step in plan.steps:
        why = step.reason or (f"result of run {step.origin}" if step.origin else "")
        takes = [taken(step.budget) if step.action == "run" else MISSING for _, taken in _takes(plan)]
        table.add_row(_word(step.action, PLAN_WORDS[step.action]), step.id, why, *takes, duration(step.expected_s))
    basis = [Text(f"{step.id}: {sentence}", style="dim") for step in plan.to_run for sentence in step.budget.basis]
    stuck = [Text(f"{step.id} cannot run: {step.obstacle}", style="yellow") for step in plan.to_run if step.obstacle]
    free = ", ".join(f"{size(free)} free in {where}" for where, free in plan.disk_free_bytes.items())
    if plan.gpu_bytes is not None:
        free += f", {len(plan.gpu_bytes)} GPUs here"
    last = (
        f"{totals}; may write {size(plan.disk_needed_bytes)}, {free}"
        if counts["run"]
        else f"{totals}; nothing to write"
    )
    return Group(head, table, *basis, *stuck, Text(last, style="bold"))


def _takes(plan: "Plan") -> "list[tuple[str, Callable[[Budget], str]]]":
    """Columns for what steps take: those in which a step that will run has something."""

    def gpus(budget: "Budget") -> str:
        return f"{budget.gpus} x {size(budget.gpu_bytes)}" if budget.gpu_bytes else MISSING

    columns: list[tuple[str, Callable[[Budget], str]]] = [
        ("disk", lambda budget: size(budget.disk_bytes) if budget.disk_bytes else MISSING),
        ("memory", lambda budget: size(budget.ram_bytes) if budget.ram_bytes else MISSING),
        ("GPUs", gpus),
    ]
    return [one for one in columns if any(one[1](step.budget) != MISSING for step in plan.to_run)]


def runs_view(runs: "Sequence[RunSummary]") -> RenderableType:
    """Every run with its state, times local and the zone named once; below, what holds those that are not done."""
    if not runs:
        return Text("no runs yet; next: ./invoke runbook eagle3")
    zone = datetime.now().astimezone().strftime("%z")
    table = _table("run", "state", "at", "runbook", "profile", "host", f"changed ({zone[:3]}:{zone[3:]})")
    for run in runs:
        changed = datetime.fromisoformat(run.changed_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(run.run, _word(run.state), run.step, run.runbook, run.profile, run.host, changed)
    held = [run for run in runs if run.state != "done"]
    lines = [
        Text(
            f"{run.run}: {'; '.join(run.reasons) or run.state}"
            + (f"\n  next: ./{run.next_command}" if run.next_command else "")
        )
        for run in held
    ]
    return Group(table, *lines)


def report_view(summary: "Mapping[str, Json]", paths: Iterable[object] = ()) -> RenderableType:
    """The end of a run on one screen: numbers, decision, what is open, where the files are."""
    parts: list[RenderableType] = [Text(_head(summary), style="bold"), _arms(summary), _checks(summary)]
    decision = summary["decision"]
    if decision:
        parts.append(Text.assemble("decision  ", _word(decision["choice"])))
        parts.append(_list(decision["reasons"]))
        parts.append(Text("not decidable by this run"))
        parts.append(_list(f"{one['question']} {one['why']}" for one in decision["undecidable"]))
        parts += _outcome(summary["outcome"])
    else:
        parts.append(Text(f"decision  none yet: the run is {summary['state'] or 'not finished'}"))
    parts += [Text.assemble(("expectation missed  ", "bold red"), sentence) for sentence in summary["missed"]]
    parts += [Text(f"report    {path}", no_wrap=True, overflow="fold") for path in paths]
    return Group(*parts)


def result_view(result: "RunResult") -> RenderableType:
    """How a run ended for now; the last line is the next command."""
    what = "nothing to do, every result holds" if result.is_unchanged else (
        f"{len(result.ran)} ran, {len(result.reused)} reused, {duration(result.seconds)}"
    )  # fmt: skip
    lines = [Text.assemble(f"run {result.run}  ", _word(result.state), f"  {what}")]
    lines += [Text(f"  {reason}") for reason in result.reasons]
    if result.next_command:
        lines.append(Text(f"next: ./{result.next_command}"))
    return Group(*lines)


def _head(summary: "Mapping[str, Json]") -> str:
    engine = summary["engine"]
    by = f" · {engine['name']} {engine['version']}" if engine else ""
    took = f" · {duration(summary['wall_s'])}" if summary["wall_s"] is not None else ""
    return f"{summary['run']} · {summary['runbook']} · profile {summary['profile'] or '–'}{by}{took}"


def _arms(summary: "Mapping[str, Json]") -> Table:
    table = _table("arm", *((name, "right") for name in ("tok/s c1", "tok/s c8", "τ", "rate", "S measured", "S = τ/R")))
    speed = summary["speedup"]
    rows: dict[str, tuple[Json, Json]] = {"no drafter": (summary["baseline"], {})}
    for name, label in (("baseline", "baseline"), ("finetuned", "fine-tuned")):
        rows[label] = (summary["drafters"][name], speed["by_drafter"][name] if speed else {})
    for label, (one, fast) in rows.items():
        one = one or {}
        table.add_row(
            label,
            number(one.get("tok_s_c1"), ".1f"),
            number(one.get("tok_s_c8"), ".1f"),
            number(one.get("tau")),
            number(one.get("accept_rate"), ".1%"),
            spread(fast.get("measured")),
            spread(fast.get("predicted")),
        )
    return table


def _checks(summary: "Mapping[str, Json]") -> Table:
    table = Table.grid(padding=(0, 2))
    speed, parity, lossless, diagnosis = (summary[key] for key in ("speedup", "parity", "lossless", "diagnosis"))
    if speed:
        by = "; ".join(f"{spread(value)} at forced τ {length}" for length, value in speed["R_by_length"].items())
        table.add_row("R", f"{number(speed['R'], '.2f')} plain steps a verify step ({by or speed['reason']})")
    if parity:
        limit = "" if parity["max_mean_rel"] is None else f", limit {parity['max_mean_rel']:g}"
        table.add_row("parity", f"mean {parity['mean_rel']:.2g}{limit}; worst position {parity['max_rel']:.2g}")
    if lossless:
        table.add_row(
            "lossless",
            f"{lossless['equal']} of {lossless['prompts']} outputs equal, {lossless['near_ties']} part at a near tie, "
            f"{lossless['unexplained']} unexplained",
        )
    if diagnosis:
        table.add_row("diagnosis", _word(diagnosis["verdict"]))
    return table


def _outcome(outcome: "Json") -> list[RenderableType]:
    """What worked and what failed, and what to try next; what is unknown stands above it."""
    parts: list[RenderableType] = []
    for key in ("worked", "failed"):
        if outcome[key]:
            parts += [Text(key), _list(outcome[key])]
    if outcome["next"]:
        parts.append(Text("to try next, best first; S if it comes out right"))
        table = Table.grid(padding=(0, 1))
        for place, one in enumerate(outcome["next"], 1):
            table.add_row(f" {place}.", number(one["worth"], ".2f"), f"{one['try']} ({one['why']})")
        parts.append(table)
    return parts


def _table(*columns: str | tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="dim", padding=(0, 1), collapse_padding=True)
    for column in columns:
        name, justify = column if isinstance(column, tuple) else (column, "left")
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in ("run", "state", "step", "arm"))  # type: ignore[arg-type]
    return table


def _word(key: str, text: str = "") -> Text:
    return Text(text or key, style=STYLES.get(key, "bold"))


def _list(sentences: Iterable[str]) -> Table:
    table = Table.grid(padding=(0, 1))
    for sentence in sentences:
        table.add_row(" -", sentence)
    return table
