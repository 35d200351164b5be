"""Where aerie keeps what it makes: state (journal, runs) and cache (environments)."""

import os
from pathlib import Path

__all__ = ["cache_dir", "repository", "shown", "state_dir"]


def repository() -> Path:
    """The checkout that this package lies in."""
    return Path(__file__).resolve().parent.parent


def shown(path: Path) -> str:
    """The path as messages have it: from the checkout where it lies in it, else whole."""
    return str(path.relative_to(repository()) if path.is_relative_to(repository()) else path)


def state_dir() -> Path:
    """$XDG_STATE_HOME/aerie, else ~/.local/state/aerie; not created here."""
    return _base("XDG_STATE_HOME", ".local/state")


def cache_dir() -> Path:
    """$XDG_CACHE_HOME/aerie, else ~/.cache/aerie; not created here."""
    return _base("XDG_CACHE_HOME", ".cache")


def _base(variable: str, default: str) -> Path:
    # The XDG standard says that a relative path is to be ignored.
    value = Path(os.environ.get(variable, ""))
    return (value if value.is_absolute() else Path.home() / default) / "aerie"
