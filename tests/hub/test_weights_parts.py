"""Files that go from host to host before they are whole: what a peer has begun, and everything that goes wrong then."""

import functools
import http.server
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from staging import NAME, Staging, ended, manifest_of, until

import lab.hub
from aerie.weights.manifest import digest
from lab.hub import Hub

pytestmark = pytest.mark.lab

SHARD = "model.safetensors"
FILES = {SHARD: bytes(range(251)) * 12_000, "config.json": b"{}"}
SIZE = len(FILES[SHARD])
PART = f".aerie/parts/{SHARD}.part"
EVERY_BYTE = "from aerie.weights.onhost import wanted; wanted.STEP_BYTES = 1"  # files of tests are small

New = Callable[..., Staging]


@pytest.fixture(scope="module")
def _hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, str]]:
    if os.geteuid() != 0 or not shutil.which("aria2c"):
        pytest.skip("needs root and aria2c")
    with lab.hub.serve(tmp_path_factory.mktemp("hub")) as hub:
        yield hub, hub.files_url(NAME, hub.add(NAME, FILES))


@pytest.fixture
def hub(_hub: tuple[Hub, str]) -> Iterator[Hub]:
    yield _hub[0]
    _hub[0].mend()


@pytest.fixture
def new(_hub: tuple[Hub, str], hub: Hub, tmp_path: Path) -> Iterator[New]:
    """A staging of the model from a plain web server, by the name of "http"."""
    made: list[Staging] = []

    def make(**more: Any) -> Staging:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Staging(folder, FILES, [{"kind": "http", "url": _hub[1]}], **more))
        return made[-1]

    yield make
    for one in made:
        one.end()


def peer_with(hub: Hub, content: bytes, said: int | None = None) -> list[dict[str, str]]:
    """A host that is in the middle of the shard and does not move. said: how much it says that it has."""
    parts = {SHARD: len(content) if said is None else said}
    document = {"schema": "aerie.parts/1", "manifest_sha256": digest(manifest_of(FILES)), "parts": parts}
    files = {PART: content, ".aerie/parts.json": json.dumps(document).encode()}
    return [{"name": "first", "url": hub.files_url("aerie-lab/peer", hub.add("aerie-lab/peer", files))}]


def own_part(one: Staging, size: int) -> None:
    one.part(SHARD).parent.mkdir(parents=True)
    one.part(SHARD).write_bytes(FILES[SHARD][:size])


def fetched(one: Staging) -> list[tuple[str, str, int]]:
    """The shard's transfers: from whom, a part or a file, and what was there before."""
    return [(event["source"], event["of"], event["have"]) for event in one.events("fetch") if event["path"] == SHARD]


def test_what_a_peer_has_begun_is_taken_from_there_and_the_rest_from_the_origin(hub: Hub, new: New) -> None:
    one = new(peers=peer_with(hub, FILES[SHARD][:2_000_000]))
    outcome = one.stage(prelude=EVERY_BYTE)
    assert outcome["state"] == "done" and outcome["retries"] == 0
    one.assert_whole()
    assert fetched(one) == [("first", "part", 0), ("http", "file", 2_000_000)]
    assert outcome["bytes"]["by_source"]["first"] == 2_000_000
    assert not (one.target / ".aerie/parts.json").exists()


TURNED = {
    # what the peer's part has, what the peer says, the server's fault, what is here; the failure, and what is kept
    "goes-away": (2_000_000, None, "cut", 0, "again", 1_000_000),
    "knows-no-ranges": (2_000_000, None, "no-range", 900_000, "no-resume", 900_000),
    "began-anew": (500_000, 2_000_000, None, 900_000, "less", 900_000),
}


@pytest.mark.parametrize("name", TURNED)
def test_a_peer_that_does_not_keep_its_word_costs_nothing_that_has_arrived(name: str, hub: Hub, new: New) -> None:
    there, said, fault, here, failure, kept = TURNED[name]
    one = new(peers=peer_with(hub, FILES[SHARD][:there], said))
    if here:
        own_part(one, here)
    if fault:
        hub.fault(fault, f"/files/aerie-lab/peer/*{PART}")
    assert one.stage(prelude=EVERY_BYTE)["state"] == "done"
    one.assert_whole()
    assert [(event["source"], event["fault"]) for event in one.events("failed")] == [("first", failure)]
    assert fetched(one) == [("first", "part", here), ("http", "file", kept)]


def test_a_wrong_beginning_is_found_said_of_whom_and_not_taken_again(hub: Hub, new: New) -> None:
    wrong = bytearray(FILES[SHARD][:2_000_000])
    wrong[1_000_000] ^= 1
    one = new(peers=peer_with(hub, bytes(wrong)))
    outcome = one.stage(prelude=EVERY_BYTE)
    assert outcome["state"] == "done" and outcome["retries"] == 1
    one.assert_whole()
    (event,) = one.events("wrong")
    assert event["path"] == SHARD
    assert event["source"] == f"first (bytes 0 to 2000000), http (bytes 2000000 to {SIZE})"
    assert fetched(one) == [("first", "part", 0), ("http", "file", 2_000_000), ("http", "file", 0)]


def test_killed_in_the_middle_of_a_piece_a_staging_goes_on_from_there(hub: Hub, new: New) -> None:
    one = new(peers=peer_with(hub, FILES[SHARD][:2_000_000]), stall_s=600)
    hub.fault("stall", f"/files/aerie-lab/peer/*{PART}")  # half a piece, and no more until the hub is mended
    process = one.start(prelude=EVERY_BYTE)
    until("a piece", lambda: one.part(SHARD).exists() and one.part(SHARD).stat().st_size > 100_000)
    process.kill()
    process.communicate()
    have = one.part(SHARD).stat().st_size
    assert 100_000 < have < 2_000_000
    hub.mend()
    assert one.stage(prelude=EVERY_BYTE)["state"] == "done"
    one.assert_whole()
    (source, of, kept), rest = fetched(one)
    assert (source, of, kept >= have) == ("first", "part", True) and rest == ("http", "file", 2_000_000)


class Ranges(http.server.SimpleHTTPRequestHandler):
    """A folder with ranges, as the seeder serves it."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None or not path.is_file():
            super().do_GET()
            return
        first, last, size = int(asked[1]), int(asked[2]), path.stat().st_size
        content = path.read_bytes()[first : min(last + 1, size)]
        self.send_response(206 if content else 416)
        self.send_header("Content-Range", f"bytes {first}-{first + len(content) - 1}/{size}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_two_hosts_hand_on_a_file_while_it_comes(hub: Hub, new: New) -> None:
    first = new(stall_s=600)
    hub.fault("stall", f"*{SHARD}")  # half of it, and no more until the hub is mended
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Ranges, directory=str(first.target))
    ) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        often = f"{EVERY_BYTE}; from aerie.weights.onhost import fetch, peers; fetch.TELL_S = peers.INTERVAL_S = 0.2"
        process = first.start(prelude=often, peers=[{"name": "second", "url": "http://127.0.0.1:9/"}])
        second = new(peers=[{"name": "first", "url": url}], position=1, may_use_origin=False)
        follows = second.start(prelude=often)
        until("a beginning at the second", lambda: second.part(SHARD).exists() and second.part(SHARD).stat().st_size)
        hub.mend()
        said = ended(process), ended(follows)
        server.shutdown()
    assert (first.outcome()["state"], second.outcome()["state"]) == ("done", "done"), said
    second.assert_whole()
    taken = fetched(second)
    assert len(taken) >= 2 and taken[0] == ("first", "part", 0) and {source for source, *_ in taken} == {"first"}
