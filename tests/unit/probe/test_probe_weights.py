"""Staged weights as the probe reads them: stamps and the status of files, nothing of what is in them."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from aerie.probe import weights

TARGET = "/srv/w/tiny@0123456789ab"
FILES = {"config.json": b"{}", "sub/model.safetensors": b"x" * 40}


class Host:
    """A host's root with one model staged on it."""

    def __init__(self, root: Path) -> None:
        self.root, self.target = root, root / TARGET.lstrip("/")
        for path, content in FILES.items():
            self.write(self.target / path, content)
        rows = [{"path": path, "size": len(content), "sha256": "0" * 64} for path, content in FILES.items()]
        self.manifest = json.dumps({"schema": "aerie.manifest/1", "files": rows}).encode()
        self.write(self.target / ".aerie/manifest.json", self.manifest)
        self.stamp()
        record = {"schema": "aerie.staged/1", "model": "tiny", "target": TARGET, "manifest_sha256": "0" * 64}
        record |= {"receipt_sha256": "e" * 64, "verified_at": "2026-11-30T05:00:00Z"}
        self.write(root / "var/lib/aerie/weights/tiny.json", json.dumps(record).encode())
        self.write(root / "proc/locks", b"1: POSIX  ADVISORY  WRITE 1 00:2f:17 0 EOF\n")

    def write(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def stamp(self, *paths: str) -> None:
        status = {path: os.stat(self.target / path) for path in paths or FILES}
        stamps = {
            path: {"sha256": "0" * 64, "size": one.st_size, "mtime_ns": one.st_mtime_ns, "inode": one.st_ino}
            for path, one in status.items()
        }
        document = {"schema": "aerie.verified/1", "manifest_sha256": "0" * 64, "files": stamps}
        self.write(self.target / ".aerie/verified.json", json.dumps(document).encode())

    def read(self) -> dict[str, Any]:
        return weights.weights(str(self.root))["staged"][TARGET]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_model_as_it_was_verified(host: Host) -> None:
    assert host.read() == {
        "model": "tiny", "manifest_sha256": hashlib.sha256(host.manifest).hexdigest(), "files": 2, "size_bytes": 42,
        "verified_at": "2026-11-30T05:00:00Z", "receipt_sha256": "e" * 64, "missing": [], "unverified": [],
        "extra": [], "changed": {}, "parts": {}, "is_busy": False,
    }  # fmt: skip


def test_a_host_without_models_or_tools(tmp_path: Path) -> None:
    assert weights.weights(str(tmp_path)) == {"tools": dict.fromkeys(weights.TOOLS, False), "staged": {}}


def rewrite(path: Path) -> None:
    path.write_bytes(b"y" * 40)
    os.utime(path, ns=(1, 1))


def copy_over(path: Path) -> None:
    status, copy = path.stat(), path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    copy.replace(path)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.write_bytes(b"x" * 3), "has 3 bytes of 40"),
        (rewrite, "was written after it was verified"),
        (copy_over, "is another file than the one that was verified"),
        (link, "is no regular file"),
    ],
    ids=["truncated", "rewritten", "replaced", "a-link"],
)
def test_a_file_that_is_not_the_one_that_was_verified(host: Host, change: Any, words: str) -> None:
    change(host.target / "sub/model.safetensors")
    assert host.read()["changed"] == {"sub/model.safetensors": words}


def test_missing_and_never_verified_files(host: Host) -> None:
    host.stamp("config.json")
    assert (host.read()["missing"], host.read()["unverified"]) == ([], ["sub/model.safetensors"])
    (host.target / "sub/model.safetensors").unlink()
    assert (host.read()["missing"], host.read()["unverified"]) == (["sub/model.safetensors"], [])


def test_files_that_the_manifest_does_not_have(host: Host) -> None:
    host.write(host.target / "sub/model-2.safetensors", b"of another model")
    assert host.read()["extra"] == ["sub/model-2.safetensors"]


def test_parts_and_the_staging_at_work_on_them(host: Host) -> None:
    part = host.target / ".aerie/parts/sub/model.safetensors.part"
    host.write(part, b"z" * 5000)
    host.write(part.with_name(part.name + ".aria2"), b"notes")
    (bytes_on_disk,) = host.read()["parts"].values()
    assert list(host.read()["parts"]) == ["sub/model.safetensors"] and bytes_on_disk >= 5005
    assert not host.read()["is_busy"]
    lock = host.target / ".aerie/lock"
    host.write(lock, b"")
    number = f"{os.major(lock.stat().st_dev):02x}:{os.minor(lock.stat().st_dev):02x}:{lock.stat().st_ino}"
    host.write(host.root / "proc/locks", f"7: FLOCK  ADVISORY  WRITE 4711 {number} 0 EOF\n".encode())
    assert host.read()["is_busy"]


def test_a_staging_that_never_ended_is_known_by_its_job(host: Host) -> None:
    (host.root / "var/lib/aerie/weights/tiny.json").unlink()
    spec = {"schema": "aerie.staging/1", "model": "tiny", "target": TARGET}
    host.write(host.root / "var/lib/aerie/jobs/stage-tiny-0123456789ab/spec.json", json.dumps(spec).encode())
    assert (host.read()["model"], host.read()["verified_at"]) == ("tiny", None)


def test_a_manifest_that_cannot_be_read_is_unknown_not_missing_files(host: Host) -> None:
    host.write(host.target / ".aerie/manifest.json", b"{torn")
    assert set(host.read()) == {"unknown"}


def test_without_a_manifest_nothing_can_be_compared(host: Host) -> None:
    (host.target / ".aerie/manifest.json").unlink()
    assert (host.read()["manifest_sha256"], host.read()["files"]) == (None, 0)
