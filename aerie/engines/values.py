"""What a profile says about an engine."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Engine", "Gpus", "fits_side_by_side"]


class Gpus(BaseModel):
    """How the engine uses GPUs. Backends left empty are what the capability table says for the engine and the card."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensor_parallel: Annotated[int, Field(ge=1, le=64, description="GPUs of one server")] = 1
    # SGLang's own choice was 0.771 on 8 x 96 GB and left 4,578 tokens of KV cache (the facts, from a server's log).
    memory_fraction: Annotated[float, Field(gt=0, lt=1, description="of each GPU, for weights and KV cache")] = 0.9
    attention: Annotated[str, Field(description="attention backend of the target; empty: the table's")] = ""
    draft_attention: Annotated[str, Field(description="attention backend of the drafter; empty: the table's")] = ""
    moe: Annotated[str, Field(description="MoE backend; empty: the table's, or the engine's own choice")] = ""
    sampling: Annotated[str, Field(description="sampling backend of SGLang; empty: the engine's own choice")] = ""
    load_threads: Annotated[int, Field(ge=1, le=64, description="that read weights, of each server")] = 8


class Engine(BaseModel):
    """How the engine serves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["vllm", "sglang"]
    max_model_len: Annotated[int, Field(ge=128, description="tokens")]
    max_num_seqs: Annotated[int, Field(ge=1, description="requests at once")]
    kv_cache_gib: Annotated[int, Field(ge=1, description="of each server on a CPU")] = 1
    threads: Annotated[int, Field(ge=1, description="OpenMP threads of each server on a CPU")] = 1
    ready_timeout_s: Annotated[float, Field(gt=0, description="until the first generation")]
    port: Annotated[int, Field(ge=0, le=65_535, description="first port; 0: free ones are chosen")]
    gpus: Annotated[Gpus | None, Field(description="none: the CPU serves")] = None

    @property
    def gpu_share(self) -> float:
        """Of each GPU, that a server takes; 0 on a CPU. Memory beyond it, which an engine takes too, is not in it."""
        return self.gpus.memory_fraction if self.gpus else 0.0


def fits_side_by_side(engines: Iterable[Engine]) -> bool:
    """May servers of these run at the same time? On GPUs each takes its share of the same ones."""
    # A little above 1: a third, written as 0.3333333333333334, is meant to fit three times.
    return sum(engine.gpu_share for engine in engines) <= 1 + 1e-6
