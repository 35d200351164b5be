"""The measurement itself: every arm at every concurrency, interleaved, repetition by repetition.

In each repetition the arms take turns at every level, and each repetition starts at another arm, so that a slow minute
of the machine falls on all. Users are closed loops: each sends its next prompt when its last answer is complete, so no
request waits at the client.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp

from aerie.engines import sse
from aerie.engines.acceptance import Acceptance
from aerie.engines.bench import ClientLoad, client_load, order
from aerie.engines.benchmark import asking, endpoint, energy
from aerie.engines.benchmark.asking import Answer, Sampling
from aerie.engines.benchmark.counters import acceptance
from aerie.engines.benchmark.endpoint import Api, Endpoint, Served
from aerie.engines.benchmark.prompts import Question, fitting, repeated
from aerie.engines.client import crowd
from aerie.errors import AerieError

__all__ = ["Level", "Measured", "Spec", "Taken", "measure"]

STALL_S = 300.0  # a long prompt on a loaded server has no byte for minutes; a dead one is told by its connection
WARM_UP = 2
PER_USER = 2  # requests of each user at least: with one, half of a level is the time in which users leave

OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What to measure. endpoints: one is a measurement, more are compared. temperatures, concurrency: all of them."""

    endpoints: tuple[Endpoint, ...]
    api: Api
    questions: tuple[Question, ...]
    max_tokens: int
    temperatures: tuple[float, ...] = (0.0,)
    concurrency: tuple[int, ...] = (1, 4, 16)
    repetitions: int = 3
    ignore_eos: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One request: which prompt, and what came of it."""

    question: str
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One arm at one temperature and concurrency, once.

    wall_s: from the first request to the last token. acceptance: by the server's counters; None where nothing drafts
    or it has none. millijoules: by GPU, empty where no counter is in reach.
    """

    arm: str
    temperature: float
    concurrency: int
    repetition: int
    taken: tuple[Taken, ...]
    wall_s: float
    acceptance: Acceptance | None
    millijoules: Mapping[int, int]
    load: ClientLoad


Measured = tuple[dict[str, Served], dict[str, tuple[int, ...]], list[Level]]
"""What every arm serves, the GPUs that it uses (of this machine), and all levels in the order they were measured."""


def measure(spec: Spec, on_progress: OnProgress) -> Measured:
    """Measure every arm at every level.

    Nobody else may use the servers meanwhile: their counters are read before and after. on_progress: requests done,
    in all, and the level at hand. Raises AerieError where a server does not answer, or its warm-up fails.
    """
    return asyncio.run(_measure(spec, on_progress))


async def _measure(spec: Spec, on_progress: OnProgress) -> Measured:
    questions = fitting(spec.questions, spec.api)
    async with AsyncExitStack() as stack:
        meter = stack.enter_context(energy.opened())
        arms: dict[str, _Arm] = {}
        for one in spec.endpoints:
            session = await stack.enter_async_context(sse.session(STALL_S, endpoint.headers(one)))
            served = await endpoint.look(session, one, spec.model)
            arms[one.name] = _Arm(spec, one, session, served, meter)
            await arms[one.name].warm_up(questions)
        levels = await _sweep(spec, arms, questions, on_progress)
        return {name: arm.served for name, arm in arms.items()}, {name: arm.gpus for name, arm in arms.items()}, levels


async def _sweep(
    spec: Spec, arms: Mapping[str, "_Arm"], questions: Sequence[Question], on_progress: OnProgress
) -> list[Level]:
    sizes = {size: repeated(questions, PER_USER * size) for size in spec.concurrency}
    total = spec.repetitions * len(arms) * len(spec.temperatures) * sum(map(len, sizes.values()))
    done, levels = 0, []
    for repetition in range(1, spec.repetitions + 1):
        for temperature in spec.temperatures:
            for size, asked in sizes.items():
                for name in order(list(arms), repetition):
                    what = f"{name}, temperature {temperature:g}, concurrency {size}, repetition {repetition}"

                    def count(what: str = what) -> None:
                        nonlocal done
                        done += 1
                        on_progress(done, total, what)

                    levels.append(await arms[name].level(asked, temperature, size, repetition, count))
    return levels


class _Arm:
    """One server with its connections."""

    def __init__(
        self,
        spec: Spec,
        where: Endpoint,
        session: aiohttp.ClientSession,
        served: Served,
        meter: energy.Meter | None,
    ) -> None:
        self.spec, self.where, self.session, self.served, self.meter = spec, where, session, served, meter
        self.gpus = meter.gpus_of(where.url) if meter else ()

    async def warm_up(self, questions: Sequence[Question]) -> None:
        """First requests compile and open connections; what they cannot do, the others could not either."""
        for question in questions[:WARM_UP]:
            answer = await self.one(question, self.spec.temperatures[0])
            if answer.error:
                raise AerieError(
                    f"{self.where.name}, {self.where.url}",
                    seen=f"{self.spec.api}: {answer.error}",
                    expected="an answer to the first request",
                    remedy="Give another --api or --prompts; the server's log says more.",
                )

    async def one(self, question: Question, temperature: float) -> Answer:
        """One request to the end."""
        sampling = Sampling(max_tokens=self.spec.max_tokens, temperature=temperature, ignore_eos=self.spec.ignore_eos)
        request = asking.body(question, self.spec.api, self.served.model, sampling)
        return await asking.ask(self.session, self.where, self.spec.api, request)

    async def level(
        self, asked: Sequence[Question], temperature: float, size: int, repetition: int, count: Callable[[], None]
    ) -> Level:
        """All prompts once, by `size` users."""
        counted = await endpoint.metrics(self.session, self.where)
        spent = self.meter.millijoules(self.gpus) if self.meter else {}
        waiting, taken = iter(asked), []

        async def user() -> None:
            for question in waiting:
                taken.append(Taken(question=question.id, answer=await self.one(question, temperature)))
                count()

        began = time.monotonic()
        async with client_load() as load:
            await crowd(size, user)
            used = load()
        ended = time.monotonic()
        energy_now = self.meter.millijoules(self.gpus) if self.meter else {}
        return Level(
            arm=self.where.name,
            temperature=temperature,
            concurrency=size,
            repetition=repetition,
            taken=tuple(taken),
            wall_s=ended - began,
            acceptance=acceptance(
                counted,
                await endpoint.metrics(self.session, self.where),
                [one.answer.meta for one in taken if not one.answer.error],
            ),
            millijoules={gpu: energy_now[gpu] - before for gpu, before in spent.items() if gpu in energy_now},
            load=used,
        )
