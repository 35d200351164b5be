"""The checks of an exported drafter: each must fail on the defect that it is there for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerie.eagle3 import export, specforge
from aerie.eagle3.profile import Drafter
from aerie.runbook.step import Decision

TARGET = {
    "hidden_size": 192,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024,
    "vocab_size": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KEPT = [*range(0, 128, 2)]  # the draft vocabulary: every other token

Change = Callable[[dict[str, Any], dict[str, Any]], None]


def drafter(draft_vocab_size: int = 64) -> Drafter:
    return Drafter(draft_vocab_size=draft_vocab_size, aux_layers=[2, 3, 4], num_speculative_tokens=3, ttt_length=3)


def write(folder: Path, shape: Drafter, change: Change) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    config = specforge.draft_config(TARGET, draft_vocab_size=shape.draft_vocab_size, aux_layers=shape.aux_layers)
    names = export._expected_shapes(config, shape, 192, 128, reduced=shape.draft_vocab_size < 128)
    tensors = {name: torch.rand(sizes).to(torch.bfloat16) for name, sizes in names.items()}
    if "d2t" in names:
        tensors["d2t"] = torch.tensor([token - index for index, token in enumerate(KEPT)])
        tensors["t2d"] = torch.zeros(128, dtype=torch.bool).index_fill(0, torch.tensor(KEPT), True)
    change(config, tensors)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def failed(folder: Path, change: Change, shape: Drafter | None = None) -> list[str]:
    shape = shape or drafter()
    write(folder / "baseline", shape, lambda config, tensors: None)
    write(folder / "exported", shape, change)
    rows = export.checks(folder / "exported", folder / "baseline", TARGET, shape)
    return [name for name, seen, expected in rows if seen != expected]


def test_a_right_export_passes(tmp_path: Path) -> None:
    assert failed(tmp_path, lambda config, tensors: None) == []


def test_a_whole_vocabulary_has_no_maps(tmp_path: Path) -> None:
    assert failed(tmp_path, lambda config, tensors: None, drafter(128)) == []


def absolute_ids(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["d2t"] = tensors["d2t"].new_tensor(KEPT)


def new_map(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["d2t"] = tensors["d2t"] + 1
    tensors["t2d"] = tensors["t2d"].roll(1)


def other_aux_layers(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 2, 3]


def norm_output(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    config["norm_output"] = True


def other_rope(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    config["rope_theta"] = 5e4


def lost_scaling(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    config["rope_parameters"] = {"rope_type": "yarn", "factor": 64.0}
    config["max_position_embeddings"] = 2048


def rope_in_the_words_of_transformers_5(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}


def with_embedding(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["embed_tokens.weight"] = tensors["fc.weight"].clone()


def wrong_head(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:16]


def not_finite(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["fc.weight"][0, 0] = float("nan")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (
            absolute_ids,
            ["d2t entries unlike the baseline's", "d2t ids that t2d does not mark"],
        ),
        (new_map, ["d2t entries unlike the baseline's", "t2d entries unlike the baseline's"]),
        (other_aux_layers, ["config aux layer ids"]),
        (norm_output, ["config norm_output"]),
        (other_rope, ["config rope"]),
        (lost_scaling, ["config rope", "config max_position_embeddings"]),
        (rope_in_the_words_of_transformers_5, []),
        (with_embedding, ["tensor names"]),
        (wrong_head, ["shape lm_head.weight"]),
        (not_finite, ["tensors with values that are not finite"]),
    ],
)
def test_a_defect_is_named(tmp_path: Path, change: Change, names: list[str]) -> None:
    assert failed(tmp_path, change) == names


def test_weights_that_did_not_move_are_found(tmp_path: Path) -> None:
    shape = drafter()
    write(tmp_path / "exported", shape, lambda config, tensors: None)
    rows = export.checks(tmp_path / "exported", tmp_path / "exported", TARGET, shape)
    assert [name for name, seen, expected in rows if seen != expected] == ["weights moved"]


def test_the_gate_says_what_failed() -> None:
    check = {"name": "config aux layer ids", "ok": False, "seen": [1, 2, 3], "expected": [2, 3, 4]}
    assert export.gate({"checks": [check | {"ok": True}]}, {}).decision is Decision.GO
    verdict = export.gate({"checks": [check]}, {})
    assert verdict.decision is Decision.STOP
    assert verdict.reasons == ("config aux layer ids: [1, 2, 3], expected [2, 3, 4].",)
