"""A fresh process of an environment that has one GPU, and what it saw before it ended, however it ended."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from aerie.gpus.onhost.ending import end

__all__ = ["Seen", "ask"]

STDERR_LINES: Final = 20
STDERR_BYTES: Final = 1 << 16
# -I keeps the user's packages and the folder it starts in out; the code is then put where it is found.
RUN = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from aerie.extensions.onhost.launch import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """lines: what it told. failure: how it ended in words, "" where it ended well; stderr: its last lines then."""

    lines: tuple[dict[str, Any], ...]
    failure: str = ""
    stderr: tuple[str, ...] = ()

    def last(self, key: str) -> Any:
        """The newest value of this key; None where it was not told."""
        return next((line[key] for line in reversed(self.lines) if key in line), None)


def ask(python: str, gpu: str, arguments: Sequence[str], timeout_s: float) -> Seen:
    """Run launch.main with a file to tell into and these arguments; ended with its whole group after timeout_s.

    gpu: the uuid of the only one that it sees.
    """
    code = str(Path(__file__).resolve().parents[3])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_LAUNCH_BLOCKING": "1"}  # an error is its own kernel's
    with tempfile.TemporaryDirectory(prefix="aerie-proof-") as folder, tempfile.TemporaryFile() as stderr:
        file = os.path.join(folder, "seen")
        process = subprocess.Popen(
            [python, "-I", "-c", RUN, code, file, *arguments],
            cwd=folder, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
        try:
            code_or_none = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code_or_none = None
        is_gone = end(process)
        said = _tail(stderr)
        lines = tuple(_lines(file))
    if code_or_none is None:
        failure = f"no end after {timeout_s:.0f} s{'' if is_gone else ', and it cannot be killed'}"
    else:
        failure = _ended(code_or_none, said)
    return Seen(lines=lines, failure=failure, stderr=said if failure else ())


def _lines(file: str) -> list[dict[str, Any]]:
    try:
        with open(file, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.endswith("\n")]  # one that a kill cut is not told
    except FileNotFoundError:
        return []


def _tail(stderr: IO[bytes]) -> tuple[str, ...]:
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - STDERR_BYTES))
    return tuple(stderr.read().decode(errors="replace").strip().splitlines()[-STDERR_LINES:])


def _ended(code: int, said: Sequence[str]) -> str:
    """Python's last line is the exception's where it raised one."""
    if code < 0:
        return f"ended by signal {-code} ({signal.strsignal(-code)})"
    if code == 0:
        return ""
    return said[-1] if said else f"exit {code}"
