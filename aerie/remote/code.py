"""aerie's own code on a host: sent once, named by its content, and asked there. What it is asked answers in JSON."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from aerie.errors import AerieError
from aerie.inventory import Host
from aerie.paths import repository

from .exchange import Result
from .running import run as run_once

__all__ = ["FOLDER", "Code", "Runner"]

FOLDER = "/var/lib/aerie/code"
PACKAGES = ("aerie/__init__.py", "aerie/runbook/__init__.py")  # theirs would bring the controller's own along
MAIN = """\
import sys
from {module} import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
MISSING = 86  # no exit code of the code itself
RUN = f'test -f "$1/__main__.py" || exit {MISSING}; code=$1; shift; exec python3 -I -S "$code" "$@"'
# Under a name of its own first: a folder that is there is whole. Another controller may send the same at the same time.
UNPACK = """\
set -e
mkdir -p "$(dirname "$1")"
made=$(mktemp -d "$1.XXXXXX")
tar -xz -C "$made"
chmod 755 "$made"
mv -T "$made" "$1" 2>/dev/null || { rm -rf "$made"; test -f "$1/__main__.py"; }
"""


class Runner(Protocol):
    """What runs programs on one host: remote.Session, or remote.run for the host."""

    def __call__(
        self, argv: Sequence[str], *, stdin: bytes = ..., timeout_s: float = ..., sudo: bool = ...
    ) -> Result: ...


@dataclass(frozen=True)
class Code:
    """Modules of the standard library alone, to run on hosts.

    module: the one whose `main(arguments)` is the program; patterns: the files, from aerie's folder, it among them;
    more: gives further files, by path.
    """

    module: str
    patterns: tuple[str, ...]
    more: Callable[[], Mapping[str, bytes]] = dict

    @cached_property
    def files(self) -> dict[str, bytes]:
        """What is sent, by path."""
        root = repository() / "aerie"
        found = {path for pattern in self.patterns for path in root.glob(pattern)}
        files = {str(path.relative_to(repository())): path.read_bytes() for path in found}
        files |= dict.fromkeys(PACKAGES, b"")
        files |= self.more()
        files["__main__.py"] = MAIN.format(module=self.module).encode()
        return dict(sorted(files.items()))

    @cached_property
    def folder(self) -> str:
        """Where this version of the code lies on hosts."""
        listed = json.dumps([(name, hashlib.sha256(content).hexdigest()) for name, content in self.files.items()])
        return f"{FOLDER}/{hashlib.sha256(listed.encode()).hexdigest()[:16]}"

    @cached_property
    def packed(self) -> bytes:
        """The code as a tar archive, the same for the same code."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name, content in self.files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o644
                tar.addfile(entry, io.BytesIO(content))
        return packed.getvalue()

    def bring(self, host: Host) -> None:
        """Make it lie in its folder on the host, for a program there that runs it itself. Raises as remote.run does."""
        is_there = run_once(host, ["test", "-f", f"{self.folder}/__main__.py"], sudo=True).exit_code == 0
        if not is_there:
            sent = run_once(host, ["sh", "-c", UNPACK, "sh", self.folder], stdin=self.packed, sudo=True)
            if sent.exit_code != 0:
                raise AerieError(
                    f"host {host.name}: {self.folder}", seen=sent.tail, expected="aerie's code unpacked", remedy=""
                )

    def ask(
        self,
        host: Host,
        arguments: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 120,
        runner: Runner | None = None,
    ) -> dict[str, Any]:
        """What it answers on the host, as root. One round trip; three where the code was not there yet.

        Raises as remote.run does, and AerieError with the host's last words when there is no answer.
        """
        run = runner or _once(host)
        argv = ["sh", "-c", RUN, "sh", self.folder, *arguments]
        result = run(argv, stdin=stdin, timeout_s=timeout_s, sudo=True)
        if result.exit_code == MISSING:
            sent = run(["sh", "-c", UNPACK, "sh", self.folder], stdin=self.packed, timeout_s=60, sudo=True)
            result = run(argv, stdin=stdin, timeout_s=timeout_s, sudo=True) if sent.exit_code == 0 else sent
        try:
            answer: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise AerieError(
                f"host {host.name}: {arguments[0]}",
                seen=result.tail or f"exit {result.exit_code}",
                expected="an answer of aerie's code there, which needs python3 3.11 or newer and root",
                remedy=f"Try it there: python3 -I -S {self.folder} {arguments[0]}",
            ) from None
        return answer


def _once(host: Host) -> Runner:
    def run(argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60, sudo: bool = False) -> Result:
        return run_once(host, argv, stdin=stdin, timeout_s=timeout_s, sudo=sudo)

    return run
