"""How bad a finding is, and from where on it makes a program fail."""

from enum import StrEnum

from .errors import UsageError

__all__ = ["Severity", "least"]


class Severity(StrEnum):
    """How bad it is. Only `fatal` makes a host differ from its lock (exit code 3)."""

    FATAL = "fatal"
    WARN = "warn"
    INFO = "info"


def least(word: str) -> Severity:
    """What `--fail-on` means. Raises UsageError for a word that is not fatal or warn."""
    if word not in (Severity.FATAL, Severity.WARN):
        raise UsageError("--fail-on", seen=word, expected="fatal or warn", remedy="An info never fails.")
    return Severity(word)
