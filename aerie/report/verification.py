"""A verification as rich draws it, and as JUnit: hosts by layers, what failed, what was not asked, what to type next.

Requirements that hosts miss alike are told once. A skipped one is not a passed one, so all of them are listed.
"""

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aerie.findings import Fix
from aerie.layers import LAYERS
from aerie.report.hosts import fold
from aerie.report.words import duration
from aerie.verification import HostState, HostVerification, Outcome, Requirement, Verification

__all__ = ["host_line", "junit", "verification_view"]

STYLES = {
    "fatal": "bold red", "warn": "yellow", "info": "dim", "waived": "dim", "skipped": "dim",
    "verified": "green", "failed": "bold red", "unreachable": "bold red", "error": "bold red",
}  # fmt: skip
SHOWN_HOSTS = 20


def verification_view(found: Verification, inventory: str = "", *, with_next: bool = True) -> RenderableType:
    """The verification on a screen; its last line is the next command, where that is wanted.

    inventory: as given to the task, for that command.
    """
    return Group(
        _table(found),
        *_failed(found),
        *_waived(found),
        *_skipped(found),
        *_errors(found),
        Text(_totals(found), style="bold"),
        *([Text(f"next: {_next(found, inventory)}")] if with_next else []),
    )


def host_line(host: HostVerification) -> str:
    """One line about a host that ended: "gpu01 failed: 80 passed, 2 failed, 3 skipped, 1.8 s"."""
    counts = host.counts()
    words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]) or host.error
    return f"{host.host} {host.state}: {words}" + (f", {duration(host.wall_s)}" if counts else "")


def _table(found: Verification) -> Table:
    """Requirements met of those asked, by host and layer: of many hosts those that are not verified, and counts."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    layers = [layer for layer in LAYERS if any(one.layer == layer for host in found.hosts for one in host.requirements)]
    for column in ("host", *layers, "lock", "result"):
        table.add_column(column, no_wrap=True)
    rows = sorted(found.hosts, key=lambda host: host.state is HostState.VERIFIED)[:SHOWN_HOSTS]
    for host in [host for host in found.hosts if host in rows]:
        state = str(host.state)
        cells = [_cell(host, layer) for layer in layers]
        table.add_row(
            host.host, *cells, host.lock, Text(state if state == "verified" else state.upper(), STYLES[state])
        )
    if more := len(found.hosts) - len(rows):
        table.add_row(f"and {more} more")
    return table


def _cell(host: HostVerification, layer: str) -> Text:
    counts = host.counts(layer)
    asked = sum(counts.values()) - counts[Outcome.SKIPPED]
    if not asked:
        return Text("skipped" if counts else "not run", "dim")
    is_bad = counts[Outcome.FAILED] or counts[Outcome.ERROR]
    return Text(f"{counts[Outcome.PASSED]} of {asked}", "bold red" if is_bad else "")


def _failed(found: Verification) -> list[RenderableType]:
    """Each requirement that failed, the fatal ones first, with the hosts that miss it alike."""
    groups: dict[tuple[str, ...], list[tuple[str, Requirement]]] = {}
    for host, one in _with(found, Outcome.FAILED):
        short = one.shortfall
        assert short is not None
        key = (one.finding, one.name, short.seen, short.expected, short.remedy.replace(host, ""), one.reason)
        groups.setdefault(key, []).append((host, one))
    ranks = ["fatal", "warn", "info"]
    parts: list[RenderableType] = []
    for rows in sorted(groups.values(), key=lambda rows: ranks.index(rows[0][1].severity)):
        parts += _requirement(rows)
    return [*parts, Text("")]


def _requirement(rows: Sequence[tuple[str, Requirement]]) -> list[RenderableType]:
    (host, one), names = rows[0], fold([name for name, _ in rows])
    short, severity = one.shortfall, str(one.severity)
    assert short is not None
    word = severity.upper() if severity != "info" else severity
    head = Text.assemble(
        ("\n" + word.ljust(5), STYLES[severity]), "  ", (one.finding, "bold"), f"  {names}: {one.name}"
    )
    fields = Table.grid(padding=(0, 2, 0, 0))
    fields.add_column(no_wrap=True)
    fields.add_column(overflow="fold")
    expected = "" if short.expected == one.name else short.expected  # the head has said it
    texts = {"seen": short.seen, "expected": expected, "remedy": short.remedy.replace(host, names), "note": one.reason}
    for key, text in texts.items():
        if text:
            fields.add_row(f"       {key}", text)
    return [head, fields]


def _waived(found: Verification) -> list[RenderableType]:
    lines: dict[str, list[str]] = {}
    for host, one in _with(found, Outcome.WAIVED):
        lines.setdefault(f"{one.finding}, {one.name}: {one.reason}", []).append(host)
    return [Text.assemble(("waived", STYLES["waived"]), f"  {fold(hosts)}: {line}") for line, hosts in lines.items()]


def _skipped(found: Verification) -> list[RenderableType]:
    """By reason, with the hosts and how many requirements of each layer."""
    tests: dict[str, dict[str, set[str]]] = {}
    hosts: dict[str, dict[str, None]] = {}
    for host, one in _with(found, Outcome.SKIPPED):
        tests.setdefault(one.reason, {}).setdefault(one.layer, set()).add(one.test)
        hosts.setdefault(one.reason, {})[host] = None
    lines = []
    for reason, layers in tests.items():
        where = ", ".join(f"{layer} {len(names)}" for layer, names in layers.items())
        which = "" if len(hosts[reason]) == len(found.hosts) else f"; {fold(list(hosts[reason]))}"
        lines.append(Text.assemble(("skipped", STYLES["skipped"]), f"  {reason} ({where}{which})"))
    return [*lines]


def _errors(found: Verification) -> list[RenderableType]:
    lines = [f"{host.host}: {host.error}" for host in found.hosts if host.error]
    lines += [f"{host}: {one.name}: {one.reason}" for host, one in _with(found, Outcome.ERROR)]
    return [Text.assemble(("ERROR", STYLES["error"]), f"  {line}") for line in lines]


def _with(found: Verification, outcome: Outcome) -> Iterable[tuple[str, Requirement]]:
    return ((host.host, one) for host in found.hosts for one in host.with_outcome(outcome))


def _totals(found: Verification) -> str:
    states = [host.state for host in found.hosts]
    hosts = ", ".join(f"{states.count(state)} {state}" for state in HostState if states.count(state))
    counts = [f"{sum(host.counts()[outcome] for host in found.hosts)} {outcome}" for outcome in Outcome]
    shown = ", ".join(count for count in counts if not count.startswith("0 ")) or "nothing asked"
    return f"{len(states)} host{'s' if len(states) != 1 else ''}: {hosts}; {shown}; {duration(found.wall_s)}"


def _next(found: Verification, inventory: str) -> str:
    path = f" --inventory {inventory}" if inventory else ""
    by_role = [
        host.host
        for host in found.hosts
        if any(one.shortfall and one.shortfall.fix is Fix.PROVISION for one in host.with_outcome(Outcome.FAILED))
    ]
    if by_role:
        return f"./invoke provision --host '{fold(by_role)}'{path}"
    if found.failed_hosts:
        return f"./invoke verify --host @failed{path}   after the remedies above"
    if any(host.with_outcome(Outcome.FAILED) for host in found.hosts):
        return "nothing has to be done; the remedies above make it better"
    return "nothing to do: the hosts are what their locks say"


def junit(found: Verification) -> bytes:
    """A JUnit file: one suite per host, its hostname the host's; finding, seen, expected and remedy as properties."""
    root = ElementTree.Element("testsuites", name="aerie verify", time=f"{found.wall_s:.3f}")
    for host in found.hosts:
        counts = host.counts()
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=host.host,
            hostname=host.host,
            tests=str(sum(counts.values()) + bool(host.error)),
            failures=str(counts[Outcome.FAILED]),
            errors=str(counts[Outcome.ERROR] + bool(host.error)),
            skipped=str(counts[Outcome.SKIPPED] + counts[Outcome.WAIVED]),
            time=f"{host.wall_s:.3f}",
        )
        for one in host.requirements:
            _testcase(suite, one)
        if host.error:
            case = ElementTree.SubElement(suite, "testcase", classname="host", name="the host can be asked", time="0")
            ElementTree.SubElement(case, "error", message=_plain(host.error), type=str(host.state))
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _testcase(suite: ElementTree.Element, one: Requirement) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=one.layer, name=one.name, time=f"{one.wall_s:.3f}")
    properties = ElementTree.SubElement(case, "properties")
    for name, value in one.properties():
        ElementTree.SubElement(properties, "property", name=name, value=_plain(value))
    short = one.shortfall
    if one.outcome is Outcome.FAILED and short:
        message = f"{one.finding}: {short.seen}, expected {short.expected}"
        failure = ElementTree.SubElement(case, "failure", message=_plain(message), type=str(one.severity))
        failure.text = _plain(short.remedy)
    elif one.outcome is Outcome.ERROR:
        ElementTree.SubElement(case, "error", message=_plain(one.reason), type="error")
    elif one.outcome in (Outcome.SKIPPED, Outcome.WAIVED):
        ElementTree.SubElement(case, "skipped", message=_plain(one.reason), type=str(one.outcome))


def _plain(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(char for char in text if char.isprintable() or char in "\n\t")
