"""From a test that failed to words: what was seen, what was expected, and what the catalogue says to do."""

from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from typing import NamedTuple

from aerie.findings import Finding, Severity, catalogue, diff
from aerie.verification import Shortfall
from aerie.verify import Case

__all__ = ["Compared", "Judgement", "in_words", "name_of", "words_of"]

OPERATORS = {"==": "", "is": "", "in": "one of ", ">=": "at least ", "<=": "at most "}
CAPITALS = {word.lower(): word for word in ("GPU", "GPUs", "NVML", "ECC", "IOMMU", "HMM", "CUDA", "Python")}
SHOWN = 6


class Compared(NamedTuple):
    """A comparison that did not hold."""

    left: object
    operator: str
    right: object


class Judgement:
    """Severity and remedy of a finding on one host. case: None where the host could not be read."""

    def __init__(self, host: str, case: Case | None) -> None:
        self._host, self._case = host, case

    @cached_property
    def _found(self) -> Mapping[str, Finding]:
        """What the plan says of this snapshot: its remedies name packages, commands and GPUs."""
        case = self._case
        return {finding.id: finding for finding in diff(case.lock, case.snapshot, case.host)} if case else {}

    def severity(self, finding: str) -> Severity:
        """The lock's word, else the plan's (an Xid's depends on its code), else the catalogue's."""
        if self._case and finding in self._case.lock.severity:
            return Severity(self._case.lock.severity[finding])
        return self._found[finding].severity if finding in self._found else catalogue.rows()[finding].severity

    def shortfall(self, finding: str, seen: str, expected: str) -> Shortfall:
        """What is told of a test that failed. The remedy is the plan's where it found the same."""
        if finding in self._found:
            remedy, fix = self._found[finding].remedy, self._found[finding].fix
        else:
            row = catalogue.rows()[finding]
            remedy, fix = row.remedies[row.fix].format_map(_Words(host=self._host)), row.fix
        return Shortfall(seen=seen, expected=expected, remedy=remedy, fix=fix)


class _Words(dict[str, str]):
    """Words of a remedy; those that only a plan can name are left to it."""

    def __missing__(self, word: str) -> str:
        return f"(see `./invoke plan --host {self['host']}`)"


def name_of(test: str) -> str:
    """ "every GPU maps all of its memory" of test_every_gpu_maps_all_of_its_memory."""
    return " ".join(CAPITALS.get(word, word) for word in test.removeprefix("test_").split("_"))


def words_of(compared: Compared, requirement: str) -> tuple[str, str]:
    """What was seen and expected; where a test looks for offenders, what is expected is the requirement itself.

    Of two large mappings only what differs is told.
    """
    left, operator, right = compared
    if operator not in OPERATORS or right in ((), [], {}):
        return in_words(left), requirement
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        keys = [key for key in right if len(right) < SHOWN or left.get(key) != right[key]]
        left, right = {key: left.get(key, "absent") for key in keys}, {key: right[key] for key in keys}
        if len({str(value) for value in right.values()}) == 1:
            return in_words(left), in_words(next(iter(right.values())))
    return in_words(left), OPERATORS[operator] + in_words(right)


def in_words(value: object) -> str:
    """A value as an operator reads it: no quotes, no brackets, of many the first few."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return in_words([f"{key}: {in_words(inner)}" for key, inner in value.items()])
    if isinstance(value, Sequence | Set) and not isinstance(value, str):
        words = [in_words(inner) for inner in value]
        more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
        return ", ".join(words[:SHOWN]) + more or "none"
    return str(value)
