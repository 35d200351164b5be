"""Prompts of one's own: a file of JSON lines, read strictly. Standard library only.

    {"prompt": "…"}                                                          a user's only turn
    {"id": "a", "messages": [{"role": "user", "content": "…"}, …]}           turns as OpenAI writes them
    {"id": "b", "conversations": [{"from": "human", "value": "…"}, …]}       turns as ShareGPT writes them

One prompt is made of each place where an assistant answers: all turns before it. Exactly one row is made of each
prompt, whatever it is called and however often it comes, in one conversation or in several that begin alike.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.errors import UsageError

__all__ = ["Asked", "File", "read", "sha256"]

_FORMS = ("messages", "prompt", "conversations")
_ROLES = ("system", "user", "assistant")
_SHAREGPT = {"human": "user", "gpt": "assistant"}  # its names of two roles
_SHOWN = 5

_Messages = tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One prompt. messages: role and content each, the last of a user; sha256: of the messages alone.

    An assistant's turns among the messages are the file's own: context of the answer, and nothing that is trained on.
    conversation: sha256 of the turns up to the first answer, the same for all prompts of a conversation.
    """

    id: str
    messages: _Messages
    sha256: str
    conversation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """What a file holds. rows: each prompt once, in the file's order; lines: those that are not empty; asked: prompts
    in them, repeated ones too.
    """

    path: str
    sha256: str
    lines: int
    asked: int
    rows: tuple[Asked, ...]


def read(path: Path) -> File:
    """Raises UsageError for a file that cannot be read, and for lines that are not prompts, by their numbers."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"corpus.prompts {path}", seen=error.strerror, expected="a file of JSON lines", remedy="Give its path."
        ) from error
    found: dict[str, Asked] = {}
    wrong: list[str] = []
    lines = asked = 0
    owners: dict[str, str] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        lines += 1
        try:
            rows = _asked(json.loads(line), owners)
        except ValueError as error:  # of the syntax, of the encoding, and of what is said
            wrong.append(f"line {number}: {error}")
            continue
        asked += len(rows)
        for one in rows:
            found.setdefault(one.sha256, one)
    if wrong or not found:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise UsageError(
            f"corpus.prompts {path}",
            seen="; ".join(wrong[:_SHOWN]) + more if wrong else "no prompt",
            expected='lines of {"id"?, "messages": […]}, {"id"?, "conversations": […]} or {"id"?, "prompt": "…"}',
            remedy="Mend or remove them: nothing is left out silently.",
        )
    digest = hashlib.sha256(data).hexdigest()
    return File(path=str(path), sha256=digest, lines=lines, asked=asked, rows=tuple(found.values()))


def sha256(path: Path) -> str | None:
    """Of the file as it is now; None where it is not there any more, which takes nothing from what was made of it."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _asked(entry: Any, owners: dict[str, str]) -> list[Asked]:
    """The prompts of a line's JSON. Raises ValueError with what is wrong with it.

    owners: of each id so far the hash of what it names; gets this line's.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"{type(entry).__name__} instead of an object")
    if unknown := sorted(set(entry) - {"id", *_FORMS}):
        raise ValueError(f"{', '.join(unknown)} would not be rendered")
    forms = [form for form in _FORMS if form in entry]
    if len(forms) != 1:
        raise ValueError(" and ".join(forms) or "neither messages nor prompt")
    turns = [{"role": "user", "content": entry["prompt"]}] if forms == ["prompt"] else entry[forms[0]]
    prompts = _prompts(
        tuple(_turns(turns, *(("from", "value") if forms == ["conversations"] else ("role", "content"))))
    )
    digests = [_digest(messages) for messages in prompts]
    name = entry.get("id", digests[-1][:16])
    if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
        raise ValueError(f"id {json.dumps(name)} instead of a text or a number")
    ids = [str(name)] if len(prompts) == 1 else [f"{name}#{turn}" for turn in range(1, len(prompts) + 1)]
    named = dict(zip([*ids, str(name)], [*digests, digests[-1]], strict=True))
    if taken := next((one for one, digest in named.items() if owners.get(one, digest) != digest), None):
        raise ValueError(f"id {taken} again, of another prompt")
    owners |= named
    return [
        Asked(id=one, messages=messages, sha256=digest, conversation=digests[0])
        for one, messages, digest in zip(ids, prompts, digests, strict=True)
    ]


def _turns(turns: Any, role: str, content: str) -> Iterator[Mapping[str, str]]:
    """role, content: what the file calls them."""
    if not isinstance(turns, list) or not turns:
        raise ValueError("no list of turns")
    for turn in turns:
        if not isinstance(turn, dict) or set(turn) != {role, content}:
            raise ValueError(f"a turn that is not {role} and {content} alone")
        said = _SHAREGPT.get(turn[role], turn[role]) if role == "from" and isinstance(turn[role], str) else turn[role]
        if said not in _ROLES:
            raise ValueError(f"role {json.dumps(turn[role])}, expected one of {', '.join(_ROLES)}")
        if not isinstance(turn[content], str) or not turn[content].strip():
            raise ValueError(f"a turn of {said} without text")
        yield {"role": said, "content": turn[content]}


def _prompts(messages: _Messages) -> list[_Messages]:
    """The turns before each answer, which follows a user's turn: one that the file has, or the one that it lacks."""
    asked = messages
    while asked and asked[-1]["role"] == "assistant":  # the target answers itself
        asked = asked[:-1]
    if not asked or asked[-1]["role"] != "user":
        raise ValueError(f"it ends with a turn of {asked[-1]['role'] if asked else 'assistant'}, expected a user's")
    answered = [
        place
        for place in range(1, len(asked))
        if asked[place]["role"] == "assistant" and asked[place - 1]["role"] == "user"
    ]
    return [asked[:place] for place in answered] + [asked]


def _digest(messages: Sequence[Mapping[str, str]]) -> str:
    text = json.dumps(messages, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
