"""The environments of a run's steps and engines: as the profile's `environments` chooses them, where it has that."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from aerie import environments
from aerie.environments import Progress, locked_hash

__all__ = ["NAMES", "Choice", "Environments", "Name", "of"]

Name = Literal["engine", "train"]
NAMES: tuple[Name, ...] = ("engine", "train")


class Choice(BaseModel):
    """Where one environment comes from. Its packages are locked by requirements, or are what is found there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requirements: Annotated[
        str, Field(pattern=r"^[a-z0-9-]*$", description="made from requirements/NAME.txt; empty: its own name")
    ] = ""
    python: Annotated[
        str, Field(pattern=r"^(/.+)?$", description="interpreter of one that is there already; empty: it is made")
    ] = ""


class Environments(BaseModel):
    """The environment to serve in, and the one to train in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Choice = Choice()
    train: Choice = Choice()

    def requirements(self, name: Name) -> str:
        """The name of the requirements that it is made from; "" for one that is given."""
        chosen = self._chosen(name)
        return "" if chosen.python else chosen.requirements or name

    def hash(self, name: Name) -> str:
        """What results made in it depend on. Raises UsageError for unknown requirements, and a wrong Python."""
        chosen = self._chosen(name)
        return environments.given(chosen.python).hash if chosen.python else locked_hash(self.requirements(name))

    def packages(self, name: Name) -> Mapping[str, str]:
        """Names and versions of what is in it, or will be once it is made. Raises as `hash`."""
        chosen = self._chosen(name)
        if chosen.python:
            return environments.given(chosen.python).packages
        return environments.locked_packages(self.requirements(name))

    def find(self, name: Name) -> environments.Environment | None:
        """It, or None while it is not made. Raises as `hash`."""
        chosen = self._chosen(name)
        return environments.given(chosen.python) if chosen.python else environments.find(self.requirements(name))

    def ensure(self, name: Name, progress: Progress) -> environments.Environment:
        """It, made if need be. Raises as `hash`, and AerieError with the last lines of what failed."""
        return self.find(name) or environments.ensure(self.requirements(name), progress)

    def _chosen(self, name: Name) -> Choice:
        return self.engine if name == "engine" else self.train


def of(values: BaseModel) -> Environments:
    """As the profile chooses. One without a value `environments` has those of requirements/engine.txt and train.txt."""
    chosen = getattr(values, "environments", Environments())
    assert isinstance(chosen, Environments), "a profile's value of this name is of this class"
    return chosen
