"""A sweep over numbers of draft tokens in words: what it would do, and which one to serve."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aerie.engines.benchmark.running import Spec
    from aerie.engines.service.variants import Variants

__all__ = ["advice", "doubts", "faster", "plan_view", "view"]


def plan_view(variants: "Variants", spec: "Spec") -> "RenderableType":
    """One line a fact, the reasons against it last."""
    now, service = variants.now, variants.current
    others = ", ".join(f"k{tokens}" for tokens in variants.services)
    last = now.state["last"]
    took = f"; the last change took {last['seconds']:.0f} s" if last and last["outcome"] == "switched" else ""
    count = spec.repetitions * len(spec.questions) * len(spec.concurrency) * len(spec.temperatures)
    is_kept = now.previous == variants.away
    after = (
        "afterwards --rollback leads where it led before" if is_kept else "afterwards --rollback leads to the last k"
    )
    lines = [
        _line("host", now.host),
        _line("model", now.model),
        _line("serves now", f"{variants.home}: {service.words}"),
        _line("measures", f"k{variants.present} as it serves; {others} in {variants.away}; k{variants.present} again"),
        _line("each", f"{count} requests or more"),
        _line("changes", f"{len(variants.services) + 1}, each a load of at most {service.ready_timeout_s} s{took}"),
        _line("note", f"{now.model} does not answer while it loads, and is nobody else's while it is measured"),
        _line("note", "no trial of acceptance: no k stays, and what it accepts is measured"),
        _line("note", f"it goes back to {variants.home} however it ends; {after}"),
        _line("if killed", f"{variants.way_back}   (where --status says that {variants.away} is live)"),
    ]
    return Group(*lines, *(Text(f"REFUSED {problem}") for problem in variants.problems))


def view(sweep: Mapping[str, Any]) -> "RenderableType":
    """The best k of each level and what sets it, then what is doubtful. sweep: of bench.json."""
    lines: list[Text] = []
    for one in sweep["choices"]:
        words = f"temperature {one['temperature']:g}, concurrency {one['concurrency']}: {faster(one)}"
        lines += [Text.assemble((one["best"], "bold green" if one["clear"] else "bold"), f"  {words}")]
        lines += [Text(f"    {advice(sweep, one)}", no_wrap=True, overflow="fold")]
    lines += [Text(f"    {text}") for text in _lasting(sweep)]
    return Group(*lines, *(Text.assemble(("doubtful", "yellow"), f"  {text}") for text in doubts(sweep)))


def faster(choice: Mapping[str, Any]) -> str:
    """By how much one choice is the fastest, over what, and whether that is more than noise."""
    over = f"{_times(choice['over_smallest'])} {choice['smallest']}, " if choice["over_smallest"] else ""
    told = f"{over}{_times(choice['over_next'])} the next, {choice['next']}"
    if choice["clear"]:
        return f"{told}: more than noise"
    return f"{told}; within noise: {', '.join(choice['tied'])}"


def advice(sweep: Mapping[str, Any], choice: Mapping[str, Any]) -> str:
    """The command that sets the best k of this level, or why none is needed."""
    best, present = choice["best"], sweep["present"]
    if not sweep["left"] and best == present:
        return f"{present} serves already"
    if not sweep["left"] and present in choice["tied"]:
        return f"{present} serves, and is not proven to be slower; {best}: {sweep['settings'][best]}"
    return str(sweep["settings"][best])


def doubts(sweep: Mapping[str, Any]) -> list[str]:
    """What makes a sweep's figures doubtful, worst first; that its arms were not measured in turn always does."""
    found = []
    if sweep["left"]:
        found.append(f"what served before ({sweep['present']}) does not serve: {sweep['left']} → {sweep['way_back']}")
    if sweep["ended"]:
        found.append(f"ended early: {sweep['ended']}")
    order = ", ".join(sweep["order"])
    found.append(f"arms were measured one after the other ({order}): a slow minute of the machine falls on one of them")
    for one in sweep["drift"]:
        if one["e2e_token"]:
            where = f"temperature {one['temperature']:g}, concurrency {one['concurrency']}"
            times = "{ratio:.3f} ({low:.3f}–{high:.3f})".format_map(one["e2e_token"])
            found.append(
                f"drift of the machine, {where}: {sweep['present']} took {times} of its time per token at the end"
            )
    if not sweep["drift"]:
        found.append("the drift of the machine was not measured, so no difference is called more than noise")
    return found


def _lasting(sweep: Mapping[str, Any]) -> Iterator[str]:
    """Where the numbers that win have their home, for --draft-tokens is of one change alone."""
    best = {one["best"] for one in sweep["choices"]} - {sweep["present"], "k0"}
    if best:
        values = " or ".join(name.removeprefix("k") for name in sorted(best))
        table = f'[engine.models."{sweep["model"]}"]'
        yield f"The next ./invoke serve takes the lock's number again: draft_tokens = {values} in {table} of the lock."


def _times(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return "as fast as"
    return f"{ratio['ratio']:.3f} times as fast ({ratio['low']:.3f}–{ratio['high']:.3f}) as"


def _line(name: str, text: str) -> Text:
    return Text(f"  {name:10} {text}")
