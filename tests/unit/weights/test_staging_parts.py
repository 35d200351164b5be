"""The pieces of staging on a host: the document, stamps, survey, judgement of failures, preflight's problems."""

import dataclasses
import hashlib
import json
import os
import random
from pathlib import Path

import pytest

from aerie.errors import AerieError, UsageError
from aerie.weights.manifest import File, Manifest, Source, digest, hasher, to_dict
from aerie.weights.onhost import address, backends, hash_file, preflight, quota, spec, target, wanted
from aerie.weights.onhost.backends import Fault
from aerie.weights.onhost.children import Ended
from aerie.weights.onhost.ledger import Active, Ledger
from aerie.weights.onhost.survey import State, survey
from aerie.weights.onhost.target import Stamp, Target
from aerie.weights.onhost.wanted import Place, Wanted

DATA = {"config.json": b"{}", "sub/model.safetensors": b"weights"}
MANIFEST = Manifest(
    model="m",
    source=Source(kind="hub", location="a/b", revision="0" * 40),
    files=(
        File(path="config.json", size=2, git_sha1=hashlib.sha1(b"blob 2\0{}").hexdigest()),
        File(path="sub/model.safetensors", size=7, sha256=hashlib.sha256(b"weights").hexdigest()),
    ),
)
CONFIG, SHARD = MANIFEST.files
SIZES = {file.path: file.size for file in MANIFEST.files}


def document(**changes: object) -> dict[str, object]:
    return {
        "schema": "aerie.staging/1", "model": "m", "target": "/srv/m@1", "manifest": to_dict(MANIFEST),
        "sources": [{"kind": "http", "url": "http://h/"}], **changes,
    }  # fmt: skip


def place(name: str = "hub", *, is_origin: bool = True, have: frozenset[str] | None = None) -> Place:
    return Place(name=name, kind="http", url="http://h/", is_origin=is_origin, have=have)


# The document


def test_a_document_is_read_with_its_defaults() -> None:
    read = spec.parse(json.dumps(document(stall_s=5, peers=[{"name": "b", "url": "http://b/"}])))
    assert (read.target, read.parallel, read.stall_s) == (Path("/srv/m@1"), 16, 5.0)
    assert read.manifest == MANIFEST and read.peers[0].name == "b" and read.backends == ("aria2", "hub")


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"schema": "aerie.staging/2"}, "schema"),
        ({"model": "other"}, "model"),
        ({"target": "srv"}, "target"),
        ({"paralel": 3}, "document"),
        ({"parallel": 0}, "parallel"),
        ({"parallel": True}, "document.parallel"),
        ({"parallel": "3"}, "document.parallel"),
        ({"warm": "hot"}, "warm"),
        ({"backends": ["curl"]}, "backends"),
        ({"backends": [1]}, "document.backends"),
        ({"sources": [{"kind": "ftp", "url": "ftp://h/"}]}, "kind"),
        ({"sources": [{"kind": "http"}]}, "sources[0]"),
        ({"sources": [{"kind": "http", "url": "http://h"}]}, "url"),
        ({"sources": [{"kind": "http", "url": "http://h/\n out=x/"}]}, "url"),
        ({"peers": [{"name": "b", "url": "http://b/"}] * 2}, "peers"),
        ({"margin": float("nan")}, "margin"),
    ],
)
def test_what_cannot_be_staged_is_refused_by_name(changes: dict[str, object], where: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec.parse(json.dumps(document(**changes)))
    assert caught.value.where == f"staging: {where}"


# Stamps and survey


@pytest.fixture
def staged(tmp_path: Path) -> Target:
    """Both files, with stamps."""
    one = Target(tmp_path / "m@1")
    one.parts.mkdir(parents=True)
    stamps = {}
    for file in MANIFEST.files:
        path = one.file(file.path)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(DATA[file.path])
        seen = path.stat()
        stamps[file.path] = Stamp(
            hash_kind=file.hash_kind, hash=file.hash, size=seen.st_size, mtime_ns=seen.st_mtime_ns, inode=seen.st_ino
        )  # fmt: skip
    target.write_stamps(one, digest(MANIFEST), stamps)
    return one


def states(one: Target) -> dict[str, State]:
    seen = survey(one, MANIFEST, target.read_stamps(one, digest(MANIFEST)))
    return {row.file.path: row.state for row in seen.files}


def test_a_stamp_holds_until_somebody_writes(staged: Target) -> None:
    assert set(states(staged).values()) == {State.VERIFIED}
    with open(staged.file(SHARD.path), "r+b") as file:
        os.utime(file.fileno(), (1, 1))
    assert states(staged)[SHARD.path] is State.UNVERIFIED


def test_a_stamp_does_not_hold_for_another_file_of_the_same_time_and_size(staged: Target) -> None:
    path = staged.file(SHARD.path)
    seen = path.stat()
    other = path.with_name("other")
    other.write_bytes(b"WEIGHTS")
    os.utime(other, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    other.rename(path)
    assert states(staged)[SHARD.path] is State.UNVERIFIED


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b'{"schema": "aerie.verified/1"}', b'{"files": {"a": {}}}']
)
def test_stamps_that_cannot_be_read_are_none(staged: Target, text: bytes) -> None:
    (staged.own / "verified.json").write_bytes(text)
    assert set(states(staged).values()) == {State.UNVERIFIED}


def test_stamps_of_another_manifest_are_none(staged: Target) -> None:
    assert target.read_stamps(staged, "0" * 64) == {}


def test_a_survey_tells_every_state(staged: Target, tmp_path: Path) -> None:
    path = staged.file(SHARD.path)
    path.write_bytes(b"w")
    assert states(staged)[SHARD.path] is State.WRONG_SIZE
    staged.part(SHARD.path).parent.mkdir()
    staged.part(SHARD.path).write_bytes(b"weig")
    seen = survey(staged, MANIFEST, {})
    assert [(one.state, one.bytes) for one in seen.files] == [(State.UNVERIFIED, 2), (State.PARTIAL, 4)]
    staged.part(SHARD.path).write_bytes(b"weights!")  # longer than the file: no beginning of it
    assert states(staged)[SHARD.path] is State.WRONG_SIZE
    path.unlink()
    assert states(staged)[SHARD.path] is State.MISSING
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path)
    assert states(staged)[SHARD.path] is State.OBSTACLE
    path.parent.unlink()
    path.mkdir(parents=True)
    assert states(staged)[SHARD.path] is State.OBSTACLE


def test_a_part_with_reserved_room_needs_no_more_of_it(staged: Target) -> None:
    size = 1 << 20
    big = dataclasses.replace(MANIFEST, files=(File(path="big", size=size, sha256="0" * 64),))
    part = staged.part("big")
    part.write_bytes(b"x")
    before = survey(staged, big, {}).needed_bytes
    os.posix_fallocate(descriptor := os.open(part, os.O_WRONLY), 0, size // 2)
    os.close(descriptor)
    assert before > survey(staged, big, {}).needed_bytes == size // 2


def test_one_target_has_one_holder(staged: Target) -> None:
    first = target.hold(staged)
    with pytest.raises(AerieError) as caught:
        target.hold(staged)
    assert str(caught.value.seen).startswith(f"process {os.getpid()} since ")
    os.close(first)
    os.close(target.hold(staged))


@pytest.mark.parametrize("file", MANIFEST.files, ids=["git_sha1", "sha256"])
def test_the_hashing_process_gives_the_manifests_hash(
    file: File, staged: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    path = staged.file(file.path)
    hash_file.main(file.hash_kind, str(file.size), str(path))
    own = hasher(file)
    own.update(DATA[file.path])
    seen = path.stat()
    found = [file.hash, str(file.size), str(seen.st_mtime_ns), str(seen.st_ino)]
    assert capsys.readouterr().out.split() == found and own.hexdigest() == file.hash


# Failures


@pytest.mark.parametrize(
    ("name", "code", "said", "fault", "reason"),
    [
        ("aria2", -9, "", Fault.AGAIN, "aria2 was killed by signal 9"),
        ("aria2", 1, "[ERROR] URI=http://s/?Signature=abc\n -> errorCode=1 Got EOF", Fault.AGAIN, "-> errorCode=1 Got"),
        ("aria2", 22, "[ERROR]\n -> errorCode=22 not successful. status=403", Fault.AGAIN, "HTTP 403"),
        ("aria2", 22, " -> errorCode=22 status=416", Fault.RESTART, "HTTP 416"),
        ("aria2", 8, " -> errorCode=8 Invalid range header", Fault.NO_RESUME, "the server does not continue"),
        ("aria2", 9, " -> errorCode=9 Write disk cache flush failure", Fault.HOST, "-> errorCode=9 Write"),
        ("copy", 1, "dd: error writing 'x': No space left on device", Fault.HOST, "dd: error writing"),
        ("rsync", 23, "rsync: link_stat failed\nrsync error: some files (code 23)", Fault.AGAIN, "rsync: link_stat"),
        ("hub", 1, "Error: HfHubHTTPError: 500", Fault.AGAIN, "Error: HfHubHTTPError"),
        ("hub", 1, "", Fault.AGAIN, "exit code 1"),
    ],
)  # fmt: skip
def test_a_failed_backend_is_judged(name: str, code: int, said: str, fault: Fault, reason: str) -> None:
    found, why = backends.fault(name, Ended(code, said))
    assert found is fault and why.startswith(reason) and "Signature" not in why


def test_no_secret_is_in_a_programs_arguments(tmp_path: Path) -> None:
    url = "http://store/x?Signature=s3cr3t"
    for command in (
        backends.aria2(address.Address(url=url), tmp_path / "a.part", 7, 60),
        backends.aria2(address.Address(url=url, token="s3cr3t"), tmp_path / "a.part", 7, 60),
        backends.hub(f"http://h/a/b/resolve/{'0' * 40}/", "s3cr3t", "a", tmp_path / "a.part", Path("python"), 60),
    ):
        assert command is not None and b"s3cr3t" in command.stdin
        assert "s3cr3t" not in " ".join((*command.argv, *command.environment.values()))


def test_only_a_hubs_address_is_given_to_the_hubs_client(tmp_path: Path) -> None:
    assert backends.hub("http://h/files/a/b/", "", "a", tmp_path / "a.part", Path("python"), 60) is None


def test_progress_starts_the_count_of_failures_again() -> None:
    one = Wanted(file=SHARD)
    for have, tries in ((0, 1), (0, 2), (3, 1), (3, 2), (2, 3)):
        one.failed("cut", have, now=0, backoff_s=1)
        assert one.tries == tries
    assert one.error("/t", tries=4) is None
    error = one.error("/t", tries=3)
    assert error is not None and "3 failures in a row" in str(error.seen) and error.where == f"/t: {SHARD.path}"


def test_the_third_wrong_hash_names_them_all() -> None:
    one = Wanted(file=SHARD)
    for source in ("hub", "peer", "hub"):
        assert one.error("/t", tries=99) is None
        one.came(source, 0, SHARD.size)
        one.mismatched(f"of {source}")
    error = one.error("/t", tries=99)
    assert error is not None and error.seen == "sha256 of hub from hub; of peer from peer; of hub from hub"
    assert error.expected == f"sha256 {SHARD.hash}"


def test_pauses_double_up_to_a_minute_and_differ() -> None:
    assert [wanted.pause_s(failures, 1, 1) for failures in (1, 2, 3, 7, 99)] == [1, 2, 4, 60, 60]
    assert wanted.pause_s(3, 1, 0) == 2 and wanted.pause_s(3, 0, random.random()) == 0


def test_an_origins_refusal_is_for_good_and_a_peers_is_not() -> None:
    hub, peer = place(), place("b", is_origin=False, have=frozenset({SHARD.path}))
    assert hub.refuse(SHARD.path, 404, "HTTP 404") and not hub.refuse(CONFIG.path, 503, "HTTP 503")
    assert not peer.refuse(SHARD.path, 404, "HTTP 404")
    offered = hub.offers(SIZES, {})
    assert offered is not None and offered.have == {CONFIG.path}
    assert not hub.could_give(SHARD.path, True) and hub.could_give(CONFIG.path, True)
    assert not hub.could_give(CONFIG.path, False) and peer.could_give(SHARD.path, False)
    error = Wanted(file=SHARD).unobtainable("/t", [hub, peer])
    assert error.seen == "hub: HTTP 404"


@pytest.mark.parametrize(
    ("there", "here", "differs", "is_offered"),
    [
        (200 << 20, 0, {}, True),
        (200 << 20, 136 << 20, {}, True),
        (200 << 20, 137 << 20, {}, False),  # too small a step
        (300 << 20, 299 << 20, {}, True),  # the last one
        (300 << 20, 300 << 20, {}, False),
        (200 << 20, 250 << 20, {}, False),  # it began anew
        (200 << 20, 0, {"avoid": {"big"}}, False),
        (200 << 20, 0, {"only_verified": {"big"}}, False),
    ],
)
def test_a_peers_beginning_of_a_file_is_offered_where_it_is_worth_a_transfer(
    there: int, here: int, differs: dict[str, set[str]], is_offered: bool
) -> None:
    peer = place("b", is_origin=False, have=frozenset({"small"}))
    peer.parts, peer.avoid = {"big": there}, differs.get("avoid", set())
    offered = peer.offers({"big": 300 << 20, "small": 5}, {"big": here}, differs.get("only_verified", set()))
    assert offered is not None and offered.have == ({"big", "small"} if is_offered else {"small"})
    assert offered.size == there + 5


def test_a_beginning_lies_in_the_peers_part_until_the_file_is_verified() -> None:
    peer = place("b", is_origin=False, have=frozenset())
    assert peer.addresses("a b") == ("http://h/.aerie/parts/a%20b.part", "http://h/a%20b")
    peer.have = frozenset({"a b"})
    assert peer.addresses("a b") == ("http://h/a%20b",)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([("b", 0, 5)], "b"),
        ([("b", 0, 5), ("b", 5, 9)], "b"),
        ([("b", 0, 5), ("c", 5, 9)], "b (bytes 0 to 5), c (bytes 5 to 9)"),
        ([("c", 5, 9)], "an earlier staging (bytes 0 to 5), c (bytes 5 to 9)"),
        ([("b", 0, 5), ("c", 0, 9)], "c"),  # it was begun anew in between
        ([("c", 9, 9)], "an earlier staging"),
    ],
)
def test_who_gave_the_bytes_of_a_file_is_told(steps: list[tuple[str, int, int]], words: str) -> None:
    one = Wanted(file=SHARD)
    for step in steps:
        one.came(*step)
    assert one.given_by == words


def test_origins_of_one_kind_have_names_of_their_own() -> None:
    read = spec.parse(json.dumps(document(
        sources=[{"kind": kind, "url": "http://h/"} for kind in ("http", "hub", "http")],
        peers=[{"name": "b", "url": "http://b/"}],
    )))  # fmt: skip
    assert [one.name for one in wanted.places(read)] == ["http", "hub", "http-2", "b"]


@pytest.mark.parametrize(
    ("headers", "status", "seconds"),
    [
        ({"retry-after": "7"}, 429, 7),
        ({"retry-after": "7"}, 503, 7),
        ({"retry-after": "7"}, 500, None),
        ({"retry-after": "999999"}, 429, 3600),
        ({"retry-after": "soon"}, 429, None),
        ({"retry-after": "Mon, 30 Nov 2026 10:00:30 GMT", "date": "Mon, 30 Nov 2026 10:00:00 GMT"}, 429, 30),
        ({"retry-after": "Mon, 30 Nov 2026 10:00:30 GMT", "date": "Mon, 30 Nov 2026 10:01:00 GMT"}, 429, 0),
        ({"ratelimit": '"resolvers";r=0;t=211'}, 429, 211),
        ({}, 429, None),
    ],
)
def test_the_pause_that_a_source_asks_for(headers: dict[str, str], status: int, seconds: float | None) -> None:
    assert address.retry_after_s(headers, status) == seconds


# Preflight


def seen(**changes: object) -> preflight.Preflight:
    whole = preflight.Preflight(
        folder=Path("/srv"), is_writable=True, is_read_only=False, is_root_file_system=False,
        is_one_file_system=True, free_bytes=1000, free_inodes=100, needed_bytes=10, needed_inodes=4, quotas=(),
        memory_bytes=1, available_bytes=1, why_not_warm=None, partials=(), asked=(), at_peers=frozenset(),
        token_faults=(),
        backends=("aria2",), missing_tools=(), aria2="1.36.0",
    )  # fmt: skip
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


def asked(status: int) -> preflight.Asked:
    return preflight.Asked(
        name="hub", kind="hub", url="http://h/", path="a", answer=f"HTTP {status}", status=status, seconds=0.1
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"is_writable": False}, ["no right to write"]),
        ({"is_writable": False, "is_read_only": True}, ["read-only"]),
        ({"is_one_file_system": False}, ["another file system than its target's"]),
        ({"free_bytes": 9}, ["9 bytes free"]),
        ({"free_inodes": 3}, ["3 inodes free"]),
        ({"free_inodes": None}, []),
        ({"quotas": (quota.Quota(of="user", bytes_left=9, inodes_left=None),)}, ["9 bytes free"]),
        ({"quotas": (quota.Quota(of="group", bytes_left=None, inodes_left=3),)}, ["3 inodes free"]),
        ({"missing_tools": ("aria2c",)}, ["no aria2c"]),
        ({"asked": (asked(403),)}, ["hub: a: HTTP 403"]),
        ({"asked": (asked(403), asked(0))}, []),
        ({"asked": (asked(403),), "at_peers": frozenset(DATA)}, []),
        ({"asked": (asked(403),), "at_peers": frozenset([CONFIG.path])}, ["hub: a: HTTP 403"]),
        ({"asked": (asked(503),)}, []),
    ],
)  # fmt: skip
def test_what_makes_a_staging_impossible(changes: dict[str, object], problems: list[str], tmp_path: Path) -> None:
    read = spec.parse(json.dumps(document(target=str(tmp_path / "m@1"))))
    found = preflight.problems(read, survey(Target(read.target), MANIFEST, {}), seen(**changes))
    assert [one.seen for one in found] == problems


def test_a_model_that_is_there_needs_nothing(staged: Target) -> None:
    read = spec.parse(json.dumps(document(target=str(staged.path))))
    whole = survey(staged, MANIFEST, target.read_stamps(staged, digest(MANIFEST)))
    assert preflight.problems(read, whole, seen(free_bytes=0, is_read_only=True, missing_tools=("aria2c",))) == ()


def test_a_host_without_quotas_has_none(tmp_path: Path) -> None:
    assert quota.quotas(tmp_path) == ()


# Progress


def test_progress_counts_what_moves_and_what_lies_there(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, total_bytes=9, total_files=2)
    ledger.bytes["config.json"] = ledger.verified["config.json"] = 2
    moving = Active(path="sub/model.safetensors", size=7, source="hub", attempt=2, bytes=3)
    with ledger.moving(moving):
        moving.bytes = 4
        ledger.write()
    read = json.loads((tmp_path / "progress.json").read_bytes())
    assert next(iter(read)) == "at"
    assert read["bytes"] == {"total": 9, "on_disk": 6, "verified": 2, "resident": None}
    assert read["active"][0] | {"rate_bytes_s": 0} == {
        "path": "sub/model.safetensors", "bytes": 4, "size": 7, "source": "hub", "rate_bytes_s": 0, "attempt": 2,
        "stage": "fetching",
    }  # fmt: skip
    assert ledger.document()["active"] == [] and ledger.document()["bytes"]["on_disk"] == 6
