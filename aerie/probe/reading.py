"""How the probe reads: every reading on its own, and one that fails becomes {"unknown": why}."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable

__all__ = ["Later", "ProgramFailed", "join", "names", "optional", "program", "reading", "text", "unknown"]

PROGRAM_TIMEOUT_S = 10.0
ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class ProgramFailed(Exception):
    """A program was not there, took too long or ended with an exit code that says nothing good."""


class Later:
    """What a function gives that runs in a thread of its own; one that hangs in the kernel does not hold the probe."""

    def __init__(self, read: Callable[..., Any], *arguments: Any) -> None:
        self._result: list[Any] = []
        self._error: Exception | None = None
        self._what = getattr(read, "__name__", "it").strip("_")
        self._thread = threading.Thread(target=self._run, args=(read, arguments), daemon=True)
        self._began = time.monotonic()
        self._thread.start()

    def _run(self, read: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self._result.append(read(*arguments))
        except Exception as error:
            self._error = error

    def get(self, timeout_s: float = PROGRAM_TIMEOUT_S + 5) -> Any:  # a program's own limit comes first
        """The result, or the error that it raised. Raises TimeoutError when it is not there in time, from its start on.

        So several that hang are given up together.
        """
        self._thread.join(max(0.0, self._began + timeout_s - time.monotonic()))
        if self._error is not None:
            raise self._error
        if not self._result:
            raise TimeoutError(f"{self._what}: no answer within {timeout_s:g} s")
        return self._result[0]


def unknown(reason: object) -> dict[str, str]:
    """The value of what could not be read."""
    return {"unknown": " ".join(str(reason).split()) or "no reason given"}


def reading(read: Callable[..., Any], *arguments: Any) -> Any:
    """What `read` gives, or why it could not be read."""
    try:
        return read(*arguments)
    except PermissionError as error:
        return unknown(
            f"{error.filename or read.__name__.strip('_')}: {'not permitted' if is_root() else 'needs root'}"
        )
    except FileNotFoundError as error:
        return unknown(f"{error.filename}: no such file")
    except (ProgramFailed, TimeoutError) as error:
        return unknown(error)
    except Exception as error:
        return unknown(f"{read.__name__.strip('_')}: {type(error).__name__}: {error}")


def is_root() -> bool:
    """Does the probe run as root?"""
    return os.geteuid() == 0


def join(root: str, path: str) -> str:
    """`path`, an absolute one, below the folder `root`: "/" on a host, recorded files in tests."""
    return os.path.join(root, path.lstrip("/"))


def text(path: str) -> str:
    """What the file holds, whatever bytes those are."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def optional(path: str) -> str | None:
    """What the file holds without blanks around it; None where there is no such file."""
    try:
        return text(path).strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def names(folder: str) -> list[str]:
    """The names in the folder, sorted; none where there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def program(*argv: str, good: Sequence[int] = (0,)) -> Later:
    """What the program prints, which runs beside the probe. Its get() raises ProgramFailed, with its last line."""
    return Later(_run, argv, good)


def _run(argv: tuple[str, ...], good: Sequence[int]) -> str:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROGRAM_TIMEOUT_S,
            env=ENVIRONMENT,
            check=False,
        )
    except FileNotFoundError as error:
        raise ProgramFailed(f"{argv[0]}: not installed") from error
    except subprocess.TimeoutExpired as error:
        raise ProgramFailed(f"{argv[0]}: no answer within {PROGRAM_TIMEOUT_S:g} s") from error
    if done.returncode not in good:
        last = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-1:]
        raise ProgramFailed(f"{argv[0]}: exit {done.returncode} {' '.join(last)}")
    return done.stdout.decode(errors="replace")
