"""Continues a part from a peer in a process of its own: python -I -S piece.py PART HAVE WANTED SIZE TIMEOUT_S URL…

The peer may itself be in the middle of the file: what it has after the first HAVE bytes is taken, at most WANTED. The
second address is asked where the first has nothing: a peer's part becomes its file as soon as it is verified. Nothing
is written before the answer has said that its first byte is the one that follows. Run alone, without the package, and
imports little: it starts several times for a file.
"""

import http.client
import os
import re
import sys
from urllib.parse import urlsplit

__all__ = ["NO_RANGE", "main"]

NO_RANGE = 8  # the exit code where the peer cannot begin in the middle, as aria2's
BUFFER_BYTES = 256 << 10  # filled before it is written: what a kill may cost


def main(part: str, have: str, wanted: str, size: str, timeout_s: str, *urls: str) -> None:
    """Append to the part. Exits with 1 and a reason, "status=404" where it is the answer's; what came stays."""
    first, end = int(have), min(int(have) + int(wanted), int(size))
    answer = _ask(urls, f"bytes={first}-{end - 1}", float(timeout_s))
    length = _length(answer, first, end, int(size))
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with open(part, "ab", buffering=0) as file:
        if file.tell() != first:
            sys.exit(f"the part has {file.tell()} bytes, not {first}")
        while length > 0:
            count = _read(answer, buffer[: min(length, BUFFER_BYTES)])
            written = 0
            while written < count:
                written += os.write(file.fileno(), buffer[written:count])
            length -= count


def _ask(urls: tuple[str, ...], wanted: str, timeout_s: float) -> http.client.HTTPResponse:
    """The first answer other than 404, else the last one."""
    for url in urls:
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=timeout_s)
        try:
            headers = {"Range": wanted, "User-Agent": "aerie", "Accept-Encoding": "identity"}
            connection.request("GET", address.path, headers=headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            sys.exit(f"error: no answer: {error or type(error).__name__}")
        if answer.status != 404:
            break
    return answer


def _length(answer: http.client.HTTPResponse, first: int, end: int, size: int) -> int:
    """How many bytes follow. Exits where they are not those that were asked for."""
    if answer.status == 206:
        said = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if said is None or int(said[1]) != first or not first <= int(said[2]) < end:
            sys.exit(f"error: asked for {first} to {end - 1}, the peer gives {answer.headers.get('Content-Range')}")
        return int(said[2]) + 1 - first
    if answer.status != 200:
        sys.exit(f"status={answer.status}")
    if first > 0:
        sys.exit(NO_RANGE)
    if answer.length is None:
        sys.exit("error: the peer does not say how much it gives")
    if answer.length > size:
        sys.exit(f"error: the file has {size} bytes, the peer gives {answer.length}")
    return answer.length  # all of it, for a peer that knows no ranges would begin anew with the next piece


def _read(answer: http.client.HTTPResponse, into: memoryview) -> int:
    try:
        count = answer.readinto(into)
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"error: cut: {error or type(error).__name__}")
    if count == 0:
        sys.exit("error: cut: the peer closed the connection")
    return count


if __name__ == "__main__":
    main(*sys.argv[1:])
