"""Hosts that serve along: their agents, with a server that is a stand-in, and what the first host makes of them."""

import asyncio
import fcntl
import json
import os
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from aerie.eagle3 import serving_agent, serving_along, together
from aerie.eagle3.serving_along import Wanted
from aerie.eagle3.together import Parts, Together
from aerie.engines.adapter import Answer, Launch, adapter
from aerie.engines.client import Asked, Client, connect
from aerie.engines.states import header
from aerie.errors import AerieError
from aerie.runbook.step import Context

STAND_IN = Path(__file__).parent / "stand_in.py"


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """An agent is a program of its own, and does not put SIGTERM back for the tests after it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(
        program=(sys.executable, str(STAND_IN), "serves", str(tmp_path / "pids")),
        flags=(),
        variables={"PATH": os.environ["PATH"]},
        model="target",
        adapter=adapter("vllm"),
    )


@pytest.fixture
def folder(tmp_path: Path, launch: Launch) -> Iterator[Path]:
    """As the first host leaves it; no process of a server may be left at the end."""
    folder = tmp_path / "hosts"
    folder.mkdir()
    job = {
        "address": "127.0.0.1",
        "launch": serving_agent.told(launch),
        "locks": [f"test-{os.getpid()}"],
        "ready_timeout_s": 60,
    }
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "alive").write_text("0")
    yield folder
    Path(tempfile.gettempdir(), f"aerie-{os.getuid()}-{job['locks'][0]}").unlink()
    left = [pid for pid in map(int, (tmp_path / "pids").read_text().split()) if psutil.pid_exists(pid)]
    assert left == []


def ready(folder: Path) -> dict[str, Any]:
    parts = Parts(folder=folder, hosts=["second"])
    deadline = time.monotonic() + 60
    while (said := parts.read(1, "ready")) is None:
        assert time.monotonic() < deadline, "not ready"
        time.sleep(0.05)
    assert isinstance(said, dict)
    return said


def test_a_server_ends_with_the_first_host(folder: Path) -> None:
    urls = []

    def over() -> None:
        urls.append(ready(folder)["url"])
        (folder / "alive").unlink()

    thread = threading.Thread(target=over)
    thread.start()
    assert serving_agent.serve(folder, 1) == 0
    thread.join()
    assert urls[0].startswith("http://127.0.0.1:")
    assert Parts(folder=folder, hosts=["second"]).ended(1) == {"exit_status": 0, "tail": []}


def test_a_server_ends_when_the_first_host_falls_silent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_agent, "SILENCE_S", 3.0)
    began = time.monotonic()
    assert serving_agent.serve(folder, 1) == 0
    assert time.monotonic() - began < 100


def test_a_server_that_dies_is_told_with_its_last_words(
    folder: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = json.loads((folder / "job.json").read_bytes())
    job["launch"]["program"][2] = "dies"
    (folder / "job.json").write_text(json.dumps(job))
    assert serving_agent.serve(folder, 1) == 1
    ended = Parts(folder=folder, hosts=["second"]).ended(1)
    assert ended["exit_status"] == 1
    assert "ValueError: no such model" in "\n".join(ended["tail"])


def test_one_of_an_attempt_that_was_killed_is_waited_for() -> None:
    name = f"test-{os.getpid()}-held"
    path = Path(tempfile.gettempdir()) / f"aerie-{os.getuid()}-{name}"
    looks = []
    with open(path, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def look() -> None:
            looks.append(len(looks))
            if len(looks) == 2:
                held.close()

        with serving_agent._after_the_last(name, look):
            assert looks == [0, 1]
    path.unlink()


def starting(context: Context, parts: Parts, launch: Launch, *, strict: bool) -> serving_along._Starting:
    return serving_along._Starting(context, parts, wanted(parts.folder, launch), strict, {})


def wanted(captured: Path, launch: Launch) -> Wanted:
    return Wanted(
        launch=launch, python=Path(sys.executable), captured=captured, gpus=0, needed=[], port=0, ready_timeout_s=60
    )


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(
        run="r", step="synthesize", attempt=1, values={}, inputs={}, out=tmp_path, scratch=tmp_path, kept=tmp_path,
        interpreters={}, progress_file=tmp_path / "progress.json",
    )  # fmt: skip


def test_only_the_first_attempt_insists_on_every_host(context: Context, launch: Launch, tmp_path: Path) -> None:
    parts = Parts(folder=tmp_path, hosts=["second", "third"])
    (tmp_path / "1.ended.json").write_text(json.dumps({"exit_status": 1, "tail": ["no GPU is free"]}))
    (tmp_path / "2.ready.json").write_text(json.dumps({"url": "http://10.0.0.3:1", "start_s": 2.0}))
    with pytest.raises(AerieError, match=r"host second: its server: 'no GPU is free'.*synthesis\.hosts"):
        starting(context, parts, launch, strict=True).on_wait(0, "")
    patient = starting(context, parts, launch, strict=False)
    patient.on_wait(0, "")
    assert [(worker.name, worker.url) for worker in patient.workers()] == [("third", "http://10.0.0.3:1")]
    assert patient.failures == {"second": "no GPU is free"}


def test_a_later_attempt_goes_on_without_a_host_that_is_gone(
    context: Context, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {hosts: {second: {ansible_connection: local}, third: {ansible_connection: local}}}\n")
    others = Together(
        hosts=("second", "third"), address="127.0.0.1", inventory=str(inventory), controller=Path(sys.executable),
        python=Path(sys.executable), table="synthesis", packages=(),
    )  # fmt: skip
    failure = AerieError("host third", seen="no route", expected="a host", remedy="")
    # The engine's environment is not here to ask, and stand-ins write no states and need no real router.
    monkeypatch.setattr(together, "able", lambda others, folder, gpus: ({"second": {}}, {"third": failure}))
    monkeypatch.setattr(serving_along, "_tried", lambda workers, wanted, strict: {})
    monkeypatch.setattr(serving_along.router, "launch", lambda engine, python, urls, port: launch)
    with (
        pytest.raises(AerieError, match="host third: 'no route'"),
        serving_along.served(context, others, wanted(tmp_path, launch), strict=True),
    ):
        pytest.fail("served without it")
    with serving_along.served(context, others, wanted(tmp_path, launch), strict=False) as fleet:
        assert (fleet.size, fleet.look()) == (2, {})
        (worker,) = fleet.workers
        assert asyncio.run(asked(worker)) == (5,)
        two = (
            (tmp_path / "pids").read_text().splitlines()[1]
        )  # of the two servers, whose lines come before the router's
        psutil.Process(int(two.split()[0])).kill()
        deadline = time.monotonic() + 30
        while not fleet.look():
            assert time.monotonic() < deadline, "a dead server goes unseen"
            time.sleep(0.1)
        evidence = fleet.evidence()
    assert {name for name, one in evidence.items() if one["gone"] is None} in ({"this host"}, {"second"})
    assert evidence["third"] == {"start_s": None, "generated_tokens": None, "gone": str(failure)}
    assert (tmp_path / "logs" / "capture.second.log").exists()
    assert [pid for pid in map(int, (tmp_path / "pids").read_text().split()) if psutil.pid_exists(pid)] == []
    assert list((tmp_path / "hosts").iterdir()) == []


async def asked(server: Asked) -> tuple[int, ...]:
    async with connect(server) as client:
        return (await client.ask(adapter("vllm").question([3], max_tokens=1))).token_ids


def test_an_agent_that_never_begins_is_told(
    context: Context, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_along, "_BEGIN_S", 0.2)
    parts = Parts(folder=tmp_path, hosts=["second"])
    with pytest.raises(AerieError, match="host second: its server: 'nothing heard of it"):
        starting(context, parts, launch, strict=True).workers()


def worker(launch: Launch) -> serving_along._Worker:
    return serving_along._Worker(name="second", url="http://127.0.0.1:9", start_s=1.0, launch=launch)


def test_states_that_are_not_seen_here_name_their_host(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def ask(client: Client, question: Any) -> Answer:
        return Answer(token_ids=(7, 8), states_file=Path("7f.safetensors"))

    monkeypatch.setattr(Client, "ask", ask)
    monkeypatch.setattr(serving_along, "PATIENCE_S", 1.0)
    with pytest.raises(AerieError, match=r"host second: the states that it wrote.*XDG_STATE_HOME"):
        serving_along._tried([worker(launch)], wanted(tmp_path, launch), strict=True)
    (left_out,) = serving_along._tried([worker(launch)], wanted(tmp_path, launch), strict=False)
    assert left_out == "second"
    monkeypatch.setattr(serving_along, "PATIENCE_S", 120.0)

    def write() -> None:  # as a network file system shows it: late
        time.sleep(0.3)
        prompt = [1, *[3] * 31, 7]
        head = header({"hidden_states": ("BF16", (33, 2, 1), 132), "token_ids": ("I64", (33,), 264)})
        (tmp_path / "7f.safetensors").write_bytes(head + bytes(132) + struct.pack("<33q", *prompt))
        (tmp_path / "7f.safetensors.lock").touch()

    thread = threading.Thread(target=write)
    thread.start()
    assert serving_along._tried([worker(launch)], wanted(tmp_path, launch), strict=True) == {}
    thread.join()
    assert list(tmp_path.glob("7f*")) == []


def test_a_server_that_cannot_be_reached_names_its_host(launch: Launch, tmp_path: Path) -> None:
    with pytest.raises(AerieError, match=r"host second: its server, http://127\.0\.0\.1:9: .*firewall"):
        serving_along._tried([worker(launch)], wanted(tmp_path, launch), strict=True)
