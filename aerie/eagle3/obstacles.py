"""Which steps of the eagle3 runbook cannot run with a profile's values, and why: known before anything starts."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from aerie.eagle3 import apart, own_prompts
from aerie.eagle3.pinned import no_manifest
from aerie.eagle3.profile import Engine, Environments, Profile
from aerie.eagle3.second import environments
from aerie.errors import AerieError

__all__ = ["obstacle"]

_PROMPTS = 3583  # of the embedded corpus with its 40 held-out ones left out (Python 3.11)
_EMBEDDED = "from Python's documentation: corpus.prompts takes a file of more"


def obstacle(step: str, profile: Profile) -> str:
    """Why the step cannot run with these values, "" where it can."""
    found = _OBSTACLES.get(step)
    return found(profile) if found else ""


def _target_obstacle(profile: Profile) -> str:
    if wrong := no_manifest(profile.target.staged):
        return wrong
    wanted, corpus = profile.synthesis.prompts, profile.corpus
    try:
        count, source = _prompts(corpus.prompts, corpus.held_out) if corpus.prompts else (_PROMPTS, _EMBEDDED)
    except AerieError as error:
        return str(error)
    return f"it has {count:,} prompts, {source}, for {wanted:,} of synthesis" if wanted > count else ""


@cache
def _prompts(path: str, held_out: int) -> tuple[int, str]:
    """(How many to train on, where they come from) of a file. The step may leave out some more, as too long."""
    file = own_prompts.read(Path(path))
    parts = apart.split(file.rows, held_out)
    near = parts.beside + parts.same + parts.sharing
    left_out = f"{file.asked - len(file.rows):,} repeated, {near:,} too near to held-out ones"
    asked = f"{file.asked:,} answers to give in " if file.asked > file.lines else ""
    return len(parts.train), f"of {asked}{file.lines:,} lines of {path}, {held_out:,} held out, {left_out}"


def _environments_obstacle(profile: Profile) -> str:
    """The ones of the tiny profile serve and train on CPUs alone."""
    chosen, wrong = profile.environments, []
    if against := _against_cpu_engine(chosen, profile.engine):
        wrong.append(against)
    if chosen.requirements("train") == "train" and profile.engine.gpus:
        wrong.append("requirements/train.txt trains on CPUs, and engine.gpus asks for GPUs")
    return f"{'; '.join(wrong)}: set environments" if wrong else ""


def _against_cpu_engine(chosen: Environments, engine: Engine) -> str:
    if chosen.requirements("engine") == "engine" and (engine.name != "vllm" or engine.gpus):
        return f"requirements/engine.txt is vLLM for CPUs, and {engine.name} is to serve"
    return ""


def _second_obstacle(profile: Profile) -> str:
    if profile.second is None:
        return ""
    wrong = _against_cpu_engine(environments(profile.second.environment), profile.second.engine)
    return f"{wrong}: set second.environment" if wrong else ""


def _gpus_obstacle(profile: Profile) -> str:
    """Other hosts that the inventory does not have."""
    from aerie import inventory

    source = Path(profile.hosts.inventory) if profile.hosts.inventory else None
    for table, names in (("synthesis", profile.synthesis.hosts), ("finetune", profile.finetune.hosts)):
        try:
            for name in names:
                inventory.host(name, source)
        except AerieError as error:
            return f"{table}.hosts: {error}"
    return ""


_OBSTACLES: Mapping[str, Callable[[Profile], str]] = {
    "environments": _environments_obstacle,
    "gpus": _gpus_obstacle,
    "target": _target_obstacle,
    "baseline-drafter": lambda profile: no_manifest(profile.baseline.staged),
    "control-second": _second_obstacle,
}
