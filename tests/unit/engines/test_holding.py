"""Servers that are not measured are held: real processes, seen by /proc."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from aerie.engines import bench, guard, server
from aerie.engines.adapter import Launch, adapter
from aerie.engines.bench import Arm, Prompt
from aerie.engines.holding import one_at_a_time
from aerie.engines.server import serve
from aerie.errors import AerieError

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
PROMPTS = (Prompt(id="p", input_ids=(1, 2)),)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts stand-ins, each with a child in a session of its own."""
    monkeypatch.setattr(server, "_GRACE_S", 0.2)

    def make(*names, behaviour="serves"):
        launches = {
            name: Launch(
                program=(sys.executable, STAND_IN, behaviour, str(tmp_path / "pids")),
                flags=(),
                variables=dict(os.environ),
                model="target",
                adapter=adapter("vllm"),
            )
            for name in names
        }
        return serve(launches, port=0, logs=tmp_path, ready_timeout_s=120, on_wait=lambda ready, note: None)

    return make


def states(one):
    """The letters of /proc/PID/stat of a server's processes without its guard; T is stopped."""
    pids = guard.descendants(one.pid)
    assert len(pids) == 2
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


def held(servers, *expected):
    """The names of those that are held; it waits for those that are expected, since a signal takes its moment."""
    deadline = time.monotonic() + 60
    while True:
        found = [name for name, one in servers.items() if states(one) == {"T"}]
        if set(expected) <= set(found) or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def measure(servers, before=lambda name: None, **options):
    arms = [
        Arm(
            name=name,
            server=one,
            prompts=PROMPTS,
            max_tokens=3,
            concurrency=(1,),
            before=lambda name=name: before(name),
        )
        for name, one in servers.items()
    ]
    return bench.measure(arms, repetitions=2, on_progress=lambda done, total, note: None, **options)


def test_only_the_one_that_is_measured_runs(start):
    seen = []

    def look(name):
        seen.append((name, held(servers, *sorted({"a", "b", "c"} - {name}))))

    with start("a", "b", "c") as servers:
        runs, _ = measure(servers, look, holds=servers.values())
        assert held(servers) == []
        guards = [Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[0] for one in servers.values()]
    assert seen[:3] == [("a", ["b", "c"]), ("b", ["a", "c"]), ("c", ["a", "b"])]
    assert [name for name, _ in seen] == ["a", "b", "c", "b", "c", "a"] == [run.arm for run in runs]
    assert "T" not in guards


def test_a_server_that_takes_no_core_when_idle_may_run_beside_those_that_do(start):
    seen = []
    with start("a", "b", "c") as servers:
        polling = [servers["a"], servers["b"]]
        measure(servers, lambda name: seen.append((name, held(servers, *{"a", "b"} - {name}))), holds=polling)
    assert seen[:3] == [("a", ["b"]), ("b", ["a"]), ("c", ["a", "b"])]


def test_nobody_is_held_unless_it_is_asked_for(start):
    seen = []
    with start("a", "b") as servers:
        measure(servers, lambda name: seen.append(held(servers)))
    assert seen == [[]] * 4
    assert adapter("sglang").polls_when_idle and not adapter("vllm").polls_when_idle


@pytest.fixture
def interruptible():
    """Ctrl-C as in a terminal: what a shell starts in its background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt),
        (lambda: (_ for _ in ()).throw(AerieError("x", seen="y", expected="z", remedy="")), AerieError),
    ],
    ids=["ctrl-c", "error"],
)
def test_all_run_again_however_it_ends(start, end, error):
    with start("a", "b") as servers:
        with pytest.raises(error):
            measure(servers, lambda name: end() if name == "b" else None, holds=servers.values())
        assert held(servers) == []


def test_a_server_that_died_meanwhile_is_told_and_the_others_go_on(start):
    def kill(name):
        if name == "b":
            for pid in guard.descendants(servers["b"].pid):
                os.kill(pid, signal.SIGKILL)

    with start("a", "b") as servers:
        with pytest.raises(AerieError, match="engine server b"):
            measure(servers, kill, holds=servers.values())
        assert "T" not in states(servers["a"])


def test_a_held_server_is_ended_without_a_trace(start):
    with start("a", "b") as servers:
        with one_at_a_time(servers.values()) as let_run:
            let_run(servers["a"])
            pids = guard.descendants(servers["b"].pid)
            assert held(servers, "b") == ["b"]
            servers["b"].stop()
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
