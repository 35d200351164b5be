"""A measurement's spec and what was measured, as JSON between a controller and the host that measures for it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aerie.engines.acceptance import Acceptance
from aerie.engines.bench import ClientLoad
from aerie.engines.benchmark.asking import Answer
from aerie.engines.benchmark.endpoint import Endpoint, Served
from aerie.engines.benchmark.prompts import Question
from aerie.engines.benchmark.running import Level, Measured, Spec, Taken

__all__ = ["measured_from", "measured_to", "spec_from", "spec_to"]


def spec_to(spec: Spec) -> dict[str, Any]:
    """Without keys: they stay in files of the host."""
    told = asdict(spec)
    told["endpoints"] = [{"name": one.name, "url": one.url} for one in spec.endpoints]
    return told


def spec_from(told: Mapping[str, Any], key: str) -> Spec:
    """key: for every endpoint."""
    questions = [
        Question(
            id=one["id"],
            text=one["text"],
            messages=tuple((role, text) for role, text in one["messages"]),
            input_ids=tuple(one["input_ids"]),
        )
        for one in told["questions"]
    ]
    fields = {
        **told,
        "endpoints": tuple(Endpoint(**one, key=key) for one in told["endpoints"]),
        "questions": tuple(questions),
        "temperatures": tuple(told["temperatures"]),
        "concurrency": tuple(told["concurrency"]),
    }
    return Spec(**fields)


def measured_to(measured: Measured) -> dict[str, Any]:
    """Everything, every arrival too."""
    served, gpus, levels = measured
    return {
        "served": {name: asdict(one) for name, one in served.items()},
        "gpus": {name: list(indexes) for name, indexes in gpus.items()},
        "levels": [asdict(level) for level in levels],
    }


def measured_from(told: Mapping[str, Any]) -> Measured:
    """As measured_to made it."""
    served = {name: Served(**one) for name, one in told["served"].items()}
    gpus = {name: tuple(indexes) for name, indexes in told["gpus"].items()}
    return served, gpus, [_level(one) for one in told["levels"]]


def _level(told: Mapping[str, Any]) -> Level:
    counts = told["acceptance"]
    if counts is not None:
        counts = Acceptance(**{**counts, "accepted_by_position": tuple(counts["accepted_by_position"])})
    return Level(
        **{
            **told,
            "taken": tuple(Taken(question=one["question"], answer=_answer(one["answer"])) for one in told["taken"]),
            "acceptance": counts,
            "millijoules": {int(gpu): spent for gpu, spent in told["millijoules"].items()},
            "load": ClientLoad(**told["load"]),
        }
    )


def _answer(told: Mapping[str, Any]) -> Answer:
    arrivals: Sequence[Sequence[Any]] = told["arrivals"]
    return Answer(**{**told, "arrivals": tuple((at, tokens) for at, tokens in arrivals)})
