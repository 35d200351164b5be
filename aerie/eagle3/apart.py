"""What is held out of one's own prompts, and what may be trained on beside it: apart by conversation and by words."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aerie.eagle3.own_prompts import Asked
from aerie.errors import AerieError

__all__ = ["NGRAM", "Split", "split"]

# Words in a row that no trained prompt shares with a held-out one, as GPT-3's own check (Brown et al. 2020, app. C).
NGRAM = 13
# A word, or a character of a script that has no spaces between words.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]|[^\W_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Prompts to train on, in the order of their hashes, and such that are held out, of their conversations' hashes.

    beside, same, sharing: prompts left out of train as other turns of a held-out conversation, as a held-out prompt in
    other spelling, or for NGRAM words in a row of one; commonest: the words in a row for which the most were, "" for
    none.
    """

    train: tuple[Asked, ...]
    held: tuple[Asked, ...]
    beside: int
    same: int
    sharing: int
    commonest: str


def split(rows: Sequence[Asked], held_out: int) -> Split:
    """Of the `held_out` conversations of the lowest hashes one prompt each; of the others' prompts those that share
    nothing with them.

    What the user says counts, not what a system turn does, which is often the same for all. Raises AerieError where
    there are no more conversations than are to be held out.
    """
    conversations: dict[str, list[Asked]] = {}
    for one in sorted(rows, key=lambda one: one.sha256):
        conversations.setdefault(one.conversation, []).append(one)
    if len(conversations) <= held_out:
        raise AerieError(
            "corpus.held_out",
            seen=f"{held_out} of {len(conversations)} prompts and conversations",
            expected="more than are held out",
            remedy="Give a longer file in corpus.prompts, or lower corpus.held_out.",
        )
    chosen = sorted(conversations)[:held_out]
    # One each: prompts of one conversation are no independent measurements. The first by hash is of any depth.
    held = [conversations[name][0] for name in chosen]
    left_out = {one.sha256 for name in chosen for one in conversations[name]}
    others = [one for one in sorted(rows, key=lambda one: one.sha256) if one.sha256 not in left_out]
    apart = [_words(one.messages) for one in held]
    texts = {" ".join(words) for words in apart}
    shared = {gram for words in apart for gram in _grams(words)}
    train: list[Asked] = []
    same = 0
    blamed: dict[str, int] = {}
    for one in others:
        words = _words(one.messages)
        # At any of its turns: what began as a held-out prompt goes on from it.
        if any(" ".join(until) in texts for until in _turn_by_turn(one)):
            same += 1
        elif gram := next((gram for gram in _grams(words) if gram in shared), ""):
            blamed[gram] = blamed.get(gram, 0) + 1
        else:
            train.append(one)
    return Split(
        train=tuple(train),
        held=tuple(held),
        beside=len(left_out) - len(held),
        same=same,
        sharing=sum(blamed.values()),
        commonest=max(blamed, key=lambda gram: blamed[gram], default=""),
    )


def _words(messages: Sequence[Mapping[str, str]]) -> list[str]:
    """What the users say, in words without case, punctuation and width."""
    text = "\n".join(turn["content"] for turn in messages if turn["role"] == "user")
    plain = unicodedata.normalize("NFKC", text).casefold()
    return _WORD.findall(plain) or plain.split()


def _turn_by_turn(asked: Asked) -> Iterator[list[str]]:
    """_words until each turn of a user."""
    for place, turn in enumerate(asked.messages, start=1):
        if turn["role"] == "user":
            yield _words(asked.messages[:place])


def _grams(words: Sequence[str]) -> Iterator[str]:
    for start in range(len(words) - NGRAM + 1):
        yield " ".join(words[start : start + NGRAM])
