"""Services in words: what would be done, what goes on, what serves now."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.text import Text

from aerie.engines.service.onhost.definition import unit_of
from aerie.engines.service.planning import Action, ServePlan

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aerie.engines.service.serving import Judged, Outcome
    from aerie.engines.service.status import Status

__all__ = ["judged_view", "outcome_view", "phases", "plan_view", "status_view"]

HEARTBEAT_S = 30.0
WORDS = {
    Action.NOTHING: "nothing to do: it serves already",
    Action.START: "start",
    Action.CHANGE: "change",
    Action.ATTACH: "a change is at work already: it is watched to its end",
    Action.REFUSE: "refused; nothing was started",
}


def plan_view(plan: ServePlan) -> "RenderableType":
    """One line a fact, the reasons against it last."""
    lines = [_line("host", plan.host), _line("model", plan.model)]
    if plan.now.live:
        lines.append(_line("serves now", f"{plan.now.live}: {plan.now.services[plan.now.live].words}"))
    if plan.wanted:
        lines.append(_line("wanted", f"{plan.slot}: {plan.wanted.words}"))
        lines.append(_line("address", f"http://{plan.wanted.front}/v1"))
        lines += [_line("weights", f"{one.model} in {one.folder}") for one in plan.wanted.weights]
        where = f"{plan.wanted.gpus} GPUs" if plan.wanted.gpus else "the processor"
        lines.append(_line("runs on", f"{where}, at most {plan.wanted.ready_timeout_s} s until it generates"))
    lines += [_line("note", note) for note in plan.notes]
    lines.append(_line("action", WORDS[plan.action]))
    lines += [Text(f"REFUSED {problem}") for problem in plan.problems if plan.action is Action.REFUSE]
    return Group(*lines)


def status_view(status: "Status") -> "RenderableType":
    """What serves, how it stands, how the last change ended, and where its logs are."""
    word = f"serves at {status.url}" if status.is_serving else "does not serve"
    lines = [Text(f"{status.model} on {status.host} {word}")]
    for slot, service in sorted(status.services.items()):
        unit = status.units[slot]
        role = "live" if slot == status.live else "for the way back" if slot == status.previous else "unused"
        restarts = f", restarted {unit['NRestarts']} times" if unit.get("NRestarts", "0") != "0" else ""
        lines.append(_line(slot, f"{role}, {unit.get('ActiveState')}{restarts}: {service.words}"))
    last = status.state["last"]
    if last:
        lines.append(_line("last", f"{last['at']} {last['outcome']} {last['to']}"))
        lines += [_line("because", line) for line in str(last["why"]).splitlines()[:10]]
        if last.get("acceptance"):
            lines.append(_line("acceptance", last["acceptance"]["words"]))
    if status.job == "running":
        lines.append(_line("now", "a change is at work"))
    shown = status.live or status.previous
    if shown:
        lines.append(_line("log", f"journalctl -u {unit_of(status.model, shown)}"))
        lines.append(_line("key", f"/etc/aerie/engine/{status.model}/api-key, on the host, for root"))
    return Group(*lines)


def outcome_view(outcome: "Outcome") -> "RenderableType":
    """How it ended, then what serves now."""
    if outcome.change is None:
        return status_view(outcome.status)
    words = {
        "switched": f"done in {outcome.change['seconds']:.0f} s",
        "kept": "FAILED; what served before serves on",
        "failed": "FAILED; nothing serves",
    }
    return Group(Text(words[outcome.change["outcome"]]), status_view(outcome.status))


def judged_view(judged: "Judged") -> Text:
    """What a service accepts against its last good run; a fall stands out."""
    return Text(judged.words, style="bold red" if judged.fell else "")


def phases(console: Console) -> Callable[[str, float], None]:
    """A listener that tells each phase once, and that it still goes on every half minute."""
    told: dict[str, float] = {}

    def tell(phase: str, seconds: float) -> None:
        now = time.monotonic()
        if phase not in told or now - told[phase] >= HEARTBEAT_S:
            told[phase] = now
            console.print(f"{seconds:5.0f} s  {phase}", markup=False, highlight=False)

    return tell


def _line(name: str, text: str) -> Text:
    return Text(f"  {name:10} {text}")
