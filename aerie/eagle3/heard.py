"""What hosts that work together know of each other: an address, and a sign of life over a folder that all share."""

import socket
import time
from pathlib import Path

__all__ = ["SILENCE_S", "Heard", "own_address"]

SILENCE_S = 120.0  # after which a host counts as gone; a network file system may show a file half a minute late


class Heard:
    """Another host by a file of its own, which says another thing every few seconds, and is gone when it is done."""

    def __init__(self, file: Path) -> None:
        self._file, self._said, self._heard = file, "", time.monotonic()

    def is_alive(self, silence_s: float) -> bool:
        """Did it say something new in so many seconds? False too when it is done."""
        try:
            now = self._file.read_text()
        except FileNotFoundError:
            return False
        # What it says is compared, and no clock of another host.
        if now != self._said:
            self._said, self._heard = now, time.monotonic()
        return time.monotonic() - self._heard <= silence_s


def own_address(address: str) -> str:
    """From which this host sends to the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        own: str = probe.getsockname()[0]
    return own
