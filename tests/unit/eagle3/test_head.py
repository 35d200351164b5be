"""A target's head: found by the endings of its names, also in a model that sees."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerie.eagle3 import head
from aerie.errors import AerieError

SIZES: dict[str, Any] = {"hidden_size": 4, "vocab_size": 6, "num_hidden_layers": 2, "rms_norm_eps": 1e-5}
NAMES = ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight")


def target(folder: Path, names: dict[str, str], config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return folder


def kimi(folder: Path) -> Path:
    """Its last file of text has all three; the others lie elsewhere, and are not here."""
    names = {f"language_model.{name}": "model-62.safetensors" for name in NAMES}
    names |= {"language_model.model.layers.0.input_layernorm.weight": "model-01.safetensors"}
    return target(folder, names, {"model_type": "kimi_k25", "text_config": SIZES})


def test_the_folder_for_the_trainer_has_sizes_at_the_top_and_one_file(tmp_path: Path) -> None:
    found = head.of(kimi(tmp_path / "kimi"))
    found.write(tmp_path / "only")
    found.write(tmp_path / "only")  # again, as a later attempt does
    config = json.loads((tmp_path / "only" / "config.json").read_bytes())
    assert {name: config[name] for name in SIZES} == SIZES
    index = json.loads((tmp_path / "only" / "model.safetensors.index.json").read_bytes())
    assert index["weight_map"] == {
        "language_model.lm_head.weight": "model-62.safetensors",
        "language_model.model.embed_tokens.weight": "model-62.safetensors",
    }
    assert (tmp_path / "only" / "model-62.safetensors").readlink() == tmp_path / "kimi" / "model-62.safetensors"
    assert not (tmp_path / "only" / "model-01.safetensors").is_symlink()


@pytest.mark.parametrize(
    ("names", "seen"),
    [
        (NAMES[1:], "none named lm_head.weight"),
        ((*NAMES, "vision.lm_head.weight"), "lm_head.weight, vision.lm_head.weight"),
    ],
    ids=["tied to the embedding", "two of them"],
)
def test_a_head_that_is_not_there_or_not_clear_is_refused(tmp_path: Path, names: tuple[str, ...], seen: str) -> None:
    folder = target(tmp_path / "model", dict.fromkeys(names, "model.safetensors"), SIZES)
    with pytest.raises(AerieError, match=f"'{seen}', expected one lm_head.weight"):
        head.of(folder)
