"""Prompts and exchanges as token ids, in the words of the target's own chat template."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from aerie.eagle3 import corpus
from aerie.errors import AerieError
from aerie.runbook.step import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["prompts", "teacher_forced", "tokenize"]


def tokenize(tokenizer: "PreTrainedTokenizerFast", exchanges: Iterable[tuple[str, str | None]]) -> list[list[int]]:
    """Token ids of (prompt, answer) as the chat template renders them; without an answer they end where it starts."""
    texts = []
    for prompt, answer in exchanges:
        messages = [{"role": "user", "content": prompt}]
        if answer is not None:
            messages.append({"role": "assistant", "content": answer})
        texts.append(tokenizer.apply_chat_template(messages, add_generation_prompt=answer is None, tokenize=False))
    # One call for all: 15,000 single ones take 10 s, mostly outside of the tokenizer.
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"])


def prompts(tokenizer: "PreTrainedTokenizerFast", pairs: Sequence[corpus.Pair]) -> list[Json]:
    """A question about each name as {id, prompt, input_ids}, asked in one of several ways in turn."""
    asked = [corpus.ask(pair.name, index) for index, pair in enumerate(pairs)]
    ids = tokenize(tokenizer, [(prompt, None) for prompt in asked])
    return [
        {"id": pair.name, "prompt": prompt, "input_ids": tokens}
        for pair, prompt, tokens in zip(pairs, asked, ids, strict=True)
    ]


def teacher_forced(tokenizer: "PreTrainedTokenizerFast", exchanges: Iterable[tuple[str, str]]) -> list[Json]:
    """{input_ids, loss_mask} of each (prompt, answer); the mask has 1 on what the template renders after the prompt.

    Raises AerieError where the template renders the prompt in another way once an answer follows.
    """
    rows = []
    whole = list(exchanges)
    asked = tokenize(tokenizer, [(prompt, None) for prompt, _ in whole])
    for ids, prompt in zip(tokenize(tokenizer, whole), asked, strict=True):
        if ids[: len(prompt)] != prompt:
            raise AerieError(
                "chat template",
                seen=f"an exchange that begins {ids[: len(prompt)][-5:]}",
                expected=f"{prompt[-5:]}, as the prompt alone ends",
                remedy="Give the template's thinking mode explicitly, so that both render alike.",
            )
        rows.append({"input_ids": ids, "loss_mask": [0] * len(prompt) + [1] * (len(ids) - len(prompt))})
    return rows
