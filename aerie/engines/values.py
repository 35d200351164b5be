"""What a profile says about an engine."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Engine"]


class Engine(BaseModel):
    """How the engine serves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["vllm"]
    max_model_len: Annotated[int, Field(ge=128, description="tokens")]
    max_num_seqs: Annotated[int, Field(ge=1, description="requests at once")]
    kv_cache_gib: Annotated[int, Field(ge=1, description="of each server")]
    threads: Annotated[int, Field(ge=1, description="OpenMP threads of each server")]
    ready_timeout_s: Annotated[float, Field(gt=0, description="until the first generation")]
    port: Annotated[int, Field(ge=0, le=65_535, description="first port; 0: free ones are chosen")]
