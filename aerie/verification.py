"""What verifying hosts gave: each requirement of each host with its outcome. Pure values."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from .findings import Fix, Severity

__all__ = ["SCHEMA", "HostState", "HostVerification", "Outcome", "Requirement", "Shortfall", "Verification"]

SCHEMA = "aerie.verify/1"
WORDS = ("seen", "expected", "remedy")


class Outcome(StrEnum):
    """How a requirement's test ended. Only `passed` says that the host meets it."""

    PASSED = "passed"
    FAILED = "failed"
    WAIVED = "waived"  # failed, and the inventory says why that may be so for now
    SKIPPED = "skipped"  # says nothing of the host: reason tells why it was not asked
    ERROR = "error"  # the question itself went wrong


class HostState(StrEnum):
    """What is known of a host after its verification."""

    VERIFIED = "verified"  # no fatal requirement failed
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    ERROR = "error"  # reached, but not everything could be asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """How a host misses a requirement, and what to do."""

    seen: str
    expected: str
    remedy: str
    fix: Fix


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One test of tests/hosts on one host.

    name: the requirement in words; test: as pytest addresses it. severity: of the finding, by lock and catalogue.
    shortfall: of one that failed or is waived. reason: why it was skipped or is waived, or what went wrong.
    """

    name: str
    test: str
    layer: str
    finding: str
    severity: Severity
    outcome: Outcome
    shortfall: Shortfall | None = None
    reason: str = ""
    wall_s: float = 0.0

    @property
    def is_fatal(self) -> bool:
        """Does the host differ from its lock by this?"""
        return self.outcome is Outcome.FAILED and self.severity is Severity.FATAL

    def properties(self) -> list[tuple[str, str]]:
        """What JUnit files carry beside the outcome."""
        short = asdict(self.shortfall) if self.shortfall else {}
        return [
            ("finding", self.finding),
            ("severity", str(self.severity)),
            *((k, str(short[k])) for k in WORDS if short),
        ]

    def to_dict(self) -> dict[str, Any]:
        """As `verify --json` has it: the shortfall's fields stand beside the others, empty where there is none."""
        document = asdict(self)
        short = document.pop("shortfall") or {"seen": "", "expected": "", "remedy": "", "fix": ""}
        return {**document, **short}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Requirement":
        """What to_dict gave."""
        fields = dict(document)
        seen, expected, remedy, fix = (fields.pop(key) for key in ("seen", "expected", "remedy", "fix"))
        short = Shortfall(seen=seen, expected=expected, remedy=remedy, fix=Fix(fix)) if fix else None
        fields |= {"severity": Severity(document["severity"]), "outcome": Outcome(document["outcome"])}
        return cls(**fields, shortfall=short)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostVerification:
    """One host. error: why not everything could be asked, one line; is_reached: there is a snapshot of it."""

    host: str
    lock: str
    requirements: tuple[Requirement, ...] = ()
    error: str = ""
    is_reached: bool = True
    wall_s: float = 0.0

    @property
    def state(self) -> HostState:
        """Unreachable and error win over failed: what was not asked may be worse."""
        if not self.is_reached:
            return HostState.UNREACHABLE
        if self.error or any(one.outcome is Outcome.ERROR for one in self.requirements):
            return HostState.ERROR
        return HostState.FAILED if any(one.is_fatal for one in self.requirements) else HostState.VERIFIED

    def counts(self, layer: str | None = None) -> Counter[Outcome]:
        """How many requirements ended how, of one layer or of all."""
        return Counter(one.outcome for one in self.requirements if layer in (None, one.layer))

    def with_outcome(self, *outcomes: Outcome) -> tuple[Requirement, ...]:
        """The requirements that ended so, in the order of the layers."""
        return tuple(one for one in self.requirements if one.outcome in outcomes)

    def to_dict(self) -> dict[str, Any]:
        """As `verify --json` has it."""
        return {
            "host": self.host,
            "lock": self.lock,
            "state": str(self.state),
            "counts": {str(outcome): self.counts()[outcome] for outcome in Outcome},
            "requirements": [one.to_dict() for one in self.requirements],
            "error": self.error,
            "wall_s": round(self.wall_s, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Every host asked for, in the inventory's order."""

    hosts: tuple[HostVerification, ...]
    wall_s: float = 0.0

    def exit_code(self, fail_on: Severity = Severity.FATAL) -> int:
        """1 when a host could not be asked everything, 3 when something of that severity or worse failed, else 0."""
        if any(host.state in (HostState.UNREACHABLE, HostState.ERROR) for host in self.hosts):
            return 1
        worse = (Severity.FATAL,) if fail_on is Severity.FATAL else (Severity.FATAL, Severity.WARN)
        failed = (one for host in self.hosts for one in host.with_outcome(Outcome.FAILED))
        return 3 if any(one.severity in worse for one in failed) else 0

    @property
    def failed_hosts(self) -> tuple[str, ...]:
        """Names of the hosts that are not verified: what `--host @failed` means afterwards."""
        return tuple(host.host for host in self.hosts if host.state is not HostState.VERIFIED)

    def to_dict(self) -> dict[str, Any]:
        """The document of `verify --json`."""
        return {"schema": SCHEMA, "hosts": [host.to_dict() for host in self.hosts], "wall_s": round(self.wall_s, 3)}
