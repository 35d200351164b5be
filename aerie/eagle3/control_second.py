"""The control experiment on a second engine, where the profile names one, beside the first engine's plain server."""

from collections.abc import Mapping

from aerie.eagle3 import cards, experiment
from aerie.eagle3 import second as second_engine
from aerie.eagle3.environments import OF_INTEREST, engine_version
from aerie.eagle3.experiment import Side
from aerie.eagle3.profile import Engine, Second
from aerie.eagle3.serving import Installed
from aerie.environments import Environment
from aerie.errors import AerieError, UsageError
from aerie.runbook.interpreters import Choice
from aerie.runbook.step import Context, Json

__all__ = ["doc", "run", "stale"]

doc = """
Only where the profile has `second`: an engine with an environment of its own, to be held against `engine`.

    second:
      engine: {name: vllm, max_model_len: 4160, ...}      # as `engine`
      environment: {requirements: vllm}                   # or python: an interpreter that is there

Its environment is made as those of step `environments`. Where the capability table, or a drafter with keys that this
release does not read, forbids it, nothing is started and the reasons are the result. Else the experiment of step
`control` is made of it: the same target, drafters, prompts, lengths and repetitions, with this engine's own flags. One
more server runs among them: the first engine's without a drafter (`reference`). The machine's speed drifts, so rates of
two engines are compared only as they ran between each other:

    gain of an arm of the second engine = its tokens/s / tokens/s of `reference`, repetition by repetition
    gain of an arm of the first engine  = its tokens/s / tokens/s of its own plain server, in step `control`

(On GPUs that do not hold all servers by their shares each is started alone, `reference` first.)
"""


def run(context: Context) -> Mapping[str, Json]:
    """Make the environment, ask whether it can serve this, and measure; nothing where there is no second engine."""
    if context.values["second"] is None:
        return {"asked": False}
    second = Second.model_validate(context.values["second"])
    made = second_engine.environments(second.environment).ensure(
        "engine", lambda done, total, note: context.progress(done, total, unit="packages", note=note)
    )
    installed = Installed(engine=second.engine, python=made.python, version=_version(second, made))
    told = {"asked": True, "environment": _told(second, made)}
    sides, refused = _sides(context, installed)
    if refused:
        engine = {"name": second.engine.name, "version": installed.version}
        return {**told, "engine": engine, "ran": False, "why": "; ".join(refused)}
    reference = Installed.of(context, Engine(**context.values["engine"]))
    return {**told, "ran": True, **experiment.run(context, installed, sides, reference)}


def stale(evidence: Mapping[str, Json]) -> str | None:
    """Why what was measured no longer says anything of this engine: other packages in its environment."""
    if not evidence["asked"]:
        return None
    seen = evidence["environment"]
    try:
        now = second_engine.environments(Choice.model_validate(seen["choice"])).hash("engine")
    except UsageError as error:
        return str(error)
    return None if now == seen["hash"] else "the packages of the second engine have changed"


def _sides(context: Context, installed: Installed) -> tuple[dict[str, Side], list[str]]:
    """(Its servers, why it cannot serve this: by the cards, the capability table and the drafters, [] for nothing)."""
    engine, sides, found = installed.engine, {}, []
    if engine.gpus:
        wish = second_engine.wish(engine, experiment.model(context), context.values["cost"])
        found += cards.reasons(context.inputs["preflight"].evidence["gpus"], engine, installed.version, wish)
    try:
        sides = experiment.sides_of(context, installed)
    except AerieError as error:
        found.append(str(error))
    return sides, found


def _version(second: Second, made: Environment) -> str:
    version = engine_version(second.engine.name, made.packages)
    if version is None:
        raise AerieError(
            "second.environment",
            seen=f"no {second.engine.name} in {made.path}",
            expected="the engine of `second`",
            remedy="Set second.environment to one that has it.",
        )
    return version


def _told(second: Second, made: Environment) -> dict[str, Json]:
    return {
        "hash": made.hash,
        "packages": {name: made.packages[name] for name in OF_INTEREST if name in made.packages},
        "choice": second.environment.model_dump(),
    }
