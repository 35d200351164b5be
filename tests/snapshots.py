"""Snapshots for tests: the healthy host of hosts_data/healthy.json, and hosts that differ from it in one thing."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aerie import snapshot
from aerie.snapshot import Snapshot

__all__ = ["GONE", "document_with", "healthy", "read", "snapshot_with"]

DATA = Path(__file__).parent / "hosts_data"
GONE = object()


def read(name: str) -> dict[str, Any]:
    """The document hosts_data/<name>.json."""
    return json.loads((DATA / f"{name}.json").read_text())


def healthy() -> Snapshot:
    """An 8-GPU host that is as the shipped lock wants it."""
    return snapshot_with({})


def snapshot_with(changes: Mapping[str, Any], base: str = "healthy") -> Snapshot:
    """That host with these changes, e.g. {"driver/loaded_version": "580.95.05", "gpus/3/ecc": False}.

    A path is keys and indexes joined by "/"; the value is JSON, GONE removes the key or the item. What could not be
    read is {"unknown": "why"}. A key that the document does not have is added only where it is the last of the path.
    """
    return snapshot.parse(json.dumps(document_with(changes, base)))


def document_with(changes: Mapping[str, Any], base: str = "healthy") -> dict[str, Any]:
    """As snapshot_with, the JSON document before it is parsed."""
    document = read(base)
    for path, value in changes.items():
        *parents, last = path.split("/")
        place: Any = document
        for key in parents:
            place = place[int(key) if isinstance(place, list) else key]
        index = int(last) if isinstance(place, list) else last
        if value is GONE:
            del place[index]
        else:
            place[index] = copy.deepcopy(value)
    return document
