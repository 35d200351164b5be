"""Ctrl-C and SIGTERM as something to look at between two waits, so that a run can end its job and say so."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "Interrupts", "Raised", "catch", "raised"]


class Interrupted(KeyboardInterrupt):
    """The work was ended in order by Ctrl-C or SIGTERM. exit_code: as a shell names that end, 130 or 143."""

    def __init__(self, said: str, exit_code: int) -> None:
        super().__init__(said)
        self.exit_code = exit_code


class Interrupts:
    """How often a stop was asked for, and by which signal first. The third one is a KeyboardInterrupt."""

    def __init__(self) -> None:
        self.count = 0
        self.first = 0

    def heard(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        self.first = self.first or number
        self.count += 1
        if self.count > 2:
            raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        """As a shell names an end by this signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.first


@contextmanager
def catch() -> Iterator[Interrupts]:
    """Count SIGINT and SIGTERM while the block runs. Outside the main thread, where Python gets none, count nothing."""
    interrupts = Interrupts()
    with _handled_by(interrupts.heard):
        yield interrupts


class Raised:
    """Raises Interrupted at a signal, but for the one after the first, or after `pass_one`.

    Who presses Ctrl-C twice is not to break off what the first one began; the next one does.
    """

    def __init__(self) -> None:
        self._count = 0

    def heard(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        self._count += 1
        if self._count != 2:
            raise Interrupted("interrupted", 128 + number)

    def pass_one(self) -> None:
        """The next signal is passed over, whatever came before."""
        self._count = 1


@contextmanager
def raised() -> Iterator[Raised]:
    """Make SIGINT and SIGTERM an Interrupted while the block runs. Outside the main thread nothing is changed."""
    signals = Raised()
    with _handled_by(signals.heard):
        yield signals


@contextmanager
def _handled_by(heard: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
