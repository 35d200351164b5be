"""Receipts as in-toto statements (unsigned): which files, by hash, and what is said of them. Standard library only."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["Subject", "dump", "statement"]

TYPE: Final = "https://in-toto.io/Statement/v1"

Subject = tuple[str, str, str]
"""(name, algorithm, hash): algorithm is "sha256", or "gitBlob", which is in-toto's name for git's hash of a file."""


def statement(subjects: Sequence[Subject], predicate_type: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    """The statement about these files. predicate_type: a URI that names the form of the predicate."""
    return {
        "_type": TYPE,
        "subject": [{"name": name, "digest": {algorithm: digest}} for name, algorithm, digest in subjects],
        "predicateType": predicate_type,
        "predicate": dict(predicate),
    }


def dump(document: Mapping[str, Any]) -> bytes:
    """The statement as it is kept."""
    return json.dumps(document, indent=1).encode() + b"\n"
