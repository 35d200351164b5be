"""The hub as callers have it: on loopback for one test, or on the gateway for the lab's hosts."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aerie.errors import AerieError
from aerie.paths import repository

from . import content, faults
from .spec import BUCKET, Spec

__all__ = ["Hub", "serve"]


@dataclass(kw_only=True)
class Hub:
    """A hub that is served. url: for HF_ENDPOINT; store_url: where large files' content comes from."""

    spec: Spec
    process: "subprocess.Popen[str] | None" = None

    @property
    def folder(self) -> Path:
        """Content, faults and log."""
        return Path(self.spec.folder)

    @property
    def url(self) -> str:
        """Of the hub, without a slash at its end."""
        return f"http://{self.spec.hub[0]}:{self.spec.hub[1]}"

    @property
    def store_url(self) -> str:
        """Of the store, another host."""
        return f"http://{self.spec.store[0]}:{self.spec.store[1]}"

    def files_url(self, name: str, revision: str) -> str:
        """A revision as a plain folder of a web server, with SHA256SUMS."""
        return f"{self.url}/files/{name}/{revision}/"

    def bucket_url(self, name: str, revision: str) -> str:
        """A revision as keys of a bucket, https://<server>/<bucket>/<prefix>/."""
        return f"{self.url}/{BUCKET}/{name}/{revision}/"

    def add(self, name: str, files: Path | Mapping[str, bytes], access: content.Access = "public") -> str:
        """Make these files the repository's head; its revision."""
        return content.add(self.folder, name, files, access)

    def fault(self, kind: str, path: str = "*", **how: Any) -> None:
        """Let one more thing go wrong from the next request on; the fields of faults.Fault."""
        faults.write(self.folder, (*faults.read(self.folder), faults.Fault(kind=kind, path=path, **how)))

    def mend(self) -> None:
        """Nothing goes wrong any more."""
        faults.write(self.folder, ())

    def requests(self) -> list[dict[str, Any]]:
        """The answers so far: server, method, path, range, status, bytes (to send), token (did one come along?)."""
        try:
            lines = (self.folder / "requests.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def start(self) -> None:
        """Serve it, on the ports that it had before."""
        argv = [sys.executable, "-m", "lab.hub.server", json.dumps(asdict(self.spec))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, cwd=repository())
        ports = _ports(self.process)
        self.spec.hub, self.spec.store = (self.spec.hub[0], ports["hub"]), (self.spec.store[0], ports["store"])

    def stop(self) -> None:
        """Answer nothing any more; connections end."""
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None


@contextmanager
def serve(folder: Path, *, page: int = 1000, expires_s: float = 3600) -> Iterator[Hub]:
    """A hub on loopback, gone at the end. The store is another host, 127.0.0.2, so a token must not follow there.

    folder: may be empty, or of a hub before. page: entries in one answer of a listing. expires_s: life of signed
    addresses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hub = Hub(
        spec=Spec(folder=str(folder), hub=("127.0.0.1", 0), store=("127.0.0.2", 0), page=page, expires_s=expires_s)
    )
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()


def _ports(process: "subprocess.Popen[str]") -> dict[str, int]:
    assert process.stdout is not None  # by the arguments of Popen
    line = process.stdout.readline()
    if not line:
        process.wait(timeout=30)
        raise AerieError(
            "lab hub", seen=f"exit {process.returncode}", expected="to listen", remedy="See the lines above."
        )
    found: dict[str, int] = json.loads(line)
    return found
