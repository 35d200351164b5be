"""The few tensors of a target that training needs, without the rest of it: lm_head, embedding, final norm.

SpecForge wants hidden_size and vocab_size at the top of config.json, where a model that also sees has none, and looks
into the target's folder for more than these tensors. Kimi-K2.5 is 595 GB, and all that is read of it is one file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.errors import AerieError
from aerie.runbook.step import Json, write_atomic

if TYPE_CHECKING:
    import torch

__all__ = ["Head", "files", "of", "text_config"]

_LM_HEAD, _EMBEDDING, _NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where these tensors lie: names as in the weights, and the file of each. config: of the text model."""

    lm_head: str
    embedding: str
    norm: str
    files: Mapping[str, Path]
    config: Mapping[str, Json]

    @property
    def trainer_files(self) -> dict[str, Path]:
        """Of the two tensors that the trainer reads itself, the files."""
        return {name: self.files[name] for name in (self.lm_head, self.embedding)}

    def tensor(self, name: str) -> "torch.Tensor":
        """One of the three, by its name in the weights."""
        from safetensors import safe_open

        with safe_open(self.files[name], "pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    def write(self, folder: Path) -> None:
        """Make `folder` a target of SpecForge: links to the files, an index of two tensors, sizes at the top.

        The same every time: SpecForge compares names, sizes and times of the files when it resumes.
        """
        folder.mkdir(exist_ok=True)
        files = self.trainer_files
        for file in set(files.values()):
            link = folder / file.name
            if not link.is_symlink():
                link.symlink_to(file)
        index = {"metadata": {}, "weight_map": {name: file.name for name, file in files.items()}}
        write_atomic(folder / _INDEX, json.dumps(index, sort_keys=True).encode())
        sizes = ("hidden_size", "vocab_size", "num_hidden_layers", "rms_norm_eps", "pad_token_id")
        # Of the kind of model only these sizes are read, so any kind that transformers knows will do.
        config = {"model_type": "llama", **{name: self.config[name] for name in sizes if name in self.config}}
        write_atomic(folder / "config.json", json.dumps(config, sort_keys=True).encode())


def text_config(target: Path) -> dict[str, Json]:
    """config.json of a model, or the part of it about text where it also sees (Kimi-K2.5)."""
    config = json.loads((target / "config.json").read_bytes())
    found: dict[str, Json] = config.get("text_config", config)
    return found


def of(target: Path) -> Head:
    """The head of the model in `target`.

    Raises AerieError where a tensor is in none of its files, or in more than one by its ending.
    """
    found = files(target)
    lm_head, embedding, norm = (_named(target, found, ending) for ending in (_LM_HEAD, _EMBEDDING, _NORM))
    return Head(lm_head=lm_head, embedding=embedding, norm=norm, files=found, config=text_config(target))


def files(target: Path) -> dict[str, Path]:
    """Of every tensor, its file."""
    target = target.resolve()
    if (index := target / _INDEX).exists():
        return {name: target / file for name, file in json.loads(index.read_bytes())["weight_map"].items()}

    from safetensors import safe_open

    with safe_open(target / "model.safetensors", "pt") as file:
        return dict.fromkeys(file.keys(), target / "model.safetensors")


def _named(target: Path, files: Mapping[str, Path], ending: str) -> str:
    # Kimi-K2.5 has language_model.lm_head.weight, a model of text alone lm_head.weight.
    found = [name for name in files if name == ending or name.endswith(f".{ending}")]
    if len(found) != 1:
        raise AerieError(
            f"{target}: tensors",
            seen=", ".join(sorted(found)) or f"none named {ending}",
            expected=f"one {ending}, alone or behind a prefix",
            remedy="Training needs the target's own head: look at the model's repository for another form of it.",
        )
    return found[0]
