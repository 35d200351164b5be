"""The tensors of a target as its files have them, one at a time: plain ones, and INT4 as compressed-tensors packs it.

"pack-quantized" of four bits, as Kimi-K2.5 has its experts (compressed-tensors 0.17.0, `compressors/pack_quantized`):
instead of NAME.weight there are NAME.weight_packed, int32, in which eight numbers of a row follow each other from the
lowest bits on, each plus 8; NAME.weight_scale, of each row a factor for so many numbers; NAME.weight_shape.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from aerie.eagle3 import head
from aerie.errors import AerieError

__all__ = ["Tensors", "unpack"]

_PACKED = ("_packed", "_scale", "_shape")
_BITS = 4
_COMPUTED = "rotary_emb.inv_freq"  # old files of Llama have it; transformers computes it
_REMEDY = "Stage a form of the model that the reference reads (target.staged), or add this one to {}."


class Tensors:
    """Of the model in a folder, read when asked for. A context: it holds files open, and no tensor.

    Raises AerieError where the model is quantised in another way than this module's, before any file is opened.
    """

    def __init__(self, target: Path) -> None:
        _refuse_other_quantization(target)
        self._target = target
        self._files: Mapping[str, Path] = head.files(target)
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.clear()

    def check(self, wanted: Iterable[str], under: tuple[str, ...]) -> None:
        """Raise AerieError unless these are there, with their files, and no others whose names start with one of
        `under`: what is stored and never read, as a scale, would make the reference another model.
        """
        parts = {part for name in wanted for part in self._parts(name)}
        if missing := sorted(parts - self._files.keys()):
            raise AerieError(
                f"{self._target}: tensors",
                seen=f"no {missing[0]}" + (f", nor {len(missing) - 1:,} others" if missing[1:] else ""),
                expected=f"the {len(parts):,} tensors of the model that config.json names",
                remedy="Look at the model's repository: its files and its config.json do not belong together.",
            )
        others = self._files.keys() - parts
        if unread := sorted(name for name in others if name.startswith(under) and not name.endswith(_COMPUTED)):
            raise AerieError(
                f"{self._target}: tensors",
                seen=f"{unread[0]}" + (f", and {len(unread) - 1:,} others that no layer reads" if unread[1:] else ""),
                expected="none that changes what the model computes, and is not read",
                remedy=_REMEDY.format(Path(__file__).name),
            )
        if absent := sorted({self._files[part] for part in parts if not self._files[part].exists()}):
            raise AerieError(
                f"{self._target}: files",
                seen=f"no {', '.join(file.name for file in absent)}",
                expected="every file that the index names",
                remedy="Run the step target again: it brings what is missing.",
            )

    def read(self, name: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The tensor in `dtype` on `device`; unpacked there, and rounded to `dtype` once, where it is packed."""
        parts = [self._stored(part).to(device) for part in self._parts(name)]
        return parts[0].to(dtype) if len(parts) == 1 else unpack(*parts, dtype=dtype)

    def _parts(self, name: str) -> tuple[str, ...]:
        """The name itself, or of what it is packed in."""
        if name not in self._files and f"{name}{_PACKED[0]}" in self._files:
            return tuple(f"{name}{part}" for part in _PACKED)
        return (name,)

    def _stored(self, name: str) -> torch.Tensor:
        from safetensors import safe_open

        file = self._files[name]
        if file not in self._open:
            self._open[file] = safe_open(file, "pt")
        tensor: torch.Tensor = self._open[file].get_tensor(name)
        return tensor


def unpack(packed: torch.Tensor, scale: torch.Tensor, shape: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    """The [rows, columns] weights in `dtype`: packed int32 [rows, columns / 8], scale [rows, groups], shape [2].

    Number times scale in fp32, where it is exact for scales in bf16, and rounded once. Raises AerieError where the
    three do not belong together.
    """
    rows, columns = shape.tolist()
    groups = scale.shape[-1]
    words = -(-columns * _BITS // 32)
    if packed.shape != (rows, words) or scale.shape[0] != rows or columns % groups:
        raise AerieError(
            "packed weights",
            seen=f"{list(packed.shape)} words and {list(scale.shape)} scales for weights of {[rows, columns]}",
            expected=f"[{rows}, {words}] words, and scales of groups that divide {columns} columns",
            remedy="The files are not what their config.json says: look at the model's repository.",
        )
    shifts = torch.arange(0, 32, _BITS, dtype=torch.int32, device=packed.device)
    numbers = ((packed[..., None] >> shifts) & (2**_BITS - 1)).flatten(1)[:, :columns] - 2 ** (_BITS - 1)
    scaled = numbers.view(rows, groups, -1).float() * scale.float()[..., None]
    return scaled.view(rows, columns).to(dtype)


def _refuse_other_quantization(target: Path) -> None:
    config = json.loads((target / "config.json").read_bytes())
    found = config.get("quantization_config") or head.text_config(target).get("quantization_config")
    if not found:
        return
    groups = (found.get("config_groups") or {}).values()
    if found.get("quant_method") != "compressed-tensors" or not groups:
        unknown = [f"{found.get('quant_method', 'no quant_method')}, {found.get('format', 'no format')}"]
    elif found.get("transform_config"):
        unknown = [f"compressed-tensors, {found.get('format')}, transforms"]
    else:
        unknown = [said for group in groups if (said := _unknown(found, group))]
    if unknown:
        raise AerieError(
            f"{target / 'config.json'}: quantization_config",
            seen=unknown[0],
            expected="none, or compressed-tensors: pack-quantized, int of 4 bits, symmetric, in groups, no activations",
            remedy=_REMEDY.format(Path(__file__).name),
        )


def _unknown(found: Mapping[str, Any], group: Mapping[str, Any]) -> str:
    """What is quantised otherwise in a group of compressed-tensors; "" where it is as known."""
    weights = group.get("weights") or {}
    seen = {
        "format": group.get("format") or found.get("format"),
        "num_bits": weights.get("num_bits"),
        "type": weights.get("type"),
        "symmetric": weights.get("symmetric"),
        "strategy": weights.get("strategy"),
        # "weight" orders while it is quantised, and leaves the columns where they were; "group" moves them.
        "actorder": "none" if weights.get("actorder") in (None, False, "weight", "static") else weights["actorder"],
        "activations": "quantised" if group.get("input_activations") or group.get("output_activations") else "none",
    }
    known = {"format": "pack-quantized", "num_bits": _BITS, "type": "int", "symmetric": True, "strategy": "group",
             "actorder": "none", "activations": "none"}  # fmt: skip
    other = [f"{name} {seen[name]}" for name, value in known.items() if seen[name] != value]
    return f"compressed-tensors, {', '.join(other)}" if other else ""
