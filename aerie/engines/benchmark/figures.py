"""What the levels of a measurement come to: rates, latencies, goodput, acceptance and energy. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from aerie.engines.acceptance import Acceptance
from aerie.engines.benchmark.asking import Answer
from aerie.engines.benchmark.running import Level
from aerie.engines.intervals import percentile
from aerie.errors import UsageError

__all__ = ["LATENCIES", "Limits", "Quantiles", "Row", "Spread", "is_burst", "limits", "rows", "tpot_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Over repetitions."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None of nothing."""
        return cls(median=statistics.median(values), min=min(values), max=max(values)) if values else None

    def to_dict(self, digits: int = 3) -> dict[str, float]:
        """As JSON."""
        return {name: round(getattr(self, name), digits) for name in ("median", "min", "max")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Over requests; percentiles are by nearest rank, values that were measured."""

    count: int
    mean: float
    median: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quantiles | None":
        """None of nothing."""
        if not values:
            return None
        p90, p95, p99 = (percentile(values, share) for share in (0.90, 0.95, 0.99))
        return cls(
            count=len(values),
            mean=statistics.fmean(values),
            median=statistics.median(values),
            p90=p90,
            p95=p95,
            p99=p99,
        )

    def to_dict(self, digits: int = 3) -> dict[str, float]:
        """As JSON."""
        named = {name: round(getattr(self, name), digits) for name in ("mean", "median", "p90", "p95", "p99")}
        return {"count": self.count, **named}


# No engine has steps so short; chunks that lay ready follow each other in 0.02 ms (vLLM on two busy cores).
BURST_S = 1e-4

Limits = Mapping[str, float]
"""What a request may take, in ms, by ttft, tpot or e2e. One that is above any of them, or failed, is not good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One arm at one temperature and concurrency, all repetitions together.

    Rates are of requests without an error. tok_s_user: tokens after a request's first chunk over the time after it.
    gpus: of this machine, that the server uses; 0 where they are not known. cached_share: of prompt tokens, from the
    server's prefix cache. bursts: answers whose chunks came together, which have no TPOT. is_counted: the server
    counted every chunk's tokens. is_client_bound: in any repetition.
    """

    arm: str
    temperature: float
    concurrency: int
    repetitions: int
    requests: int
    failed: int
    first_error: str
    output_tokens: int
    request_rate: Spread | None
    tok_s: Spread | None
    tok_s_user: Spread | None
    gpus: int
    ttft_ms: Quantiles | None
    tpot_ms: Quantiles | None
    itl_ms: Quantiles | None
    e2e_ms: Quantiles | None
    good_share: float | None
    good_rate: float | None
    acceptance: Acceptance | None
    joules_per_token: float | None
    cached_share: float | None
    bursts: int
    is_counted: bool
    client_cpu_share: float
    client_lag_ms: float
    is_client_bound: bool

    @property
    def tok_s_gpu(self) -> float | None:
        """Tokens per second of all users, per GPU; None where the GPUs are not known."""
        return self.tok_s.median / self.gpus if self.tok_s and self.gpus else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON: units are in the names."""
        counts = self.acceptance
        drafted = counts is not None and counts.verify_steps > 0
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            **{
                name: value.to_dict() if (value := getattr(self, name)) is not None else None
                for name in (*_SPREADS, *(f"{latency}_ms" for latency in LATENCIES))
            },
            "tok_s_gpu": _rounded(self.tok_s_gpu, 3),
            "good_share": _rounded(self.good_share, 4),
            "good_rate": _rounded(self.good_rate, 4),
            "joules_per_token": _rounded(self.joules_per_token, 4),
            "cached_share": _rounded(self.cached_share, 4),
            "tau": round(counts.tau, 4) if counts and drafted else None,
            "accept_rate": round(counts.rate, 4) if counts and drafted else None,
            "accept_by_position": [round(share, 4) for share in counts.by_position] if counts and drafted else None,
            "counters": counts.to_dict() if counts else None,
            "client": {
                "cpu_share": round(self.client_cpu_share, 3),
                "loop_lag_p99_ms": round(self.client_lag_ms, 3),
                "bound": self.is_client_bound,
            },
        }


LATENCIES = ("ttft", "tpot", "itl", "e2e")
_SPREADS = ("request_rate", "tok_s", "tok_s_user")
_PLAIN = (
    "arm", "temperature", "concurrency", "repetitions", "requests", "failed", "first_error", "output_tokens", "gpus",
    "bursts", "is_counted",
)  # fmt: skip


def limits(text: str) -> Limits:
    """`ttft:500,tpot:50` as limits in ms. Raises UsageError for another name or no number."""
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition(":")
        try:
            found[name] = float(value)
        except ValueError:
            name = ""
        if name not in ("ttft", "tpot", "e2e"):
            raise UsageError(
                "--goodput",
                seen=part,
                expected="ttft, tpot or e2e with milliseconds, as ttft:500,tpot:50",
                remedy="A request is good when it is within all of them.",
            )
    return found


def tpot_s(answer: Answer) -> float | None:
    """Seconds per token after the first chunk; None where all came in one, or in a burst.

    Per token, not per chunk: with a drafter a chunk holds several, and the time between chunks would look like slower
    tokens (sglang #12064).
    """
    return answer.decode_s / answer.decoded if answer.decoded > 0 and not is_burst(answer) else None


def is_burst(answer: Answer) -> bool:
    """Whether its chunks were held back, by the server or on the way, and came together: they tell of no steps."""
    return len(answer.arrivals) > 1 and statistics.median(answer.gaps_s) < BURST_S


def rows(levels: Sequence[Level], gpus: Mapping[str, tuple[int, ...]], within: Limits) -> tuple[Row, ...]:
    """One row for each arm, temperature and concurrency, in the order in which they were first measured."""
    groups: dict[tuple[str, float, int], list[Level]] = {}
    for level in levels:
        groups.setdefault((level.arm, level.temperature, level.concurrency), []).append(level)
    return tuple(_row(group, len(gpus.get(arm, ())), within) for (arm, _, _), group in groups.items())


def _row(group: Sequence[Level], gpus: int, within: Limits) -> Row:
    answers = [taken.answer for level in group for taken in level.taken]
    whole = [answer for answer in answers if not answer.error]
    good = [answer for answer in whole if _is_good(answer, within)] if within else None
    wall_s = sum(level.wall_s for level in group)
    tokens = sum(answer.output_tokens for answer in whole)
    spent = sum(sum(level.millijoules.values()) for level in group)
    prompts = [(a.cached_tokens, a.prompt_tokens) for a in whole if a.prompt_tokens]
    cached = [(hit, size) for hit, size in prompts if hit is not None and size]
    counts = [level.acceptance for level in group if level.acceptance]
    return Row(
        arm=group[0].arm,
        temperature=group[0].temperature,
        concurrency=group[0].concurrency,
        repetitions=len(group),
        requests=len(answers),
        failed=len(answers) - len(whole),
        first_error=next((answer.error for answer in answers if answer.error), ""),
        output_tokens=tokens,
        request_rate=_by_level(group, lambda ok, wall: len(ok) / wall),
        tok_s=_by_level(group, lambda ok, wall: sum(answer.output_tokens for answer in ok) / wall),
        tok_s_user=_by_level(group, lambda ok, _: _user_rate(ok)),
        gpus=gpus,
        ttft_ms=Quantiles.of([1000 * answer.ttft_s for answer in whole]),
        tpot_ms=Quantiles.of([1000 * each for answer in whole if (each := tpot_s(answer)) is not None]),
        itl_ms=Quantiles.of([1000 * gap for answer in whole for gap in answer.gaps_s]),
        e2e_ms=Quantiles.of([1000 * answer.e2e_s for answer in whole]),
        good_share=len(good) / len(answers) if good is not None else None,
        good_rate=len(good) / wall_s if good is not None else None,
        acceptance=reduce(lambda one, other: one + other, counts) if counts else None,
        joules_per_token=spent / 1000 / tokens if spent and tokens else None,
        cached_share=sum(hit for hit, _ in cached) / sum(size for _, size in cached) if cached else None,
        bursts=sum(map(is_burst, whole)),
        is_counted=all(answer.is_counted for answer in whole),
        client_cpu_share=max(level.load.cpu_share for level in group),
        client_lag_ms=max(level.load.loop_lag_p99_ms for level in group),
        is_client_bound=any(level.load.is_bound for level in group),
    )


def _by_level(group: Sequence[Level], rate: Callable[[list[Answer], float], float | None]) -> Spread | None:
    found = []
    for level in group:
        whole = [taken.answer for taken in level.taken if not taken.answer.error]
        if whole and (value := rate(whole, level.wall_s)) is not None:
            found.append(value)
    return Spread.of(found)


def _user_rate(answers: Sequence[Answer]) -> float | None:
    decoding = [answer for answer in answers if tpot_s(answer) is not None]
    seconds = sum(answer.decode_s for answer in decoding)
    return sum(answer.decoded for answer in decoding) / seconds if seconds > 0 else None


def _is_good(answer: Answer, within: Limits) -> bool:
    took = {"ttft": answer.ttft_s, "tpot": tpot_s(answer) or 0.0, "e2e": answer.e2e_s}
    return all(1000 * took[name] <= limit for name, limit in within.items())


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
