"""Ports for servers that a test starts: nobody else is given them meanwhile.

They are bound and do not listen: the kernel gives them to nobody, neither to who asks for any port nor to connections
that go out, and a server that sets SO_REUSEADDR, as those of Python do, may bind and serve them.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["kept", "reserved"]


@contextmanager
def reserved(count: int = 1) -> Iterator[int]:
    """The first of so many consecutive ports of 127.0.0.1, ours while the block lasts."""
    for _ in range(100):
        with ExitStack() as held:
            first = _bound(held, ("127.0.0.1", 0))
            try:
                for port in range(first + 1, first + count):
                    _bound(held, ("127.0.0.1", port))
            except (OSError, OverflowError):
                continue  # the next one is somebody's
            yield first
            return
    raise AssertionError(f"no {count} consecutive free ports in 100 tries")


@contextmanager
def kept(*places: tuple[str, int]) -> Iterator[None]:
    """For a server that was ended and is to come back at these addresses within the block."""
    with ExitStack() as held:
        for place in places:
            _bound(held, place)
        yield


def _bound(held: ExitStack, place: tuple[str, int]) -> int:
    one = held.enter_context(socket.socket())
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(place)
    return int(one.getsockname()[1])
