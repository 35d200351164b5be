"""Where the greedy outputs of two servers part, and by how much the plain one preferred its own."""

from collections.abc import Callable, Mapping, Sequence

from aerie.eagle3.measured import BASE, DRAFTERS, REFERENCE
from aerie.engines.bench import Prompt, Record, Run
from aerie.engines.client import connect
from aerie.engines.server import Server
from aerie.runbook.step import Json

__all__ = ["Outputs", "divergence", "gap_nats", "score"]

_LOGPROBS = 20  # vLLM's limit on how many it gives


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


class Outputs:
    """What one arm answered at its lowest concurrency; higher ones batch differently."""

    def __init__(self, runs: Sequence[Run], arm: str) -> None:
        mine = [run for run in runs if run.arm == arm]
        lowest = min(run.concurrency for run in mine)
        self._by_repetition = {run.repetition: run for run in mine if run.concurrency == lowest}

    def of(self, repetition: int) -> dict[str, Record]:
        """The record of each prompt, by its id."""
        return {record.prompt: record for record in self._by_repetition[repetition].records}

    def are_same(self) -> bool:
        """Did every repetition give the same tokens?"""
        outputs = [
            {prompt: record.streamed.token_ids for prompt, record in self.of(repetition).items()}
            for repetition in sorted(self._by_repetition)
        ]
        return all(output == outputs[0] for output in outputs)


async def score(
    server: Server, runs: Sequence[Run], prompts: Sequence[Prompt], on_progress: Callable[..., None]
) -> list[dict[str, Json]]:
    """Every place where an arm left the output of `base` in the first repetition, with its gap.

    server: of the base arm, which is asked for its log probabilities there. Raises its error when it fails.
    """
    found: list[dict[str, Json]] = []
    base = Outputs(runs, BASE).of(1)
    there = {run.arm for run in runs}
    async with connect(server) as client:
        for arm in (one for one in (REFERENCE, *DRAFTERS) if one in there):
            outputs = Outputs(runs, arm).of(1)
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
                on_progress(len(found), unit="divergences", note=arm)
    return found
