"""Staging over real http with real aria2, and everything that goes wrong: nothing lost, nothing wrong called good."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from staging import NAME, Staging, children, ended, gets, hub_source, kill, name_of, until

import lab.hub
from aerie.weights.onhost import hash_file
from lab.hub import MEMBER, STRANGER, Hub
from tests.ports import kept

pytestmark = pytest.mark.lab

SHARD_BYTES = 3_000_000
MODEL = lab.hub.model(shards=3, shard_bytes=SHARD_BYTES)
ODD = {"empty": b"", ".gitattributes": b"*.safetensors filter=lfs\n", ' we%20ird & <"odd">;#?.txt': b"odd\n"}
# Fewer small files than a model has: each costs two processes.
FILES = {path: data for path, data in MODEL.items() if not path.startswith(("README", "gen", "model.s"))} | ODD
SHARDS = sorted(path for path in FILES if path.endswith(".safetensors"))
FIRST, SECOND, THIRD = SHARDS
DEAD = [{"name": "dead", "url": "http://127.0.0.1:9/"}]  # nobody listens there
BLOCK = 16 << 10  # aria2 continues at a multiple of it
PATIENT_S = 600  # stall_s of a staging that is to wait for as long as the test does

New = Callable[..., Staging]


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    """What these tests need of the machine."""
    missing = [name for name in ("aria2c", "rsync", "setpriv", "mkfs.ext2") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'}")


@pytest.fixture(scope="module")
def _hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, str]]:
    with lab.hub.serve(tmp_path_factory.mktemp("hub")) as hub:
        yield hub, hub.add(NAME, FILES)


@pytest.fixture
def hub(_hub: tuple[Hub, str]) -> Iterator[Hub]:
    """A hub with the model, in order again after each test."""
    yield _hub[0]
    _hub[0].mend()


@pytest.fixture
def revision(_hub: tuple[Hub, str]) -> str:
    return _hub[1]


@pytest.fixture
def new(hub: Hub, revision: str, tmp_path: Path) -> Iterator[New]:
    """A staging of the model from the hub, or as the test wants it."""
    made: list[Staging] = []

    def make(**more: Any) -> Staging:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        sources = more.pop("sources", [hub_source(hub, revision)])
        made.append(Staging(folder, more.pop("files", FILES), sources, **more))
        return made[-1]

    yield make
    for one in made:
        one.end()


def plain_source(hub: Hub, revision: str) -> dict[str, str]:
    return {"kind": "http", "url": hub.files_url(NAME, revision)}


def downloading(one: Staging, path: str, at_least: int = 1) -> Callable[[], bool]:
    """The part of a file has so many bytes."""
    return lambda: one.part(path).exists() and one.part(path).stat().st_size >= at_least


def stuck(hub: Hub, path: str, times: int | None = None) -> None:
    """Half of the file comes, and no more until the hub is mended: a test has the time that it needs."""
    hub.fault("stall", path, times=times)


def slow_to_hash(folder: Path, path: str) -> str:
    """A prelude: the first process that hashes this file takes a minute, which gives a test time to find it."""
    script = folder / "slow_hash.py"
    script.write_text(
        "import os, runpy, sys, time\n"
        f"if {path!r} in sys.argv[3] and not os.path.exists({str(folder / 'slow')!r}):\n"
        f"    open({str(folder / 'slow')!r}, 'x').close()\n"
        "    time.sleep(600)\n"
        f"runpy.run_path({hash_file.__file__!r}, run_name='__main__')\n"
    )
    return f"from aerie.weights.onhost import hash_file; hash_file.__file__ = {str(script)!r}"


# The good case


def test_a_model_is_staged_from_a_hub_with_every_file_verified(hub: Hub, new: New) -> None:
    begun = len(hub.requests())
    one = new()
    outcome = one.stage()
    assert outcome["state"] == "done" and outcome["error"] is None and outcome["retries"] == 0
    assert outcome["bytes"]["fetched"] == sum(map(len, FILES.values()))
    one.assert_whole()
    assert sorted(name_of(row) for row in gets(hub, begun)) == sorted(
        path.rsplit("/", 1)[-1] for path in FILES if FILES[path]
    )
    record = json.loads((one.folder / "records/faults.json").read_bytes())
    assert record["target"] == str(one.target) and record["verified_at"]
    progress = json.loads((one.job / "progress.json").read_bytes())
    assert progress["state"] == "done" and progress["files"] == {"total": len(FILES), "verified": len(FILES)}


def test_nothing_to_do_asks_nobody_and_starts_no_process(hub: Hub, new: New) -> None:
    files = lab.hub.model(shards=64, shard_bytes=1000)
    one = new(files=files, sources=[])
    one.lay_down()
    assert one.stage()["state"] == "done"
    begun = len(hub.requests())
    receipt = (one.target / ".aerie/receipt.json").stat()
    outcome = one.stage(prelude="import subprocess, asyncio; asyncio.create_subprocess_exec = subprocess.Popen = None")
    assert outcome["state"] == "done" and outcome["files"]["verified"] == len(files)
    assert hub.requests()[begun:] == []
    assert (one.target / ".aerie/receipt.json").stat().st_mtime_ns == receipt.st_mtime_ns


def test_a_plan_tells_what_is_missing_and_changes_nothing(new: New) -> None:
    one = new()
    plan = one.answer("plan")
    assert plan["problems"] == [] and plan["files"]["missing"] == len(FILES) and plan["asked"][0]["answer"] == "ok"
    assert not one.target.exists()
    one.stage()
    (one.target / FIRST).unlink()
    plan = one.answer("plan")
    assert (plan["files"]["verified"], plan["files"]["missing"]) == (len(FILES) - 1, 1)
    assert plan["bytes"]["to_fetch"] == len(FILES[FIRST])


# Killed at any moment


def test_a_partial_file_survives_kill_9_of_the_staging_and_is_continued(hub: Hub, new: New) -> None:
    stuck(hub, FIRST)
    one = new(stall_s=PATIENT_S)
    process = one.start()
    until("a part", downloading(one, FIRST, 1_000_000))
    kill_9(process)
    have = one.part(FIRST).stat().st_size
    assert 1_000_000 <= have < len(FILES[FIRST])
    hub.mend()
    begun = len(hub.requests())
    assert one.stage()["state"] == "done"
    one.assert_whole()
    sent = sum(row["bytes"] for row in gets(hub, begun) if name_of(row) == FIRST)
    assert len(FILES[FIRST]) - have <= sent <= len(FILES[FIRST]) - have + BLOCK


def test_a_killed_downloader_costs_a_retry_that_continues(hub: Hub, new: New) -> None:
    stuck(hub, FIRST, times=1)
    one = new(parallel=1, stall_s=PATIENT_S)
    process = one.start()
    until("a part", downloading(one, FIRST, 1_000_000))
    kill(children(process.pid, "aria2c")[0])
    ended(process)
    assert one.outcome()["state"] == "done" and one.outcome()["retries"] == 1
    one.assert_whole()
    assert "signal 9" in one.events("failed")[0]["reason"]
    assert [event["have"] >= 1_000_000 for event in one.events("fetch") if event["path"] == FIRST] == [False, True]


def test_no_downloader_outlives_a_killed_staging(hub: Hub, new: New) -> None:
    hub.fault("stall", "*.safetensors")
    one = new(stall_s=PATIENT_S)
    process = one.start()
    downloaders = until("three downloaders", lambda: len(found := children(process.pid, "aria2c")) >= 3 and found)
    kill_9(process)
    until("they are gone", lambda: not any(Path(f"/proc/{pid}").exists() for pid in downloaders))


def test_a_killed_hasher_hashes_again_and_fetches_nothing_again(hub: Hub, new: New) -> None:
    begun = len(hub.requests())
    one = new()
    process = one.start(prelude=slow_to_hash(one.folder, FIRST))
    until("a hasher at work", (one.folder / "slow").exists)
    (hasher,) = (pid for pid in children(process.pid, FIRST) if pid in children(process.pid, "slow_hash"))
    kill(hasher)
    ended(process)
    assert one.outcome()["state"] == "done" and one.outcome()["retries"] == 0
    one.assert_whole()
    assert len(gets(hub, begun)) == len(FILES) - 1  # nobody is asked for the empty one


def test_a_staging_killed_while_it_hashes_fetches_nothing_again(hub: Hub, new: New) -> None:
    one = new()
    process = one.start(prelude=slow_to_hash(one.folder, FIRST))
    until("a hasher at work", (one.folder / "slow").exists)
    hashers = children(process.pid, "slow_hash")
    kill_9(process)
    until("they are gone", lambda: not any(Path(f"/proc/{pid}").exists() for pid in hashers))
    one.assert_honest()
    begun = len(hub.requests())
    assert one.stage()["state"] == "done"
    one.assert_whole()
    assert FIRST not in [name_of(row) for row in gets(hub, begun)]


def test_killed_between_rename_and_stamp_a_file_is_hashed_and_not_fetched(hub: Hub, new: New) -> None:
    one = new()
    one.lay_down()
    (one.target / ".aerie/verified.json").unlink()  # what that moment leaves behind
    begun = len(hub.requests())
    assert one.answer("check")["files"][FIRST] == "unverified"
    assert one.stage()["state"] == "done"
    one.assert_whole()
    assert gets(hub, begun) == []


def test_killed_at_ten_moments_nothing_wrong_has_a_stamp_and_the_work_goes_on(hub: Hub, new: New) -> None:
    hub.fault("slow", "*.safetensors", rate_bytes_s=8_000_000)
    one = new(parallel=2)
    bytes_before = 0
    for moment in range(10):
        process = one.start()
        try:
            process.wait(0.15 + 0.07 * moment)
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        one.assert_honest()
        kept = sum(path.stat().st_size for path in one.target.rglob("*") if path.name in FILES or ".part" in path.name)
        assert kept >= bytes_before
        bytes_before = kept
    hub.mend()
    assert one.stage()["state"] == "done"
    one.assert_whole()


def test_asked_to_stop_a_staging_says_so_and_keeps_its_parts(hub: Hub, new: New) -> None:
    stuck(hub, FIRST)
    one = new(stall_s=PATIENT_S)
    process = one.start()
    until("a part", downloading(one, FIRST, 100_000))
    process.send_signal(signal.SIGTERM)
    ended(process)
    assert process.returncode == 1 and one.outcome()["error"]["seen"] == "asked to stop"
    assert one.part(FIRST).stat().st_size >= 100_000


# Bytes that are wrong


def test_a_flipped_byte_in_a_finished_file_is_found_deep_and_only_that_file_comes_again(hub: Hub, new: New) -> None:
    one = new()
    one.lay_down()
    flip(one.target / SECOND, keep_times=True)  # as a bad disk does it: no time of change betrays it
    assert one.answer("check")["ok"]
    verdict = one.answer("check", "--deep")
    assert not verdict["ok"] and [path for path, word in verdict["files"].items() if word != "verified"] == [SECOND]
    begun = len(hub.requests())
    assert one.stage()["state"] == "done"
    one.assert_whole()
    assert [name_of(row) for row in gets(hub, begun)] == [SECOND]


def test_a_file_that_was_written_to_is_changed_at_first_sight(hub: Hub, new: New) -> None:
    one = new()
    one.lay_down()
    flip(one.target / SECOND, keep_times=False)
    assert one.answer("check")["files"][SECOND] == "changed"
    begun = len(hub.requests())
    assert one.stage()["state"] == "done"
    one.assert_whole()
    assert [name_of(row) for row in gets(hub, begun)] == [SECOND]


def test_deep_staging_hashes_everything_again(hub: Hub, new: New) -> None:
    one = new()
    one.lay_down()
    flip(one.target / THIRD, keep_times=True)
    begun = len(hub.requests())
    assert one.stage(deep=True)["state"] == "done"
    one.assert_whole()
    assert [name_of(row) for row in gets(hub, begun)] == [THIRD]


def test_a_flipped_byte_in_a_partial_file_costs_that_file_alone(hub: Hub, new: New) -> None:
    one = new()
    half(one, FIRST)
    flip(one.part(FIRST), keep_times=False)
    outcome = one.stage()
    assert outcome["state"] == "done" and outcome["retries"] == 1
    one.assert_whole()
    assert [event["path"] for event in one.events("wrong")] == [FIRST]
    assert [name_of(row) for row in gets(hub) if row["bytes"] == len(FILES[SECOND])].count(SECOND) >= 1


@pytest.mark.parametrize("size", [0, 1, 1_000_000], ids=["empty", "one byte", "a third"])
def test_a_truncated_file_of_the_right_name_is_replaced(new: New, size: int) -> None:
    one = new()
    one.lay_down()
    os.truncate(one.target / FIRST, size)
    assert one.answer("check")["files"][FIRST] == "wrong-size"
    assert one.stage()["state"] == "done"
    one.assert_whole()


def test_a_part_that_is_too_long_is_thrown_away(new: New) -> None:
    one = new()
    half(one, FIRST)
    one.part(FIRST).write_bytes(b"x" * (len(FILES[FIRST]) + 1))
    assert one.stage()["state"] == "done"
    one.assert_whole()


def test_a_wrong_byte_on_the_way_costs_that_file_alone_again(hub: Hub, new: New) -> None:
    hub.fault("flipped", SECOND, times=1)
    begun = len(hub.requests())
    one = new()
    outcome = one.stage()
    assert outcome["state"] == "done" and outcome["retries"] == 1
    one.assert_whole()
    assert sorted(name_of(row) for row in gets(hub, begun) if name_of(row) in SHARDS) == [FIRST, SECOND, SECOND, THIRD]


def test_a_source_that_is_always_wrong_ends_with_both_hashes(hub: Hub, new: New) -> None:
    hub.fault("flipped", SECOND)
    one = new()
    outcome = one.stage()
    error = outcome["error"]
    expected = next(file.sha256 for file in one.manifest.files if file.path == SECOND)
    assert outcome["state"] == "failed" and error["where"].endswith(SECOND) and expected in error["expected"]
    assert error["seen"].count("from hub") == 3 and expected not in error["seen"]
    assert not (one.target / SECOND).exists() and not one.part(SECOND).exists()
    assert SECOND not in one.stamps() and len(one.stamps()) == len(FILES) - 1  # the others came
    assert not (one.target / ".aerie/receipt.json").exists() and not (one.folder / "records").exists()


def test_after_a_wrong_byte_another_source_is_asked_first(hub: Hub, new: New, revision: str) -> None:
    hub.fault("flipped", f"/{NAME}/*{SECOND}")  # of the store: the plain folder is right
    one = new(sources=[hub_source(hub, revision), plain_source(hub, revision)])
    assert one.stage()["state"] == "done"
    one.assert_whole()
    assert len(one.events("wrong")) <= 1


# Sources that refuse


def test_another_revision_is_refused_before_its_first_byte(hub: Hub, new: New) -> None:
    other = hub.add(NAME, FILES | {path: data[::-1] for path, data in FILES.items() if path in SHARDS})
    begun = len(hub.requests())
    one = new(sources=[hub_source(hub, other)])
    outcome = one.stage()
    assert outcome["state"] == "failed" and "another file lies there: sha256" in str(outcome["errors"])
    assert [name_of(row) for row in gets(hub, begun) if name_of(row) in SHARDS] == []
    one.assert_honest()


def test_another_revision_in_a_plain_folder_is_never_called_good(hub: Hub, new: New) -> None:
    other = hub.add(NAME, FILES | {path: data[::-1] for path, data in FILES.items() if path in SHARDS})
    one = new(sources=[plain_source(hub, other)])
    assert one.stage()["state"] == "failed"
    assert set(one.stamps()) == set(FILES) - set(SHARDS)
    one.assert_honest()


def test_a_file_renamed_upstream_is_named_and_the_others_come(hub: Hub, new: New) -> None:
    files = {("renamed.safetensors" if path == SECOND else path): data for path, data in FILES.items()}
    one = new(sources=[hub_source(hub, hub.add(NAME, files))], peers=DEAD)  # who will not have it either
    error = one.stage()["error"]
    assert SECOND in error["where"] and "HTTP 404" in error["seen"]
    assert set(one.stamps()) == set(FILES) - {SECOND}


@pytest.mark.parametrize(
    ("token", "status"), [("", 401), (STRANGER, 403), ("hf_nobody", 401)], ids=["none", "not let in", "wrong"]
)
def test_a_gate_is_met_before_the_first_byte(hub: Hub, new: New, tmp_path: Path, token: str, status: int) -> None:
    one = new(sources=[gated(hub, tmp_path, token)], peers=DEAD)
    begun = len(hub.requests())
    outcome = one.stage()
    assert outcome["state"] == "failed" and f"HTTP {status}" in outcome["error"]["seen"]
    assert "token" in outcome["error"]["remedy"]
    assert gets(hub, begun) == [] and not one.target.exists()
    assert token == "" or token not in leftovers(one.folder)


def test_a_token_opens_the_gate_and_goes_nowhere_else(hub: Hub, new: New, tmp_path: Path) -> None:
    one = new(sources=[gated(hub, tmp_path, MEMBER)], stall_s=PATIENT_S)
    stuck(hub, FIRST)
    begun = len(hub.requests())
    process = one.start()
    until("a downloader", downloading(one, FIRST))
    arguments = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(process.pid, "aria2c")]
    hub.mend()
    ended(process)
    assert one.outcome()["state"] == "done" and arguments and MEMBER.encode() not in b"".join(arguments)
    rows = hub.requests()[begun:]
    assert {row["token"] for row in rows if row["server"] == "store"} == {False}
    assert MEMBER not in leftovers(one.folder)


def test_a_token_that_others_may_read_is_refused(hub: Hub, new: New, tmp_path: Path) -> None:
    source = gated(hub, tmp_path, MEMBER)
    os.chmod(source["token_file"], 0o644)
    error = new(sources=[source]).stage()["error"]
    assert (error["seen"], error["where"]) == ("mode 0644", source["token_file"])


@pytest.mark.parametrize("status", ["500", "503", "416"])
def test_an_answer_that_passes_is_asked_for_again(hub: Hub, new: New, status: str) -> None:
    one = new()
    half(one, FIRST)
    hub.fault(status, f"/{NAME}/*{FIRST}", times=2)
    outcome = one.stage()
    assert outcome["state"] == "done" and outcome["retries"] >= 1
    one.assert_whole()


def test_a_pause_that_the_hub_asks_for_is_kept(hub: Hub, new: New) -> None:
    hub.fault("429", f"/{NAME}/resolve/*{SECOND}", times=1, retry_after="1")
    begun = len(hub.requests())
    one = new(parallel=1)
    outcome = one.stage()
    assert outcome["state"] == "done" and outcome["retries"] == 1
    rows = hub.requests()[begun:]
    index = next(index for index, row in enumerate(rows) if row["status"] == 429)
    later = [row["at"] for row in rows[index + 1 :] if row["server"] == "hub"]
    assert later and later[0] - rows[index]["at"] >= 1


def test_a_hub_that_never_gives_a_file_ends_with_its_last_answer(hub: Hub, new: New) -> None:
    hub.fault("503", f"/{NAME}/resolve/*{SECOND}")
    one = new(tries=3)
    error = one.stage()["error"]
    assert SECOND in error["where"] and "3 failures in a row" in error["seen"] and "HTTP 503" in error["seen"]
    assert len(one.stamps()) == len(FILES) - 1


def test_a_signed_address_that_has_expired_is_resolved_anew(hub: Hub, new: New) -> None:
    hub.fault("expired", SECOND, times=2)
    one = new()
    outcome = one.stage()
    assert outcome["state"] == "done" and outcome["retries"] == 2
    one.assert_whole()
    assert {event["reason"] for event in one.events("failed")} == {"HTTP 403"}


# Connections that break


def test_a_connection_that_stalls_is_killed_and_continued(hub: Hub, new: New) -> None:
    hub.fault("stall", SECOND, times=1, at=2_000_000)
    begun = len(hub.requests())
    one = new(stall_s=1)
    assert one.stage()["state"] == "done"
    one.assert_whole()
    assert [row["range"].split("-")[0] != "bytes=0" for row in gets(hub, begun) if name_of(row) == SECOND] == [
        False, True,
    ]  # fmt: skip


def test_a_connection_that_is_cut_is_continued_each_time(hub: Hub, new: New) -> None:
    hub.fault("cut", SECOND, times=3)
    begun = len(hub.requests())
    one = new()
    outcome = one.stage(tries=2)  # more cuts than tries: each brought new bytes
    assert outcome["state"] == "done" and outcome["retries"] == 3
    one.assert_whole()
    sent = sum(row["bytes"] for row in gets(hub, begun) if name_of(row) == SECOND)
    assert sent <= len(FILES[SECOND]) + 3 * BLOCK


def test_a_server_that_ignores_range_gives_the_file_from_its_beginning(hub: Hub, new: New) -> None:
    one = new()
    half(one, SECOND)
    hub.fault("no-range", SECOND)
    assert one.stage()["state"] == "done"
    one.assert_whole()
    assert one.events("failed")[0]["fault"] == "no-resume"


def test_where_one_server_ignores_range_another_continues(hub: Hub, new: New, revision: str) -> None:
    one = new(sources=[hub_source(hub, revision), plain_source(hub, revision)])
    half(one, SECOND)
    hub.fault("no-range", f"/{NAME}/*{SECOND}")
    begun = len(hub.requests())
    assert one.stage()["state"] == "done"
    one.assert_whole()
    last = [row for row in gets(hub, begun) if name_of(row) == SECOND][-1]
    assert last["path"].startswith("/files/") and last["bytes"] < len(FILES[SECOND])


def test_a_server_that_ignores_range_serves_whole_files_too(hub: Hub, new: New) -> None:
    hub.fault("no-range")
    one = new()
    assert one.stage()["retries"] == 0
    one.assert_whole()


def test_a_file_that_comes_shortened_is_fetched_again(hub: Hub, new: New) -> None:
    hub.fault("truncated", SECOND, times=1)
    one = new()
    assert one.stage()["retries"] == 1
    one.assert_whole()


def test_a_hub_that_is_down_is_waited_for(hub: Hub, new: New) -> None:
    stuck(hub, FIRST)
    one = new(tries=1000, stall_s=PATIENT_S)
    process = one.start()
    until("a part", downloading(one, FIRST, 500_000))
    hub.stop()
    with kept(hub.spec.hub, hub.spec.store):
        until("a failure", lambda: (one.job / "events.jsonl").exists() and one.events("failed"))
        hub.mend()
        hub.start()
    ended(process)
    assert one.outcome()["state"] == "done"
    one.assert_whole()


def test_the_hubs_own_client_takes_over_where_aria2_fails(hub: Hub, new: New) -> None:
    pytest.importorskip("huggingface_hub")
    hub.fault("cut", SECOND, times=2, at=0)
    one = new(hub_python=sys.executable)
    assert one.stage()["state"] == "done"
    one.assert_whole()
    assert [event["backend"] for event in one.events("fetch") if event["path"] == SECOND] == ["aria2", "aria2", "hub"]


# The host's own faults


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, 16 MiB, that cannot reserve room: full is found in mid-file."""
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext2", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_fills_in_mid_shard_ends_the_staging_and_room_lets_it_go_on(
    hub: Hub, small_disk: Path, new: New
) -> None:
    stuck(hub, FIRST)
    one = new(target=str(small_disk / "model@1"), parallel=1, stall_s=PATIENT_S)
    process = one.start()
    until("a part", downloading(one, FIRST, 500_000))
    with open(small_disk / "filler", "wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 65536):
                pass
        except OSError:
            pass
    hub.mend()
    ended(process)
    error = one.outcome()["error"]
    assert process.returncode == 1 and "(free there: " in error["seen"] and "Make room" in error["remedy"]
    assert one.part(FIRST).stat().st_size >= 500_000
    one.assert_honest()
    assert "bytes free" in one.stage()["error"]["seen"]  # now before the first byte
    (small_disk / "filler").unlink()
    assert one.stage()["state"] == "done"
    one.assert_whole()


def test_room_for_a_whole_file_is_taken_before_its_first_byte(hub: Hub, new: New) -> None:
    stuck(hub, FIRST)
    one = new(stall_s=PATIENT_S)
    process = one.start()
    until("a part", downloading(one, FIRST, 100_000))
    part = one.part(FIRST).stat()
    process.send_signal(signal.SIGTERM)
    ended(process)
    assert part.st_size < len(FILES[FIRST]) <= part.st_blocks * 512


@pytest.fixture
def own_tmpfs(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "tmpfs"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "aerie-test", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_read_only_target_is_refused_and_a_whole_one_is_fine(hub: Hub, own_tmpfs: Path, new: New) -> None:
    one = new(target=str(own_tmpfs / "model@1"))
    remount(own_tmpfs, "ro")
    error = one.stage()["error"]
    assert error["seen"] == "read-only" and error["where"] == str(own_tmpfs)
    remount(own_tmpfs, "rw")
    assert one.stage()["state"] == "done"
    remount(own_tmpfs, "ro")
    assert one.stage()["state"] == "done" and one.answer("check", "--deep")["ok"]
    remount(own_tmpfs, "rw")
    (one.target / FIRST).unlink()
    remount(own_tmpfs, "ro")
    assert "ead-only" in one.stage()["error"]["seen"]


def test_parts_on_another_file_system_are_refused(own_tmpfs: Path, new: New) -> None:
    one = new()
    (one.target / ".aerie").mkdir(parents=True)
    (one.target / ".aerie/parts").symlink_to(own_tmpfs)
    assert "another file system" in one.stage()["error"]["seen"]


def test_a_second_staging_of_the_same_model_says_who_holds_it(hub: Hub, new: New, tmp_path: Path) -> None:
    stuck(hub, FIRST)
    one = new(stall_s=PATIENT_S)
    process = one.start()
    until("a part", downloading(one, FIRST))
    second = new(target=str(one.target))
    error = second.stage()["error"]
    hub.mend()
    assert f"process {process.pid} since" in error["seen"]
    ended(process)
    assert one.outcome()["state"] == "done"
    one.assert_whole()
    assert second.stage()["state"] == "done"


def test_a_clock_that_jumps_changes_nothing(hub: Hub, new: New) -> None:
    # Every look at the time of day gives another decade.
    jump = "import time, itertools; real, turn = time.time, itertools.cycle((-3e8, 3e8)); "
    jump += "time.time = lambda: real() + next(turn); gm = time.gmtime; time.gmtime = lambda: gm(time.time())"
    hub.fault("cut", SECOND, times=2)
    hub.fault("429", f"/{NAME}/resolve/*{FIRST}", times=1, retry_after="1")
    one = new()
    assert one.stage(prelude=jump)["state"] == "done"
    one.assert_whole()
    for path in FILES:  # what a clock that was wrong leaves: times in the future, and long ago
        os.utime(one.target / path, (0, 1) if path == FIRST else (4e9, 4e9))
    begun = len(hub.requests())
    assert one.stage()["state"] == "done" and gets(hub, begun) == []
    assert one.answer("check")["ok"]


def test_a_link_in_the_target_does_not_lead_out_of_it(new: New, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    one = new()
    one.target.mkdir(parents=True)
    (one.target / "tokenizer").symlink_to(outside)
    error = one.stage()["error"]
    assert error["where"].endswith("tokenizer/special_tokens_map.json") and "a link" in error["seen"]
    assert list(outside.iterdir()) == []


def test_a_path_that_leaves_the_target_is_refused(new: New) -> None:
    one = new()
    document = json.loads(one.spec().read_bytes())
    document["manifest"]["files"][0]["path"] = "../outside"
    one.more["manifest"] = document["manifest"]
    assert one.answer("plan")["error"]["seen"] == "../outside"
    process = one.start()
    said = ended(process)
    assert process.returncode == 1 and "../outside" in said and not one.target.exists()


def test_partial_files_of_other_tools_are_listed_and_swept_when_told(new: New) -> None:
    one = new()
    beside = one.target.parent / "other/.cache"
    beside.mkdir(parents=True)
    (beside / "abc.incomplete").write_bytes(b"x" * 10_000)
    old = one.target.parent / "faults@0000/.aerie/parts"
    old.mkdir(parents=True)
    (old / "model.part").write_bytes(b"x" * 10_000)
    listed = one.answer("plan")["partials"]
    assert {Path(row["path"]).name: row["tool"] for row in listed} == {
        "abc.incomplete": "huggingface_hub", "model.part": "aerie, another manifest",
    }  # fmt: skip
    with open(beside / "abc.incomplete", "rb"):  # somebody works with it
        assert one.stage(sweep_partials=True)["state"] == "done"
    assert (beside / "abc.incomplete").exists() and not (old / "model.part").exists()
    (one.target / FIRST).unlink()
    one.stage(sweep_partials=True)
    assert not (beside / "abc.incomplete").exists()


# Other sources


def test_a_folder_is_a_source_and_continues_too(new: New, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    for path, data in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    one = new(sources=[{"kind": "folder", "url": f"{folder}/"}])
    half(one, FIRST, others=False)
    have = one.part(FIRST).stat().st_size
    outcome = one.stage()
    assert outcome["state"] == "done" and outcome["bytes"]["fetched"] == sum(map(len, FILES.values())) - have
    one.assert_whole()


def test_an_rsync_server_is_a_source_and_continues_too(new: New, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    for path, data in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    config = tmp_path / "rsyncd.conf"
    own = f"uid = root\ngid = root\npid file = {tmp_path}/pid"
    config.write_text(f"use chroot = no\n{own}\n[weights]\npath = {folder}\nread only = yes\n")
    # One connection, served by the very program that a started server would run; no port to find free.
    program = f"rsync --server --daemon --config={config} ."
    one = new(sources=[{"kind": "rsync", "url": "rsync://localhost/weights/"}])
    os.environ["RSYNC_CONNECT_PROG"] = program
    try:
        half(one, FIRST, others=False)
        have = one.part(FIRST).stat().st_size
        outcome = one.stage()
    finally:
        del os.environ["RSYNC_CONNECT_PROG"]
    assert outcome["state"] == "done" and outcome["bytes"]["fetched"] == sum(map(len, FILES.values())) - have
    one.assert_whole()


@pytest.fixture
def peer(new: New) -> Iterator[tuple[Staging, str]]:
    """A host that has the model, and its folder served as the seeder does it."""
    import functools
    import http.server
    import threading

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    one = new()
    one.lay_down()
    handler = functools.partial(Quiet, directory=str(one.target))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield one, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_peer_that_has_the_files_spares_the_origin(hub: Hub, new: New, peer: tuple[Staging, str]) -> None:
    begun = len(hub.requests())
    one = new(peers=[{"name": "first", "url": peer[1]}], position=1, may_use_origin=False)
    outcome = one.stage()
    assert outcome["state"] == "done" and set(outcome["bytes"]["by_source"]) == {"first"}
    one.assert_whole()
    assert hub.requests()[begun:] == []


def test_a_peer_that_has_the_files_stands_in_for_an_origin_that_refuses(
    hub: Hub, new: New, tmp_path: Path, peer: tuple[Staging, str]
) -> None:
    one = new(sources=[gated(hub, tmp_path, STRANGER)], peers=[{"name": "first", "url": peer[1]}])
    assert one.stage()["state"] == "done"
    one.assert_whole()


def test_a_peer_is_not_trusted(hub: Hub, new: New, peer: tuple[Staging, str]) -> None:
    flip(peer[0].target / SECOND, keep_times=True)
    one = new(peers=[{"name": "first", "url": peer[1]}], position=1, parallel=1)
    assert one.stage()["state"] == "done"
    one.assert_whole()
    assert [(event["path"], event["source"]) for event in one.events("wrong")] == [(SECOND, "first")]


def test_a_host_that_waits_for_a_seeder_without_files_gives_up(new: New) -> None:
    one = new(peers=DEAD, position=1, may_use_origin=False, idle_s=1)
    outcome = one.stage()
    assert outcome["state"] == "failed" and len(outcome["errors"]) == len(FILES)
    assert outcome["error"]["seen"] == "on no source"


# Helpers


def kill_9(process: "subprocess.Popen[str]") -> None:
    """Without a warning."""
    process.kill()
    process.communicate()


def flip(path: Path, *, keep_times: bool) -> None:
    """Change one byte in the middle."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(before.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    if keep_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def half(one: Staging, path: str, *, others: bool = True) -> None:
    """Leave the first half of a file as its part, as a killed staging does; others: the other files are there."""
    if others:
        one.lay_down()
        (one.target / path).unlink()
    one.part(path).parent.mkdir(parents=True, exist_ok=True)
    one.part(path).write_bytes(FILES[path][: len(FILES[path]) // 2])


def gated(hub: Hub, tmp_path: Path, token: str) -> dict[str, str]:
    """The model behind a gate, in a repository of its own."""
    revision = hub.add("aerie-lab/gated", FILES, "gated")
    token_file = ""
    if token:
        token_file = str(tmp_path / "token")
        with open(os.open(token_file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(f"{token}\n")
    return {"kind": "hub", "url": f"{hub.url}/aerie-lab/gated/resolve/{revision}/", "token_file": token_file}


def leftovers(folder: Path) -> str:
    """Everything that a staging wrote, but the model's own files."""
    texts = [path.read_text() for path in folder.rglob("*.json*") if path.name != "spec.json"]
    return urllib.parse.unquote("\n".join(texts))


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)
