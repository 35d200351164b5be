"""What the hub's two servers do alike: faults, errors, files, the log."""

import hashlib
import hmac
import http.server
import json
import secrets
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .content import Entry, Repository, file_of, read
from .faults import BODY, STATUS, Fault, Faults
from .sending import body_bytes, send_body, span
from .spec import Spec

__all__ = ["Handler", "Serving"]


@dataclass(kw_only=True)
class Serving:
    """What the handlers share."""

    spec: Spec
    folder: Path
    faults: Faults
    store_url: str = ""
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def signature(self, path: str, expires: str) -> str:
        """Of a path of the store, good until `expires`."""
        return hmac.new(self.secret, f"{path}\n{expires}".encode(), hashlib.sha256).hexdigest()

    def log(self, row: dict[str, Any]) -> None:
        """Add a line to the folder's requests.jsonl."""
        with self.lock, open(self.folder / "requests.jsonl", "a") as log:
            log.write(json.dumps(row) + "\n")


class Handler(http.server.BaseHTTPRequestHandler):
    """What both servers do alike."""

    protocol_version = "HTTP/1.1"
    serving: Serving
    name = ""

    def do_GET(self) -> None:
        """Answer."""
        raw, _, query = self.path.partition("?")
        self.where = urllib.parse.unquote(raw)
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        try:
            self.answer(self.where.split("/")[1:])
        except OSError:  # the client went away
            self.close_connection = True

    do_HEAD = do_GET  # noqa: N815  (the base class looks for methods by this name)

    def answer(self, parts: list[str]) -> None:
        """Answer a request for the path of these parts."""
        raise NotImplementedError

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the name of the base class)
        """Nothing: requests.jsonl has it."""

    def fault(self, kinds: dict[str, str], file: str | None = None) -> Fault | None:
        """The fault of these kinds that this request meets."""
        return self.serving.faults.take(kinds, self.where, file)

    def head(self, status: int, headers: dict[str, str], count: int = 0) -> None:
        """Note the answer in the log, and send status and headers. count: bytes that will follow."""
        # Before the first byte, so that a client that has its answer finds it in the log.
        told = {name.lower(): self.headers[name] for name in ("Range", "User-Agent") if self.headers[name]}
        row = {"at": time.time(), "server": self.name, "method": self.command, "path": self.where, **told}
        row |= {"status": status, "bytes": count, "token": bool(self.headers["Authorization"])}
        self.serving.log(row)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def text(self, content: str, kind: str = "application/json", status: int = 200, **headers: str) -> None:
        """Answer with a text."""
        body = content.encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = b"" if self.command == "HEAD" else body
        self.head(status, {"Content-Type": kind, "Content-Length": str(len(body)), **named}, len(sent))
        self.wfile.write(sent)

    def refuse(self, status: int, message: str, code: str = "", **headers: str) -> None:
        """Answer with an error, as hubs word it."""
        told = {"X_Error_Message": message, **({"X_Error_Code": code} if code else {}), **headers}
        self.text(json.dumps({"error": message}), status=status, **told)

    def went_wrong(self, file: str | None = None) -> bool:
        """True where a fault of a status met the request, and was answered."""
        fault = self.fault(STATUS, file)
        if fault is None:
            return False
        headers = {"Retry_After": fault.retry_after} if fault.retry_after else {}
        if fault.kind == "429" and fault.retry_after and fault.retry_after.isdecimal():
            headers["RateLimit"] = f'"resolvers";r=0;t={fault.retry_after}'
        self.refuse(int(fault.kind), f"lab: {STATUS[fault.kind]}", **headers)
        return True

    def content(self, repository: Repository, revision: str, path: str, entry: Entry, **headers: str) -> None:
        """Answer with a file's content, or what a fault makes of it."""
        fault = self.fault({kind: BODY[kind] for kind in BODY if kind != "expired"}, path)
        chosen = span(entry.size, self.headers["Range"], fault)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        ranges = {} if fault and fault.kind == "no-range" else {"Accept-Ranges": "bytes"}
        etag = f'"{entry.sha256 or entry.git_sha1}"'
        fixed = {"ETag": etag, "Content-Type": "application/octet-stream", **ranges, **named}
        count = 0 if self.command == "HEAD" else body_bytes(chosen, fault)
        self.head(chosen.status, fixed | chosen.headers, count)
        if self.command != "HEAD":
            send_body(
                self,
                file_of(self.serving.folder, repository.name, revision, path),
                chosen,
                fault,
                self.serving.faults.is_over,
            )

    def found(self, name: str, revision: str, path: str) -> tuple[Repository, str, Entry] | None:
        """The file of a repository at a revision or at main; None where there is none."""
        repository = read(self.serving.folder, name)
        if repository is None:
            return None
        commit = repository.head if revision == "main" else revision
        entry = repository.revisions.get(commit, {}).get(path)
        return None if entry is None else (repository, commit, entry)
