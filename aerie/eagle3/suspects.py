"""Two drafters that one engine serves alike and badly: what may be behind it, and the tests that tell, in order.

A control drafter that does as badly clears the fine-tuning and nothing else. What both share is left: the engine's
integration, then what a verify step costs there, then a model that neither was made for. In this order, because a
wrong integration makes every acceptance moot, the cost says whether any acceptance could pay, and a drafter for
another model is tried with what the first two left standing.
"""

from dataclasses import dataclass

from aerie.engines.capability import ARCHS, VerifyPath, Wish, can_serve, table, verify_path
from aerie.runbook.step import Json

__all__ = ["ALIKE", "Setting", "Suspect", "back_solved", "suspects", "tau_of_rate"]

# Public fine-tunes of published drafters moved τ by at most 2 %: a step below this one is no gain worth the name.
ALIKE = 1.05
# What a published drafter reaches on the model that it was made for, by the model's name in the capability table: of
# the cards of lightseekorg/kimi-k2.5-eagle3 and AQ-MedAI/Kimi-K2-Instruct-eagle3 (2.6 to 3.5 at k = 3) the low end.
PUBLISHED_TAU = {"kimi-k2.5": 2.8}
_DRAFTING = frozenset({"eagle3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where both were served. arch: of the capability table, "" unknown; model, made_for: "" unknown.

    model: what is served, as the table names it; made_for: what the baseline drafter was trained on.
    """

    engine: str
    version: str
    arch: str = ""
    model: str = ""
    made_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """cause: "integration", "engine-cost", "drafter-of-another-model". known: what is known of it already.

    worth: S if it is this one and is repaired, None where that cannot be said.
    """

    cause: str
    test: str
    known: str
    worth: float | None

    def to_dict(self) -> dict[str, Json]:
        """As JSON."""
        return {"cause": self.cause, "test": self.test, "known": self.known, "worth": self.worth}


def tau_of_rate(rate: float, tokens: int) -> float:
    """τ of a draft rate where `tokens` are drafted in a chain for each verify step: 1 + k x rate."""
    return 1 + tokens * rate


def back_solved(tau: float, speedup: float) -> float:
    """R out of τ and the measured S: R = τ / S. Circular as a prediction, yet it is what the step did cost."""
    return tau / speedup


def suspects(
    setting: Setting, *, tau: float, speedup: float | None, cost: float | None, unmeasured: tuple[str, ...]
) -> tuple[Suspect, ...]:
    """In the order of test. tau, speedup: of the fine-tuned drafter; cost: R, as measured.

    unmeasured: the checks of the integration that this run did not make, as sentences.
    """
    price = cost or (back_solved(tau, speedup) if speedup else None)
    published = PUBLISHED_TAU.get(setting.model)
    repaired = round(published / price, 2) if published and price else None
    return (
        Suspect(
            cause="integration",
            test="; ".join(unmeasured) or "compare the drafter's first step in the trainer and in the engine",
            known="; ".join(_refused(setting)) or "the capability table has nothing against it",
            worth=repaired,
        ),
        Suspect(
            cause="engine-cost",
            test="force two accept lengths and take R from each: what a step costs, whatever the drafter is worth",
            known=f"{_price(tau, speedup, price)}; verify path: {_path(setting)}",
            worth=None,  # alone it mends nothing that τ does not pay: R would have to fall below τ
        ),
        Suspect(
            cause="drafter-of-another-model",
            test=f"serve a published drafter that was made for {setting.model or 'the served model'} on the same "
            "prompts, without training",
            known=_versions(setting),
            worth=repaired,
        ),
    )


def _wish(setting: Setting) -> Wish:
    return Wish(engine=setting.engine, version=setting.version, arch=setting.arch, model=setting.model, doing=_DRAFTING)


def _is_in_table(setting: Setting) -> bool:
    return setting.engine in table().engines() and setting.arch in ARCHS


def _refused(setting: Setting) -> list[str]:
    if not _is_in_table(setting):
        return []
    verdict, path = can_serve(_wish(setting)), verify_path(_wish(setting))
    where = f"{setting.engine} {setting.version}"
    # How it verifies is the next suspect's.
    return [f"{where} refuses it: {reason}" for reason, _, _ in verdict.reasons] + [
        f"{where}: {reason}" for reason, _, _ in verdict.warnings if reason != path.why
    ]


def _path(setting: Setting) -> VerifyPath | str:
    return verify_path(_wish(setting)) if _is_in_table(setting) else "unknown (which card it was is not known)"


def _price(tau: float, speedup: float | None, price: float | None) -> str:
    if price is None:
        return "R not measured"
    measured = "" if speedup is None else f" at S {speedup:.2f}"
    return f"R {price:.2f}{measured}, and τ {tau:.3f} pays only below R {tau:.2f}"


def _versions(setting: Setting) -> str:
    if not setting.made_for:
        return "which model the baseline drafter was made for is not known"
    same = setting.made_for == setting.model
    return f"made for {setting.made_for}, served on {'the same' if same else setting.model or 'another model'}"
