"""What the tasks share of showing: the result on stdout, the story on stderr, and the words of common options."""

import json as jsonlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["HOSTS", "INVENTORY", "JSON", "JSON_LINES", "console_on", "lines", "optional_path", "show"]

INVENTORY = "path of the inventory; default inventory/hosts.yml"
HOSTS = "hosts of the inventory: a name, a group, gpu[01:08], a,b, all:!x, @failed"
JSON_LINES = "JSON lines on stdout: one an event, the last one the result"
JSON = "one JSON document on stdout"


def console_on(stream: Any) -> "Console":
    """The console on sys.stdout or sys.stderr, as the environment (NO_COLOR, COLUMNS) wants it."""
    from aerie.report.console import open_console

    return open_console(stream, os.environ)


def lines(words: Callable[[Any], str]) -> Callable[[Any], None]:
    """A function that tells on stderr, in a line each, of what ends one after the other."""
    console = console_on(sys.stderr)
    return lambda one: console.print(words(one))


def show(view: "RenderableType", document: Mapping[str, Any], *, json: bool) -> None:
    """Write a result to stdout: the view, or with `json` the document on one line."""
    if json:
        sys.stdout.write(jsonlib.dumps(document, sort_keys=True, ensure_ascii=False) + "\n")
    else:
        console_on(sys.stdout).print(view)


def optional_path(text: str | None) -> Path | None:
    """The path that was given, None for an option left out or empty."""
    return Path(text) if text else None
