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

__all__ = ["groups", "launches", "model", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
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


def launches(context: Context, installed: Installed) -> dict[str, Launch]:
    """Of every server that the experiment has on this engine, by name; nothing is started.

    Raises UsageError or AerieError for what this release is known to serve wrongly, or not at all.
    """
    return {name: side.launch for name, side in _sides(context, installed).items()}


def run(context: Context, installed: Installed, reference: Installed | None = None) -> dict[str, Json]:
    """Measure every server of the engine interleaved, and find and score the divergences; the evidence.

    reference: an engine whose plain server is measured among them, as arm `reference`.
    """
    engine, values = installed.engine, Bench(**context.values["bench"])
    sides = _sides(context, installed)
    if reference is not None:
        sides[REFERENCE] = _Side(installed=reference, mode=None, launch=reference.launch(context, None))
    done = _Done()
    for group in groups({name: side.installed.engine for name, side in sides.items()}):
        _measure(context, engine, {name: sides[name] for name in group}, values, done)
    for arm in done.arms:
        rows = [record.to_dict() for run in done.runs if run.arm == arm.name for record in run.records]
        write_atomic(context.out / f"records.{arm.name}.jsonl", "".join(json.dumps(r) + "\n" for r in rows).encode())
    lowest = [run for run in done.runs if run.concurrency == min(values.concurrency)]
    plain = [record.streamed.token_ids for run in lowest if run.arm == BASE for record in run.records]
    return {
        "engine": {"name": engine.name, "version": installed.version, "arch": serving.arch(engine)},
        "model": model(context),
        "order": done.order,
        "arms": {arm.name: _evidence(arm, done.runs) for arm in done.arms},
        "by_prompt": {
            arm: {prompt: one.to_dict() for prompt, one in seen.items()}
            for arm in DRAFTERS
            if (seen := bench.by_prompt(run for run in lowest if run.arm == arm))
        },
        "distinct_bigrams": bench.distinct_bigrams(plain),
        "divergences": done.divergences,
        "outputs_same_across_repetitions": {arm.name: Outputs(done.runs, arm.name).are_same() for arm in done.arms},
        "client": ClientLoad.worst(done.loads).to_dict(),
    }


class _Done:
    """What was measured so far, group after group."""

    def __init__(self) -> None:
        self.arms: list[Arm] = []
        self.runs: list[Run] = []
        self.order: list[list[str]] = []
        self.loads: list[ClientLoad] = []
        self.divergences: list[dict[str, Json]] = []


def _measure(context: Context, engine: Engine, sides: Mapping[str, _Side], values: Bench, done: _Done) -> None:
    """Start these servers, measure them, and score the divergences once the base is among them."""
    with serving.started(context, engine, {name: side.launch for name, side in sides.items()}) as servers:
        arms = _arms(context, servers, {name: side.mode for name, side in sides.items()}, engine)
        runs, load = bench.measure(
            arms,
            repetitions=values.repetitions,
            on_progress=lambda count, total, note: context.progress(count, total, unit="requests", note=note),
            holds=[server for server in servers.values() if server.launch.adapter.polls_when_idle],
        )
        done.arms += arms
        done.runs += runs
        done.loads.append(load)
        names = [arm.name for arm in arms]
        done.order += [bench.order(names, repetition) for repetition in range(1, values.repetitions + 1)]
        if BASE in servers:
            prompts = serving.read_prompts(_held(context), values.prompts)
            found = divergences.score(servers[BASE], done.runs, prompts, context.progress)
            done.divergences = asyncio.run(found)


def _sides(context: Context, installed: Installed) -> dict[str, _Side]:
    engine, drafter = installed.engine, Drafter(**context.values["drafter"])
    cost = Cost(**context.values["cost"])
    _check_lengths(cost, drafter)
    modes = _modes(context, engine, drafter, cost)
    for mode in modes.values():
        if isinstance(mode, Drafting):
            drafters.require(mode.path, engine.name, installed.version)
    return {
        name: _Side(installed=installed, mode=mode, launch=installed.launch(context, mode))
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


def _evidence(arm: Arm, runs: Sequence[Run]) -> dict[str, Json]:
    return {
        "start_s": arm.server.start_s,
        "flags": list(arm.server.launch.flags),
        "runs": [bench.summarize(run) for run in runs if run.arm == arm.name],
    }


def model(context: Context) -> str:
    """The target as the capability table names it; "" for one that no row speaks of."""
    config = json.loads((staged.folder(context.inputs["target"], "model") / "config.json").read_bytes())
    return next((name for key in config.get("architectures") or () if (name := table().models.get(key))), "")


def _held(context: Context) -> Path:
    return context.inputs["target"].path / "prompts.held.jsonl"
