"""The code that is sent to a host, run there: it needs nothing else, and its jobs are found, followed and ended."""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import lab.hub
from aerie.weights import manifest, shipping
from aerie.weights.manifest import File, Manifest, Source
from lab.hub import Hub
from tests.waiting import until

FILES = {"config.json": b"{}", "sub/a.bin": b"a" * 300_000}


class OnHost:
    """The code in a folder of its own, asked as a controller asks it over ssh."""

    def __init__(self, folder: Path) -> None:
        self.code, self.job = folder / "code", folder / "jobs/stage-m-1"
        with tarfile.open(fileobj=io.BytesIO(shipping.HOSTJOB.packed)) as tar:
            tar.extractall(self.code, filter="data")

    def ask(self, *arguments: str, stdin: Mapping[str, Any] | None = None) -> dict[str, Any]:
        argv = [sys.executable, "-I", "-S", str(self.code), *arguments]
        told = json.dumps(stdin or {}).encode()
        done = subprocess.run(
            argv, input=told, capture_output=True, check=False, timeout=300, cwd="/", env={"PATH": os.environ["PATH"]}
        )
        assert done.returncode == 0, done.stderr.decode()
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def ended(self) -> dict[str, Any]:
        """What a poll says when the job has ended."""

        def told() -> dict[str, Any] | None:
            found = self.ask("poll", str(self.job))
            return None if found["job"] == "running" else found

        return until("the end of the job", told) or {}


@pytest.fixture
def on_host(tmp_path: Path) -> OnHost:
    return OnHost(tmp_path)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with lab.hub.serve(tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
def spec(tmp_path: Path, hub: Hub, on_host: OnHost) -> dict[str, Any]:
    """A staging of FILES from a folder, which takes no downloader."""
    source = tmp_path / "source"
    rows = []
    for path, data in FILES.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(data)
        rows.append(File(path=path, size=len(data), git_sha1=_git_sha1(data)))
    found = Manifest(model="m", source=Source(kind="folder", location=str(source)), files=tuple(rows))
    return {
        "schema": "aerie.staging/1",
        "model": "m",
        "target": str(tmp_path / "weights/m@1"),
        "records": str(tmp_path / "records"),
        "manifest": manifest.to_dict(found),
        "sources": [{"kind": "folder", "url": f"{source}/"}],
    }


def _git_sha1(data: bytes) -> str:
    import hashlib

    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def test_a_host_is_looked_at_staged_and_looked_at_again(on_host: OnHost, spec: dict[str, Any]) -> None:
    told = {**spec, "folder": str(on_host.job)}
    before = on_host.ask("look", stdin=told)
    assert (before["plan"]["problems"], before["plan"]["files"]["missing"], before["job"]) == ([], 2, "none")
    assert not Path(spec["target"]).exists()
    assert on_host.ask("start", str(on_host.job), stdin=spec) == {"job": "running", "is_new": True}
    outcome = on_host.ended()["outcome"]
    assert (outcome["state"], outcome["files"]["verified"]) == ("done", 2)
    after = on_host.ask("look", stdin=told)
    assert (after["plan"]["files"]["verified"], after["is_recorded"], after["job"]) == (2, True, "ended")
    assert after["resident_bytes"] <= 300_002


def test_a_job_at_work_is_found_and_ended_and_what_arrived_is_kept(
    on_host: OnHost, spec: dict[str, Any], hub: Hub
) -> None:
    hub.fault("slow", rate_bytes_s=20_000)
    revision = hub.add("aerie-lab/m", FILES)
    sources = [{"kind": "http", "url": hub.files_url("aerie-lab/m", revision)}]
    spec = {**spec, "sources": sources, "backends": ["aria2"]}
    on_host.ask("start", str(on_host.job), stdin=spec)
    started = (on_host.job / "started.json").read_bytes()
    again = on_host.ask("start", str(on_host.job), stdin=spec)
    assert again == {"job": "running", "is_new": False}
    assert (on_host.job / "started.json").read_bytes() == started
    assert on_host.ask("look", stdin={**spec, "folder": str(on_host.job)})["job"] == "running"
    assert on_host.ask("stop", str(on_host.job)) == {"job": "ended"}
    told = on_host.ask("poll", str(on_host.job))
    assert told["outcome"]["state"] == "failed"
    assert "asked to stop" in told["outcome"]["error"]["seen"]
    hub.mend()
    on_host.ask("start", str(on_host.job), stdin=spec)
    assert on_host.ended()["outcome"]["state"] == "done"


def test_a_job_that_was_killed_is_ended_without_an_outcome(on_host: OnHost, spec: dict[str, Any], hub: Hub) -> None:
    hub.fault("slow", rate_bytes_s=1000)
    sources = [{"kind": "http", "url": hub.files_url("aerie-lab/m", hub.add("aerie-lab/m", FILES))}]
    on_host.ask("start", str(on_host.job), stdin={**spec, "sources": sources})
    os.kill(json.loads((on_host.job / "started.json").read_text())["pid"], 9)
    told = on_host.ended()
    assert (told["outcome"], told["result"]) == (None, None)
    on_host.ask("start", str(on_host.job), stdin={**spec, "sources": spec["sources"]})
    assert on_host.ended()["outcome"]["state"] == "done"


def test_a_file_that_changed_under_its_stamp_is_found_by_hashing(on_host: OnHost, spec: dict[str, Any]) -> None:
    on_host.ask("start", str(on_host.job), stdin=spec)
    assert on_host.ended()["outcome"]["state"] == "done"
    file, pin = Path(spec["target"], "sub/a.bin"), manifest.digest(manifest.parse(json.dumps(spec["manifest"])))
    assert set(on_host.ask("check", "m", spec["target"], pin)["files"].values()) == {"verified"}
    status = file.stat()
    with open(file, "r+b") as content:
        content.write(b"b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert on_host.ask("check", "m", spec["target"], pin)["files"] == {
        "config.json": "verified",
        "sub/a.bin": "corrupt",
    }


def test_the_code_is_the_standard_librarys_alone(on_host: OnHost) -> None:
    names = sorted(str(path.relative_to(on_host.code)) for path in on_host.code.rglob("*.py"))
    assert "aerie/weights/staging.py" not in names and "aerie/weights/onhost/stage.py" in names
    program = "import sys; sys.path.insert(0, sys.argv[1]); import importlib, pathlib\n" + (
        "for path in sorted(pathlib.Path(sys.argv[1], 'aerie').rglob('*.py')):\n"
        "    name = '.'.join(path.relative_to(sys.argv[1]).with_suffix('').parts)\n"
        "    name.endswith('__main__') or importlib.import_module(name.removesuffix('.__init__'))\n"
    )
    argv = [sys.executable, "-I", "-S", "-c", program, str(on_host.code)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
