"""Hosts come up once, and go without a trace, whatever state they are in."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import lab
from aerie.errors import AerieError, UsageError
from lab import LabHost, cgroups
from lab.base import base_image, suite_of
from lab.command import PROGRAMS

Said = Callable[..., str]
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
BOOT_ID = ("cat", "/proc/sys/kernel/random/boot_id")


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def _links() -> list[str]:
    return sorted(link["ifname"] for link in json.loads(_output("ip", "-json", "link", "show")))


def _namespaces(pids: set[int]) -> set[str]:
    found = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/ns").glob("*"):
            try:
                found.add(str(file.readlink()))
            except OSError:  # it ended meanwhile
                continue
    return found


def _traces(state: Path) -> dict[str, object]:
    """What a lab leaves on a machine, apart from its base image, as far as it can be seen."""
    return {
        "state": state.exists(),
        "links": [name for name in _links() if name.startswith("aerie-lab")],
        "tables": [line for line in _output("nft", "list", "tables").splitlines() if "aerie_lab" in line],
        "cgroups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob("**/aerie-lab")),
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if "/aerie/lab/" in line],
        "machine's /run": Path("/run/systemd/nspawn").exists(),
    }


@pytest.fixture
def clean(own_lab: Path) -> tuple[dict[str, object], list[str], str]:
    """The machine without a lab: its traces (none, but for what others left), links and forwarding."""
    lab.down()
    traces = _traces(own_lab)
    assert traces | {"machine's /run": False} == {
        "state": False, "links": [], "tables": [], "cgroups": [], "mounts": [], "machine's /run": False
    }  # fmt: skip
    return traces, _links(), FORWARD.read_text()


@pytest.mark.lab
def test_up_twice_leaves_running_hosts_alone(lab_host: LabHost, said: Said) -> None:
    before = said(lab_host, *BOOT_ID)
    assert lab.up(1) == (lab_host,)
    assert said(lab_host, *BOOT_ID) == before


@pytest.mark.lab
def test_a_host_that_was_switched_off_starts_again_with_its_files(
    lab_host: LabHost, said: Said, eventually: Callable[[str, Callable[[], bool]], None]
) -> None:
    said(lab_host, "touch", "/root/kept")
    lab_host.ssh(["systemctl", "poweroff"])
    eventually("lab01 is off", lambda: not lab.status()[0].is_running)
    lab.up(1)
    said(lab_host, "ls", "/root/kept")


@pytest.mark.lab
def test_status_tells_how_each_host_is(own_lab: Path) -> None:
    lab.up(2)
    hosts = lab.status()
    assert [(host.name, host.address, host.is_running, host.answers) for host in hosts] == [
        ("lab01", "10.77.0.11", True, True),
        ("lab02", "10.77.0.12", True, True),
    ]
    assert all(host.memory_bytes for host in hosts)


@pytest.mark.lab
def test_down_leaves_nothing(
    clean: tuple[dict[str, object], list[str], str],
    own_lab: Path,
    eventually: Callable[[str, Callable[[], bool]], None],
) -> None:
    lab.up(2)
    pids = cgroups.pids("lab01") | cgroups.pids("lab02")
    namespaces = _namespaces(pids) - _namespaces({os.getpid()})
    assert len(pids) > 10
    assert len(namespaces) > 10
    assert FORWARD.read_text().strip() == "1"

    assert lab.down() == ("lab01", "lab02")

    assert (_traces(own_lab), _links(), FORWARD.read_text()) == clean
    # Dead at once; the machine's own first process collects the last ones within some seconds.
    eventually("processes gone", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    everyone = {int(path.name) for path in Path("/proc").glob("[0-9]*")}
    assert _namespaces(everyone) & namespaces == set()
    assert lab.status() == ()


@pytest.mark.lab
def test_down_works_on_whatever_is_left_of_hosts(
    clean: tuple[dict[str, object], list[str], str], own_lab: Path
) -> None:
    lab.up(2)
    cgroups.kill("lab01")
    shutil.rmtree(own_lab)  # the files of both hosts; lab02 still runs
    _output("ip", "link", "add", "aerie-lab07", "type", "veth", "peer", "name", "aerie-peer")  # a start cut short
    cgroups.create("lab08")

    assert lab.down() == ("lab01", "lab02", "lab07", "lab08")

    assert (_traces(own_lab), _links(), FORWARD.read_text()) == clean


@pytest.mark.lab
def test_up_mends_a_host_whose_start_was_cut_short(own_lab: Path, said: Said) -> None:
    (host,) = lab.up(1)
    before = said(host, *BOOT_ID)
    cgroups.kill("lab01")
    lab.up(1)
    assert said(host, *BOOT_ID) != before


@pytest.mark.lab
def test_a_second_lab_on_the_machine_is_refused(
    lab_host: LabHost, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for act in (lambda: lab.up(1), lab.down, lab.status):
        with pytest.raises(AerieError) as caught:
            act()
        assert str(lab_host.state) in str(caught.value)
        assert f"XDG_STATE_HOME={lab_host.state.parent.parent} invoke lab.down" in caught.value.remedy
    said(lab_host, "true")


@pytest.mark.lab
def test_a_host_of_another_suite_in_the_same_lab_is_refused(lab_host: LabHost, said: Said) -> None:
    other = "bookworm" if suite_of(Path((lab_host.state / "base").read_text())) == "trixie" else "trixie"
    with pytest.raises(UsageError, match=rf"expected one on {other}.*lab\.down"):
        lab.up(2, suite=other)
    said(lab_host, "true")


def test_an_unknown_suite_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean bookworm"):
        base_image(print, "bookwurm")


@pytest.mark.parametrize("count", [0, -1, 100])
def test_a_wrong_number_of_hosts_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match="1 to 99 hosts"):
        lab.up(count)


def test_a_user_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(AerieError, match=r"uid 1000.*Run it as root"):
        lab.up(1)


def test_missing_programs_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for program in sorted(set(PROGRAMS) - {"mmdebstrap", "nft"}):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AerieError) as caught:
        lab.up(1)
    assert caught.value.seen == "no mmdebstrap, nft"
    assert caught.value.remedy == "Run: apt-get install --no-install-recommends mmdebstrap nftables"
