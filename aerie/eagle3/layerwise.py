"""Hidden states of a target by transformers, decoder layer by decoder layer: one layer's weights are held at a time.

Every row goes through a layer before the next layer is read, by the architecture's own classes of transformers and
with the same products of the same sizes as in the whole model. A test has the same states to the bit, on a CPU.

Of a layer of experts, each expert is read when its tokens come and let go before the next one: a layer of Kimi-K2.5 has
384, 68 GB in fp32. So that each is read once for all rows, the rows go through such a layer twice: the first pass notes
what they ask of the experts, the second gives the answers.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

from aerie.eagle3 import head
from aerie.eagle3.tensors import Tensors
from aerie.engines.adapter import LastState
from aerie.errors import AerieError

__all__ = ["Reference"]

# By the name in config.json: transformers' own name of the class. A test holds each against the whole model.
_ARCHITECTURES = {
    "deepseek_v3": "deepseek_v3",
    "kimi_k2": "deepseek_v3",  # Kimi's own class has code of its own to run, and the same arithmetic
    "llama": "llama",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_moe",
}
# What AutoConfig must not be told: which class, in which dtype and quantised how is decided here.
_DECIDED_HERE = ("architectures", "auto_map", "dtype", "model_type", "quantization_config", "torch_dtype")
_EXPERT = ("gate_proj", "up_proj", "down_proj")


class Reference:
    """The target in a folder, computed on `device`. layers: how many it has.

    Raises AerieError, before any weight is read, for an architecture or a quantisation that it does not know, and for
    a tensor or a file that is missing.
    """

    def __init__(self, target: Path, device: torch.device) -> None:
        self._head = head.of(target)
        self._device = device
        self._tensors = Tensors(target)
        config = _config(target)
        with torch.device("meta"):
            model: Any = AutoModel.from_config(config, experts_implementation="eager")
        self._layers = model.layers
        self._norm = model.norm
        self.layers = len(self._layers)
        # What is left runs one layer: its mask and its positions are transformers' own. Buffers are no weights.
        model.norm = torch.nn.Identity()
        model.rotary_emb = type(model.rotary_emb)(config).to(device)
        model.config = copy.copy(config)
        model.config.num_hidden_layers = 1
        self._model = model.eval()
        self._prefix = self._head.embedding.removesuffix("embed_tokens.weight")
        self._check()

    def states(
        self,
        rows: Sequence[Sequence[int]],
        dtypes: Sequence[str],
        last_state: LastState,
        after: tuple[int, Mapping[str, Sequence[torch.Tensor]]] | None = None,
    ) -> Iterator[tuple[int, Mapping[str, Sequence[torch.Tensor]]]]:
        """After 0, 1, 2 … layers: how many, and by dtype the [T, H] states of the rows of token ids, on the device.

        After the last layer it is the state that last_state says.

        after: what was given out before, to go on behind it.
        """
        with self._tensors:
            if after is None:
                first, states = 0, self._embedded(rows, dtypes)
                yield 0, dict(states)
            else:
                first, states = after[0], {dtype: list(after[1][dtype]) for dtype in dtypes}
            for index in range(first, self.layers):
                # One dtype after the other at the same layer: the second reads out of the page cache.
                for dtype in dtypes:
                    states[dtype] = self._through(index, states[dtype])
                if index == self.layers - 1 and last_state == "after-norm":
                    states = {dtype: self._normed(rows) for dtype, rows in states.items()}
                yield index + 1, dict(states)

    def _embedded(self, rows: Sequence[Sequence[int]], dtypes: Sequence[str]) -> dict[str, list[torch.Tensor]]:
        table = self._tensors.read(self._head.embedding, torch.float32, torch.device("cpu"))
        embedded = [table[torch.tensor(row)] for row in rows]
        return {dtype: [one.to(self._device, getattr(torch, dtype)) for one in embedded] for dtype in dtypes}

    def _through(self, index: int, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """The states of all rows after this layer."""
        layer, routed = self._loaded(index, rows[0].dtype)
        if routed is not None:
            for _ in self._run(layer, rows):
                pass
            routed.answer(lambda expert: self._expert(index, expert, rows[0].dtype))
        return list(self._run(layer, rows))

    def _run(self, layer: torch.nn.Module, rows: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        self._model.layers = torch.nn.ModuleList([layer])
        for row in rows:
            with torch.no_grad():
                state: torch.Tensor = self._model(inputs_embeds=row[None], use_cache=False).last_hidden_state[0]
            yield state
        self._model.layers = torch.nn.ModuleList()  # so that nothing holds this one's weights

    def _normed(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        norm = copy.deepcopy(self._norm)
        weight = self._tensors.read(self._head.norm, rows[0].dtype, self._device)
        norm.load_state_dict({"weight": weight}, assign=True)
        with torch.no_grad():
            return [norm(row[None])[0] for row in rows]

    def _loaded(self, index: int, dtype: torch.dtype) -> "tuple[torch.nn.Module, _Routed | None]":
        """The layer with its weights, but for those of its experts, which are noted instead."""
        layer, routed = self._bare(index)
        buffers = {name for name, _ in layer.named_buffers()}
        # A buffer keeps its digits in the whole model too: in bf16 the router's correction would choose other experts.
        read = {
            name: self._tensors.read(
                f"{self._prefix}layers.{index}.{name}", torch.float32 if name in buffers else dtype, self._device
            )
            for name in layer.state_dict()
        }
        layer.load_state_dict(read, assign=True)
        return layer, routed

    def _bare(self, index: int) -> "tuple[torch.nn.Module, _Routed | None]":
        """The layer without weights, and what stands for its experts."""
        layer = copy.deepcopy(self._layers[index])
        for name, module in list(layer.named_modules()):
            if hasattr(module, "gate_up_proj") and hasattr(module, "num_experts"):
                routed = _Routed(module)
                layer.set_submodule(name, routed)
                return layer, routed
        return layer, None

    def _expert(self, index: int, expert: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """(gate and up [2 x W, H], down [H, W]) of an expert of width W."""
        gate, up, down = (self._tensors.read(name, dtype, self._device) for name in self._names(index, expert))
        return torch.cat([gate, up]), down

    def _names(self, index: int, expert: int) -> list[str]:
        return [f"{self._prefix}layers.{index}.mlp.experts.{expert}.{part}.weight" for part in _EXPERT]

    def _check(self) -> None:
        wanted = [self._head.embedding, self._head.norm]
        for index in range(self.layers):
            layer, routed = self._bare(index)
            wanted += (f"{self._prefix}layers.{index}.{name}" for name in layer.state_dict())
            for expert in range(routed.count if routed else 0):
                wanted += self._names(index, expert)
        self._tensors.check(wanted, tuple(f"{self._prefix}layers.{index}." for index in range(self.layers)))


class _Routed(torch.nn.Module):  # type: ignore[misc]  # torch is not in this environment
    """Stands for the experts of a layer: notes what each row asks of them, and once answered gives row by row what
    transformers' own class gives with all of them at hand.
    """

    def __init__(self, experts: torch.nn.Module) -> None:
        super().__init__()
        self._experts = [experts]  # in a list, so that it is no part of the layer
        self.count: int = experts.num_experts
        self._asked: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._answers: Iterator[torch.Tensor] | None = None

    def forward(self, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Of [T, H] with the experts of each token and their weights, [T, k] both."""
        if self._answers is not None:
            return next(self._answers)
        self._asked.append((hidden, index, weights))
        return torch.zeros_like(hidden)

    def answer(self, read: Callable[[int], tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Work out all that was asked, an expert at a time: read(expert) is its gate and up in one, and its down."""
        (one,) = self._experts
        one.num_experts = 1
        answers = [torch.zeros_like(hidden) for hidden, _, _ in self._asked]
        for expert in torch.cat([index.unique() for _, index, _ in self._asked]).unique().tolist():
            one.gate_up_proj, one.down_proj = (
                torch.nn.Parameter(weight[None], requires_grad=False) for weight in read(expert)
            )
            for answer, (hidden, index, weights) in zip(answers, self._asked, strict=True):
                slot, token = torch.where(expert == index.T)  # in transformers' own order of tokens
                if len(token):
                    with torch.no_grad():
                        found = one(hidden[token], torch.zeros_like(token)[:, None], weights[token, slot, None])
                    answer.index_add_(0, token, found)
        one.gate_up_proj = one.down_proj = None
        self._asked.clear()
        self._answers = iter(answers)


def _config(target: Path) -> Any:
    """transformers' configuration of the text model."""
    text = head.text_config(target)
    kind = text.get("model_type")
    if kind not in _ARCHITECTURES:
        raise AerieError(
            f"{target / 'config.json'}: model_type",
            seen=kind,
            expected=f"one of {', '.join(_ARCHITECTURES)}",
            remedy=f"Add it to {Path(__file__).name}, with a test that holds it against the whole model.",
        )
    told = {name: value for name, value in text.items() if name not in _DECIDED_HERE and not name.startswith("_")}
    config = AutoConfig.for_model(_ARCHITECTURES[kind], **told)
    if len(kinds := set(getattr(config, "layer_types", None) or ())) > 1:
        raise AerieError(
            f"{target / 'config.json'}: layer_types",
            seen=", ".join(sorted(kinds)),
            expected="layers that are all of one type",
            remedy=f"Each type has a mask of its own: teach {Path(__file__).name} to choose it by the layer.",
        )
    return config
