"""One staging as a test sees it: its document, its process, what it left, and what the hub sent meanwhile."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aerie.paths import repository
from aerie.weights.manifest import File, Manifest, Source, digest, to_dict
from aerie.weights.onhost.target import Stamp, Target, write_stamps
from lab.hub import Hub

LARGE = (".safetensors",)
NAME = "aerie-lab/faults"


def manifest_of(files: Mapping[str, bytes], model: str = "faults") -> Manifest:
    """With both kinds of hashes, as a hub has them."""
    rows = tuple(
        File(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        if path.endswith(LARGE)
        else File(path=path, size=len(data), git_sha1=hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest())
        for path, data in files.items()
    )
    return Manifest(model=model, source=Source(kind="hub", location=NAME, revision="0" * 40), files=rows)


class Staging:
    """A target of its own, staged as often as the test wants."""

    def __init__(self, folder: Path, files: Mapping[str, bytes], sources: list[dict[str, str]], **more: Any) -> None:
        self.folder, self.files = folder, dict(files)
        self.manifest = manifest_of(files)
        self.target = Path(more.pop("target", folder / f"weights/faults@{digest(self.manifest)[:12]}"))
        self.more = {"sources": sources, "warm": "no", "backoff_s": 0.05, "stall_s": 5, **more}
        self.jobs = 0
        self.processes: list[subprocess.Popen[str]] = []

    @property
    def job(self) -> Path:
        return self.folder / f"job{self.jobs}"

    def spec(self, **changes: Any) -> Path:
        document = {
            "schema": "aerie.staging/1", "model": self.manifest.model, "target": str(self.target),
            "manifest": to_dict(self.manifest), "records": str(self.folder / "records"), **self.more, **changes,
        }  # fmt: skip
        path = self.folder / "spec.json"
        path.write_text(json.dumps(document))
        return path

    def start(self, *, prelude: str = "", **changes: Any) -> "subprocess.Popen[str]":
        """The job's process. prelude: Python that runs in it first."""
        self.jobs += 1
        self.job.mkdir()
        self.processes.append(self._run(["stage", str(self.spec(**changes)), str(self.job)], prelude))
        return self.processes[-1]

    def end(self) -> None:
        """Leave nothing running that a test which failed had started."""
        for process in self.processes:
            process.kill()
            if process.stdout and not process.stdout.closed:
                process.communicate()

    def stage(self, *, prelude: str = "", **changes: Any) -> dict[str, Any]:
        """Run one staging to its end; its outcome."""
        process = self.start(prelude=prelude, **changes)
        said = ended(process)
        outcome = self.outcome()
        assert said == "" and process.returncode == (0 if outcome["state"] == "done" else 1), said
        return outcome

    def outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.job / "outcome.json").read_bytes())
        return found

    def answer(self, verb: str, *arguments: str, **changes: Any) -> dict[str, Any]:
        """The document that a verb prints."""
        found: dict[str, Any] = json.loads(ended(self._run([verb, str(self.spec(**changes)), *arguments])))
        return found

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self.job / "events.jsonl").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == name]

    def part(self, path: str) -> Path:
        return self.target / ".aerie/parts" / f"{path}.part"

    def stamps(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.target / ".aerie/verified.json").read_bytes())["files"]
        except FileNotFoundError:
            return {}
        return found

    def lay_down(self) -> None:
        """Put every file there with its stamp, without the hashing."""
        stamps = {}
        for file in self.manifest.files:
            path = self.target / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.files[file.path])
            seen = path.stat()
            stamps[file.path] = Stamp(
                hash_kind=file.hash_kind, hash=file.hash,
                size=seen.st_size, mtime_ns=seen.st_mtime_ns, inode=seen.st_ino,
            )  # fmt: skip
        (self.target / ".aerie").mkdir()
        write_stamps(Target(self.target), digest(self.manifest), stamps)

    def assert_whole(self) -> None:
        """Every file is right, stamped and in the receipt; nothing is left in the making."""
        for path, data in self.files.items():
            assert (self.target / path).read_bytes() == data, path
        assert self.stamps().keys() == self.files.keys()
        receipt = json.loads((self.target / ".aerie/receipt.json").read_bytes())
        assert [row["name"] for row in receipt["subject"]] == sorted(self.files)
        assert [path for path in (self.target / ".aerie/parts").rglob("*") if path.is_file()] == []

    def assert_honest(self) -> None:
        """Whatever has a stamp is right, and nothing wrong has a final name."""
        for path, row in self.stamps().items():
            data = (self.target / path).read_bytes()
            assert data == self.files[path] and row["size"] == len(data), path
        for path, data in self.files.items():
            if (self.target / path).exists():
                assert (self.target / path).read_bytes() == data, path

    @staticmethod
    def _run(arguments: list[str], prelude: str = "") -> "subprocess.Popen[str]":
        boot = f"import sys; sys.path.insert(0, {str(repository())!r}); {prelude}\n"
        boot += "from aerie.weights.onhost.main import main; sys.exit(main(sys.argv[1:]))"
        argv = [sys.executable, "-I", "-S", "-c", boot, *arguments]  # as on a host: no packages in sight
        return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def ended(process: "subprocess.Popen[str]") -> str:
    """What a process printed when it has ended, within five minutes."""
    try:
        said, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return said


def hub_source(hub: Hub, revision: str, token_file: str = "") -> dict[str, str]:
    return {"kind": "hub", "url": f"{hub.url}/{NAME}/resolve/{revision}/", "token_file": token_file}


def gets(hub: Hub, since: int = 0) -> list[dict[str, Any]]:
    """The requests for content from the hub, its store and its plain folders, after the first `since` requests."""
    rows = hub.requests()[since:]
    return [row for row in rows if row["method"] == "GET" and row["bytes"] and row["status"] in (200, 206)]


def name_of(row: Mapping[str, Any]) -> str:
    return str(row["path"].rsplit("/", 1)[1])


def children(pid: int, word: str) -> list[int]:
    """The children of a process with this word in their arguments."""
    found = []
    for child in _children(pid):
        try:
            arguments = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.encode() in one for one in arguments):
            found.append(child)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:
            pass  # a thread that ended meanwhile
    return found


def until(what: str, holds: Callable[[], Any], within_s: float = 120) -> Any:
    """Wait for something to be true, looking every few milliseconds; what it was."""
    end = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {within_s} s: {what}"
        time.sleep(0.002)
    return found


def kill(pid: int) -> None:
    """As the kernel does it when memory runs out: no warning."""
    os.kill(pid, signal.SIGKILL)
