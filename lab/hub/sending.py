"""Sends a file over http, ranges included, rightly or as a fault wants it."""

import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from .faults import Fault

__all__ = ["Span", "body_bytes", "send_body", "span"]

PIECE = 64 << 10
STALL_POLL_S = 0.2
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The bytes of a file that an answer has: status 200, 206 or 416; start and stop (not included) in the file."""

    status: int
    start: int
    stop: int
    size: int

    @property
    def headers(self) -> dict[str, str]:
        """Those that say so."""
        if self.status == 416:
            return {"Content-Range": f"bytes */{self.size}", "Content-Length": "0"}
        told = {"Content-Range": f"bytes {self.start}-{self.stop - 1}/{self.size}"} if self.status == 206 else {}
        return {"Content-Length": str(self.stop - self.start), **told}


def span(size: int, wanted: str | None, fault: Fault | None) -> Span:
    """What to answer to the header Range of a request for a file of that size."""
    kind = fault.kind if fault else ""
    if fault and kind == "truncated":
        size = min(size, size // 2 if fault.at is None else fault.at)
    whole = Span(status=200, start=0, stop=size, size=size)
    match = _RANGE.fullmatch(wanted or "")
    if not match or match[0] == "bytes=-" or kind == "no-range":
        return whole
    if not match[1]:
        return Span(status=206, start=max(0, size - int(match[2])), stop=size, size=size)
    start, stop = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    if start >= size or start >= stop:
        return Span(status=416, start=0, stop=0, size=size)
    return Span(status=206, start=start, stop=stop, size=size)


def body_bytes(chosen: Span, fault: Fault | None) -> int:
    """How many bytes `send_body` sends."""
    count = chosen.stop - chosen.start
    if fault and fault.kind in ("stall", "cut"):
        # At least one, so that a client that resumes gets on.
        return min(count, max(1, count // 2) if fault.at is None else fault.at)
    return count


def send_body(
    handler: BaseHTTPRequestHandler,
    file: Path,
    chosen: Span,
    fault: Fault | None,
    is_over: Callable[[Fault], bool] = lambda fault: False,
) -> None:
    """Send those bytes after the headers. Raises OSError when the client goes away.

    is_over: is the fault mended? A connection that stalls is closed then.
    """
    count, kind = body_bytes(chosen, fault), fault.kind if fault else ""
    with open(file, "rb") as content:
        if fault and kind in ("slow", "flipped"):
            for piece in _pieces(content.fileno(), chosen.start, count, fault):
                handler.wfile.write(piece)
        else:
            _copy(handler.connection, content.fileno(), chosen.start, count)
    if fault and kind == "stall":
        _stall(handler.connection, lambda: is_over(fault))
    if kind in ("stall", "cut"):
        handler.close_connection = True


def _stall(connection: socket.socket, is_over: Callable[[], bool]) -> None:
    """Say nothing until the client gives up, which is readable as nothing to read, or the fault is over."""
    while not is_over():
        if select.select([connection], [], [], STALL_POLL_S)[0] and not connection.recv(PIECE):
            return


def _pieces(file: int, start: int, count: int, fault: Fault) -> Iterator[bytes]:
    wrong = os.fstat(file).st_size // 2 if fault.at is None else fault.at
    # A slow answer comes in twenty pieces a second.
    piece = max(1, fault.rate_bytes_s // 20) if fault.kind == "slow" else PIECE
    for at in range(start, start + count, piece):
        data = bytearray(os.pread(file, min(piece, start + count - at), at))
        if fault.kind == "flipped" and at <= wrong < at + len(data):
            data[wrong - at] ^= 1
        yield bytes(data)
        if fault.kind == "slow":
            time.sleep(0.05)


def _copy(connection: socket.socket, file: int, start: int, count: int) -> None:
    sent = 0
    while sent < count:
        done = os.sendfile(connection.fileno(), file, start + sent, count - sent)
        if done == 0:
            raise ConnectionError("the file got shorter")
        sent += done
