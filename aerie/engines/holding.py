"""Servers of which one at a time runs. Idle ones of some engines poll, and take cores from the one that is measured."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

from aerie.engines.server import Server

__all__ = ["one_at_a_time"]


@contextlib.contextmanager
def one_at_a_time(servers: Iterable[Server]) -> Iterator[Callable[[Server], None]]:
    """Gives a function that lets one server run and holds those of `servers` that it is not where they are.

    At the end all run, however it comes: also at an error, and at Ctrl-C. Should this process be killed, their guards
    end them, held or not.
    """
    every = tuple(servers)

    def let_run(server: Server) -> None:
        for one in every:
            if one is not server:
                one.hold()
        server.release()

    try:
        yield let_run
    finally:
        for one in every:
            one.release()
