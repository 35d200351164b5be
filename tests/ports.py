"""Ports for servers that a test starts: nobody else is given them meanwhile."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["reserved"]


@contextmanager
def reserved(count: int = 1) -> Iterator[int]:
    """The first of so many consecutive ports of 127.0.0.1, ours while the block lasts.

    They are bound and do not listen: the kernel gives them to nobody, neither to who asks for any port nor to
    connections that go out, and a server that sets SO_REUSEADDR, as those of Python do, may bind and serve them.
    """
    for _ in range(100):
        with ExitStack() as held:
            first = _bound(held, 0)
            try:
                for port in range(first + 1, first + count):
                    _bound(held, port)
            except (OSError, OverflowError):
                continue  # the next one is somebody's
            yield first
            return
    raise AssertionError(f"no {count} consecutive free ports in 100 tries")


def _bound(held: ExitStack, port: int) -> int:
    one = held.enter_context(socket.socket())
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    return int(one.getsockname()[1])
