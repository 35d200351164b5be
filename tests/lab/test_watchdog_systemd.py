"""The watchdog beside a service of a real systemd: told apart, recovered by the least step, the watchdog left alive."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lab
from aerie.engines.watchdog.code import WATCHDOG
from aerie.engines.watchdog.spec import Limits, Spec
from aerie.paths import repository

pytestmark = pytest.mark.lab

Said = Callable[..., str]
Eventually = Callable[[str, Callable[[], bool]], None]
WATCHED = repository() / "tests" / "unit" / "engines" / "watched.py"
FOLDER = Path("/var/lib/aerie-test/watchdog")
UNIT, DOG = "aerie-test-model.service", "aerie-test-watchdog.service"
SERVICE = "[Service]\nExecStart=/usr/bin/python3 {folder}/watched.py 8321 {folder}/behaviour\n"
WATCH = "[Unit]\nAfter={unit}\n[Service]\nExecStart=/usr/bin/python3 -I {code} {folder}/spec.json\nRestart=always\n"
# Quick to look, and patient: on a busy machine a server may stand still for seconds.
QUICK = Limits(poll_s=0.3, settle_s=1.0, probe_every_s=1.0)


class Watched:
    """The service and its watchdog on a lab host."""

    def __init__(self, host: lab.LabHost, said: Said) -> None:
        self.host, self.said = host, said

    def put(self, path: str, content: bytes) -> None:
        self.said(self.host, "install", "-D", "/dev/null", path)
        assert self.host.ssh(["tee", path], stdin=content).returncode == 0

    def start(self) -> None:
        spec = Spec(unit=UNIT, url="http://127.0.0.1:8321", model="m", folder=FOLDER / "dog", limits=QUICK)
        self.put(f"{FOLDER}/watched.py", WATCHED.read_bytes())
        self.put(f"{FOLDER}/behaviour", b"serves")
        self.put(f"{FOLDER}/spec.json", json.dumps(spec.to_dict()).encode())
        self.put(f"/run/systemd/system/{UNIT}", SERVICE.format(folder=FOLDER).encode())
        watch = WATCH.format(unit=UNIT, code=WATCHDOG.folder, folder=FOLDER)
        self.put(f"/run/systemd/system/{DOG}", watch.encode())
        self.said(self.host, "mkdir", "-p", WATCHDOG.folder)
        assert self.host.ssh(["tar", "-xz", "-C", WATCHDOG.folder], stdin=WATCHDOG.packed).returncode == 0
        self.said(self.host, "systemctl", "daemon-reload")
        self.said(self.host, "systemctl", "start", UNIT, DOG)

    def kind(self) -> str:
        done = self.host.ssh(["cat", f"{FOLDER}/dog/status.json"])
        return json.loads(done.stdout)["kind"] if done.returncode == 0 else ""

    def steps(self) -> list[tuple[str, str, bool]]:
        done = self.host.ssh(["cat", f"{FOLDER}/dog/attempts.json"])
        told: list[dict[str, Any]] = json.loads(done.stdout)["attempts"] if done.returncode == 0 else []
        return [(one["kind"], one["step"], one["is_over"]) for one in told]

    def signal(self, number: str, rank: int) -> None:
        self.said(self.host, "pkill", f"-{number}", "-f", f"^VLLM::Worker_TP{rank}")

    def start_of(self, unit: str) -> str:
        return self.said(self.host, "systemctl", "show", "--value", "--property=InvocationID", unit)


@pytest.fixture
def watched(lab_host: lab.LabHost, said: Said) -> Watched:
    return Watched(lab_host, said)


def test_a_stopped_worker_and_a_killed_rank_are_recovered(watched: Watched, eventually: Eventually) -> None:
    watched.start()
    eventually("it is healthy", lambda: watched.kind() == "healthy")
    service, dog = watched.start_of(UNIT), watched.start_of(DOG)
    watched.signal("STOP", 1)
    continued = ("stopped-worker", "continue", True)
    eventually("the worker goes on", lambda: watched.steps() == [continued])
    assert watched.start_of(UNIT) == service
    watched.signal("KILL", 0)
    eventually("the rank is back", lambda: watched.steps() == [continued, ("crashed-rank", "restart", True)])
    assert watched.start_of(UNIT) != service
    assert watched.start_of(DOG) == dog, "the watchdog went down with what it watches"
    kept = watched.said(watched.host, "ls", f"{FOLDER}/dog/incidents").split()
    assert [name.partition("Z-")[2] for name in kept] == ["stopped-worker", "crashed-rank"]
    stacks = watched.said(watched.host, "cat", f"{FOLDER}/dog/incidents/{kept[1]}/stacks.txt")
    assert stacks.count("== ") >= 2, stacks
    watched.said(watched.host, "systemctl", "stop", DOG, UNIT)
