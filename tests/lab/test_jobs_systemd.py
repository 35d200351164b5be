"""aerie's jobs under a real systemd: transient units that outlive their starter and leave nothing behind."""

import io
import json
import re
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lab
from aerie.paths import repository

pytestmark = pytest.mark.lab

Said = Callable[..., str]
Eventually = Callable[[str, Callable[[], bool]], None]
HERE = Path(__file__).parent


class Remote:
    """The driver on a lab host, and what is seen there of a job without its help."""

    def __init__(self, host: lab.LabHost, said: Said, name: str) -> None:
        self.host, self._said = host, said
        self.unit, self.folder = f"aerie-{name}-s1-1", f"/var/lib/aerie-test/{name}"

    def argv(self, verb: str, *arguments: str) -> list[str]:
        """The command line of the driver."""
        return ["env", "PYTHONPATH=/opt/aerie", "python3", "/opt/aerie/job_driver.py", verb, self.folder, *arguments]

    def drive(self, verb: str, *arguments: str) -> Any:
        return json.loads(self._said(self.host, *self.argv(verb, *arguments)))

    def start(self, does: str, timeout_s: float = 60) -> Any:
        answer = self.drive("start", self.unit, str(timeout_s), json.dumps({"does": does}))
        assert "job" in answer, answer
        return answer["job"]

    def read(self, name: str) -> str | None:
        done = self.host.ssh(["cat", f"{self.folder}/{name}"])
        return done.stdout.decode() if done.returncode == 0 else None

    def result(self) -> Any:
        text = self.read("result.json")
        return None if text is None else json.loads(text)

    def shown(self, name: str) -> str:
        return self._said(self.host, "systemctl", "show", "--value", f"--property={name}", self.unit)

    def is_running(self, pid: int) -> bool:
        return self.host.ssh(["test", "-d", f"/proc/{pid}"]).returncode == 0


@pytest.fixture
def remote(lab_host: lab.LabHost, said: Said, request: pytest.FixtureRequest) -> Remote:
    """lab01 with this checkout's aerie/, the driver and the step on it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        tar.add(repository() / "aerie", "aerie", filter=lambda item: None if "__pycache__" in item.name else item)
        for name in ("job_driver.py", "job_step.py"):
            tar.add(HERE / name, name)
    unpack = ["sh", "-c", "rm -rf /opt/aerie && mkdir -p /opt/aerie && tar -xzC /opt/aerie"]
    assert lab_host.ssh(unpack, stdin=packed.getvalue()).returncode == 0
    return Remote(lab_host, said, re.sub(r"[^a-z0-9]+", "-", request.node.name))


def test_a_job_is_a_unit_of_the_given_name(remote: Remote, eventually: Eventually) -> None:
    job = remote.start("wait")
    eventually("the step runs", lambda: remote.read("out/ready") is not None)
    assert (job["unit"], job["pid"]) == (remote.unit, int(remote.shown("MainPID")))
    assert remote.shown("ActiveState") == "active"
    assert remote.shown("KillMode") == "control-group"
    assert remote.shown("RuntimeMaxUSec") == "1min 30s"  # the job's 60 s and the supervisor's time to end it
    remote.host.ssh(["touch", f"{remote.folder}/out/go"])
    assert remote.drive("wait", json.dumps(job)) == {"ended": True}
    assert remote.result()["outcome"] == "ok"
    assert json.loads(remote.read("evidence.json") or "") == {"answer": 42}
    eventually("its unit is gone", lambda: remote.shown("LoadState") == "not-found")


def test_a_job_that_ended_before_its_process_was_asked_for_is_over(remote: Remote) -> None:
    job = remote.start("end")
    assert remote.drive("wait", json.dumps(job)) == {"ended": True}
    assert remote.result()["outcome"] == "ok"
    gone = {**job, "pid": 0, "start_ticks": 0}  # what `start` says when systemd knows no process of the unit any more
    assert remote.drive("wait", json.dumps(gone)) == {"ended": True}


def test_a_job_outlives_its_starter_and_the_connection(remote: Remote, said: Said, eventually: Eventually) -> None:
    line = remote.argv("start", remote.unit, "60", json.dumps({"does": "wait"}), "hold")
    connection = ["ssh", "-F", str(remote.host.ssh_config), remote.host.name, "--", *map(json.dumps, line[:-2])]
    connection += [f"'{line[-2]}'", line[-1]]
    with subprocess.Popen(connection, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as ssh:
        assert ssh.stdout is not None
        answer = json.loads(ssh.stdout.readline())
        said(remote.host, "kill", "-KILL", str(answer["driver"]))
        ssh.kill()
    eventually("the step runs", lambda: remote.read("out/ready") is not None)
    assert not remote.is_running(answer["driver"])
    assert remote.drive("find", json.dumps(answer["job"])) == {"alive": True}
    remote.host.ssh(["touch", f"{remote.folder}/out/go"])
    assert remote.drive("wait", json.dumps(answer["job"])) == {"ended": True}
    assert remote.result()["outcome"] == "ok"


def test_a_job_out_of_time_takes_hidden_processes_along(remote: Remote, eventually: Eventually) -> None:
    job = remote.start("stubbornly", timeout_s=8)  # enough for a busy host to begin it
    eventually("the step hid a process", lambda: bool(remote.read("out/hidden")))
    hidden = int(remote.read("out/hidden") or "")
    assert remote.is_running(hidden)
    assert remote.drive("wait", json.dumps(job)) == {"ended": True}
    assert remote.result()["outcome"] == "timeout"
    assert not remote.is_running(hidden)
    eventually("its unit is gone", lambda: remote.shown("LoadState") == "not-found")


def test_a_job_whose_supervisor_is_killed_leaves_no_process(remote: Remote, said: Said, eventually: Eventually) -> None:
    job = remote.start("hide")
    eventually("the step hid a process", lambda: bool(remote.read("out/hidden")))
    hidden = int(remote.read("out/hidden") or "")
    said(remote.host, "kill", "-KILL", str(job["pid"]))
    eventually("the hidden process is gone", lambda: not remote.is_running(hidden))  # systemd ends the cgroup
    assert remote.drive("find", json.dumps(job)) == {"alive": False}
    assert remote.result() is None


def test_a_job_is_stopped_when_asked(remote: Remote, eventually: Eventually) -> None:
    job = remote.start("wait")
    eventually("the step runs", lambda: remote.read("out/ready") is not None)
    assert remote.drive("stop", json.dumps(job)) == {"ended": True}
    assert remote.result()["outcome"] == "stopped"
    eventually("its unit is gone", lambda: remote.shown("LoadState") == "not-found")


def test_a_job_is_not_started_twice(remote: Remote, eventually: Eventually) -> None:
    job = remote.start("wait")
    eventually("the step runs", lambda: remote.read("out/ready") is not None)
    again = remote.drive("start", remote.unit, "60", json.dumps({"does": "wait"}))
    assert remote.unit in again["refused"]
    assert int(remote.shown("MainPID")) == job["pid"]
    assert remote.read("environ") is None  # it may hold secrets, and no supervisor will remove it
    assert remote.drive("stop", json.dumps(job)) == {"ended": True}


@pytest.mark.parametrize("how", [(), ("--force", "--force")], ids=["orderly", "at-once"])
def test_a_job_in_a_reboot_is_not_taken_for_alive(
    remote: Remote, eventually: Eventually, reboot: Callable[..., None], how: tuple[str, ...]
) -> None:
    job = remote.start("wait")
    eventually("the step runs", lambda: remote.read("out/ready") is not None)
    reboot(remote.host, *how)
    assert remote.drive("find", json.dumps(job)) == {"alive": False}
    assert remote.read("evidence.json") is None
    # systemd asks the supervisor to stop in an orderly reboot; otherwise there is nobody left to write a result.
    assert (remote.result() or {"outcome": None})["outcome"] == (None if how else "stopped")
