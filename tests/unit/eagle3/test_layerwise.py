"""The reference that streams gives to the bit what the whole model gives, and holds one layer's weights at a time."""

import gc
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aerie.eagle3.profile import Target
from aerie.errors import AerieError
from aerie.runbook import spec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
layerwise = pytest.importorskip("aerie.eagle3.layerwise")
target = pytest.importorskip("aerie.eagle3.target")
safetensors = pytest.importorskip("safetensors.torch")

CPU = torch.device("cpu")
DTYPES = ("float32", "bfloat16")
ROWS = [[5, 6, 7, 8, 9, 10, 11], list(range(40, 80)), [3, 1, 4, 1, 5]]
SMALL: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(shape: str) -> Any:
    """A model of random weights in which experts differ, the router is corrected and the norms are not one."""
    torch.manual_seed(0)
    if shape in ("mla", "llama"):
        tiny = Target.model_validate(spec.load("eagle3", "tiny").values.target.model_dump())
        model = target.build_model(shape, tiny)
    elif shape == "qwen3":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL))
    else:
        experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
        model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SMALL, **experts))
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.ndim > 1:
                tensor.mul_(3)
            elif "inv_freq" not in name:
                tensor.uniform_(0.5, 2)
    return model.to(torch.bfloat16)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model of this shape, in several files."""
    folders: dict[str, Path] = {}

    def folder(shape: str) -> Path:
        if shape not in folders:
            folders[shape] = tmp_path_factory.mktemp(shape)
            build(shape).save_pretrained(folders[shape], max_shard_size="100KB")
        return folders[shape]

    return folder


def whole(folder: Path, dtype: str, last_state: str) -> list[list[Any]]:
    """By layer and row, the states of the whole model: what the reference must give."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), experts_implementation="eager"
    ).eval()
    found = []
    for row in ROWS:
        before: list[Any] = []
        model.model.norm.register_forward_hook(lambda module, args, output, before=before: before.append(args[0]))
        with torch.no_grad():
            output = model.model(input_ids=torch.tensor([row]), output_hidden_states=True, use_cache=False)
        states = output.hidden_states  # the last one of them is the normed one
        found.append([*states[:-1], before[0] if last_state == "before-norm" else states[-1]])
    return [[states[layer][0] for states in found] for layer in range(len(found[0]))]


def streamed(folder: Path, last_state: str) -> dict[str, list[list[Any]]]:
    given = list(layerwise.Reference(folder, CPU).states(ROWS, DTYPES, last_state))
    assert [layers for layers, _ in given] == list(range(len(given)))
    return {dtype: [states[dtype] for _, states in given] for dtype in DTYPES}


def equal(seen: list[list[Any]], expected: list[list[Any]]) -> bool:
    return all(
        one.dtype == other.dtype and torch.equal(one, other)
        for layer, same in zip(seen, expected, strict=True)
        for one, other in zip(layer, same, strict=True)
    )


@pytest.mark.parametrize("last_state", ["before-norm", "after-norm"])
@pytest.mark.parametrize("shape", ["mla", "llama", "qwen3", "qwen3_moe"])
def test_states_are_those_of_the_whole_model_to_the_bit(
    made: Callable[[str], Path], shape: str, last_state: str
) -> None:
    folder = made(shape)
    assert len(list(folder.glob("*.safetensors"))) > 1
    found = streamed(folder, last_state)
    for dtype in DTYPES:
        assert equal(found[dtype], whole(folder, dtype, last_state))
    assert not equal(found["float32"][-1:], whole(folder, "float32", other(last_state))[-1:])


@pytest.mark.parametrize("layers", [0, 2, 3])
def test_it_goes_on_behind_any_layer_to_the_same_bits(made: Callable[[str], Path], layers: int) -> None:
    folder = made("mla")
    whole = list(layerwise.Reference(folder, CPU).states(ROWS, DTYPES, "after-norm"))
    rest = list(layerwise.Reference(folder, CPU).states(ROWS, DTYPES, "after-norm", whole[layers]))
    assert [at for at, _ in rest] == [at for at, _ in whole[layers + 1 :]] != []
    for (_, seen), (_, expected) in zip(rest, whole[layers + 1 :], strict=True):
        assert all(equal([seen[dtype]], [expected[dtype]]) for dtype in DTYPES)


def other(last_state: str) -> str:
    return "before-norm" if last_state == "after-norm" else "after-norm"


# ----------------------------------------------------------------------------------------------- as Kimi-K2.5 is stored


def packed(weight: Any) -> tuple[dict[str, Any], Any]:
    """(Its three tensors, what they stand for in fp32) by the published format, number by number."""
    rows, columns = weight.shape
    groups = weight.float().view(rows, -1, 32)
    scale = (groups.abs().amax(-1) / 7).bfloat16()
    numbers = (groups / scale.float()[..., None]).round().clamp(-8, 7).int()
    words = []
    for row in numbers.view(rows, columns).tolist():
        unsigned = [sum((row[at + i] + 8) << 4 * i for i in range(8)) for at in range(0, columns, 8)]
        words.append([word - 2**32 if word >= 2**31 else word for word in unsigned])
    stored = {"weight_packed": torch.tensor(words, dtype=torch.int32), "weight_scale": scale,
              "weight_shape": torch.tensor([rows, columns], dtype=torch.int32)}  # fmt: skip
    return stored, (numbers.float() * scale.float()[..., None]).view(rows, columns)


def store(folder: Path, tensors: dict[str, Any], config: dict[str, Any]) -> None:
    """Two files, so that the index is needed."""
    names = sorted(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    folder.mkdir()
    for file, parts in files.items():
        safetensors.save_file({name: tensors[name].contiguous() for name in parts}, folder / file)
    index = {name: file for file, parts in files.items() for name in parts}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def kimi(made: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(The tiny MLA target as Kimi-K2.5 is published, the same weights in fp32 as DeepSeek-V3's)."""
    tensors: dict[str, Any] = {}
    for file in made("mla").glob("*.safetensors"):
        tensors |= safetensors.load_file(file)
    stored: dict[str, Any] = {"vision_tower.patch_embed.weight": torch.zeros(4, 4)}
    plain: dict[str, Any] = {}
    for name, tensor in tensors.items():
        plain[name] = tensor.float()
        if ".mlp.experts." in name:
            parts, plain[name] = packed(tensor)
            stored |= {f"language_model.{name.removesuffix('weight')}{part}": one for part, one in parts.items()}
        else:
            # The correction is stored in fp32, with digits that bf16 has not.
            stored[f"language_model.{name}"] = tensor.float() * 1.001 if "correction" in name else tensor
            plain[name] = stored[f"language_model.{name}"].float()
    config = json.loads((made("mla") / "config.json").read_bytes())
    text = {name: value for name, value in config.items() if name not in ("rope_parameters", "dtype")}
    rope = dict(config["rope_parameters"])
    text |= {  # as the file of 2026 has it: names of older versions, and code of its own
        "model_type": "kimi_k2", "torch_dtype": "bfloat16", "rope_theta": rope.pop("rope_theta"),
        "rope_scaling": {"type": rope.pop("rope_type"), **rope}, "auto_map": {"AutoConfig": "configuration_deepseek.X"},
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": {
                "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}}},
        },
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("kimi")
    store(folder / "kimi", stored, {"model_type": "kimi_k25", "text_config": text, "vision_config": {}})
    store(folder / "plain", plain, config)
    return folder / "kimi", folder / "plain"


def test_int4_behind_a_prefix_gives_the_states_of_the_weights_that_are_stored(kimi: tuple[Path, Path]) -> None:
    found = streamed(kimi[0], "after-norm")
    assert equal(found["float32"], whole(kimi[1], "float32", "after-norm"))
    assert equal(found["bfloat16"], whole(kimi[1], "bfloat16", "after-norm"))


# -------------------------------------------------------------------------------------------------- one layer at a time


def held() -> int:
    """Numbers of all parameters that have memory, anywhere in the process."""
    # By the type alone: to ask an object of a library's for its class may have it warn.
    parameters = [one for one in gc.get_objects() if type(one) is torch.nn.Parameter]
    return sum({one.data_ptr(): one.numel() for one in parameters if not one.is_meta}.values())


def test_of_the_weights_one_layer_is_held_and_of_its_experts_one(made: Callable[[str], Path]) -> None:
    reference = layerwise.Reference(made("mla"), CPU)
    config = json.loads((made("mla") / "config.json").read_bytes())
    width, inner, experts = config["hidden_size"], config["moe_intermediate_size"], config["n_routed_experts"]
    seen: dict[str, set[int]] = {}

    def note(module: Any, args: Any) -> None:
        if (name := type(module).__name__) in ("DeepseekV3DecoderLayer", "DeepseekV3Experts", "DeepseekV3NaiveMoe"):
            seen.setdefault("layer" if name.endswith("Layer") else "expert", set()).add(held() - base)

    before = [one.numel() for layer in reference._layers for one in layer.parameters()]
    gc.collect()
    base = held()
    hook = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        for _ in reference.states(ROWS, ["float32"], "before-norm"):
            gc.collect()
            assert held() == base, "between two layers none is held"
    finally:
        hook.remove()
    one_expert = 3 * width * inner
    dense, sparse = (sum(one.numel() for one in reference._layers[index].parameters()) for index in (0, 1))
    without = sparse - experts * one_expert
    assert seen == {"layer": {dense, without}, "expert": {without + one_expert}}
    assert sum(before) > 5 * max(dense, without + one_expert)


# ------------------------------------------------------------------------------------------------- what is not computed


def changed(folder: Path, to: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """A copy whose config.json and map of tensors were changed."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_bytes())
    index = json.loads((to / "model.safetensors.index.json").read_bytes())
    change(config, index["weight_map"])
    (to / "config.json").write_text(json.dumps(config))
    (to / "model.safetensors.index.json").write_text(json.dumps(index))
    return to


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config, names: names.pop("model.layers.3.mlp.experts.2.up_proj.weight"), r"no model\.layers\.3\.mlp\.e"
         r"xperts\.2\.up_proj\.weight.*do not belong together"),
        (lambda config, names: names.update({"model.layers.3.self_attn.o_proj.weight": "gone.safetensors"}),
         r"no gone\.safetensors.*Run the step target again"),
        (lambda config, names: names.update({"model.layers.3.mlp.gate_proj.weight_scale_inv": "gone.safetensors"}),
         r"model\.layers\.3\.mlp\.gate_proj\.weight_scale_inv"),
        (lambda config, names: config.update(model_type="gemma2"), r"model_type: 'gemma2', expected one of deep"),
    ],
    ids=["tensor", "file", "unread tensor", "architecture"],
)  # fmt: skip
def test_what_is_not_there_or_not_known_is_named(
    made: Callable[[str], Path], tmp_path: Path, change: Any, message: str
) -> None:
    with pytest.raises(AerieError, match=message):
        layerwise.Reference(changed(made("mla"), tmp_path / "changed", change), CPU)


def test_layers_with_masks_of_several_kinds_are_refused(made: Callable[[str], Path], tmp_path: Path) -> None:
    def mix(config: dict[str, Any], names: dict[str, str]) -> None:
        config["layer_types"] = ["full_attention", "sliding_attention", "full_attention"]
        config["sliding_window"] = 8

    with pytest.raises(AerieError, match=r"full_attention, sliding_attention.*all of one type"):
        layerwise.Reference(changed(made("qwen3"), tmp_path / "mixed", mix), CPU)


def test_layers_after_the_last_are_not_asked_for(made: Callable[[str], Path], tmp_path: Path) -> None:
    def with_a_head_that_drafts(config: dict[str, Any], names: dict[str, str]) -> None:
        names["model.layers.6.eh_proj.weight"] = "gone.safetensors"

    layerwise.Reference(changed(made("mla"), tmp_path / "mtp", with_a_head_that_drafts), CPU)
