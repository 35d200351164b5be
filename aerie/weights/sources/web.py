"""The files of a web server's folder: what SHA256SUMS in it says, else the links of its index pages."""

import html.parser
import re
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aerie.errors import AerieError
from aerie.weights.manifest import File

from . import asking
from .content import Say, with_hashes

__all__ = ["SUMS", "files", "sums"]

SUMS = "SHA256SUMS"  # of `sha256sum`, beside the files
DEPTH = 8
AT_ONCE = 8

_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")


def files(location: str, say: Say) -> tuple[File, ...]:
    """Every file below the address.

    With SHA256SUMS its files and hashes are taken; without it the index pages are followed and each file is read
    once, whole. Raises AerieError for an index that is none, and as requests go wrong.
    """
    base = location.rstrip("/") + "/"
    known = sums(base)
    paths = list(known) or sorted(path for path in _listed(base, "", DEPTH) if path != SUMS)
    if not paths:
        remedy = f"Put the files there, with {SUMS}: sha256sum * > {SUMS}"
        raise AerieError(base, seen="an index without files", expected="a model's files", remedy=remedy)
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        sizes = dict(zip(paths, pool.map(partial(_size, base), paths), strict=True))
    return with_hashes(sizes, known, lambda path: asking.opened(_url(base, path)), say)


def sums(base: str) -> dict[str, str]:
    """sha256 by path of the SHA256SUMS below an address; empty where there is none."""
    try:
        text, _ = asking.text(base + SUMS)
    except asking.Absent:
        return {}
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if not match:
            remedy = f"Make it anew: sha256sum * > {SUMS}"
            raise AerieError(f"{base}{SUMS}:{number}", seen=line[:100], expected="sha256sum's lines", remedy=remedy)
        found[match[2].removeprefix("./")] = match[1].lower()
    return found


def _size(base: str, path: str) -> int:
    with asking.opened(_url(base, path), "HEAD") as answer:
        length = answer.headers["Content-Length"]
    if length is None or not length.isdecimal():
        remedy = "Use a server that tells sizes: nginx, for one."
        raise AerieError(f"HEAD {_url(base, path)}", seen=length, expected="a Content-Length", remedy=remedy)
    return int(length)


def _url(base: str, path: str) -> str:
    return base + urllib.parse.quote(path)


def _listed(base: str, folder: str, depth: int) -> Iterator[str]:
    """Paths of the files that index pages link to, those below the address alone."""
    url = _url(base, folder)
    text, kind = asking.text(url)
    if kind != "text/html":
        remedy = f"Let the server list folders, or put {SUMS} beside the files: sha256sum * > {SUMS}"
        raise AerieError(url, seen=kind, expected="an index page in HTML", remedy=remedy)
    for name in _links(text, url):
        if name.endswith("/"):
            if depth == 0:
                remedy = "Point the location at the model's own folder."
                raise AerieError(url, seen=f"folders in more than {DEPTH} levels", expected="fewer", remedy=remedy)
            yield from _listed(base, folder + name, depth - 1)
        else:
            yield folder + name


def _links(text: str, url: str) -> list[str]:
    parser = _Anchors()
    parser.feed(text)
    names = []
    for target in parser.targets:
        whole = urllib.parse.urljoin(url, target)
        # Not above, not elsewhere, and no "?C=N;O=D" that sorts the table.
        name = urllib.parse.unquote(whole.removeprefix(url)) if whole.startswith(url) else ""
        if name and "/" not in name.rstrip("/") and not urllib.parse.urlsplit(target).query and "#" not in target:
            names.append(name)
    return list(dict.fromkeys(names))


class _Anchors(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where an <a href> leads."""
        self.targets += [value for name, value in attrs if tag == "a" and name == "href" and value]
