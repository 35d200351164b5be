"""The files of an S3-style bucket below a prefix, listed in pages (ListObjectsV2), of buckets that anybody may read."""

import urllib.parse
import xml.etree.ElementTree as ElementTree

from aerie.errors import AerieError
from aerie.weights.manifest import File

from . import asking
from .content import Say, with_hashes
from .web import SUMS, sums

__all__ = ["files"]

PAGES = 1000


def files(location: str, say: Say) -> tuple[File, ...]:
    """Every key below https://<server>/<bucket>/<prefix>.

    Hashes are those of SHA256SUMS below the prefix; what it does not name is read once, whole: an ETag is no hash of
    a large object. Raises AerieError for an answer that is no listing, and as requests go wrong.
    """
    base = location.rstrip("/") + "/"
    parts = urllib.parse.urlsplit(base)
    bucket, _, prefix = urllib.parse.unquote(parts.path).lstrip("/").partition("/")
    sizes = _sizes(f"{parts.scheme}://{parts.netloc}/{urllib.parse.quote(bucket)}", prefix)
    if not sizes:
        remedy = "Correct the location in the lock's [weights.models]."
        raise AerieError(base, seen="no key below it", expected="a model's files", remedy=remedy)
    known = sums(base)
    sizes.pop(SUMS, None)
    if missing := sorted(set(known) - set(sizes)):
        remedy = f"Upload what is missing, or make {SUMS} anew."
        raise AerieError(f"{base}{SUMS}", seen=missing[:5], expected="keys that the bucket has", remedy=remedy)
    return with_hashes(sizes, known, lambda path: asking.opened(base + urllib.parse.quote(path)), say)


def _sizes(bucket: str, prefix: str) -> dict[str, int]:
    query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
    sizes: dict[str, int] = {}
    for _ in range(PAGES):
        url = f"{bucket}?{urllib.parse.urlencode(query)}"
        page = _page(url)
        for row in page.iter("Contents"):
            key = urllib.parse.unquote(row.findtext("Key", ""))
            if not key.startswith(prefix):
                raise _no_listing(url, f"the key {key[:100]!r}")
            if path := key.removeprefix(prefix):
                if path.endswith("/"):  # the mark that consoles leave for a folder
                    continue
                sizes[path] = int(row.findtext("Size", "-1"))
        token = page.findtext("NextContinuationToken")
        if page.findtext("IsTruncated") != "true":
            return sizes
        if not token or query.get("continuation-token") == token:
            raise _no_listing(url, "a page without its next one")
        query["continuation-token"] = token
    raise _no_listing(bucket, f"more than {PAGES} pages")


def _page(url: str) -> ElementTree.Element:
    text, _ = asking.text(url)
    # A listing needs no document type; entities of one could grow without end.
    if "<!DOCTYPE" in text:
        raise _no_listing(url, "a document type")
    try:
        page = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise _no_listing(url, str(error)) from error
    for element in page.iter():
        element.tag = element.tag.rpartition("}")[2]
    if page.tag != "ListBucketResult":
        raise _no_listing(url, f"<{page.tag}>")
    return page


def _no_listing(url: str, seen: str) -> AerieError:
    remedy = "The location is https://<server>/<bucket>/<prefix> of a server with S3's ListObjectsV2."
    return AerieError(url, seen=seen, expected="a listing below the prefix", remedy=remedy)
