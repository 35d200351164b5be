"""Programs that a staging starts: each is killed alone, and none outlives it.

Two things keep a second writer off a partial file after a kill -9 of the staging: the kernel kills the children with
their parent, and until they are gone they hold the target's lock, which they inherited.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["Child", "Ended"]

KEPT_BYTES = 4000  # of what a program said, from its end


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. exit_code: negative for the signal that killed it."""

    exit_code: int
    output: str

    @property
    def words(self) -> str:
        """ "exit code 1", or "killed by SIGBUS"."""
        if self.exit_code >= 0:
            return f"exit code {self.exit_code}"
        return f"killed by {signal.Signals(-self.exit_code).name}"


class Child:
    """A running program."""

    def __init__(self, process: asyncio.subprocess.Process, stdin: bytes) -> None:
        self._process = process
        self._ended = asyncio.create_task(self._communicate(stdin))

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, lock: int, stdin: bytes = b"", folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:  # fmt: skip
        """Start it. lock: the descriptor that it holds as long as it lives. Raises OSError where it cannot start."""
        process = await asyncio.create_subprocess_exec(
            "setpriv", "--pdeathsig", "KILL", "--", *argv,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            pass_fds=(lock,), cwd=folder, env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
        )  # fmt: skip
        return cls(process, stdin)

    @property
    def pid(self) -> int:
        """Of the program itself: setpriv becomes it."""
        return self._process.pid

    async def wait(self, timeout_s: float | None = None) -> Ended | None:
        """How it ended, None while it still runs after timeout_s."""
        done, _ = await asyncio.wait({self._ended}, timeout=timeout_s)
        return self._ended.result() if done else None

    async def kill(self) -> None:
        """End it at once; it is gone when this returns."""
        if self._process.returncode is None:
            try:
                self._process.kill()
            except ProcessLookupError:
                pass  # it ended meanwhile
        # Also when this very task is being cancelled: nobody may write to the part any more once its task is done.
        await asyncio.shield(self._ended)

    async def _communicate(self, stdin: bytes) -> Ended:
        output, _ = await self._process.communicate(stdin)
        code = self._process.returncode
        return Ended(code if code is not None else -1, output[-KEPT_BYTES:].decode(errors="replace").strip())
