"""Many small questions to one host: one connection for all of them, opened again after it broke."""

import shlex
from collections.abc import Sequence
from contextlib import ExitStack

from fabric import Connection

from aerie.inventory import Host

from .connection import CONNECT_TIMEOUT_S, connected
from .exchange import Result
from .running import run_over, run_shell

__all__ = ["Session"]


class Session:
    """A context manager; nothing is connected before the first question, and nothing is left open after it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._stack = ExitStack()
        self._connection: Connection | None = None

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._connection = None

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60, sudo: bool = False) -> Result:
        """As remote.run. After an error the next call connects anew."""
        command = shlex.join(argv)
        if self.host.is_local:
            return run_shell(self.host, command, stdin=stdin, timeout_s=timeout_s, sudo=sudo)
        try:
            if self._connection is None:
                self._connection = self._stack.enter_context(connected(self.host, CONNECT_TIMEOUT_S))
            return run_over(self.host, self._connection, command, stdin=stdin, timeout_s=timeout_s, sudo=sudo)
        except BaseException:
            self.__exit__()
            raise
