"""A run of the fixed prompts, and how it compares with the last good run of the same service. Pure but for its file.

Drafters and engine versions differ by less than prompts do: each prompt is paired with itself, and what the prompts
leave open is no fall.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aerie.engines.acceptance import Acceptance
from aerie.engines.intervals import FEW, LEVEL, Ratio, tau_ratio
from aerie.runbook.step import write_atomic

from .definition import STATE, Service

__all__ = ["Run", "Verdict", "good_runs", "identity_of", "judge", "keep"]

SCHEMA: Final = "aerie.acceptance/1"
KEPT: Final = 8  # runs of different identities; a rollback is held against its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one slot accepted. at: UTC, ISO 8601; identity: as identity_of; prompts: by the hash of their text."""

    at: str
    identity: Mapping[str, str | int]
    prompts: Mapping[str, Acceptance]

    @property
    def total(self) -> Acceptance:
        """The sums over its prompts, of which there is at least one."""
        first, *rest = self.prompts.values()
        return sum(rest, start=first)

    def to_dict(self) -> dict[str, Any]:
        """As the file has it."""
        prompts = {prompt: one.to_dict() for prompt, one in self.prompts.items()}
        return {"at": self.at, "identity": dict(self.identity), "prompts": prompts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A run against another one. reference: None for the first; ratio: None where they have no prompt in common.

    before, after: the sums over the `pairs` prompts that both have, at the smaller k of the two; changed: in words.
    """

    run: Run
    reference: Run | None = None
    ratio: Ratio | None = None
    before: Acceptance | None = None
    after: Acceptance | None = None
    pairs: int = 0
    changed: tuple[str, ...] = ()

    @property
    def fell(self) -> bool:
        """Do the prompts prove that less is accepted than before?"""
        return self.ratio is not None and self.pairs >= FEW and self.ratio.high < 1

    @property
    def words(self) -> str:
        """In one line: τ before and after with the interval, by position, and what changed between the runs."""
        changed = f"; changed: {', '.join(self.changed)}" if self.changed else ""
        if self.ratio is None or self.before is None or self.after is None:
            why = "no run to compare with" if self.reference is None else "no prompt in common with the run before"
            return f"τ {self.run.total.tau:.3f} over {len(self.run.prompts)} prompts, {why}{changed}"
        few = f", fewer than the {FEW} that can prove a fall" if self.pairs < FEW else ""
        return (
            f"τ {self.before.tau:.3f} → {self.after.tau:.3f}, ratio {self.ratio.value:.3f}, {self.ratio.low:.3f} to "
            f"{self.ratio.high:.3f} ({LEVEL:.0%} of resamples of {self.pairs} prompts{few}); accepted by position "
            f"{_shares(self.before)} → {_shares(self.after)}{changed}"
        )

    def to_dict(self) -> dict[str, Any]:
        """As the receipt of a change has it."""
        return {
            "tau": round(self.run.total.tau, 4),
            "by_position": [round(share, 4) for share in self.run.total.by_position],
            "prompts": len(self.run.prompts),
            "reference": self.reference.at if self.reference else None,
            "tau_before": round(self.before.tau, 4) if self.before else None,
            "ratio": self.ratio.to_dict() if self.ratio else None,
            "changed": list(self.changed),
            "fell": self.fell,
            "words": self.words,
        }


def identity_of(service: Service, prompts_sha256: str) -> dict[str, str | int]:
    """What two runs must share to be of the same thing. service: one with a drafter."""
    target, drafter = service.weights
    return {
        "model": target.manifest_sha256[:12],
        "drafter": f"{drafter.model} {drafter.manifest_sha256[:12]}",
        "engine": service.engine,
        "version": service.version,
        "k": service.draft_tokens,
        "prompts": prompts_sha256[:12],
    }


def judge(run: Run, good: Sequence[Run]) -> Verdict:
    """Against the last good run of the same identity, else against the last one, and what differs is said.

    good: earlier runs of the service, newest first.
    """
    same = next((one for one in good if one.identity == run.identity), None)
    reference = same or next(iter(good), None)
    if reference is None:
        return Verdict(run=run)
    names = dict.fromkeys((*reference.identity, *run.identity))
    changed = tuple(
        f"{name} {reference.identity.get(name)} → {run.identity.get(name)}"
        for name in names
        if reference.identity.get(name) != run.identity.get(name)
    )
    # τ is at most k + 1: of another k only the positions that both drafted say something.
    drafts = min(int(reference.identity["k"]), int(run.identity["k"]))
    shared = [prompt for prompt in run.prompts if prompt in reference.prompts]
    pairs = [(reference.prompts[prompt].up_to(drafts), run.prompts[prompt].up_to(drafts)) for prompt in shared]
    if not pairs:
        return Verdict(run=run, reference=reference, changed=changed)
    (before, after), *rest = pairs
    for earlier, later in rest:
        before, after = before + earlier, after + later
    return Verdict(
        run=run,
        reference=reference,
        ratio=tau_ratio(pairs),
        before=before,
        after=after,
        pairs=len(pairs),
        changed=changed,
    )


def good_runs(model: str) -> tuple[Run, ...]:
    """The runs after which the model was served, newest first; none before the first."""
    try:
        found = json.loads(_file(model).read_bytes())
    except FileNotFoundError:
        return ()
    return tuple(_run(one) for one in found["good"])


def keep(model: str, run: Run) -> None:
    """Keep it as the last good run, and of every other identity the last one."""
    others = [one for one in good_runs(model) if one.identity != run.identity]
    document = {"schema": SCHEMA, "model": model, "good": [one.to_dict() for one in (run, *others)][:KEPT]}
    _file(model).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_atomic(_file(model), json.dumps(document, indent=1).encode() + b"\n")


def _file(model: str) -> Path:
    return STATE / "acceptance" / f"{model}.json"


def _run(found: Mapping[str, Any]) -> Run:
    prompts = {
        prompt: Acceptance(**{**counts, "accepted_by_position": tuple(counts["accepted_by_position"])})
        for prompt, counts in found["prompts"].items()
    }
    return Run(at=found["at"], identity=found["identity"], prompts=prompts)


def _shares(counts: Acceptance) -> str:
    return " ".join(f"{share:.2f}" for share in counts.by_position)
