"""What the hub and its store answer."""

import hashlib
import hmac
import html
import json
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from .content import Entry, Repository, file_of, read, repositories
from .faults import REVISION
from .handler import Handler
from .spec import BUCKET, MEMBER, STRANGER

__all__ = ["HubHandler", "StoreHandler"]


class HubHandler(Handler):
    """Listings, and files that redirect to the store."""

    name = "hub"

    def answer(self, parts: list[str]) -> None:
        """Answer a request for the path of these parts."""
        match parts:
            case ["api", "models", organization, name, "tree", revision, *folder]:
                self._tree(f"{organization}/{name}", revision, "/".join(folder))
            case ["api", "models", organization, name]:
                self._about(f"{organization}/{name}", "main")
            case ["api", "models", organization, name, "revision", revision]:
                self._about(f"{organization}/{name}", revision)
            case ["files", organization, name, revision, *path]:
                self._plain(f"{organization}/{name}", revision, "/".join(path))
            case ["lab-bucket"] | ["lab-bucket", ""] if "list-type" in self.query:
                self._bucket()
            case ["lab-bucket", organization, name, revision, *path]:
                self._plain(f"{organization}/{name}", revision, "/".join(path))
            case [organization, name, "resolve", revision, *path]:
                self._resolve(f"{organization}/{name}", revision, "/".join(path))
            case _:
                self.refuse(404, "Not found")

    def _token(self) -> str:
        return (self.headers["Authorization"] or "").removeprefix("Bearer ").strip()

    def _repository(self, name: str, revision: str, file: str | None = None) -> tuple[Repository, str] | None:
        """The repository and the commit, where the client may see them; else it was answered."""
        token, repository = self._token(), read(self.serving.folder, name)
        if token and token not in (MEMBER, STRANGER):
            self.refuse(401, "Invalid credentials in Authorization header")
        elif repository is None or (repository.access == "private" and token != MEMBER):
            # Without a token nobody learns whether it exists.
            self.refuse(404 if token else 401, "Repository not found", "RepoNotFound")
        else:
            is_wrong = self.fault(REVISION, file) is not None
            commit = repository.head if revision == "main" or is_wrong else revision
            if commit in repository.revisions:
                return repository, commit
            self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return None

    def _about(self, name: str, revision: str) -> None:
        if self.went_wrong() or not (found := self._repository(name, revision)):
            return
        repository, commit = found
        siblings = [{"rfilename": path} for path in repository.revisions[commit]]
        about: dict[str, Any] = {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []}
        about |= {"gated": "auto" if repository.access == "gated" else False, "private": repository.access == "private"}
        self.text(json.dumps(about))

    def _tree(self, name: str, revision: str, folder: str) -> None:
        if self.went_wrong() or not (found := self._repository(name, revision)):
            return
        repository, commit = found
        rows = _rows(repository.revisions[commit], folder, is_deep=self.query.get("recursive", "").lower() == "true")
        start, page = int(self.query.get("cursor", "0")), self.serving.spec.page
        headers: dict[str, Any] = {}
        if start + page < len(rows):
            query = urllib.parse.urlencode(self.query | {"cursor": str(start + page)})
            headers = {"Link": f'<http://{self.headers["Host"]}{urllib.parse.quote(self.where)}?{query}>; rel="next"'}
        self.text(json.dumps(rows[start : start + page]), **headers)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        if self.went_wrong(path) or not (found := self._repository(name, revision, path)):
            return
        repository, commit = found
        entry = repository.revisions[commit].get(path)
        if entry is None:
            self.refuse(404, "Entry not found", "EntryNotFound")
        elif repository.access == "gated" and self._token() != MEMBER:
            message = f"Access to model {name} is restricted. Ask for access on its page."
            self.refuse(403 if self._token() else 401, message, "GatedRepo")
        elif entry.sha256 is None:
            self.content(repository, commit, path, entry, X_Repo_Commit=commit)
        else:
            place = urllib.parse.quote(f"/{name}/{commit}/{path}")
            expires = str(time.time() + self.serving.spec.expires_s)
            signed = {"Expires": expires, "Signature": self.serving.signature(urllib.parse.unquote(place), expires)}
            location = f"{self.serving.store_url}{place}?{urllib.parse.urlencode(signed)}"
            linked = {"X-Linked-Size": str(entry.size), "X-Linked-ETag": f'"{entry.sha256}"', "X-Repo-Commit": commit}
            self.head(302, {"Location": location, "Content-Length": "0", **linked})

    def _plain(self, name: str, revision: str, path: str) -> None:
        if self.went_wrong(path):
            return
        repository = read(self.serving.folder, name)
        entries = repository.revisions.get(revision, {}) if repository and repository.access == "public" else {}
        if repository and (entry := entries.get(path)):
            self.content(repository, revision, path, entry)
        elif entries and path == "SHA256SUMS":
            self.text(self._sums(name, revision, entries), "text/plain")
        elif (
            self.where.startswith("/files/")
            and self.where.endswith("/")
            and any(one.startswith(path) for one in entries)
        ):
            self._index(entries, path)
        else:
            self.refuse(404, "Not found")

    def _sums(self, name: str, revision: str, entries: Mapping[str, Entry]) -> str:
        lines = []
        for path, entry in entries.items():
            file = file_of(self.serving.folder, name, revision, path)
            lines.append(f"{entry.sha256 or hashlib.sha256(file.read_bytes()).hexdigest()}  {path}\n")
        return "".join(lines)

    def _index(self, entries: Any, folder: str) -> None:
        under = {path.removeprefix(folder) for path in entries if path.startswith(folder)}
        names = sorted({path.partition("/")[0] + ("/" if "/" in path else "") for path in under})
        links = [f'<a href="{urllib.parse.quote(one)}">{html.escape(one)}</a>' for one in ("../", *names)]
        self.text(
            f"<html><body><h1>Index of {html.escape(self.where)}</h1><pre>{chr(10).join(links)}</pre>", "text/html"
        )

    def _bucket(self) -> None:
        if self.went_wrong():
            return
        keys = sorted(
            (f"{name}/{revision}/{path}", entry)
            for name in repositories(self.serving.folder)
            if (repository := read(self.serving.folder, name)) and repository.access == "public"
            for revision, entries in repository.revisions.items()
            for path, entry in entries.items()
        )
        start = int(self.query.get("continuation-token", "0"))
        page = min(self.serving.spec.page, int(self.query.get("max-keys", "1000")))
        wanted = [row for row in keys if row[0].startswith(self.query.get("prefix", ""))]
        more = start + page < len(wanted)
        quote = urllib.parse.quote if self.query.get("encoding-type") == "url" else escape
        rows = "".join(
            f"<Contents><Key>{quote(key)}</Key><Size>{entry.size}</Size><ETag>&quot;{entry.git_sha1[:32]}&quot;</ETag>"
            "</Contents>"
            for key, entry in wanted[start : start + page]
        )
        token = f"<NextContinuationToken>{start + page}</NextContinuationToken>" if more else ""
        self.text(
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>",
            "application/xml",
        )


class StoreHandler(Handler):
    """Content at signed addresses."""

    name = "store"

    def answer(self, parts: list[str]) -> None:
        """Answer a request for the path of these parts."""
        file = "/".join(parts[3:])
        if self.went_wrong(file):
            return
        expires = self.query.get("Expires", "0")
        is_signed = hmac.compare_digest(self.query.get("Signature", ""), self.serving.signature(self.where, expires))
        if self.headers["Authorization"]:
            self._refuse(400, "InvalidArgument", "Only one auth mechanism allowed")
        elif not is_signed:
            self._refuse(403, "SignatureDoesNotMatch", "The signature is wrong")
        elif float(expires) < time.time() or self.fault({"expired": ""}, file):
            self._refuse(403, "AccessDenied", "Request has expired")
        elif found := self.found("/".join(parts[:2]), parts[2], file):
            repository, commit, entry = found
            self.content(repository, commit, file, entry)
        else:
            self._refuse(404, "NoSuchKey", "The key does not exist")

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self.text(body, "application/xml", status)


def _rows(entries: Mapping[str, Entry], folder: str, *, is_deep: bool) -> list[dict[str, Any]]:
    """The listing below a folder, as hubs have it."""
    rows: list[dict[str, Any]] = []
    folders: set[str] = set()
    for path, entry in sorted(entries.items()):
        if folder and not path.startswith(f"{folder}/"):
            continue
        parts = path.removeprefix(f"{folder}/").split("/")
        start = f"{folder}/" if folder else ""
        for end in range(1, len(parts) if is_deep else min(2, len(parts))):
            if (inner := start + "/".join(parts[:end])) not in folders:
                folders.add(inner)
                oid = hashlib.sha1(inner.encode(), usedforsecurity=False).hexdigest()
                rows.append({"type": "directory", "oid": oid, "size": 0, "path": inner})
        if is_deep or len(parts) == 1:
            large = {"lfs": {"oid": entry.sha256, "size": entry.size, "pointerSize": 134}} if entry.sha256 else {}
            rows.append({"type": "file", "oid": entry.git_sha1, "size": entry.size, "path": path, **large})
    return rows
