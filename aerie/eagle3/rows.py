"""Prompts and exchanges as token ids, in the words of the target's own chat template."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aerie.eagle3 import apart, corpus, own_prompts
from aerie.errors import AerieError
from aerie.runbook.step import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from aerie.eagle3.profile import Corpus

__all__ = ["own", "prompts", "render", "teacher_forced", "tokenize"]

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def render(
    tokenizer: "PreTrainedTokenizerBase",
    conversations: Iterable[Sequence[Mapping[str, str]]],
    options: Mapping[str, Any],
) -> list[list[int]]:
    """Token ids of each conversation as the chat template renders it with these options.

    One that ends with a user's turn ends where the answer starts. Raises AerieError for an option that the template
    never reads, and for turns that it refuses.
    """
    template = str(tokenizer.get_chat_template()) if options else ""
    for name in options:
        # Kimi's reads `thinking`, others `enable_thinking`: a template is silent about a name that it does not know.
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise AerieError(
                f"corpus.template_options.{name}",
                seen="a chat template that never reads it",
                expected="an option of the target's own template",
                remedy="Look into the target's chat template for the name of its thinking mode.",
            )
    texts = []
    for messages in conversations:
        is_asked = messages[-1]["role"] != "assistant"
        try:
            text = tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=is_asked, tokenize=False, **options
            )
        except Exception as error:  # whatever a template of Jinja, or the tokenizer's own code, raises
            raise AerieError(
                "chat template",
                seen=f"{type(error).__name__}: {error} for {str(messages[-1]['content'])[:80]}",
                expected="turns that it renders",
                remedy="No other renderer takes its place: give turns that the target's own template takes.",
            ) from error
        texts.append(text)
    # One call for all: 15,000 single ones take 10 s, mostly outside of the tokenizer.
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"])


def tokenize(
    tokenizer: "PreTrainedTokenizerBase",
    exchanges: Iterable[tuple[str, str | None]],
    options: Mapping[str, Any] = NO_OPTIONS,
) -> list[list[int]]:
    """Token ids of (prompt, answer), as render makes them; without an answer they end where it starts."""
    conversations = []
    for prompt, answer in exchanges:
        messages = [{"role": "user", "content": prompt}]
        if answer is not None:
            messages.append({"role": "assistant", "content": answer})
        conversations.append(messages)
    return render(tokenizer, conversations, options)


def own(
    tokenizer: "PreTrainedTokenizerBase", values: "Corpus", options: Mapping[str, Any]
) -> tuple[list[Json], list[Json], dict[str, Json]]:
    """(To train on, held out, what became of the others) of the file's prompts.

    Each is {id, conversation, messages, input_ids}. Raises as own_prompts.read and apart.split, and as render.
    """
    file = own_prompts.read(Path(values.prompts))
    ids = render(tokenizer, [one.messages for one in file.rows], options)
    rendered = {one.id: tokens for one, tokens in zip(file.rows, ids, strict=True)}
    fitting = [one for one in file.rows if len(rendered[one.id]) <= values.max_prompt_tokens]
    parts = apart.split(fitting, values.held_out)
    told = {
        "file": file.path,
        "sha256": file.sha256,
        "lines": file.lines,
        "asked": file.asked,
        "conversations": len({one.conversation for one in file.rows}),
        "repeated": file.asked - len(file.rows),
        "too_long": len(file.rows) - len(fitting),
        "beside_held_out": parts.beside,
        "as_held_out": parts.same,
        "sharing_words": parts.sharing,
        "words_in_a_row": apart.NGRAM,
        "commonest": parts.commonest,
    }
    train, held = (
        [
            {
                "id": one.id,
                "conversation": one.conversation,
                "messages": list(map(dict, one.messages)),
                "input_ids": rendered[one.id],
            }
            for one in part
        ]
        for part in (parts.train, parts.held)
    )
    return train, held, told


def prompts(
    tokenizer: "PreTrainedTokenizerBase", pairs: Sequence[corpus.Pair], options: Mapping[str, Any] = NO_OPTIONS
) -> list[Json]:
    """A question about each name as {id, prompt, input_ids}, asked in one of several ways in turn."""
    asked = [corpus.ask(pair.name, index) for index, pair in enumerate(pairs)]
    ids = tokenize(tokenizer, [(prompt, None) for prompt in asked], options)
    return [
        {"id": pair.name, "prompt": prompt, "input_ids": tokens}
        for pair, prompt, tokens in zip(pairs, asked, ids, strict=True)
    ]


def teacher_forced(
    tokenizer: "PreTrainedTokenizerBase",
    exchanges: Iterable[tuple[str, str]],
    options: Mapping[str, Any] = NO_OPTIONS,
) -> list[Json]:
    """{input_ids, loss_mask} of each (prompt, answer); the mask has 1 on what the template renders after the prompt.

    Raises AerieError where the template renders the prompt in another way once an answer follows.
    """
    rows = []
    whole = list(exchanges)
    asked = tokenize(tokenizer, [(prompt, None) for prompt, _ in whole], options)
    for ids, prompt in zip(tokenize(tokenizer, whole, options), asked, strict=True):
        if ids[: len(prompt)] != prompt:
            raise AerieError(
                "chat template",
                seen=f"an exchange that begins {ids[: len(prompt)][-5:]}",
                expected=f"{prompt[-5:]}, as the prompt alone ends",
                remedy="Give the template's thinking mode in corpus.template_options, so that both render alike.",
            )
        rows.append({"input_ids": ids, "loss_mask": [0] * len(prompt) + [1] * (len(ids) - len(prompt))})
    return rows
