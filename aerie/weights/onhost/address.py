"""Asks a source for a file, right before its transfer: where its bytes are now, how many, or why it gives none.

Redirects are followed here, with the token, as long as they stay on the source's own host. The address that is left is
fresh, so a signed one has not expired; the token goes along only when that address is on the source's host.
"""

import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

from aerie.weights.manifest import File

__all__ = ["Address", "Refused", "ask", "file_url", "read_token", "retry_after_s"]

TIMEOUT_S: Final = 30.0
REDIRECTS: Final = 10
WAIT_LIMIT_S: Final = 3600.0  # a source that asks for a longer pause is asked again after this one
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_NO_HEAD: Final = (405, 501)
_RATE_LIMIT: Final = re.compile(r"\bt=(\d+)")  # RateLimit: "resolvers";r=0;t=211


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a file's bytes are. token: to be sent there, "" for none; size: as the source says, None where it does not.

    answers_head: a HEAD request at this very url was answered, so a downloader may ask that way.
    """

    url: str
    token: str = ""
    size: int | None = None
    answers_head: bool = False


class Refused(Exception):
    """The source gives no bytes. status: of HTTP, 0 without an answer; wait_s: how long it asks to be left alone."""

    def __init__(self, reason: str, *, status: int = 0, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.status, self.wait_s = reason, status, wait_s


class _Stay(urllib.request.HTTPRedirectHandler):
    """Redirects come back as answers."""

    def redirect_request(self, *_: object) -> None:
        return None


def file_url(base: str, path: str) -> str:
    """The address of a file of the manifest below a source's."""
    return base + quote(path)


def read_token(token_file: str) -> str:
    """The token in a file, "" without a file. Raises OSError."""
    return Path(token_file).read_text(encoding="ascii").strip() if token_file else ""


def ask(url: str, token: str, file: File | None = None, *, timeout_s: float = TIMEOUT_S) -> Address:
    """Where the bytes of `url` are. Raises Refused, also when what is there cannot be `file`. Touches no file."""
    method = "HEAD"
    for _ in range(REDIRECTS):
        status, headers = _request(method, url, token, timeout_s)
        if status in _NO_HEAD and method == "HEAD":
            method = "GET"
            continue
        _compare(url, headers, file, is_whole=status == 200)
        if status in _REDIRECTS and "location" in headers:
            location = urljoin(
                url, quote(headers["location"].encode("latin-1", "replace"), safe="%/:=&?~#+!$,;'@()*[]")
            )
            if _host(location) != _host(url):
                return Address(url=location, size=_size(headers, is_whole=False))
            url = location
        elif status in (200, 206):
            is_head = method == "HEAD"
            return Address(url=url, token=token, size=_size(headers, is_whole=status == 200), answers_head=is_head)
        else:
            raise Refused(f"HTTP {status}", status=status, wait_s=retry_after_s(headers, status))
    raise Refused(f"more than {REDIRECTS} redirects")


def retry_after_s(headers: Mapping[str, str], status: int) -> float | None:
    """How long the answer asks to wait, from Retry-After or RateLimit; None where it does not."""
    if status not in (429, 503):
        return None
    text = headers.get("retry-after", "")
    seconds: float | None = None
    if text.isdigit():
        seconds = float(text)
    elif text:
        try:
            # The one place that needs the time of day: the server's date, from its own Date where it gives one.
            now = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else time()
            seconds = parsedate_to_datetime(text).timestamp() - now
        except (ValueError, TypeError):
            seconds = None
    elif match := _RATE_LIMIT.search(headers.get("ratelimit", "")):
        seconds = float(match[1])
    return None if seconds is None else min(max(seconds, 0.0), WAIT_LIMIT_S)


def _request(method: str, url: str, token: str, timeout_s: float) -> tuple[int, Mapping[str, str]]:
    headers = {"User-Agent": "aerie", "Accept-Encoding": "identity"}
    if method == "GET":
        headers["Range"] = "bytes=0-0"
    request = urllib.request.Request(url, headers=headers, method=method)
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=timeout_s) as answer:
            return answer.status, _lower(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _lower(error.headers)
    except ssl.SSLError as error:
        raise Refused(f"TLS: {error}") from None
    except urllib.error.URLError as error:
        raise Refused(f"no answer: {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Refused(f"no answer: {error or type(error).__name__}") from None


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _compare(url: str, headers: Mapping[str, str], file: File | None, *, is_whole: bool) -> None:
    """Refuse before the first byte what the source itself says is another file."""
    if file is None:
        return
    size = _size(headers, is_whole=is_whole)
    if size is not None and size != file.size:
        raise Refused(f"another file lies there: {size} bytes, the manifest says {file.size}", status=409)
    linked = headers.get("x-linked-etag", "").removeprefix("W/").strip('"')
    if file.sha256 is not None and re.fullmatch(r"[0-9a-f]{64}", linked) and linked != file.sha256:
        raise Refused(f"another file lies there: sha256 {linked}, the manifest says {file.sha256}", status=409)


def _size(headers: Mapping[str, str], *, is_whole: bool) -> int | None:
    text = headers.get("x-linked-size", headers.get("content-length", "") if is_whole else "")
    return int(text) if text.isdigit() and "content-encoding" not in headers else None


def _host(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
