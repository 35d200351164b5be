"""State of a computation by torch, kept in a file that is whole or not there: a later attempt goes on from it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["read", "write"]


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Put tensors and plain values at `path`: temporary name, fsync, rename."""
    import torch

    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def read(path: Path, device: "torch.device | str") -> Mapping[str, Any] | None:
    """What was written, its tensors on `device`; None where nothing was."""
    import torch

    if not path.exists():
        return None
    found: Mapping[str, Any] = torch.load(path, map_location=device)
    return found
