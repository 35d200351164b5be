"""What a drafter asks of the engine that serves it, held against the capability table before anything starts.

An engine passes over a key that it does not know and skips a tensor that it has no place for; the only symptom is a
low acceptance.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aerie.engines import capability
from aerie.errors import AerieError

__all__ = ["require", "tensor_names", "unread"]

# Keys that change what the drafter computes, each at the top of config.json or under eagle_config.
NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
# Weights that are loaded only where a key says so (llama_eagle3.py of vLLM 0.32.0 and SGLang 0.5.23, read).
TENSORS = {"fc_norm.": "fc_norm", "input_norm.": "norm_before_fc"}


def unread(config: Mapping[str, Any], tensors: Iterable[str], engine: str, version: str) -> tuple[str, ...]:
    """What this release would pass over without a word, one sentence each; empty for a plain drafter.

    config: its config.json. tensors: names in its weights.
    """
    asked = list(_asked(config))
    read = capability.names(engine, version).get("drafter.norms")
    where = f"{engine} {version}"
    if read is None:
        return tuple(
            f"{path} is set, and no row of the capability table says whether {where} reads it" for path in asked
        )
    found = [f"{path} is set, and {where} does not read it" for path in asked if path not in read.split()]
    keys = {path.rpartition(".")[2] for path in asked}
    names = sorted(tensors)
    for prefix, key in TENSORS.items():
        there = [name for name in names if name.removeprefix("model.").startswith(prefix)]
        if there and key not in keys:
            found.append(f"{there[0]} is among the weights, and {key} is not set: {where} skips it")
    return tuple(found)


def require(folder: Path, engine: str, version: str) -> None:
    """Raise AerieError unless this release reads all of the drafter in `folder`."""
    config = json.loads((folder / "config.json").read_bytes())
    if problems := unread(config, tensor_names(folder), engine, version):
        raise AerieError(
            f"drafter {folder}",
            seen="; ".join(problems),
            expected="a drafter of which the engine uses every key and tensor",
            remedy="Take a version that reads them (drafter.norms in ./invoke engines), or a plain drafter.",
        )


def tensor_names(folder: Path) -> tuple[str, ...]:
    """Names in the headers of its safetensors files; the weights themselves are not read."""
    found: list[str] = []
    for file in sorted(folder.glob("*.safetensors")):
        with open(file, "rb") as opened:
            (size,) = struct.unpack("<Q", opened.read(8))
            found += [name for name in json.loads(opened.read(size)) if name != "__metadata__"]
    return tuple(found)


def _asked(config: Mapping[str, Any]) -> Iterator[str]:
    for where, values in (("", config), ("eagle_config.", config.get("eagle_config") or {})):
        yield from (f"{where}{key}" for key in NORMS if values.get(key))
