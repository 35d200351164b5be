"""Prompts of one's own: a file of JSON lines, read strictly, split by hash, and kept apart. Standard library only.

    {"id": "a", "messages": [{"role": "user", "content": "…"}]}      the last turn is a user's
    {"prompt": "…"}                                                  a user's only turn

Exactly one row is made of each prompt, whatever it is called and however often it comes.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.errors import AerieError, UsageError

__all__ = ["NGRAM", "Asked", "File", "Split", "read", "sha256", "split"]

# Words in a row that no trained prompt shares with a held-out one, as GPT-3's own check (Brown et al. 2020, app. C).
NGRAM = 13
_KEYS = {"id", "messages", "prompt"}
_ROLES = ("system", "user", "assistant")
_SHOWN = 5
# A word, or a character of a script that has no spaces between words.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]|[^\W_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One prompt. messages: role and content each, the last of a user; sha256: of the messages alone."""

    id: str
    messages: tuple[Mapping[str, str], ...]
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """What a file holds. rows: each prompt once, in the file's order; lines: those that are not empty."""

    path: str
    sha256: str
    lines: int
    rows: tuple[Asked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Prompts to train on and such that are held out, each in the order of their hashes.

    same, sharing: prompts left out of train as a held-out one in other spelling, or for NGRAM words in a row of one;
    commonest: the words in a row for which the most were, "" for none.
    """

    train: tuple[Asked, ...]
    held: tuple[Asked, ...]
    same: int
    sharing: int
    commonest: str


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
    lines = 0
    owners: dict[str, str] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        lines += 1
        try:
            one = _asked(json.loads(line))
            if owners.setdefault(one.id, one.sha256) != one.sha256:
                raise ValueError(f"id {one.id} again, of another prompt")
        except ValueError as error:  # of the syntax, of the encoding, and of what is said
            wrong.append(f"line {number}: {error}")
            continue
        found.setdefault(one.sha256, one)
    if wrong or not found:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise UsageError(
            f"corpus.prompts {path}",
            seen="; ".join(wrong[:_SHOWN]) + more if wrong else "no prompt",
            expected='lines of {"id"?, "messages": […]} or {"id"?, "prompt": "…"}',
            remedy="Mend or remove them: nothing is left out silently.",
        )
    return File(path=str(path), sha256=hashlib.sha256(data).hexdigest(), lines=lines, rows=tuple(found.values()))


def sha256(path: Path) -> str | None:
    """Of the file as it is now; None where it is not there any more, which takes nothing from what was made of it."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def split(rows: Sequence[Asked], held_out: int) -> Split:
    """The `held_out` prompts of the lowest hashes, and of the others those that share nothing with them.

    What the user says counts, not what a system turn does, which is often the same for all. Raises AerieError where
    there are no more prompts than are to be held out.
    """
    if len(rows) <= held_out:
        raise AerieError(
            "corpus.held_out",
            seen=f"{held_out} of {len(rows)} prompts",
            expected="more prompts than are held out",
            remedy="Give a longer file in corpus.prompts, or lower corpus.held_out.",
        )
    ordered = sorted(rows, key=lambda one: one.sha256)
    held, others = ordered[:held_out], ordered[held_out:]
    apart = [_words(one) for one in held]
    texts = {" ".join(words) for words in apart}
    shared = {gram for words in apart for gram in _grams(words)}
    train: list[Asked] = []
    same = 0
    blamed: dict[str, int] = {}
    for one in others:
        words = _words(one)
        if " ".join(words) in texts:
            same += 1
        elif gram := next((gram for gram in _grams(words) if gram in shared), ""):
            blamed[gram] = blamed.get(gram, 0) + 1
        else:
            train.append(one)
    return Split(
        train=tuple(train),
        held=tuple(held),
        same=same,
        sharing=sum(blamed.values()),
        commonest=max(blamed, key=lambda gram: blamed[gram], default=""),
    )


def _asked(entry: Any) -> Asked:
    """The prompt of a line's JSON. Raises ValueError with what is wrong with it."""
    if not isinstance(entry, dict):
        raise ValueError(f"{type(entry).__name__} instead of an object")
    if unknown := sorted(set(entry) - _KEYS):
        raise ValueError(f"{', '.join(unknown)} would not be rendered")
    if ("messages" in entry) == ("prompt" in entry):
        raise ValueError("messages and prompt" if "prompt" in entry else "neither messages nor prompt")
    turns = entry["messages"] if "messages" in entry else [{"role": "user", "content": entry["prompt"]}]
    messages = tuple(_turns(turns))
    text = json.dumps(messages, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    name = entry.get("id", digest[:16])
    if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
        raise ValueError(f"id {json.dumps(name)} instead of a text or a number")
    return Asked(id=str(name), messages=messages, sha256=digest)


def _turns(turns: Any) -> Iterator[Mapping[str, str]]:
    if not isinstance(turns, list) or not turns:
        raise ValueError("messages is no list of turns")
    for turn in turns:
        if not isinstance(turn, dict) or set(turn) != {"role", "content"}:
            raise ValueError("a turn that is not role and content alone")
        if turn["role"] not in _ROLES:
            raise ValueError(f"role {json.dumps(turn['role'])}, expected one of {', '.join(_ROLES)}")
        if not isinstance(turn["content"], str) or not turn["content"].strip():
            raise ValueError(f"a turn of {turn['role']} without text")
        yield {"role": turn["role"], "content": turn["content"]}
    if turns[-1]["role"] == "assistant":
        raise ValueError("it ends with an assistant's turn, and the target is to answer itself: leave that turn out")
    if turns[-1]["role"] != "user":
        raise ValueError(f"it ends with a turn of {turns[-1]['role']}, expected a user's")


def _words(asked: Asked) -> list[str]:
    """What its users say, in words without case, punctuation and width."""
    text = "\n".join(turn["content"] for turn in asked.messages if turn["role"] == "user")
    plain = unicodedata.normalize("NFKC", text).casefold()
    return _WORD.findall(plain) or plain.split()


def _grams(words: Sequence[str]) -> Iterator[str]:
    for start in range(len(words) - NGRAM + 1):
        yield " ".join(words[start : start + NGRAM])
