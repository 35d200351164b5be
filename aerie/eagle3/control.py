"""The control experiment: the same engine, prompts and minutes for no drafter, the baseline, the fine-tuned one."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aerie.eagle3 import serving, staged
from aerie.eagle3.profile import Bench, Cost, Drafter, Engine
from aerie.engines import bench, drafters
from aerie.engines.adapter import Drafter as Drafting
from aerie.engines.adapter import Forced, Mode, adapter
from aerie.engines.bench import Arm, ClientLoad, Prompt, Record, Run
from aerie.engines.capability import table
from aerie.engines.client import connect
from aerie.engines.server import Server
from aerie.errors import UsageError
from aerie.runbook.step import Context, Json, write_atomic

__all__ = ["BASE", "BASE_FIXED", "DRAFTERS", "divergence", "doc", "forced", "gap_nats", "groups", "run"]

BASE, BASE_FIXED = "base", "base-fixed"
DRAFTERS = ("baseline", "finetuned")
_LOGPROBS = 20  # vLLM's limit on how many it gives

doc = """
Start four servers of the same target at once: without a drafter (`base`), with the baseline drafter, with the
fine-tuned one, and one whose acceptance is forced. The flags are those of step `serve-base` and, for a drafter,

    --speculative-config '{"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3}'

Before that the drafters are held against the version: a key that changes their normalisation, and that the engine does
not read, would be passed over without a word (drafter.norms in docs/engines.md).

Measure one after the other, and all of them again in another order, several times: the machine's speed drifts by tens
of percent within minutes. (On GPUs that do not hold all servers by their shares, `engine.gpus.memory_fraction`, each is
started alone, the base last, and measured as often; the order then evens nothing out between them.) Before and after
each run read `/metrics`; from the differences

    accept length = 1 + num_accepted_tokens / num_drafts        acceptance rate = num_accepted_tokens / num_draft_tokens

Forced acceptance measures what a verify step costs, whatever the drafter is worth: with forced length L and the same
number of tokens, R = L x tokens/s without a drafter / tokens/s forced. vLLM's own switch for it
(`rejection_sample_method: synthetic`) ends the engine at the first request on a CPU, so
aerie/engines/vllm_cpu/forced.py replaces the greedy kernel. Forced text is not the target's: it runs with
`ignore_eos`, against `base-fixed`, which is the `base` server with the same prompts and lengths.

Where a drafter's output leaves that of `base`, send the prompt and the common tokens to the `base` server with
`"max_tokens": 1, "logprobs": 20`: the gap is the log probability of its best token minus that of the worse of the two.
"""


def forced(length: float) -> str:
    """The arm of one forced accept length."""
    return f"forced-{length:.1f}"


def divergence(base: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two outputs part: the first position that differs, also one that only the longer has; None if equal."""
    if list(base) == list(other):
        return None
    length = min(len(base), len(other))
    return next((i for i in range(length) if base[i] != other[i]), length)


def gap_nats(top: Mapping[int, float], tokens: Sequence[int | None]) -> float:
    """How far the least likely of `tokens` is below the best token, in nats; 0 if all are the best.

    top: log probabilities of the best tokens, by id. A token that is not among them is at least as far as their
    last, so its true gap is that or more; None (an output that had ended) is taken as such a token.
    """
    best, last = max(top.values()), min(top.values())
    return best - min(top.get(token, last) if token is not None else last for token in tokens)


def groups(engine: Engine, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The servers that run at the same time, group after group: all, or each alone where they do not fit side by side.

    The base is among the last: it scores the others' divergences.
    """
    if engine.fits_side_by_side(len(names)):
        return (tuple(names),)
    return tuple((name,) for name in sorted(names, key=lambda name: name == BASE))


def run(context: Context) -> Mapping[str, Json]:
    """Serve all, measure interleaved, find and score the divergences."""
    engine, drafter = Engine(**context.values["engine"]), Drafter(**context.values["drafter"])
    values, cost = Bench(**context.values["bench"]), Cost(**context.values["cost"])
    _check_lengths(cost, drafter)
    prompts = serving.read_prompts(_held(context), values.prompts)
    modes = _modes(context, engine, drafter, cost)
    version = serving.engine_evidence(context, engine)["version"]
    for mode in modes.values():
        if isinstance(mode, Drafting):
            drafters.require(mode.path, engine.name, version)
    arms: list[Arm] = []
    runs: list[Run] = []
    order: list[list[str]] = []
    loads: list[ClientLoad] = []
    divergences: list[dict[str, Any]] = []
    for group in groups(engine, list(modes)):
        with serving.servers(context, engine, {name: modes[name] for name in group}) as servers:
            here = _arms(context, servers, modes, engine)
            made, load = bench.measure(
                here,
                repetitions=values.repetitions,
                on_progress=lambda done, total, note: context.progress(done, total, unit="requests", note=note),
                holds_idle=adapter(engine.name).polls_when_idle,
            )
            arms, runs, loads = [*arms, *here], [*runs, *made], [*loads, load]
            names = [arm.name for arm in here]
            order += [bench.order(names, repetition) for repetition in range(1, values.repetitions + 1)]
            if BASE in servers:
                divergences = asyncio.run(_divergences(context, servers[BASE], runs, prompts))
    for arm in arms:
        rows = [record.to_dict() for run in runs if run.arm == arm.name for record in run.records]
        write_atomic(context.out / f"records.{arm.name}.jsonl", "".join(json.dumps(r) + "\n" for r in rows).encode())
    lowest = [run for run in runs if run.concurrency == min(values.concurrency)]
    plain = [record.streamed.token_ids for run in lowest if run.arm == BASE for record in run.records]
    return {
        "engine": serving.engine_evidence(context, engine) | {"arch": serving.arch(engine)},
        "model": _model(context),
        "order": order,
        "arms": {arm.name: _evidence(arm, runs) for arm in arms},
        "by_prompt": {
            arm: {prompt: one.to_dict() for prompt, one in seen.items()}
            for arm in DRAFTERS
            if (seen := bench.by_prompt(run for run in lowest if run.arm == arm))
        },
        "distinct_bigrams": bench.distinct_bigrams(plain),
        "divergences": divergences,
        "outputs_same_across_repetitions": {arm.name: _is_same(runs, arm.name) for arm in arms},
        "client": ClientLoad.worst(loads).to_dict(),
    }


def _evidence(arm: Arm, runs: Sequence[Run]) -> Json:
    return {
        "start_s": arm.server.start_s,
        "flags": list(arm.server.launch.flags),
        "runs": [bench.summarize(run) for run in runs if run.arm == arm.name],
    }


def _model(context: Context) -> str:
    """The target as the capability table names it; "" for one that no row speaks of."""
    config = json.loads((staged.folder(context.inputs["target"], "model") / "config.json").read_bytes())
    return next((name for key in config.get("architectures") or () if (name := table().models.get(key))), "")


def _held(context: Context) -> Path:
    return context.inputs["target"].path / "prompts.held.jsonl"


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
        for name in (BASE, *DRAFTERS)
        if name in servers
    ]
    forcing = {length: "forced" if "forced" in modes else forced(length) for length in cost.accept_lengths}
    of_fixed: dict[str, tuple[str, float | None]] = {BASE_FIXED: (BASE, None)} if forcing else {}
    of_fixed |= {forced(length): (name, length) for length, name in forcing.items()}
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


def _modes(context: Context, engine: Engine, drafter: Drafter, cost: Cost) -> dict[str, Mode]:
    tokens = drafter.num_speculative_tokens
    baseline, finetuned = (
        Drafting(path=staged.folder(context.inputs[step], "drafter"), tokens=tokens)
        for step in ("baseline-drafter", "export")
    )
    modes: dict[str, Mode] = {BASE: None, "baseline": baseline, "finetuned": finetuned}
    switches = adapter(engine.name).switches_forced(engine)
    for length in cost.accept_lengths[:1] if switches else cost.accept_lengths:
        name = "forced" if switches else forced(length)
        modes[name] = Forced(drafter=finetuned, length=length, folder=context.scratch / name)
    return modes


def _outputs(runs: Sequence[Run], arm: str, repetition: int) -> dict[str, Record]:
    concurrency = min(run.concurrency for run in runs if run.arm == arm)
    (run,) = (r for r in runs if (r.arm, r.repetition, r.concurrency) == (arm, repetition, concurrency))
    return {record.prompt: record for record in run.records}


def _is_same(runs: Sequence[Run], arm: str) -> bool:
    """Did every repetition at the lowest concurrency give the same tokens? Higher ones batch differently."""
    outputs = [
        {prompt: record.streamed.token_ids for prompt, record in _outputs(runs, arm, repetition).items()}
        for repetition in sorted({run.repetition for run in runs})
    ]
    return all(output == outputs[0] for output in outputs)


async def _divergences(
    context: Context, server: Server, runs: Sequence[Run], prompts: Sequence[Prompt]
) -> list[dict[str, Any]]:
    found = []
    base = _outputs(runs, BASE, 1)
    async with connect(server) as client:
        for arm in DRAFTERS:
            outputs = _outputs(runs, arm, 1)
            for prompt in prompts:
                tokens, others = base[prompt.id].streamed.token_ids, outputs[prompt.id].streamed.token_ids
                position = divergence(tokens, others)
                if position is None:
                    continue
                pair = [ids[position] if position < len(ids) else None for ids in (tokens, others)]
                top = await client.top([*prompt.input_ids, *tokens[:position]], _LOGPROBS)
                found.append(
                    {
                        "arm": arm,
                        "prompt": prompt.id,
                        "position": position,
                        "gap_nats": round(gap_nats(top, pair), 6),
                        "base_token": pair[0],
                        "arm_token": pair[1],
                    }
                )
                context.progress(len(found), unit="divergences", note=arm)
    return found
