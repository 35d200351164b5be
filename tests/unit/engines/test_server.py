import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from aerie.engines import client, guard, server
from aerie.engines.adapter import Launch, adapter
from aerie.engines.server import Server, serve
from aerie.errors import AerieError
from tests.ports import reserved
from tests.waiting import until

STAND_IN = str(Path(__file__).parent / "stand_in.py")
REPOSITORY = str(Path(__file__).parents[3])


@pytest.fixture
def pids(tmp_path):
    """Reads the processes that stand-ins started; at the end none may be left."""
    path = tmp_path / "pids"

    def read():
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    yield read
    assert [pid for pid in read() if is_running(pid)] == []


@pytest.fixture
def launch(tmp_path):
    def make(behaviour):
        return Launch(
            program=(sys.executable, STAND_IN, behaviour, str(tmp_path / "pids")),
            flags=(),
            variables=dict(os.environ),
            model="target",
            adapter=adapter("vllm"),
        )

    return make


@pytest.fixture
def start(launch, tmp_path):
    def make(*behaviours, port=0, ready_timeout_s=120, on_wait=lambda ready, note: None):
        return serve(
            {f"{i}-{behaviour}": launch(behaviour) for i, behaviour in enumerate(behaviours)},
            port=port,
            logs=tmp_path,
            ready_timeout_s=ready_timeout_s,
            on_wait=on_wait,
        )

    return make


def is_running(pid):
    return Path(f"/proc/{pid}").exists()  # a zombie is one too many as well


def stream(one, stall_s=60):
    async def ask():
        async with client.connect(one, stall_s) as connection:
            return await connection.stream([1], max_tokens=3)

    return asyncio.run(ask())


def test_servers_start_together_and_leave_nothing_behind(start, pids, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # an operator's, which does not know this machine's servers
    with start("serves", "serves") as servers:
        assert len({one.port for one in servers.values()}) == 2
        assert all(one.start_s > 0 and one.is_alive() for one in servers.values())
        assert len(pids()) == 4
        answer = stream(servers["0-serves"])
    assert (answer.token_ids, answer.first_tokens) == ((7, 8, 9), 2)


def test_a_server_deaf_to_sigterm_is_killed(start, pids, monkeypatch):
    monkeypatch.setattr(server, "_GRACE_S", 0.2)
    with start("deaf"):
        assert len(pids()) == 2


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("dies", r"(?s)0-dies: 'ended with status 1'.*ends:\n  ValueError: no such model"),
        ("fails-to-generate", "HTTP 500 to the first request.*Synthetic acceptance"),
    ],
)
def test_a_bad_start_is_an_error_with_the_log_and_no_process(start, pids, behaviour, message):
    with pytest.raises(AerieError, match=message), start(behaviour):
        pytest.fail("was given out")


def test_a_start_that_hangs_is_an_error_with_the_log_and_no_process(start, pids, tmp_path, monkeypatch):
    passed_s = 0.0  # the hour passes once the stand-in has said what it does

    def on_wait(ready, note):
        nonlocal passed_s
        passed_s = 3600 * ("loading weights" in (tmp_path / "0-hangs.log").read_text())

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s, sleep=time.sleep)
    monkeypatch.setattr(server, "time", clock)
    message = r"(?s)0-hangs: 'not ready after 3000 s'.*loading weights"
    with pytest.raises(AerieError, match=message), start("hangs", ready_timeout_s=3000, on_wait=on_wait):
        pytest.fail("was given out")
    assert len(pids()) == 2


def test_one_bad_start_ends_the_others(start, pids):
    with pytest.raises(AerieError, match="1-dies"), start("serves", "dies"):
        pytest.fail("was given out")


def test_a_chosen_port_that_was_taken_meanwhile_is_changed(start, pids):
    with start("loses-its-port-once") as servers:
        assert servers["0-loses-its-port-once"].is_alive()
    assert len(pids()) == 4


def test_a_port_in_use_names_its_holder(launch, tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(AerieError, match=rf"port {port}: .*in use, held by process {os.getpid()}: .*engine.port"):
            Server("base", launch("serves"), port=port, log=tmp_path / "log")


def test_fixed_ports_follow_each_other(start, pids):
    with reserved(2) as port, start("serves", "serves", port=port) as servers:
        assert [one.port for one in servers.values()] == [port, port + 1]


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("dies-in-a-stream", "(?s)cut off after 2 tokens.*RuntimeError: out of luck"),
        ("errs-in-a-stream", "error in the stream.*EngineDeadError"),
        ("falls-silent", "no byte for 0.3 s"),
    ],
)
def test_a_failure_in_a_stream_is_the_servers_error(start, pids, behaviour, message):
    with start(behaviour) as servers, pytest.raises(AerieError, match=message):
        stream(servers[f"0-{behaviour}"], stall_s=0.3 if behaviour == "falls-silent" else 60)


def test_a_stop_that_comes_as_the_program_ends_by_itself_ends_its_tree_too(tmp_path, pids):
    code = f"""
        import os, signal, sys
        from aerie.engines import guard
        real, sent = signal.signal, []
        def late(number, action):
            if (number, action) == (signal.SIGTERM, signal.SIG_IGN) and not sent:
                sent.append(number)
                os.kill(os.getpid(), number)
            return real(number, action)
        signal.signal = late
        sys.exit(guard.main(["1", str(os.getppid()), "sh", "-c", "sleep 600 & echo $! >{tmp_path / "pids"}; exit 3"]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=REPOSITORY, check=False)
    assert done.returncode == 3
    assert len(pids()) == 1


def test_a_guard_whose_parent_died_before_it_began_starts_nothing(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as parent:
        pass
    program = ["sh", "-c", f"touch {tmp_path / 'ran'}"]
    done = subprocess.run([sys.executable, "-I", guard.__file__, "1", str(parent.pid), *program], check=False)
    assert (done.returncode, (tmp_path / "ran").exists()) == (128 + signal.SIGTERM, False)


def test_killing_the_parent_ends_the_tree(tmp_path, pids):
    code = f"""
        import os, sys, time
        from pathlib import Path
        from aerie.engines.adapter import Launch, adapter
        from aerie.engines.server import serve
        launch = Launch(
            program=(sys.executable, {STAND_IN!r}, "serves", {str(tmp_path / "pids")!r}),
            flags=(), variables=dict(os.environ), model="target", adapter=adapter("vllm"),
        )
        logs = Path({str(tmp_path)!r})
        with serve({{"one": launch}}, port=0, logs=logs, ready_timeout_s=120, on_wait=lambda ready, note: None):
            (logs / "ready").touch()
            time.sleep(600)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=REPOSITORY)
    until("a server that is ready", (tmp_path / "ready").exists)
    assert len(pids()) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until("the end of the tree", lambda: not any(map(is_running, pids())))


def test_descendants_are_found_through_the_dead(tmp_path):
    assert os.getpid() in guard.descendants(os.getppid())
    assert os.getpid() not in guard.descendants(os.getpid())


def test_a_log_tail_keeps_the_last_named_error(tmp_path):
    log = tmp_path / "log"
    log.write_text("ValueError: first\nKeyError: 'cause'\n" + "shutting down\n" * 20)
    assert server.log_tail(log, lines=2) == "  KeyError: 'cause'\n  shutting down\n  shutting down"
