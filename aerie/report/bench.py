"""A measurement of servers as what rich draws on a terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aerie.report import sweeps
from aerie.report.words import MISSING, number

__all__ = ["view"]


def view(document: Mapping[str, Any], paths: Iterable[object]) -> RenderableType:
    """Rates and latencies, what is compared, what is doubtful, where the files are. document: of bench.json."""
    rows = document["rows"]
    parts: list[RenderableType] = [_rows(rows)]
    if document["comparisons"]:
        parts.append(_comparisons(document["comparisons"]))
    for row in rows:
        where = f"{row['arm']}, temperature {row['temperature']:g}, concurrency {row['concurrency']}"
        if row["failed"]:
            said = f"  {where}: {row['failed']} of {row['requests']} requests; first: {row['first_error']}"
            parts.append(Text.assemble(("failed", "bold red"), said))
        if row["client"]["bound"]:
            parts.append(Text.assemble(("client-bound", "yellow"), f"  {where}: measured late, its machine is busy"))
        if row["bursts"]:
            parts.append(Text.assemble(("bursts", "yellow"), f"  {where}: {row['bursts']} came in one piece, no TPOT"))
    if document.get("sweep"):
        parts.append(sweeps.view(document["sweep"]))
    parts += [Text(str(path), no_wrap=True, overflow="fold") for path in paths]
    return Group(*parts)


def _rows(rows: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="dim", padding=(0, 1), collapse_padding=True)
    table.add_column("arm", no_wrap=True)
    for name in ("temp", "users", "requests", "req/s", "tok/s", "per user", "TTFT ms", "p99", "TPOT ms", "p99", "good"):
        table.add_column(name, justify="right")
    for name in ("τ", "rate", "J/token"):
        table.add_column(name, justify="right")
    for row in rows:
        rates = (row[name] and row[name]["median"] for name in ("request_rate", "tok_s", "tok_s_user"))
        table.add_row(
            row["arm"],
            f"{row['temperature']:g}",
            str(row["concurrency"]),
            str(row["requests"]),
            *(number(rate, form) for rate, form in zip(rates, (".3g", ".1f", ".1f"), strict=True)),
            *(
                number(row[name] and row[name][which], ".4g")
                for name in ("ttft_ms", "tpot_ms")
                for which in ("median", "p99")
            ),
            number(row["good_share"], ".0%"),
            number(row["tau"], ".3f"),
            number(row["accept_rate"], ".1%"),
            number(row["joules_per_token"], ".3f"),
        )
    return table


def _comparisons(comparisons: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="dim", padding=(0, 1), collapse_padding=True)
    for name in ("times of / over", "temp", "users"):
        table.add_column(name, no_wrap=True)
    for name in ("first token", "per token", "whole request", "same text", "prompts"):
        table.add_column(name, justify="right")
    for one in comparisons:
        table.add_row(
            f"{one['other']} / {one['first']}",
            f"{one['temperature']:g}",
            str(one["concurrency"]),
            *(_ratio(one[name]) for name in ("ttft", "tpot", "e2e")),
            number(one["same_outputs"], ".0%"),
            f"{one['prompts']}{', too few' if one['few'] else ''}",
        )
    return table


def _ratio(value: Mapping[str, Any] | None) -> str:
    return MISSING if value is None else f"{value['ratio']:.3f} ({value['low']:.3f}–{value['high']:.3f})"
