"""A snapshot's JSON: every field arrives, and what could not be read stays unknown whatever its type."""

from dataclasses import asdict
from operator import attrgetter

import pytest

from aerie import snapshot
from aerie.errors import AerieError
from aerie.snapshot import Unknown
from tests.snapshots import GONE, document_with, healthy, read, snapshot_with

CAN_BE_UNKNOWN = (
    "machine.shm_bytes", "base.packages", "base.broken_packages", "base.apt_lock_holder", "base.apt_sources",
    "base.unattended", "base.session_limits", "base.is_time_synchronized", "kernel.next_release", "kernel.secure_boot",
    "driver.library_version", "driver.modules", "driver.dkms", "gpus", "pci_gpus", "xids", "services",
    "interconnect.iommu", "interconnect.acs", "interconnect.p2p", "interconnect.topology",
    "interconnect.io_page_faults", "engine.units", "receipt",
)  # fmt: skip


def test_the_healthy_host_is_a_whole_snapshot() -> None:
    # Comparing what was parsed with the file finds a field that one of them has alone.
    assert _plain(asdict(healthy())) == read("healthy")


@pytest.mark.parametrize("path", CAN_BE_UNKNOWN)
def test_unknown_stays_unknown(path: str) -> None:
    found = attrgetter(path)(snapshot_with({path.replace(".", "/"): {"unknown": "needs root"}}))
    assert found == Unknown(unknown="needs root")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel/release": GONE}, "snapshot: kernel.release"),
        ({"schema": "aerie.snapshot/9"}, "snapshot: schema: 'aerie.snapshot/9', expected aerie.snapshot/1"),
        ({"gpus/3/index": "three"}, "snapshot: gpus"),
    ],
    ids=["field-missing", "other-version", "wrong-type"],
)
def test_a_document_that_is_no_snapshot_says_where(changes: dict[str, object], words: str) -> None:
    with pytest.raises(AerieError) as raised:
        snapshot_with(changes)
    assert str(raised.value).startswith(words)


def test_what_is_not_json_is_an_error_of_ours() -> None:
    with pytest.raises(AerieError, match="Take the snapshot again"):
        snapshot.parse(b"Killed\n")


def test_changes_do_not_leak_into_the_next_snapshot() -> None:
    document_with({"gpus/0": GONE})
    assert len(healthy().gpus) == 8


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value
