"""Requests to web servers by the standard library: what an answer means, and when it is worth asking again."""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from aerie.errors import AerieError

__all__ = ["Absent", "opened", "text"]

TIMEOUT_S = 60
TRIES = 4
PASSES = (408, 425, 429, 500, 502, 503, 504)  # of a moment, not of the request
LONGEST_WAIT_S = 60
TEXT_LIMIT = 64 << 20

_REMEDIES = {
    401: "The manifest is read without a token: make it where the files can be read, or from a folder that has them.",
    403: "The manifest is read without a token: make it where the files can be read, or from a folder that has them.",
    404: "Correct the location in the lock's [weights.models].",
}


class Absent(AerieError):
    """The server has nothing there, or nothing for us: stores say 403 where they have no such key."""


@contextmanager
def opened(url: str, method: str = "GET") -> Iterator[Any]:
    """The open answer of a request, asked for a few times where its failure may pass.

    Raises Absent for 403 and 404, and AerieError for whatever else is no success or ends in the middle.
    """
    try:
        answer = _asked(url, method)
    except urllib.error.HTTPError as error:
        error.close()
        remedy = _REMEDIES.get(error.code, "Try again; if it stays so, ask who runs the server.")
        seen = f"{error.code} {error.reason}"
        kind = Absent if error.code in (403, 404) else AerieError
        raise kind(f"{method} {url}", seen=seen, expected="the file", remedy=remedy) from error
    except (OSError, http.client.HTTPException) as error:
        raise _no_answer(url, method, error) from error
    with answer:
        try:
            yield answer
        except (OSError, http.client.HTTPException) as error:  # cut off in the middle of the answer
            raise _no_answer(url, method, error) from error


def text(url: str) -> tuple[str, str]:
    """The text of an answer and its Content-Type. Raises AerieError for one that is none, or longer than 64 MiB."""
    with opened(url) as answer:
        raw: bytes = answer.read(TEXT_LIMIT + 1)
        kind = str(answer.headers.get_content_type())
    if len(raw) > TEXT_LIMIT:
        remedy = "The location is a file, not an index: correct it in the lock's [weights.models]."
        raise AerieError(url, seen=f"more than {TEXT_LIMIT} bytes", expected="an index", remedy=remedy)
    try:
        return raw.decode(), kind
    except UnicodeDecodeError as error:
        remedy = "The location is a file, not an index: correct it in the lock's [weights.models]."
        raise AerieError(url, seen=f"byte {error.start} is not UTF-8", expected="an index", remedy=remedy) from error


def _asked(url: str, method: str) -> BinaryIO:
    request = urllib.request.Request(url, method=method, headers={"User-Agent": "aerie"})
    for attempt in range(1, TRIES + 1):
        try:
            answer: BinaryIO = urllib.request.urlopen(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code not in PASSES or attempt == TRIES:
                raise
            said = error.headers.get("Retry-After", "")
            error.close()
            time.sleep(min(float(said) if said.isdecimal() else 2 ** (attempt - 1), LONGEST_WAIT_S))
        else:
            return answer
    raise AssertionError("the last try returns or raises")


def _no_answer(url: str, method: str, error: Exception) -> AerieError:
    seen = str(getattr(error, "reason", error)) or type(error).__name__
    remedy = "See whether this machine reaches the server: curl -I with the same address."
    return AerieError(f"{method} {url}", seen=seen, expected="a whole answer", remedy=remedy)
