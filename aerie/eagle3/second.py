"""The second engine of a profile before it runs: its environment, and what is known against it already."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from aerie.eagle3 import cards
from aerie.eagle3.environments import engine_version
from aerie.eagle3.profile import Engine, Profile
from aerie.engines import capability, gpu_arch
from aerie.engines.capability import Wish
from aerie.errors import AerieError
from aerie.runbook.interpreters import Choice, Environments
from aerie.runbook.step import Json

__all__ = ["environments", "told", "wish"]


def environments(chosen: Choice) -> Environments:
    """Those of which `engine` is this one; the one to train in is not the second engine's business."""
    return Environments(engine=chosen)


def wish(engine: Engine, model: str, cost: Mapping[str, Json]) -> Wish:
    """What it has to do on GPUs. model: as the capability table calls it; cost: of the profile."""
    return cards.wish(engine, model, frozenset({"eagle3"} | ({"forced"} if cost["accept_lengths"] else set())))


def told(profile: Profile) -> Iterator[str]:
    """Sentences for the plan: which release it is, and what the capability table has against it on the GPUs here."""
    second, staged = profile.second, profile.target.staged
    if second is None:
        return
    made = environments(second.environment)
    version = engine_version(second.engine.name, made.packages("engine")) or "none"
    requirements = made.requirements("engine")
    source = f"requirements/{requirements}.txt" if requirements else second.environment.python
    yield f"{second.engine.name} {version} of {source}"
    if second.engine.gpus is None:
        return
    try:
        arch = gpu_arch.here()
    except AerieError:
        return  # a plan is also made where no GPU is
    asked = wish(second.engine, staged.model if staged else "", profile.cost.model_dump())
    found = capability.can_serve(replace(asked, version=version, arch=arch))
    yield from (f"it will not be run on {arch}: {reason}" for reason, _, _ in found.reasons)
