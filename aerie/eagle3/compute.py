"""On what a run computes: PyTorch's device, and how SpecForge is started there. Step preflight chose it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.eagle3.together import Together
from aerie.errors import AerieError
from aerie.runbook.step import Context, Json

if TYPE_CHECKING:
    import torch
    from transformers.modeling_utils import PreTrainedModel

__all__ = ["CPU", "Launcher", "device", "launcher", "model", "on_gpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How SpecForge is started: the module with its command line, its environment, its device's training options, the
    processes that train together, one for each GPU, the threads of each that read samples ahead, and the hosts that
    train along, each with as many processes.
    """

    module: str
    environment: Mapping[str, str]
    options: Mapping[str, Json]
    processes: int = 1
    readers: int = 0
    together: Together | None = None

    @property
    def hosts(self) -> int:
        """This one included."""
        return 1 + len(self.together.hosts) if self.together else 1

    @property
    def is_on_gpus(self) -> bool:
        """Does each of its processes take one?"""
        return self.environment.get("SPECFORGE_DEVICE") == "cuda"

    @property
    def processes_each(self) -> int:
        """On each host."""
        return self.processes // self.hosts


CPU = Launcher(
    module="aerie.eagle3.specforge_cpu",
    environment={"SPECFORGE_DEVICE": "cpu", "TORCHDYNAMO_DISABLE": "1"},
    options={"attention_backend": "sdpa", "fsdp_sharding": "NO_SHARD"},
)


def on_gpus(count: int, together: Together | None = None) -> Launcher:
    """SpecForge's own command line on `count` GPUs of this host, and as many of each other one."""
    processes = count * (1 + len(together.hosts) if together else 1)
    return Launcher(
        module="specforge.cli",
        environment={
            "SPECFORGE_DEVICE": "cuda",
            # Without it a long training ends out of memory by fragments. Serving must not have it: it conflicts with
            # the engines' all-reduce over PCIe.
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        },
        # flex_attention compiles kernels that need more shared memory than an SM120 may have. One GPU has nothing to
        # share its optimizer with.
        options={"attention_backend": "sdpa", "fsdp_sharding": "NO_SHARD" if processes == 1 else "SHARD_GRAD_OP"},
        processes=processes,
        readers=4,  # a sample of Kimi-K2.5 has 80 MB, for a step of a second or two
        together=together,
    )


def launcher(context: Context, together: Together | None = None) -> Launcher:
    """How this run trains, on GPUs with other hosts too. The step needs preflight's evidence and engine.gpus."""
    if _kind(context) == "cpu":
        return CPU
    return on_gpus(context.values["engine"]["gpus"]["tensor_parallel"], together)


def device(context: Context) -> "torch.device":
    """Where this run's tensors live. The step needs preflight's evidence.

    Raises AerieError where that is a GPU and the environment's PyTorch has none.
    """
    import torch

    kind = _kind(context)
    if kind == "cuda" and not torch.cuda.is_available():
        raise AerieError(
            "environment train",
            seen=f"PyTorch {torch.__version__}, which finds no GPU",
            expected="one that computes on GPUs, as engine.gpus asks",
            remedy="Look at `nvidia-smi`, and take a build of PyTorch for this driver's CUDA.",
        )
    return torch.device(kind)


def model(context: Context, folder: Path, dtype: str) -> "PreTrainedModel":
    """The model in `folder` by transformers, on the run's device, to compute with and not to train."""
    import torch
    from transformers import AutoModelForCausalLM

    # The loop over experts: products of groups have a kernel of their own, which takes bf16 alone on GPUs.
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), experts_implementation="eager")
    return loaded.to(device(context)).eval()


def _kind(context: Context) -> str:
    kind: str = context.inputs["preflight"].evidence["device"]["type"]
    return kind
