"""Lab hosts for tests: one lab per test run, in a state folder of its own; a developer's lab is not touched."""

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lab
from aerie.errors import AerieError
from aerie.paths import repository
from lab.command import require_machine


@pytest.fixture(scope="session")
def _machine() -> None:
    try:
        require_machine()
    except AerieError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def _turn(_machine: None) -> Iterator[None]:
    """One test run at a time has the machine's lab; another waits for it, at most ten minutes."""
    with open("/run/lock/aerie-lab-tests.lock", "w") as lock:
        end = time.monotonic() + 600
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < end, f"another test run has held {lock.name} for ten minutes"
                time.sleep(1)
        yield


@pytest.fixture(scope="session")
def lab_home(_turn: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """XDG_STATE_HOME of the lab of this test run; the lab is taken down at its end."""
    home = tmp_path_factory.mktemp("lab-home")
    yield home
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home))
        lab.down()


@pytest.fixture
def own_lab(lab_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes `lab.…` act on the lab of this test run; its state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(lab_home))
    return lab_home / "aerie" / "lab"


@pytest.fixture
def lab_host(own_lab: Path) -> lab.LabHost:
    """lab01 without cards: the same running host for every test, started anew only when a test took it down."""
    (host,) = lab.up(1)
    if host.has_gpus:
        lab.down()
        (host,) = lab.up(1)
    return host


@pytest.fixture(scope="module")
def cards_lab(lab_home: Path) -> Iterator[None]:
    """A lab whose lab01 has cards and a loaded driver, and nothing that provision would bring; for one file's tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        lab.up(1, gpus="healthy8")
        yield
        lab.down()


@pytest.fixture
def cards_host(cards_lab: None, own_lab: Path) -> lab.LabHost:
    """lab01, its cards healthy."""
    (host,) = lab.up(1)
    lab.gpu(host.name, "healthy8")
    return host


@pytest.fixture(scope="session")
def call() -> Callable[..., tuple[int, dict[str, Any]]]:
    """Call a task as an operator would, with the inventory and the state folder of a host's lab.

    Gives its exit code and its last JSON line.
    """

    def run(host: lab.LabHost, *arguments: str, timeout_s: float = 1200) -> tuple[int, dict[str, Any]]:
        argv = [Path(sys.executable).parent / "invoke", *arguments, "--json", "--inventory", host.inventory]
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=timeout_s, cwd=repository(),
            stdin=subprocess.DEVNULL, env={**os.environ, "XDG_STATE_HOME": str(host.state.parent.parent)},
        )  # fmt: skip
        assert done.stdout.strip(), f"{arguments}: exit {done.returncode}\n{done.stderr}"
        return done.returncode, json.loads(done.stdout.strip().splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def pair(lab_home: Path) -> tuple[lab.LabHost, ...]:
    """Two fresh hosts with cards and no driver.

    One pair for all files test_provision*.py, which pytest runs one after the other; others take the lab down.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        return lab.up(2, gpus="bare")


@dataclass(frozen=True, slots=True)
class Provisioned:
    """What `provision` of the pair gave. log: what its play said; boots: the boot that each host was in before."""

    exit_code: int
    outcome: dict[str, Any]
    log: str
    boots: list[str]


@pytest.fixture(scope="session")
def provisioned(pair: tuple[lab.LabHost, ...], call: Callable[..., tuple[int, dict[str, Any]]]) -> Provisioned:
    """The pair, brought from nothing to the lock `lab`. On lab01 lies what NVIDIA's keyring package leaves."""
    (uri,) = re.findall(r'(?m)^uri = "(.*)"', (pair[0].inventory.parent / "locks/lab.lock.toml").read_text())
    key = "/usr/share/keyrings/other.gpg"
    assert pair[0].ssh(["curl", "-sSfo", key, f"{uri}cuda-archive-keyring.gpg"]).returncode == 0
    pair[0].ssh(["tee", "/etc/apt/sources.list.d/cuda.list"], stdin=f"deb [signed-by={key}] {uri} /\n".encode())
    boots = [host.ssh(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.decode().strip() for host in pair]
    code, outcome = call(pair[0], "provision", "--host", "lab01,lab02", "--yes")
    log = "".join(path.read_text() for path in Path(outcome["folder"]).rglob("stdout"))
    return Provisioned(code, outcome, log, boots)


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Wait for a condition; fails with the given words when it does not hold within two minutes, or `within_s`."""

    def wait(what: str, holds: Callable[[], bool], within_s: float = 120) -> None:
        end = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < end, f"not within {within_s} s: {what}"
            time.sleep(0.1)

    return wait


@pytest.fixture
def said() -> Callable[..., str]:
    """Run a program on a host and give its stdout; fails with its stderr when it fails."""

    def run(host: lab.LabHost, *argv: str, timeout_s: float = 60) -> str:
        done = host.ssh(argv, timeout_s=timeout_s)
        assert done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stderr.decode(errors='replace')}"
        return done.stdout.decode().strip()

    return run


@pytest.fixture
def reboot(said: Callable[..., str], eventually: Callable[[str, Callable[[], bool]], None]) -> Callable[..., None]:
    """Reboot a host and wait until the new boot has started up. how: arguments of systemctl reboot."""

    def again(host: lab.LabHost, *how: str) -> None:
        before = said(host, "cat", "/proc/sys/kernel/random/boot_id")
        host.ssh(["systemctl", "reboot", *how])  # may lose its connection, so its exit code says nothing

        def is_new() -> bool:
            now = host.ssh(["cat", "/proc/sys/kernel/random/boot_id"])
            return now.returncode == 0 and now.stdout.decode().strip() != before

        eventually(f"a new boot of {host.name}", is_new)
        assert said(host, "systemctl", "is-system-running", "--wait") == "running"

    return again
