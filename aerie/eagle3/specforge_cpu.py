"""`python -m aerie.eagle3.specforge_cpu train|export …`: SpecForge's own command line on a host without triton.

SpecForge 0.2.0 runs on CPU but for one thing: `specforge/core/loss.py` imports triton and its loss is a triton kernel.
Here the import finds a stand-in and the loss is the same sum in PyTorch. Delete this module when a release of
SpecForge selects its loss by device. Run with TORCHDYNAMO_DISABLE=1: else dynamo meets the stand-in and fails.

It also lets a training be in float32, as it has to be where the processor has no bf16: `model.torch_dtype` reaches all
of SpecForge but the target's head, which is bf16 always and refuses other states.
"""

import importlib
import importlib.machinery
import sys
import types
from typing import Any

__all__ = ["main"]


def main() -> int:
    """Run the `specforge` command line with sys.argv; returns its exit status."""
    _replace_loss()
    _let_head_follow_states()
    cli = importlib.import_module("specforge.cli")
    return int(cli.main())


def eager_loss(logits: Any, target: Any, position_mask: Any) -> Any:
    """Mean over all positions of the cross entropy against soft targets; positions with mask 0 count as 0.

    logits, target: [batch, length, vocabulary]; position_mask: [batch, length, 1].
    """
    import torch

    return -(position_mask * target * torch.log_softmax(logits.float(), dim=-1)).sum(dim=-1).mean()


def _replace_loss() -> None:
    # Whoever else probes for triton must not find the stand-in: these two do so when they are imported.
    importlib.import_module("torch._dynamo")
    importlib.import_module("transformers.models.llama.modeling_llama")
    stand_ins = {name: _stand_in(name) for name in ("triton", "triton.language")}
    stand_ins["triton"].language = stand_ins["triton.language"]  # type: ignore[attr-defined]
    sys.modules.update(stand_ins)
    try:
        loss = importlib.import_module("specforge.core.loss")
    finally:
        for name in stand_ins:
            del sys.modules[name]
    replacement = type("LogSoftmaxLoss", (), {"apply": staticmethod(eager_loss)})
    loss.LogSoftmaxLoss = replacement  # type: ignore[attr-defined]
    model = importlib.import_module("specforge.algorithms.eagle3.model")
    model.LogSoftmaxLoss = replacement  # type: ignore[attr-defined]


def _let_head_follow_states() -> None:
    import torch

    def forward(head: Any, states: Any) -> Any:
        return torch.nn.functional.linear(states, head.fc.weight.to(states.dtype))

    importlib.import_module("specforge.modeling.target.target_head").TargetHead.forward = forward


def _stand_in(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None)
    module.jit = lambda function: function  # type: ignore[attr-defined]
    module.constexpr = object  # type: ignore[attr-defined]
    return module


if __name__ == "__main__":
    raise SystemExit(main())
