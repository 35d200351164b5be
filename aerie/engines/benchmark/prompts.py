"""Prompts to measure with: the packaged ones, or a file of JSON lines, in any of the shapes that such files have."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.engines.benchmark.endpoint import Api
from aerie.errors import UsageError

__all__ = ["PACKAGED", "Question", "fitting", "read", "repeated"]

PACKAGED = Path(__file__).with_name("prompts.jsonl")
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One prompt, as the one of the three that its file had; the others are empty.

    messages: role and content each, the last one of a user.
    """

    id: str
    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    input_ids: tuple[int, ...] = ()


def read(path: Path, limit: int = 0) -> tuple[Question, ...]:
    """The prompts of a file of JSON lines, or of one JSON array (ShareGPT is one). limit: the first so many, 0 is all.

    An entry has `input_ids`, `messages` (role, content), `conversations` (from, value; up to the last question), or
    a text in `prompt`, `question`, `instruction` or `text`. Entries that have none, such as conversations that nobody
    asks in, are left out. Raises UsageError where none is left.
    """
    questions = []
    for number, entry in enumerate(_entries(path), start=1):
        if (question := _question(entry, str(entry.get("id", f"{path.stem}-{number}")))) is not None:
            questions.append(question)
            if len(questions) == limit:
                break
    if not questions:
        raise UsageError(
            str(path),
            seen="no prompt",
            expected="lines with prompt, messages, conversations or input_ids",
            remedy="Give --prompts with a file of JSON lines.",
        )
    return tuple(questions)


def fitting(questions: Sequence[Question], api: Api) -> tuple[Question, ...]:
    """The same prompts as the interface takes them: a text is a user's only message in a chat.

    Raises UsageError for messages where there is no chat: the server's chat template is part of what is measured.
    """
    if api == "chat":
        if any(question.input_ids for question in questions):
            raise UsageError(
                "--api",
                seen="chat, with prompts of token ids",
                expected="completions or native",
                remedy="Token ids already hold the chat template: give --api completions.",
            )
        return tuple(
            question if question.messages else Question(id=question.id, messages=(("user", question.text),))
            for question in questions
        )
    if any(question.messages for question in questions):
        raise UsageError(
            "--api",
            seen=f"{api}, with prompts of messages",
            expected="chat",
            remedy="Only the chat interface applies the model's chat template; or give prompts of text or token ids.",
        )
    return tuple(questions)


def repeated(questions: Sequence[Question], least: int) -> tuple[Question, ...]:
    """All of them once, and again from the first until there are `least`; a repeated one keeps its id."""
    rounds = -(-max(least, len(questions)) // len(questions))
    return tuple((list(questions) * rounds)[: max(least, len(questions))])


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text()
        if text.lstrip().startswith("["):
            yield from (entry for entry in json.loads(text) if isinstance(entry, dict))
            return
        for line in text.splitlines():
            if line.strip():
                entry = json.loads(line)
                if isinstance(entry, dict):
                    yield entry
    except (OSError, ValueError) as error:
        raise UsageError(
            str(path), seen=str(error), expected="a file of JSON lines", remedy="Give --prompts with such a file."
        ) from error


def _question(entry: dict[str, Any], name: str) -> Question | None:
    if ids := entry.get("input_ids"):
        return Question(id=name, input_ids=tuple(int(token) for token in ids))
    said = entry.get("messages") or entry.get("conversations")
    if isinstance(said, list):
        turns = [(_ROLES.get(str(one.get("role", one.get("from"))), ""), _said(one)) for one in said]
        last = max((place for place, (role, _) in enumerate(turns) if role == "user"), default=-1)
        known = all(role and text for role, text in turns[: last + 1])
        return Question(id=name, messages=tuple(turns[: last + 1])) if last >= 0 and known else None
    texts = (entry.get(key) for key in ("prompt", "question", "instruction", "text"))
    text = next((text for text in texts if isinstance(text, str) and text), "")
    return Question(id=name, text=text) if text else None


def _said(turn: dict[str, Any]) -> str:
    text = turn.get("content", turn.get("value"))
    return text if isinstance(text, str) else ""
