"""The lab as a whole: bring hosts up, say how they are, take everything down.

There are no pid files. What belongs to a host is found by name: its cgroups hold its processes, its cable hangs on
the bridge, its files lie in <state>/hosts/<name>. So `down` works on whatever a killed `up` left behind.
"""

import fcntl
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aerie.errors import AerieError, UsageError
from aerie.paths import state_dir
from aerie.runbook.step import write_atomic

from . import cgroups, hardware, network, repository, scenario
from .access import lab_key, write_access, write_locks
from .base import base_image, suite_of
from .command import require_machine, run
from .host import LabHost
from .hub import gateway
from .prepare import MAX_HOSTS, prepare

__all__ = ["GIB", "HostStatus", "down", "gpu", "hub_mode", "repository_mode", "status", "up"]

GIB = 1 << 30
BOOT_TIMEOUT_S = 60  # 0.7 s was measured on a quiet machine, 2.7 s under load
REBOOT_TIMEOUT_S = 15  # 0.9 s was measured on a quiet machine, 4.1 s under load
LOCK_TIMEOUT_S = 120
LOCK = Path("/run/lock/aerie-lab.lock")  # one for the machine: the bridge is one
SUPERVISE = Path(__file__).resolve().parent / "supervise.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """is_running: it has processes; answers: its sshd greets; memory_bytes: None where nothing counts it."""

    name: str
    address: str
    is_running: bool
    answers: bool
    memory_bytes: int | None


def up(
    count: int,
    *,
    gpus: str = "none",
    suite: str = "",
    memory_bytes: int = 2 * GIB,
    binds: Mapping[Path, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[LabHost, ...]:
    """lab01 to lab<count>, all of them answering on ssh with systemd started up. Those that run already are left alone.

    gpus: the scenario of hosts that are not there yet, e.g. "healthy8"; "bare": cards and no driver; "none": no cards.
    suite: of the base image, e.g. "bookworm"; "": the lab's own, else the first whose archive is in reach.
    memory_bytes: the limit of each host, page cache included; it is set on running hosts too.
    binds: folders of this machine that new hosts see, read-only, at these paths.
    say: gets a line when something takes time. The first call on a machine builds the base image (about a minute).
    Hosts beyond `count` that run stay. A host that was switched off starts again with its files.
    """
    if not 1 <= count <= MAX_HOSTS:
        raise UsageError("lab.up", seen=count, expected=f"1 to {MAX_HOSTS} hosts", remedy="Ask for fewer hosts.")
    chosen = None if gpus == "none" else scenario.load(gpus)
    require_machine()
    network.require_mine(_state())
    image = _image(suite, say)  # without the lock: a build takes a minute, and `down` must not wait for it
    packages = _repository(image)
    with _locked():
        network.claim(_state())
        base = _choose_base(image)
        repository.start(_state(), packages)
        gateway.start(_state())
        hosts = tuple(_host(number) for number in range(1, count + 1))
        lab_key(_state())
        with ThreadPoolExecutor(max_workers=min(count, 8)) as pool:
            is_new = list(pool.map(lambda host: _start(host, base, memory_bytes, chosen, binds or {}), hosts))
            _write_access(packages)
            begun = list(itertools.compress(hosts, is_new))
            list(pool.map(_wait, begun))
            list(pool.map(lambda host: _complete(host, packages), begun))
    return hosts


def gpu(name: str, wanted: str) -> scenario.Scenario:
    """Give a running host with cards another scenario, at once; its driver stays as it was loaded."""
    chosen = scenario.load(wanted)
    require_machine()
    network.require_mine(_state())
    host = _running(name)
    if not host.has_gpus:
        raise UsageError(
            name,
            seen="a host without cards",
            expected="one with",
            remedy="invoke lab.down; invoke lab.up 1 --gpus bare",
        )
    hardware.apply(host, chosen, _repository())
    return chosen


def _running(name: str) -> LabHost:
    if name not in _names():
        known = ", ".join(_names()) or "it has none"
        raise UsageError("host", seen=name, expected=f"a host of the lab: {known}", remedy="See invoke lab.status.")
    return _host(int(name.removeprefix("lab")))


def repository_mode(wanted: str) -> None:
    """Let the package repository go wrong: one of repository.MODES; "normal" mends it."""
    require_machine()
    network.require_mine(_state())
    if _base() is None:
        raise UsageError("lab", seen="nothing up", expected="a lab with hosts", remedy="Run invoke lab.up 1 first.")
    with _locked():
        repository.mode(_state(), _repository(), wanted)


def hub_mode(wanted: str, *, path: str = "*", times: int | None = None) -> None:
    """Let the hosts' model hub go wrong: one of hub.gateway.MODES; "normal" mends it.

    path: pattern of files, or of requests where it starts with "/"; times: how many requests it meets.
    """
    require_machine()
    network.require_mine(_state())
    if _base() is None:
        raise UsageError("lab", seen="nothing up", expected="a lab with hosts", remedy="Run invoke lab.up 1 first.")
    with _locked():
        gateway.mode(_state(), wanted, path=path, times=times)


def _repository(image: Path | None = None) -> repository.Repository:
    """The lab's package repository, the same until `down`, as hosts have its key; built where the cache has none."""
    chosen = repository.chosen(_state())
    if chosen is not None:
        return chosen
    distro = repository.distro_of(image or _base() or Path())
    return repository.build(distro, repository.uri(distro))


def down() -> tuple[str, ...]:
    """Take down every host and all that the lab made on this machine, the base image excepted; the hosts' names.

    Takes at most some 15 s, and works on half-made hosts. Raises AerieError, with nothing touched, for another's lab.
    """
    require_machine()
    with _locked():
        network.require_mine(_state())
        names = _names()
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(cgroups.kill, names))
        repository.stop()
        gateway.stop()
        network.release()
        for name in names:
            cgroups.remove(name)
        if _state().exists():
            run(["rm", "-rf", "--one-file-system", str(_state())], timeout_s=60)
    return tuple(names)


def status() -> tuple[HostStatus, ...]:
    """Every host of this lab of which there is a trace, in order of names."""
    require_machine()
    network.require_mine(_state())
    with ThreadPoolExecutor(max_workers=8) as pool:
        return tuple(pool.map(_status, _names()))


def _state() -> Path:
    return state_dir() / "lab"


def _base() -> Path | None:
    """The image under this lab's hosts until `down`: an upper layer fits the image it was made on, and no other."""
    try:
        return Path((_state() / "base").read_text())
    except FileNotFoundError:
        return None


def _image(suite: str, say: Callable[[str], None]) -> Path:
    """The image for new hosts. Raises UsageError when the lab's hosts lie on one of another suite."""
    image = _base()
    if image is not None and suite not in ("", suite_of(image)):
        raise UsageError(
            "lab.up",
            seen=f"a lab on {suite_of(image)}",
            expected=f"one on {suite}, or none: all hosts of a lab have one base image",
            remedy="Run invoke lab.down first.",
        )
    return image or base_image(say, suite)


def _choose_base(image: Path) -> Path:
    if (chosen := _base()) is None:
        _state().mkdir(parents=True, exist_ok=True)
        write_atomic(_state() / "base", str(image).encode(), durable=False)
    return chosen or image


def _host(number: int) -> LabHost:
    return LabHost(name=f"lab{number:02}", address=network.address_of(number), state=_state())


def _names() -> list[str]:
    made = {path.name for path in (_state() / "hosts").glob("lab[0-9][0-9]")}
    cabled = {veth.removeprefix(network.veth_of("")) for veth in network.veths()}
    return sorted(made | cabled | cgroups.hosts())


def _status(name: str) -> HostStatus:
    host = _host(int(name.removeprefix("lab")))
    is_running = bool(cgroups.pids(name))
    return HostStatus(
        name=name,
        address=host.address,
        is_running=is_running,
        answers=is_running and _greets(host, timeout_s=1),
        memory_bytes=cgroups.memory(name) if is_running else None,
    )


def _start(
    host: LabHost, base: Path, memory_bytes: int, cards: scenario.Scenario | None, binds: Mapping[Path, str]
) -> bool:
    """False when the host runs already and answers; it is started otherwise."""
    made = cgroups.create(host.name)
    cgroups.limit_memory(host.name, memory_bytes)
    if _comes_up(host):
        return False
    cgroups.kill(host.name)  # what is left of a start that went wrong
    network.unplug(host.name)
    prepare(host, cards)
    spec = {
        "name": host.name,
        "cgroups": [str(path) for path in made],
        "lower": str(base),
        "folder": str(host.folder),
        "bridge": network.BRIDGE,
        "veth": network.veth_of(host.name),
        "address": f"{host.address}/{network.NETWORK.prefixlen}",
        "gateway": str(network.GATEWAY),
        "binds": [f"{source}:{path}" for source, path in binds.items()],
    }
    with open(host.folder / "console.log", "ab") as console:
        # Returns as soon as the supervisor is in the host's cgroups; from there on `down` finds it.
        argv = [sys.executable, "-I", "-S", str(SUPERVISE), json.dumps(spec)]
        subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console, cwd="/", check=True, timeout=30)
    return True


def _complete(host: LabHost, packages: repository.Repository) -> None:
    """Install the driver of a host that is to come up with one, once."""
    wanted = host.folder / "upper/etc/lab/wants-driver"
    if wanted.exists():
        hardware.install_driver(host, packages)
        wanted.unlink()


def _write_access(packages: repository.Repository) -> None:
    rows = []
    for name in _names():
        host = _host(int(name.removeprefix("lab")))
        key = host.folder / "upper/etc/ssh/ssh_host_ed25519_key.pub"
        if key.exists():
            rows.append((host, key.read_text()))
    write_access(_state(), rows)
    distro = repository.distro_of(_base() or Path())
    words = {"KEY_SHA256": packages.key_sha256, "KEY_FINGERPRINT": packages.key_fingerprint}
    write_locks(_state(), {"URI": repository.uri(distro), **words, **gateway.words(_state())})
    gateway.write_manifests(_state(), _state() / "inventory/manifests")


def _wait(host: LabHost) -> None:
    """Return when the host answers on ssh and its systemd has started up. Raises AerieError with the console's end."""
    end = time.monotonic() + BOOT_TIMEOUT_S
    seen = "no answer"
    while time.monotonic() < end:
        if not cgroups.pids(host.name):
            seen = "its process ended"
            break
        if _greets(host, timeout_s=1):
            # "degraded" counts: a failed unit is for the caller to see, and the host is usable.
            answer = host.ssh(["systemctl", "is-system-running", "--wait"], timeout_s=BOOT_TIMEOUT_S)
            if answer.stdout.strip() in (b"running", b"degraded"):
                return
            seen = (answer.stdout + answer.stderr).decode(errors="replace").strip()
        time.sleep(0.05)
    console = (host.folder / "console.log").read_text(errors="replace").splitlines()[-10:]
    raise AerieError(
        host.name,
        seen="\n".join([seen, *console]),
        expected=f"a booted host within {BOOT_TIMEOUT_S} s",
        remedy="Run invoke lab.down, then lab.up again.",
    )


def _comes_up(host: LabHost) -> bool:
    """True when the host runs and its sshd greets, or does so soon: it may be in the middle of a reboot."""
    end = time.monotonic() + REBOOT_TIMEOUT_S
    while cgroups.pids(host.name) and time.monotonic() < end:
        if _greets(host, timeout_s=1):
            return True
        time.sleep(0.1)
    return False


def _greets(host: LabHost, *, timeout_s: float) -> bool:
    """True when the host's sshd says its name."""
    try:
        with socket.create_connection((host.address, 22), timeout=timeout_s) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


@contextmanager
def _locked() -> Iterator[None]:
    """One change of a lab at a time on this machine."""
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise AerieError(
                        str(LOCK),
                        seen=f"held for {LOCK_TIMEOUT_S} s by another lab.up or lab.down",
                        expected="a free lock",
                        remedy=f"See who holds it: lslocks | grep {LOCK.name}",
                    ) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(lock)
