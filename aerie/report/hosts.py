"""The plan of hosts as rich draws it: a verdict per host, its findings, what is stopped, what to type next.

Hosts with equal plans are folded into one block. Fatal findings stand first, what interrupts work stands last.
"""

import re
import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aerie.findings import Finding, Severity
from aerie.plan import HostPlan, HostState, Plan

__all__ = ["fold", "plan_view"]

STYLES = {"fatal": "bold red", "warn": "yellow", "info": "dim", "waived": "dim", "ok": "green"}


def plan_view(plan: Plan, inventory: str = "", *, with_next: bool = True) -> RenderableType:
    """The plan on a screen; its last line is the next command. inventory: as given to the task, for that command.

    with_next: not where the plan is about to be applied.
    """
    blocks: list[RenderableType] = []
    for hosts in _groups(plan):
        blocks += [*_block(hosts), Text("")]
    # A command is to be copied, so it is never broken into lines.
    lines = _next(plan, inventory) if with_next else []
    commands = [Text(f"next: {line}", no_wrap=True, overflow="ignore") for line in lines]
    return Group(*blocks, Text(_totals(plan), style="bold"), *commands)


def fold(names: Sequence[str]) -> str:
    """Names of hosts as one pattern of the inventory: "gpu[01:03],gpu07" of gpu01, gpu02, gpu03 and gpu07."""
    runs: list[tuple[str, list[str]]] = []
    for name in names:
        head, digits = re.fullmatch(r"(.*?)(\d*)", name).groups()  # type: ignore[union-attr]
        if digits and runs and runs[-1][0] == head and _follows(runs[-1][1][-1], digits):
            runs[-1][1].append(digits)
        else:
            runs.append((head, [digits]))
    return ",".join(
        f"{head}[{numbers[0]}:{numbers[-1]}]" if len(numbers) > 1 else head + numbers[0] for head, numbers in runs
    )


def _follows(one: str, other: str) -> bool:
    return bool(one) and int(other) == int(one) + 1 and len(one.lstrip("0") or "0") <= len(other) and (
        len(one) == len(other) or not one.startswith("0")
    )  # fmt: skip


def _groups(plan: Plan) -> list[list[HostPlan]]:
    """Hosts with equal plans together, in the order of their first; unreachable ones are told apart by their error."""
    groups: dict[object, list[HostPlan]] = {}
    for host in plan.hosts:
        groups.setdefault(_sameness(host), []).append(host)
    return list(groups.values())


def _sameness(host: HostPlan) -> object:
    findings = tuple((one.id, one.severity, one.seen, one.expected, one.fix) for one in host.findings)
    waived = tuple((one.finding.id, one.reason, one.expires) for one in host.waived)
    error = host.error.replace(host.host, "")
    return host.state, host.lock, findings, waived, host.apply, host.reboot, host.stops, error


def _block(hosts: Sequence[HostPlan]) -> list[RenderableType]:
    first, names = hosts[0], fold([host.host for host in hosts])
    if first.state in (HostState.UNREACHABLE, HostState.UNPROBED):
        head = Text.assemble((names, "bold"), "  ", (str(first.state), STYLES["fatal"]))
        return [head, *(Text(f"  {line}") for line in first.error.replace(first.host, names).splitlines())]
    lines: list[RenderableType] = [_head(first, names, len(hosts)), _findings(first, names)]
    wrong = {finding.layer for finding in (*first.findings, *(one.finding for one in first.waived))}
    if wrong and (fine := [layer for layer in first.judged if layer not in wrong]):
        lines.append(Text.assemble(("  ok     ", STYLES["ok"]), " ".join(fine)))
    if first.reboot.reasons:
        lines.append(Text(f"reboot because: {', '.join(one.partition(':')[0] for one in first.reboot.reasons)}"))
    if first.reboot.refused:
        lines.append(Text.assemble(("not rebooted: ", STYLES["warn"]), first.reboot.refused))
    if first.blocked:
        lines.append(
            Text.assemble(
                ("nothing is changed ", STYLES["fatal"]), f"before a person mended {', '.join(first.blocked)}"
            )
        )
    lines += [Text.assemble(("stops: ", STYLES["fatal"]), line) for line in first.stops]
    return lines


def _head(host: HostPlan, names: str, count: int) -> Text:
    counts = {str(one): sum(finding.severity is one for finding in host.findings) for one in Severity}
    words = [(f"{number} {name}", STYLES[name]) for name, number in counts.items() if number]
    parts: list[tuple[str, str]] = words or [("matches its lock", STYLES["ok"])]
    parts.append((f"lock: {host.lock}", ""))
    if count > 1:
        parts.insert(0, (f"{count} hosts, each:", ""))
    if host.apply:
        parts.append((f"layers: {' '.join(host.apply)}", ""))
    if host.apply or host.reboot.reasons:
        parts.append((f"reboot: {_reboot(host)}", ""))
    head = Text(names, style="bold")
    for text, style in parts:
        head.append("  ").append(text, style=style)
    return head


def _reboot(host: HostPlan) -> str:
    if not host.reboot.reasons:
        return "none"
    return "yes, by you" if host.reboot.needed and host.reboot.refused else "yes, once" if host.reboot.needed else "no"


def _findings(host: HostPlan, names: str) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    for ratio in (5, 4):
        table.add_column(ratio=ratio, overflow="fold")
    for finding in host.findings:
        word = str(finding.severity)
        shown = word.upper() if finding.severity is not Severity.INFO else word
        table.add_row(
            Text(f"  {shown}", STYLES[word]), finding.id, _difference(finding), _remedy(finding, host.host, names)
        )
    for waived in host.waived:
        why = f"{waived.reason}; until {waived.expires}"
        table.add_row(Text("  waived", STYLES["waived"]), waived.finding.id, _difference(waived.finding), why)
    return table


def _difference(finding: Finding) -> str:
    return f"{finding.seen}; expected {finding.expected}"


def _remedy(finding: Finding, host: str, names: str) -> str:
    """The remedy without the command that the last line gives anyway."""
    command = f"./invoke provision --host {host} "
    text = finding.remedy
    return f"provision {text.removeprefix(command)}" if text.startswith(command) else text.replace(host, names)


def _totals(plan: Plan) -> str:
    changing = len(plan.changing())
    lost = sum(host.state is HostState.UNREACHABLE for host in plan.hosts)
    mute = sum(host.state is HostState.UNPROBED for host in plan.hosts)
    blocked = sum(bool(host.blocked) for host in plan.hosts)
    by_hand = sum(
        not host.blocked and not host.apply and not host.reboot.needed and host.state is HostState.DIFFERS
        for host in plan.hosts
    )
    rest = len(plan.hosts) - changing - lost - mute - blocked - by_hand
    parts = [f"{changing} to change", f"{rest} as they are" if rest != 1 else "1 as it is"]
    parts += [f"{blocked} blocked"] if blocked else []
    parts += [f"{by_hand} to mend by hand"] if by_hand else []
    parts += [f"{mute} unprobed"] if mute else []
    count = f"{len(plan.hosts)} host{'s' if len(plan.hosts) > 1 else ''}"
    return f"{count}: {', '.join([*parts, f'{lost} unreachable'])}"


def _next(plan: Plan, inventory: str) -> list[str]:
    path = f" --inventory {shlex.quote(inventory)}" if inventory else ""
    changing = [host.host for host in plan.changing()]
    if changing:
        return [f"./invoke provision --host {shlex.quote(fold(changing))}{path}"]
    open_ = [host.host for host in plan.hosts if host.state is not HostState.MATCHES]
    verb = "plan" if open_ else "verify"
    return [f"./invoke {verb} --host {shlex.quote(fold(open_ or [host.host for host in plan.hosts]))}{path}"]
