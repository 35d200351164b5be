"""Serves the repository over http to the lab's hosts. Run by itself, with the JSON of a `Spec`; standard library only.

Which variant it serves is the word in the file `mode`, read at every request.
"""

import http.server
import json
import os
import sys
from pathlib import Path
from typing import TypedDict

PREFIX = "/compute/cuda/repos/"
DISTROS = ("debian12", "debian13", "ubuntu2404")


class Spec(TypedDict):
    """cgroups: folders to join; folder: with normal/ and the variants; mode: the file that says which."""

    address: str
    port: int
    cgroups: list[str]
    folder: str
    mode: str


class Handler(http.server.BaseHTTPRequestHandler):
    """GET and HEAD of the files of one flat repository, the same under every distribution's name."""

    spec: Spec

    def do_GET(self) -> None:
        """The file, or 404."""
        content = self._content()
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815  (the base class looks for methods by this name)

    def _content(self) -> bytes | None:
        if not self.path.startswith(PREFIX):
            return None
        distro, _, name = self.path.removeprefix(PREFIX).partition("/x86_64/")
        name = name.removeprefix("./")  # as a flat repository's index has it
        if distro not in DISTROS or "/" in name:
            return None
        mode = Path(self.spec["mode"]).read_text()
        if mode == "stale" and name.endswith(".deb"):  # the index names what is there no more
            return None
        for variant in (mode, "normal"):
            try:
                return Path(self.spec["folder"], variant, name).read_bytes()
            except OSError:
                continue
        return None


def main(spec: Spec) -> int:
    """Ends with 0 once the process that serves is there and listens."""
    for cgroup in spec["cgroups"]:
        Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    Handler.spec = spec
    server = http.server.ThreadingHTTPServer((spec["address"], spec["port"]), Handler)
    if os.fork():
        return 0
    os.setsid()
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
