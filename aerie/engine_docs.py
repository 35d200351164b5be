"""docs/engines.md: the capability table as a page, and what was measured with real engines (benchmarks/engine-runs)."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from .eagle3 import cost, lossless
from .eagle3.measured import Control, Spread
from .engines.capability import ARCHS, Backend, Table, names, survey, table
from .paths import repository
from .runbook.step import Json

__all__ = ["RUNS", "Measured", "measured", "text"]

RUNS = "benchmarks/engine-runs"
NEAR_TIE_NATS = 0.1
HEAD = """\
# Engines

<!-- Made by ./invoke docs from aerie/engines/capabilities.toml and benchmarks/engine-runs; edit those. -->

Two engines serve behind one interface (`aerie/engines/adapter.py`): what is started, what is asked, how answers and
counters read. What each version can do is a table, with a source for every line; a combination that it refuses is
refused before anything starts, with the reason.

    ./invoke engines                                       Kimi-K2.5 on SM120: which version serves it, which not, why
    ./invoke engines --for kimi-k2.5 --arch sm90 --json
    ./invoke engines --engine sglang

A server is ready when it has generated: `/health` is green on servers that fail at their first verify step. A stop ends
the whole tree of processes and then looks for the GPU memory by NVML (finding `engine.gpu-memory-held`).

## Acceptance has one definition

    accept length τ = 1 + Σ accepted / V        draft rate = Σ accepted / Σ proposed        V: verify steps

vLLM counts all three in /metrics. SGLang tells them with each answer (`meta_info`), in names that changed twice; its
gauges are means of the last interval, and up to 0.5.10 its accept rate counts the bonus token (0.70 where it is 0.60).
"""


class Measured:
    """One run of a real engine: its evidence, in the form of the control step, and the figures that follow from it."""

    def __init__(self, evidence: Mapping[str, Json]) -> None:
        self.evidence, self.control = evidence, Control.from_dict(evidence)
        self.probe = cost.probe(self.control)
        self.lossless = lossless.classify(self.control, NEAR_TIE_NATS)
        acceptance = self.control.acceptance("finetuned")
        assert acceptance is not None, "a run with a drafter"
        self.drafts = acceptance.proposed // acceptance.verify_steps  # k
        self.tau, self.rate, self.by_position = acceptance.tau, acceptance.rate, acceptance.by_position

    @property
    def cost(self) -> float:
        """R: plain steps that one verify step takes."""
        return float(self.probe["R_median"])

    @property
    def predicted(self) -> float:
        """S = τ / R."""
        return self.tau / self.cost

    @property
    def speedup(self) -> Spread:
        """S as measured, each repetition against the plain server next to it."""
        found = Spread.from_dict(self.probe["measured"]["finetuned"])
        assert found is not None, "a run with a plain server"
        return found

    def rates(self, arm: str) -> Spread:
        """Tokens a second of one user."""
        found = Spread.of(run.tok_s_user for run in self.control.runs(arm) if run.tok_s_user)
        assert found is not None, f"arm {arm} was measured"
        return found


def measured(file: Path) -> Measured:
    """A run that is kept in benchmarks/engine-runs."""
    return Measured(json.loads(file.read_bytes()))


def text() -> str:
    """The whole page."""
    runs = [measured(file) for file in sorted((repository() / RUNS).glob("*.json"))]
    return "\n".join([HEAD, *_runs(runs), *_releases(table()), *_rules(table()), *_backends(table()), *_names(table()),
                      *_routers(table()), *_hangs(table())])  # fmt: skip


def _runs(runs: Sequence[Measured]) -> Iterator[str]:
    for run in runs:
        evidence, target = run.evidence, run.evidence["made"]["target"]
        engine, machine = evidence["engine"], evidence["machine"]
        yield f"## Measured: {engine['name']} {engine['version']} on {machine['gpu']}, {evidence['at'][:10]}\n"
        yield (
            f"Through aerie's adapter, server and client: driver {machine['driver']}, CUDA graphs on, one user, "
            "temperature 0. "
            f"Target: DeepSeek-V3-shaped (MLA, {target['experts']} experts, {target['layers']} layers, "
            f"{target['parameters'] / 1e6:.0f} M parameters), trained there; drafter: EAGLE-3, "
            f"{evidence['made']['drafter']['parameters'] / 1e6:.0f} M parameters, trained there on the target's own "
            f"answers; k = {run.drafts}.\n"
        )
        forced = run.control.forced[0]
        rows = [
            ("no speculation", _spread(run.rates("base")), "–", "1"),
            ("fine-tuned drafter", _spread(run.rates("finetuned")), f"{run.tau:.3f}", _spread(run.speedup, 3)),
            (f"accept length forced to {forced.removeprefix('forced-')}", _spread(run.rates(forced)),
             f"{run.probe['forced_tau'][forced.removeprefix('forced-')]:.3f}", "–"),
        ]  # fmt: skip
        yield _table(("served", "tok/s (min–max)", "τ", "S against no speculation"), rows)
        positions = ", ".join(f"{share:.3f}" for share in run.by_position)
        stop, kept = evidence["stop"], run.lossless
        starts = [arm["start_s"] for name, arm in evidence["arms"].items() if name != "base-fixed"]
        yield (
            f"- R = {run.cost:.3f} by the forced length; S = τ / R predicts {run.predicted:.3f}, measured is "
            f"{run.speedup.median:.3f}: {100 * (run.speedup.median / run.predicted - 1):+.1f} %.\n"
            f"- Draft rate {run.rate:.3f}; accepted by position {positions}.\n"
            f"- Lossless: {kept['equal']} of {kept['prompts']} outputs equal, {kept['near_ties']} part at a near tie "
            f"(at most {NEAR_TIE_NATS} nats), {kept['unexplained']} unexplained.\n"
            f"- Ready after {', '.join(f'{seconds:.0f} s' for seconds in starts)}"
            f" (the first compiles kernels).\n"
            f"- Stopped: {stop['processes']} processes, {stop['processes_left']} left; GPU memory "
            f"{_mib(stop['memory_serving'])} MiB while serving, {_mib(stop['memory_after'])} MiB after, "
            f"{_mib(stop['memory_before'])} MiB before.\n"
        )


def _releases(whole: Table) -> Iterator[str]:
    yield "## Versions\n"
    yield "What Kimi-K2.5 gets on SM120; `./invoke engines` gives the reasons.\n"
    able = {(one.plain.wish.engine, one.plain.wish.version): one.word for one in survey("kimi-k2.5", "sm120")}
    words = {"eagle3": "with EAGLE-3", "plain": "without a drafter", "no": "not"}
    rows = [
        (one.engine, one.version, words[able[one.engine, one.version]], one.torch or "?", one.cuda or "?", one.kernels,
         one.flashinfer, one.transformers, _aux(one.engine, one.version), one.source)
        for one in whole.releases
    ]  # fmt: skip
    heads = ("engine", "version", "K2.5 on SM120", "torch", "CUDA", "kernels", "flashinfer", "transformers",
             "aux layer ids", "source")  # fmt: skip
    yield _table(heads, rows)


def _aux(engine: str, version: str) -> str:
    if engine == "vllm":
        return "as given"
    return f"+{names(engine, version)['aux.offset']}" if names(engine, version)["aux.offset"] != "0" else "as given"


def _rules(whole: Table) -> Iterator[str]:
    yield "## What is refused, or warned of\n"
    rows = [
        (
            one.engine,
            one.versions or "all",
            one.effect,
            ", ".join((*one.models, *one.archs, *one.doing)) or "everything",
            one.reason,
            one.remedy,
            one.source,
        )
        for one in whole.rules
    ]
    yield _table(("engine", "versions", "effect", "for", "reason", "remedy", "source"), rows)


def _backends(whole: Table) -> Iterator[str]:
    yield "## Backends\n"
    yield "plain: for decoding without a drafter alone. Bold: aerie passes it.\n"
    ordered = sorted(whole.backends, key=lambda one: (one.engine, one.kind, one.name))
    rows = []
    for (engine, kind, name), group in groupby(ordered, key=lambda one: (one.engine, one.kind, one.name)):
        same = list(group)
        why = "; ".join(f"{one.versions or 'all'}: {one.reason} ({one.source})" for one in same)
        rows.append((engine, kind, name, *(_works(same, arch) for arch in ARCHS[:3]), why))
    yield _table(("engine", "kind", "backend", *ARCHS[:3], "why"), rows)


def _works(rows: Iterable[Backend], arch: str) -> str:
    found = [f"**{row.works}**" if row.is_default else row.works for row in rows if arch in row.archs]
    return "; ".join(dict.fromkeys(found)) or "?"


def _names(whole: Table) -> Iterator[str]:
    yield "## Names over time\n"
    ordered = sorted(whole.names, key=lambda one: (one.thing, one.engine))
    rows = [(one.thing, one.engine, one.versions or "all", f"`{one.value}`", one.source) for one in ordered]
    yield _table(("thing", "engine", "versions", "name", "source"), rows)


def _routers(whole: Table) -> Iterator[str]:
    yield "## Routers\n"
    yield "In front of the servers of several hosts (`synthesis.hosts`) stands the engine's own router.\n"
    ordered = sorted(whole.routers, key=lambda one: one.question)
    rows = [(one.question, one.package, one.versions, one.seen, one.source) for one in ordered]
    yield _table(("question", "package", "versions", "seen", "source"), rows)


def _hangs(whole: Table) -> Iterator[str]:
    yield "## Known hangs\n"
    rows = [
        (
            one.id,
            one.engine,
            one.versions or "all",
            ", ".join(one.archs) or "all",
            one.symptom,
            one.cause,
            one.remedy,
            one.source,
        )
        for one in whole.hangs
    ]
    yield _table(("hang", "engine", "versions", "cards", "symptom", "cause", "remedy", "source"), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _spread(spread: Spread, digits: int = 1) -> str:
    return f"{spread.median:.{digits}f} ({spread.min:.{digits}f}–{spread.max:.{digits}f})"


def _mib(used: Mapping[str, int]) -> str:
    return f"{sum(used.values()) >> 20:,}"
