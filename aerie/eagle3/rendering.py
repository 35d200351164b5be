"""Do the prompts' token ids mean to the engine what they were rendered for? Checked token by token."""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from aerie.engines.client import connect
from aerie.engines.server import Server
from aerie.errors import AerieError
from aerie.runbook.step import Json

__all__ = ["check"]

_PROMPTS = 8  # of each file the first ones, and the first ones with an answer among their turns
_AROUND = 3  # tokens that are shown before and after the first difference


async def check(server: Server, files: Sequence[Path], options: Mapping[str, Any]) -> Json:
    """Have the engine render the first prompts of each file anew, and its first ones with an answer among their turns,
    which templates render in a way of their own; how many prompts and tokens were the same.

    files: JSON lines of {id, input_ids} with messages, or with a prompt, a user's only turn. Raises AerieError at the
    first position where the engine has another token.
    """
    prompts = tokens = 0
    async with connect(server) as client:
        for file in files:
            for row in _chosen(file):
                messages = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
                _compare(row["id"], row["input_ids"], await client.rendered(messages, options))
                prompts, tokens = prompts + 1, tokens + len(row["input_ids"])
    return {"prompts": prompts, "tokens": tokens}


def _chosen(file: Path) -> list[Json]:
    def is_answered(line: str) -> bool:  # by its text first: a file may have ten thousand
        return '"assistant"' in line and any(
            turn["role"] == "assistant" for turn in json.loads(line).get("messages", ())
        )

    with open(file, encoding="utf-8") as lines:
        first = list(islice(lines, _PROMPTS))
        later = islice(filter(is_answered, lines), max(0, _PROMPTS - sum(map(is_answered, first))))
        return [json.loads(line) for line in (*first, *later)]


def _compare(name: str, ours: Sequence[int], engine: Sequence[int]) -> None:
    if list(ours) == list(engine):
        return
    both = enumerate(zip(ours, engine, strict=False))
    position = next((at for at, (one, other) in both if one != other), min(len(ours), len(engine)))
    shown = slice(max(0, position - _AROUND), position + _AROUND + 1)
    raise AerieError(
        f"prompt {name}, position {position}",
        seen=f"{list(engine[shown])} by the engine, which renders {len(engine)} tokens",
        expected=f"{list(ours[shown])}, {len(ours)} tokens as the step target rendered it",
        remedy=(
            "Engine and tokenizer differ in the chat template, its options (corpus.template_options) or the text's "
            "encoding: what is trained would not be what is served."
        ),
    )
