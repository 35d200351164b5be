"""The values of the quick runbook."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from aerie.runbook.interpreters import Environments


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Work(_Values):
    """How much a step does."""

    words: Annotated[int, Field(ge=1, le=1000)]
    seconds: Annotated[float, Field(ge=0)]


class Profile(_Values):
    """Every value of the quick runbook."""

    fetch: Work
    train: Work
    limit: Annotated[float, Field(gt=0, le=1)]
    names: list[str] = []
    environments: Environments = Environments()
