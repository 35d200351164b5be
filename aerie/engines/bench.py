"""Measuring servers: greedy decoding of given prompts, timed at the client, with the engine's own counters.

Repetitions are interleaved (each visits every arm) and start at another arm each time, so that a slow minute of the
machine falls on all. What the client itself used is measured too: above some share it is the client that is measured.
"""

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from aerie.engines.acceptance import Acceptance
from aerie.engines.client import Client, Streamed, connect, crowd
from aerie.engines.holding import one_at_a_time
from aerie.engines.intervals import percentile
from aerie.engines.server import Server

__all__ = [
    "Arm",
    "ClientLoad",
    "Prompt",
    "Record",
    "Run",
    "by_prompt",
    "client_load",
    "distinct_bigrams",
    "measure",
    "order",
    "summarize",
]

_BOUND_CPU_SHARE = 0.7  # of one core; both thresholds are our choice, from measurements of the client alone
_BOUND_LAG_MS = 5.0
_LAG_EVERY_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as the engine reads it."""

    id: str
    input_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One thing to be measured: a server, and what to send to it.

    before: done before each of its runs, such as switching a forced length.
    """

    name: str
    server: Server
    prompts: tuple[Prompt, ...]
    max_tokens: int
    concurrency: tuple[int, ...]
    ignore_eos: bool = False
    before: Callable[[], None] = field(default=lambda: None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request of one run."""

    repetition: int
    concurrency: int
    prompt: str
    streamed: Streamed

    def to_dict(self) -> dict[str, Any]:
        """One row of JSON; times are seconds since the request was sent."""
        answer = self.streamed
        return {
            "repetition": self.repetition,
            "concurrency": self.concurrency,
            "prompt": self.prompt,
            "token_ids": list(answer.token_ids),
            "first_tokens": answer.first_tokens,
            "t_send_s": round(answer.t_send, 6),
            "ttft_s": round(answer.t_first - answer.t_send, 6),
            "wall_s": round(answer.t_last - answer.t_send, 6),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One arm at one concurrency, once. acceptance is None where nothing drafts."""

    arm: str
    repetition: int
    concurrency: int
    records: tuple[Record, ...]
    acceptance: Acceptance | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """What the measuring process itself used: share of one core, and how late its event loop woke."""

    cpu_share: float
    loop_lag_p99_ms: float

    @property
    def is_bound(self) -> bool:
        """Would a faster client have measured more?"""
        return self.cpu_share > _BOUND_CPU_SHARE or self.loop_lag_p99_ms > _BOUND_LAG_MS

    @classmethod
    def worst(cls, loads: Iterable["ClientLoad"]) -> "ClientLoad":
        """The most of each over several measurements, at least one."""
        every = tuple(loads)
        return cls(
            cpu_share=max(one.cpu_share for one in every), loop_lag_p99_ms=max(one.loop_lag_p99_ms for one in every)
        )

    def to_dict(self) -> dict[str, float | bool]:
        """As evidence."""
        return {
            "cpu_share": round(self.cpu_share, 3),
            "loop_lag_p99_ms": round(self.loop_lag_p99_ms, 3),
            "bound": self.is_bound,
        }


def order(arms: Sequence[str], repetition: int) -> list[str]:
    """The arms in the order of one repetition (from 1): each starts one further on."""
    shift = (repetition - 1) % len(arms)
    return [*arms[shift:], *arms[:shift]]


def summarize(run: Run) -> dict[str, Any]:
    """The figures of one run as evidence.

    Decoding leaves out each request's first chunk, which is the prompt's time. A request whose tokens all came in
    one chunk has no decoding and counts in ttft and tok_s alone; where all are so, the decode figures are None.
    """
    answers = [record.streamed for record in run.records]
    tokens = sum(len(answer.token_ids) for answer in answers)
    wall_s = max(answer.t_last for answer in answers) - min(answer.t_send for answer in answers)
    decodes = [
        (len(answer.token_ids) - answer.first_tokens, answer.t_last - answer.t_first)
        for answer in answers
        if len(answer.token_ids) > answer.first_tokens
    ]
    decode_tokens, decode_s = sum(count for count, _ in decodes), sum(seconds for _, seconds in decodes)
    # Per token: with a drafter a chunk holds several, and the time between chunks would look like slower tokens.
    per_token_ms = [1000 * seconds / count for count, seconds in decodes]
    return {
        "repetition": run.repetition,
        "concurrency": run.concurrency,
        "prompts": len(answers),
        "tokens": tokens,
        "wall_s": round(wall_s, 4),
        "tok_s_user": round(decode_tokens / decode_s, 3) if decode_s > 0 else None,
        "tok_s": round(tokens / wall_s, 3) if wall_s > 0 else None,
        "ttft_ms": _median_and_p95([1000 * (answer.t_first - answer.t_send) for answer in answers]),
        "tpot_ms": _median_and_p95(per_token_ms) if per_token_ms else None,
        "counters": run.acceptance.to_dict() if run.acceptance else None,
    }


def by_prompt(runs: Iterable[Run]) -> dict[str, Acceptance]:
    """Acceptance of each prompt over these runs; empty where the engine does not tell it with the answers."""
    found: dict[str, Acceptance] = {}
    for record in (record for run in runs for record in run.records):
        if seen := record.streamed.acceptance:
            found[record.prompt] = found[record.prompt] + seen if record.prompt in found else seen
    return found


def distinct_bigrams(answers: Iterable[Sequence[int]]) -> float | None:
    """Different pairs of neighbouring tokens over all pairs, 0 to 1, median of the answers; None without a pair.

    Text has nearly all of its pairs once; an answer that turns in a circle of p tokens has p of them.
    """
    shares = []
    for tokens in answers:
        pairs = list(itertools.pairwise(tokens))
        if pairs:
            shares.append(len(set(pairs)) / len(pairs))
    return statistics.median(shares) if shares else None


def measure(
    arms: Sequence[Arm],
    *,
    repetitions: int,
    on_progress: Callable[[int, int, str], None],
    holds: Collection[Server] = (),
    first: int = 1,
    on_repetition: Callable[[int, Sequence[Run], ClientLoad], None] = lambda number, runs, load: None,
) -> tuple[list[Run], ClientLoad]:
    """Measure all arms, repetition by repetition; returns the runs in the order they were made.

    Every server is warmed up once. Nobody else may use the servers meanwhile: acceptance is the difference of their
    counters, where they have them, and else the sum over the requests.
    on_progress: called with requests done, requests in all, and the run at hand.
    holds: of the servers those whose processes are stopped while another one is measured; at the end all run again.
    first: the repetition to begin with, those before it were measured already. on_repetition: called at the end of each
    with its number, its runs, and the client's load so far.
    Raises the server's own error when one fails, dies or falls silent.
    """
    return asyncio.run(_measure(arms, range(first, repetitions + 1), on_progress, holds, on_repetition))


async def _measure(
    arms: Sequence[Arm],
    repetitions: range,
    on_progress: Callable[[int, int, str], None],
    holds: Collection[Server],
    on_repetition: Callable[[int, Sequence[Run], ClientLoad], None],
) -> tuple[list[Run], ClientLoad]:
    by_name = {arm.name: arm for arm in arms}
    each = sum(len(arm.prompts) * len(arm.concurrency) for arm in arms)
    done, total = (repetitions.start - 1) * each, (repetitions.stop - 1) * each
    runs: list[Run] = []
    async with AsyncExitStack() as stack:
        clients: dict[Server, Client] = {}
        for arm in arms:
            if arm.server not in clients:
                clients[arm.server] = await stack.enter_async_context(connect(arm.server))
                await clients[arm.server].stream(arm.prompts[0].input_ids, max_tokens=arm.max_tokens)  # warm-up
        load = await stack.enter_async_context(client_load())
        let_run = stack.enter_context(one_at_a_time(holds)) if holds else None
        for repetition in repetitions:
            made: list[Run] = []
            for name in order(list(by_name), repetition):
                arm = by_name[name]
                for concurrency in arm.concurrency:

                    def count(what: str = f"{name}, concurrency {concurrency}, repetition {repetition}") -> None:
                        nonlocal done
                        done += 1
                        on_progress(done, total, what)

                    async with _turn(clients[arm.server], arm.server, let_run) as client:
                        arm.before()
                        made.append(await _run(arm, client, repetition, concurrency, count))
            runs += made
            on_repetition(repetition, made, load())
        return runs, load()


@contextlib.asynccontextmanager
async def _turn(client: Client, server: Server, let_run: Callable[[Server], None] | None) -> AsyncIterator[Client]:
    """The server's client for one run, which alone runs meanwhile where there is a let_run."""
    if let_run is None:
        yield client
        return
    let_run(server)
    # A server that was held finds its idle connections out of time and closes them: a request on one would be lost.
    async with connect(server) as fresh:
        yield fresh


async def _run(
    arm: Arm,
    client: Client,
    repetition: int,
    concurrency: int,
    count: Callable[[], None],
) -> Run:
    counters = arm.server.launch.adapter.counters
    before = counters(await client.metrics())
    waiting = iter(arm.prompts)
    records: dict[str, Record] = {}

    async def user() -> None:
        # Each of `concurrency` users sends its next prompt when its last answer is complete: a closed loop, in which
        # no request waits at the client.
        for prompt in waiting:
            answer = await client.stream(prompt.input_ids, max_tokens=arm.max_tokens, ignore_eos=arm.ignore_eos)
            records[prompt.id] = Record(
                repetition=repetition, concurrency=concurrency, prompt=prompt.id, streamed=answer
            )
            count()

    await crowd(concurrency, user)
    after = counters(await client.metrics())
    return Run(
        arm=arm.name,
        repetition=repetition,
        concurrency=concurrency,
        records=tuple(records[prompt.id] for prompt in arm.prompts),
        acceptance=Acceptance.between(before, after) if before and after else _of_requests(records.values()),
    )


def _of_requests(records: Iterable[Record]) -> Acceptance | None:
    seen = [record.streamed.acceptance for record in records if record.streamed.acceptance]
    return reduce(add, seen) if seen else None


@contextlib.asynccontextmanager
async def client_load() -> AsyncIterator[Callable[[], ClientLoad]]:
    """Watches this process meanwhile; the function that it gives tells of it so far."""
    lags: list[float] = []
    started, cpu = time.monotonic(), time.process_time()

    async def watch() -> None:
        while True:
            slept = time.monotonic()
            await asyncio.sleep(_LAG_EVERY_S)
            lags.append(time.monotonic() - slept - _LAG_EVERY_S)

    watching = asyncio.create_task(watch())
    try:
        yield lambda: ClientLoad(
            cpu_share=(time.process_time() - cpu) / (time.monotonic() - started),
            loop_lag_p99_ms=1000 * percentile(lags, 0.99) if lags else 0.0,
        )
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


def _median_and_p95(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "p95": round(percentile(values, 0.95), 3)}
