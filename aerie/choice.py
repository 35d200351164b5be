"""A name that is not among the known ones: the error, with the nearest of them."""

import difflib
from collections.abc import Iterable

from .errors import UsageError

__all__ = ["nearest", "unknown_name"]


def nearest(name: str, known: Iterable[str]) -> str:
    """ "Did you mean …?" with the closest of `known`, or "" when none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"Did you mean {close[0]}?" if close else ""


def unknown_name(where: str, name: str, known: Iterable[str], otherwise: str = "") -> UsageError:
    """The error of a name that is not one of `known`, to be raised. otherwise: the remedy where none is close."""
    names = list(known)
    expected = f"one of {', '.join(names)}"
    return UsageError(where, seen=name, expected=expected, remedy=nearest(name, names) or otherwise)
