"""What serves a model now, and the same with other numbers of draft tokens: one probe, nothing changed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from aerie import inventory
from aerie.errors import AerieError, UsageError
from aerie.lock import MOST_DRAFT_TOKENS
from aerie.paths import repository

from . import planning
from .onhost.definition import Service, Slot, other
from .status import Status, look

__all__ = ["Variants", "prepare", "reasons", "tokens_of"]

SCHEMA = "aerie.bench-sweep-plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """The services that differ from the present one by k, the drafts of a verify step.

    present: k of what serves now, 0 without a drafter; services: by every other k that was asked for, ascending;
    problems: why it cannot be. ground: as it was before any of them is served.
    """

    ground: planning.Ground
    drafter: str
    present: int
    services: Mapping[int, Service]
    problems: tuple[str, ...] = ()
    inventory_file: Path | None = None

    @property
    def now(self) -> Status:
        """What serves, as it was before."""
        return self.ground.now

    @property
    def home(self) -> Slot:
        """The slot that serves, and is to serve again. It is never filled anew, so `serve --rollback` leads to it."""
        assert self.now.live is not None, "prepare takes what serves"
        return self.now.live

    @property
    def away(self) -> Slot:
        """The slot that serves all the others, one after the other."""
        return other(self.home)

    @property
    def current(self) -> Service:
        """What serves."""
        return self.now.services[self.home]

    @property
    def exit_code(self) -> int:
        """2 where it is refused, else 0."""
        return 2 if self.problems else 0

    @property
    def way_back(self) -> str:
        """The command that leads back to what serves, wherever a sweep broke off."""
        return f"./invoke serve {self._where} --rollback"

    def setting(self, tokens: int) -> str:
        """The command that serves the model with so many draft tokens."""
        drafting = f" --drafter {self.drafter} --draft-tokens {tokens}" if tokens else ""
        return f"./invoke serve {self._where} --engine {self.current.engine}{drafting}"

    @property
    def _where(self) -> str:
        named = f" --inventory {self.inventory_file}" if self.inventory_file else ""
        return f"--host {self.now.host} --model {self.now.model}{named}"

    def to_dict(self) -> dict[str, Any]:
        """The document of `bench.sweep --plan --json`."""
        return {
            "schema": SCHEMA,
            "host": self.now.host,
            "model": self.now.model,
            "drafter": self.drafter,
            "present": self.present,
            "slot": self.away,
            "services": {f"k{tokens}": one.to_dict() for tokens, one in self.services.items()},
            "way_back": self.way_back,
            "problems": list(self.problems),
        }


def tokens_of(text: str) -> tuple[int, ...]:
    """`0,1,3` as numbers of draft tokens, ascending. Raises UsageError for what the lock could not hold either."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [-1]
    if not 0 <= found[0] <= found[-1] <= MOST_DRAFT_TOKENS:
        raise UsageError(
            "--draft-tokens",
            seen=text,
            expected=f"numbers from 0 to {MOST_DRAFT_TOKENS}, as 0,1,2,3",
            remedy="0 is without a drafter.",
        )
    return tuple(found)


def prepare(
    host: str, model: str, tokens: Sequence[int], *, drafter: str = "", inventory_file: Path | None = None
) -> Variants:
    """What a sweep over these numbers of draft tokens would serve. drafter: named where what serves has none.

    Raises AerieError where nothing serves the model or a change is at work, UsageError for what cannot be meant, and as
    planning.read does. What the engine or the host cannot serve is a problem of the result.
    """
    named = inventory.host(host, inventory_file or repository() / "inventory" / "hosts.yml")
    current = _serving(look(named, model))
    drafter = _drafter(host, current, drafter, tokens)
    ground = planning.read(host, model, drafter, inventory_file)
    _serving(ground.now)
    others = [one for one in tokens if one != current.draft_tokens]
    if not others:
        raise UsageError(
            "--draft-tokens",
            seen=", ".join(map(str, tokens)),
            expected="another number than what serves now has, which is measured anyway",
            remedy="Give several, as 0,1,2,3,5.",
        )
    present = current.draft_tokens
    found = {one: planning.wanted_of(ground, current.engine, draft_tokens=one) for one in (present, *others)}
    same = found[present][0]
    problems = [*_unlike(current, same), *reasons({one: against for one, (_, against) in found.items()})]
    return Variants(
        ground=ground,
        drafter=drafter,
        present=present,
        services={one: service for one in others if (service := found[one][0])},
        problems=tuple(problems),
        inventory_file=inventory_file,
    )


def reasons(against: Mapping[int, Iterable[str]]) -> tuple[str, ...]:
    """Each reason once, with every k that it speaks against."""
    told: dict[str, list[str]] = {}
    for tokens, words in against.items():
        for reason in words:
            told.setdefault(reason, []).append(f"k{tokens}")
    return tuple(f"{', '.join(names)}: {reason}" for reason, names in told.items())


def _serving(now: Status) -> Service:
    if now.job == "running" or now.live is None or not now.is_serving:
        raise AerieError(
            f"host {now.host}: {now.model}",
            seen="a change at work" if now.job == "running" else "not served",
            expected="a slot that serves it, and no change at work",
            remedy=f"./invoke serve --host {now.host} --model {now.model} --engine ENGINE, and wait for its end.",
        )
    return now.services[now.live]


def _drafter(host: str, current: Service, named: str, tokens: Sequence[int]) -> str:
    """The drafter of the sweep, "" where nothing is to draft."""
    if named and current.drafter and named != current.drafter:
        raise UsageError(
            "--drafter",
            seen=f"{named}, while {current.drafter} drafts on {host}",
            expected="the drafter that serves, or one where none does",
            remedy=f"Serve {named} first: more than the number of draft tokens would change.",
        )
    if any(tokens) and not (named or current.drafter):
        raise UsageError(
            "--drafter",
            seen="none, and what serves has none",
            expected="name of a model of the lock: its EAGLE-3 drafter",
            remedy="Give --drafter.",
        )
    return current.drafter or named


def _unlike(current: Service, same: Service | None) -> tuple[str, ...]:
    """Why arms would differ in more than k: what serves is not what the lock makes of it now."""
    if same is None or same == current:
        return ()  # where the lock makes none, its reason is told
    names = ", ".join(one.name for one in fields(Service) if getattr(current, one.name) != getattr(same, one.name))
    return (f"what serves differs from what the lock makes of it now, in {names}: ./invoke serve it first",)
