"""One control experiment: which servers of an engine, in which groups, what is sent to them, and the evidence of it.

Step `control` makes it of the profile's engine, step `control-second` of another one beside it.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aerie.eagle3 import divergences, serving, staged
from aerie.eagle3.divergences import Outputs
from aerie.eagle3.kept_runs import KeptRuns
from aerie.eagle3.measured import BASE, BASE_FIXED, DRAFTERS, REFERENCE, forced_arm
from aerie.eagle3.profile import Bench, Cost, Drafter, Engine
from aerie.eagle3.serving import Installed
from aerie.engines import bench, drafters
from aerie.engines.adapter import Drafter as Drafting
from aerie.engines.adapter import Forced, Launch, Mode, adapter
from aerie.engines.bench import Arm, ClientLoad, Run
from aerie.engines.capability import table
from aerie.engines.server import Server
from aerie.engines.values import fits_side_by_side
from aerie.errors import UsageError
from aerie.runbook.step import Context, Json, write_atomic

__all__ = ["Side", "groups", "model", "run", "sides_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One server of the experiment."""

    installed: Installed
    mode: Mode
    launch: Launch


def groups(engines: Mapping[str, Engine]) -> tuple[tuple[str, ...], ...]:
    """The servers that run at the same time, group after group: all, or each alone where they do not fit side by side.

    engines: of each server, by its name. The base is among the last: it scores the others' divergences.
    """
    if fits_side_by_side(engines.values()):
        return (tuple(engines),)
    return tuple((name,) for name in sorted(engines, key=lambda name: name == BASE))


def run(
    context: Context, installed: Installed, sides: Mapping[str, Side], reference: Installed | None = None
) -> dict[str, Json]:
    """Measure every server of the engine interleaved, and find and score the divergences; the evidence.

    sides: of sides_of. reference: an engine whose plain server is measured among them, as arm `reference`.
    """
    engine, values = installed.engine, Bench(**context.values["bench"])
    if reference is not None:
        beside = Side(installed=reference, mode=None, launch=reference.launch(context, None))
        sides = {**sides, REFERENCE: beside}
    done = _Done()
    for number, group in enumerate(groups({name: side.installed.engine for name, side in sides.items()})):
        _measure(context, engine, {name: sides[name] for name in group}, done, KeptRuns(context.kept, number))
    for arm in done.arms:
        rows = [record.to_dict() for run in done.runs if run.arm == arm for record in run.records]
        write_atomic(context.out / f"records.{arm}.jsonl", "".join(json.dumps(r) + "\n" for r in rows).encode())
    lowest = [run for run in done.runs if run.concurrency == min(values.concurrency)]
    plain = [record.streamed.token_ids for run in lowest if run.arm == BASE for record in run.records]
    return {
        "engine": {"name": engine.name, "version": installed.version, "arch": serving.arch(engine)},
        "model": model(context),
        "order": done.order,
        "arms": {
            arm: {**told, "runs": [bench.summarize(run) for run in done.runs if run.arm == arm]}
            for arm, told in done.arms.items()
        },
        "by_prompt": {
            arm: {prompt: one.to_dict() for prompt, one in seen.items()}
            for arm in DRAFTERS
            if (seen := bench.by_prompt(run for run in lowest if run.arm == arm))
        },
        "distinct_bigrams": bench.distinct_bigrams(plain),
        "divergences": done.divergences,
        "outputs_same_across_repetitions": {arm: Outputs(done.runs, arm).are_same() for arm in done.arms},
        "client": ClientLoad.worst(done.loads).to_dict(),
        "runs_of_earlier_attempts": done.of_earlier_attempts,
    }


class _Done:
    """What was measured so far, group after group. arms: of each its server's flags and how long its start took."""

    def __init__(self) -> None:
        self.arms: dict[str, dict[str, Json]] = {}
        self.runs: list[Run] = []
        self.order: list[list[str]] = []
        self.loads: list[ClientLoad] = []
        self.divergences: list[dict[str, Json]] = []
        self.of_earlier_attempts = 0

    def add(self, runs: Sequence[Run], load: ClientLoad) -> None:
        """One repetition of a group."""
        self.runs += runs
        self.loads.append(load)
        self.order.append(list(dict.fromkeys(run.arm for run in runs)))


def _measure(context: Context, engine: Engine, sides: Mapping[str, Side], done: _Done, kept: KeptRuns) -> None:
    """Measure these servers, and score the divergences once the base is among them; what is kept is not done again."""
    for runs, load in (earlier := kept.repetitions()):
        done.add(runs, load)
        done.of_earlier_attempts += len(runs)
    told = kept.ended()
    if told is None:
        told = _serve_and_measure(context, engine, sides, done, kept, first=len(earlier) + 1)
        kept.end(told)
    done.arms |= told["arms"]
    done.divergences += told["divergences"]


def _serve_and_measure(
    context: Context, engine: Engine, sides: Mapping[str, Side], done: _Done, kept: KeptRuns, *, first: int
) -> dict[str, Json]:
    """{arms, divergences} of a group of which the repetitions before `first` are done."""
    values = Bench(**context.values["bench"])

    def keep(repetition: int, runs: Sequence[Run], load: ClientLoad) -> None:
        kept.add(repetition, runs, load)
        done.add(runs, load)

    with serving.started(context, engine, {name: side.launch for name, side in sides.items()}) as servers:
        arms = _arms(context, servers, {name: side.mode for name, side in sides.items()}, engine)
        bench.measure(
            arms,
            repetitions=values.repetitions,
            on_progress=lambda count, total, note: context.progress(count, total, unit="requests", note=note),
            holds=[server for server in servers.values() if server.launch.adapter.polls_when_idle],
            first=first,
            on_repetition=keep,
        )
        found: list[dict[str, Json]] = []
        if BASE in servers:
            prompts = serving.read_prompts(_held(context), values.prompts)
            found = asyncio.run(divergences.score(servers[BASE], done.runs, prompts, context.progress))
        started = {arm.name: {"start_s": arm.server.start_s, "flags": list(arm.server.launch.flags)} for arm in arms}
    return {"arms": started, "divergences": found}


def sides_of(context: Context, installed: Installed) -> dict[str, Side]:
    """Every server that the experiment has on this engine, by name; nothing is started.

    Raises UsageError or AerieError for what this release is known to serve wrongly, or not at all.
    """
    engine, drafter = installed.engine, Drafter(**context.values["drafter"])
    cost = Cost(**context.values["cost"])
    _check_lengths(cost, drafter)
    modes = _modes(context, engine, drafter, cost)
    for mode in modes.values():
        if isinstance(mode, Drafting):
            drafters.require(mode.path, engine.name, installed.version)
    return {
        name: Side(installed=installed, mode=mode, launch=installed.launch(context, mode))
        for name, mode in modes.items()
    }


def _modes(context: Context, engine: Engine, drafter: Drafter, cost: Cost) -> dict[str, Mode]:
    tokens = drafter.num_speculative_tokens
    baseline, finetuned = (
        Drafting(path=staged.folder(context.inputs[step], "drafter"), tokens=tokens)
        for step in ("baseline-drafter", "export")
    )
    modes: dict[str, Mode] = {BASE: None, "baseline": baseline, "finetuned": finetuned}
    switches = adapter(engine.name).switches_forced(engine)
    for length in cost.accept_lengths[:1] if switches else cost.accept_lengths:
        name = "forced" if switches else forced_arm(length)
        modes[name] = Forced(drafter=finetuned, length=length, folder=context.scratch / name)
    return modes


def _arms(context: Context, servers: Mapping[str, Server], modes: Mapping[str, Mode], engine: Engine) -> list[Arm]:
    """What is measured of these servers."""
    values, cost = Bench(**context.values["bench"]), Cost(**context.values["cost"])
    prompts, fixed = (serving.read_prompts(_held(context), count) for count in (values.prompts, cost.prompts))
    arms = [
        Arm(
            name=name,
            server=servers[name],
            prompts=prompts,
            max_tokens=values.max_tokens,
            concurrency=tuple(values.concurrency),
        )
        for name in (REFERENCE, BASE, *DRAFTERS)
        if name in servers
    ]
    forcing = {length: "forced" if "forced" in modes else forced_arm(length) for length in cost.accept_lengths}
    of_fixed: dict[str, tuple[str, float | None]] = {BASE_FIXED: (BASE, None)} if forcing else {}
    of_fixed |= {forced_arm(length): (name, length) for length, name in forcing.items()}
    return arms + [
        Arm(
            name=arm,
            server=servers[name],
            prompts=fixed,
            max_tokens=values.max_tokens,
            concurrency=(1,),
            ignore_eos=True,
            before=_switch(modes[name], engine, length),
        )
        for arm, (name, length) in of_fixed.items()
        if name in servers
    ]


def _check_lengths(cost: Cost, drafter: Drafter) -> None:
    most = drafter.num_speculative_tokens + 1
    for length in cost.accept_lengths:
        if length > most:
            raise UsageError(
                "cost.accept_lengths",
                seen=length,
                expected=f"at most drafter.num_speculative_tokens + 1, {most}",
                remedy="A verify step cannot accept more drafts than were made.",
            )


def _switch(mode: Mode, engine: Engine, length: float | None) -> Callable[[], None]:
    if isinstance(mode, Forced) and length is not None and adapter(engine.name).switches_forced(engine):
        return partial(adapter(engine.name).switch_forced, mode, length)
    return lambda: None  # its server was started with the length, or has none


def model(context: Context) -> str:
    """The target as the capability table names it; "" for one that no row speaks of."""
    config = json.loads((staged.folder(context.inputs["target"], "model") / "config.json").read_bytes())
    return next((name for key in config.get("architectures") or () if (name := table().models.get(key))), "")


def _held(context: Context) -> Path:
    return context.inputs["target"].path / "prompts.held.jsonl"
