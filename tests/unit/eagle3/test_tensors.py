"""A target's tensors as stored: INT4 as compressed-tensors packs it, and what is refused before anything is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerie.errors import AerieError

torch = pytest.importorskip("torch")
tensors = pytest.importorskip("aerie.eagle3.tensors")

# Written by compressed-tensors 0.17.0, PackedQuantizationCompressor.compress, out of these numbers and scales.
WORDS = [
    [1985229328, -19088744, 1113473686, 1122880203, 1625758071, -1763739235, 1032330241, 1669237167],
    [-1316734699, 691864748, 1999606799, -415668070, 1670755543, 2146935304, 250266489, 64034680],
]
NUMBERS = [
    [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, -2, 1, -6, -4, 6, -3, -6, -4, 3, 4, 2, 4, 5, 6, -6, -4,
     -1, -1, 1, -7, -1, 6, -8, -2, 5, 1, 1, -1, 7, 5, -2, 1, -7, -8, 4, -7, 0, 0, 5, -5, 7, 2, 1, 0, 6, -1, -5, -2],
    [-3, -7, 1, -5, -4, 0, -7, 3, 4, 2, -4, -8, 5, -5, 1, -6, 7, -8, -4, 1, 7, -6, -1, -1, 2, 1, 0, -2, 1, -5, -1, 6,
     -1, 5, -4, 3, -3, 1, -5, -2, 0, -8, -6, 2, -1, 7, 7, -1, 1, -1, -5, 4, 2, 6, 6, -8, 0, -1, -1, -7, -7, 5, -5, -8],
]  # fmt: skip
SCALES = [[0.5, 0.03125], [2.0, 0.0703125]]
KIMI = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
        }
    },
    "ignore": ["lm_head", "re:.*self_attn.*"],
    "kv_cache_scheme": None,
}


def unpacked(words: Any, scales: Any, shape: list[int], dtype: Any) -> Any:
    return tensors.unpack(words, scales, torch.tensor(shape, dtype=torch.int32), dtype=dtype)


def test_what_the_library_packs_comes_out_to_the_bit() -> None:
    words, scales = torch.tensor(WORDS, dtype=torch.int32), torch.tensor(SCALES, dtype=torch.bfloat16)
    exact = [
        [number * SCALES[row][column // 32] for column, number in enumerate(numbers)]
        for row, numbers in enumerate(NUMBERS)
    ]
    assert unpacked(words, scales, [2, 64], torch.float32).tolist() == exact
    assert torch.equal(unpacked(words, scales, [2, 64], torch.bfloat16), torch.tensor(exact).bfloat16())


def test_a_width_that_does_not_fill_its_last_word_is_cut() -> None:
    # 4 numbers and 4 zeros of padding, which are stored as 0 and not as 8.
    words = torch.tensor([[0x0000_F098]], dtype=torch.int32)
    found = unpacked(words, torch.ones(1, 1, dtype=torch.bfloat16), [1, 4], torch.float32)
    assert found.tolist() == [[0.0, 1.0, -8.0, 7.0]]


@pytest.mark.parametrize(
    ("words", "scales", "shape"),
    [((2, 8), (2, 2), [2, 72]), ((2, 8), (3, 2), [2, 64]), ((2, 8), (2, 3), [2, 64])],
    ids=["too few words", "scales of other rows", "groups that do not divide"],
)
def test_parts_that_do_not_belong_together_are_refused(words: Any, scales: Any, shape: list[int]) -> None:
    with pytest.raises(AerieError, match="packed weights"):
        unpacked(torch.zeros(words, dtype=torch.int32), torch.ones(scales), shape, torch.float32)


def model(folder: Path, config: dict[str, Any]) -> Path:
    """Its files are not there: whoever opens one fails otherwise than by an AerieError about the quantisation."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": "1.safetensors"}}))
    return folder


def with_weights(**other: Any) -> dict[str, Any]:
    group = KIMI["config_groups"]["group_0"]  # type: ignore[index]
    return {**KIMI, "config_groups": {"group_0": {**group, "weights": {**group["weights"], **other}}}}


def with_group(**other: Any) -> dict[str, Any]:
    return {**KIMI, "config_groups": {"group_0": {**KIMI["config_groups"]["group_0"], **other}}}  # type: ignore[index]


@pytest.mark.parametrize(
    ("config", "seen"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8, no format"),
        ({"quant_method": "gptq", "bits": 4}, "gptq, no format"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt, no format"),
        (with_group(format="nvfp4-pack-quantized"), "compressed-tensors, format nvfp4-pack-quantized"),
        (with_weights(num_bits=8), "compressed-tensors, num_bits 8"),
        (with_weights(symmetric=False), "compressed-tensors, symmetric False"),
        (with_weights(strategy="channel"), "compressed-tensors, strategy channel"),
        (with_weights(actorder="group"), "compressed-tensors, actorder group"),
        (with_group(input_activations={"num_bits": 8}), "compressed-tensors, activations quantised"),
        ({**KIMI, "transform_config": {"config_groups": {"u": {}}}}, "compressed-tensors, pack-quantized, transforms"),
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["at the top", "in text_config"])
def test_another_quantisation_is_named_before_anything_is_opened(
    tmp_path: Path, config: dict[str, Any], seen: str, inside: bool
) -> None:
    stated: dict[str, Any] = {"quantization_config": config}
    folder = model(tmp_path, {"text_config": stated} if inside else stated)
    with pytest.raises(
        AerieError, match=f"quantization_config: '{seen}', expected none, or compressed-tensors: .*Stage a form"
    ):
        tensors.Tensors(folder)


@pytest.mark.parametrize("inside", [False, True], ids=["at the top", "in text_config"])
def test_kimis_own_is_taken(tmp_path: Path, inside: bool) -> None:
    stated: dict[str, Any] = {"quantization_config": with_weights(actorder=None)}
    tensors.Tensors(model(tmp_path, {"text_config": stated} if inside else stated))


def test_what_is_missing_or_unread_is_named(tmp_path: Path) -> None:
    names = ("layers.0.a.weight", "layers.0.b.weight_packed", "layers.0.b.weight_scale", "layers.0.b.weight_shape")
    index = {**dict.fromkeys(names, "1.safetensors"), "layers.0.rotary_emb.inv_freq": "1.safetensors"}
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "model.safetensors.index.json"
    file.write_text(json.dumps({"weight_map": {**index, "vision.weight": "2.safetensors"}}))
    (tmp_path / "1.safetensors").touch()
    found = tensors.Tensors(tmp_path)
    found.check(["layers.0.a.weight", "layers.0.b.weight"], ("layers.0.",))  # 2.safetensors is not asked for
    with pytest.raises(AerieError, match=r"no layers\.0\.c\.weight, nor 1 others"):
        found.check(["layers.0.a.weight", "layers.0.c.weight", "layers.0.d.weight"], ("layers.0.",))
    with pytest.raises(AerieError, match=r"'layers\.0\.b\.weight_packed, and 2 others that no layer reads'"):
        found.check(["layers.0.a.weight"], ("layers.0.",))
    with pytest.raises(AerieError, match=r"no 2\.safetensors"):
        found.check(["layers.0.a.weight", "layers.0.b.weight", "vision.weight"], ("layers.0.",))
    file.write_text(json.dumps({"weight_map": {name: "1.safetensors" for name in index if "scale" not in name}}))
    with pytest.raises(AerieError, match=r"no layers\.0\.b\.weight_scale"):
        tensors.Tensors(tmp_path).check(["layers.0.b.weight"], ("layers.0.",))
