"""Tiny models for the hub: real files of their formats, the same bytes at every call."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

__all__ = ["model", "write_model"]

MIB = 1 << 20
PIECE = 16 * MIB  # random.randbytes takes less than 256 MiB at once


def model(*, shards: int = 4, shard_bytes: int = MIB, seed: int = 0) -> dict[str, bytes]:
    """The files of a model by path: configuration, index, and safetensors shards of about `shard_bytes` each."""
    weights = {
        _shard(index, shards): b"".join(_safetensors(index, shard_bytes, seed)) for index in range(1, shards + 1)
    }
    return _small(shards, shard_bytes) | weights


def write_model(folder: Path, *, shards: int, shard_bytes: int, seed: int = 0) -> None:
    """The same as files in a folder, little of them in memory at a time: for sizes that matter."""
    for path, content in _small(shards, shard_bytes).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    for index in range(1, shards + 1):
        with open(folder / _shard(index, shards), "wb") as file:
            file.writelines(_safetensors(index, shard_bytes, seed))


def _small(shards: int, shard_bytes: int) -> dict[str, bytes]:
    names = {f"layers.{index}.weight": _shard(index, shards) for index in range(1, shards + 1)}
    return {
        "config.json": _json({"architectures": ["LabForCausalLM"], "model_type": "lab", "num_hidden_layers": shards}),
        "generation_config.json": _json({"do_sample": False}),
        "model.safetensors.index.json": _json({"metadata": {"total_size": shards * shard_bytes}, "weight_map": names}),
        "tokenizer/special_tokens_map.json": _json({"eos_token": "</s>"}),
        "README.md": b"# A model of the lab\n",
        "chat template ü.jinja": b"{{ messages }}\n",
    }


def _shard(index: int, shards: int) -> str:
    return f"model-{index:05}-of-{shards:05}.safetensors"


def _safetensors(index: int, size: int, seed: int) -> Iterator[bytes]:
    """The file in pieces: length of the head, head, one tensor of random bytes."""
    table = {f"layers.{index}.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    yield len(head).to_bytes(8, "little") + head
    generator = random.Random(f"{seed} {index}")
    for start in range(0, size, PIECE):
        yield generator.randbytes(min(PIECE, size - start))


def _json(table: object) -> bytes:
    return json.dumps(table, indent=2).encode() + b"\n"
