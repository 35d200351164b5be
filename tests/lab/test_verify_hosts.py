"""Verification against lab hosts: questions to the host itself, scenarios of cards, dead hosts, plain pytest."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import lab
from aerie import inventory, remote, verify
from aerie.paths import repository
from aerie.verification import HostVerification, Outcome, Requirement
from lab import LabHost, scenario
from tests.unit.test_host_tests import failed

Said = Callable[..., str]

# On a host that was not provisioned these fail or are skipped anyway.
NEED_A_DRIVER_FROM_PACKAGES = {"persistence-off", "not-loaded", "fabricmanager", "kernel-without-module"}
CARDS = [
    name
    for name in scenario.names()
    if scenario.load(name).finding and name not in {*NEED_A_DRIVER_FROM_PACKAGES, "iommu-translating"}
]


def ask(host: LabHost, *layers: str, **limits: int) -> HostVerification:
    entry = inventory.host(host.name, host.inventory)
    lock = inventory.lock_of(entry, None, host.inventory)
    lock = lock.model_copy(update={"base": lock.base.model_copy(update=limits)})
    found = verify.run([entry], locks={host.name: lock}, layers=layers)
    (result,) = found.hosts
    assert result.error == "" and result.with_outcome(Outcome.ERROR) == ()
    return result


def named(result: HostVerification, name: str) -> Requirement:
    return next(one for one in result.requirements if one.name == name)


@pytest.mark.lab
def test_limits_are_those_of_a_session_opened_now(cards_host: LabHost) -> None:
    name, path = "a new session gets the locked limits", "/etc/security/limits.d/99-test.conf"
    wanted = {"memlock": 1 << 20, "nofile": 4096, "stack": 1 << 20}
    before = named(ask(cards_host, "base", **wanted), name)
    assert before.outcome is Outcome.FAILED and before.shortfall is not None
    assert before.shortfall.seen == "nofile 1024, wants 4096"
    cards_host.ssh(["tee", path], stdin=b"root soft nofile 4096\nroot hard nofile 4096\n")
    assert named(ask(cards_host, "base", **wanted), name).outcome is Outcome.PASSED
    cards_host.ssh(["rm", path])


@pytest.mark.lab
def test_nvcc_must_answer_to_a_command_without_login(cards_host: LabHost, said: Said) -> None:
    name, folder = "nvcc answers to a bare command", "/usr/local/cuda-13.1/bin"
    cards_host.ssh(["tee", "/etc/profile.d/cuda.sh"], stdin=f"export PATH={folder}:$PATH\n".encode())
    login_only = named(ask(cards_host, "cuda"), name)
    assert login_only.outcome is Outcome.FAILED and login_only.shortfall is not None
    assert (login_only.finding, login_only.shortfall.expected) == ("cuda.nvcc-not-in-path", "13.1.80")
    assert "not found" in login_only.shortfall.seen
    said(cards_host, "ln", "-s", f"{folder}/nvcc", "/usr/local/bin/nvcc")
    assert named(ask(cards_host, "cuda"), name).outcome is Outcome.PASSED
    said(cards_host, "rm", "/usr/local/bin/nvcc", "/etc/profile.d/cuda.sh")


@pytest.mark.lab
def test_the_folder_and_the_daemon_are_asked_for_on_the_host(cards_host: LabHost, said: Said) -> None:
    assert named(ask(cards_host, "storage"), "the locked path is a folder").outcome is Outcome.FAILED
    said(cards_host, "mkdir", "/srv/aerie")
    assert named(ask(cards_host, "storage"), "the locked path is a folder").outcome is Outcome.PASSED
    said(cards_host, "rmdir", "/srv/aerie")
    said(cards_host, "systemctl", "stop", "nvidia-persistenced")
    daemon = named(ask(cards_host, "driver"), "the persistence daemon runs and starts at boot")
    assert daemon.outcome is Outcome.FAILED and daemon.shortfall is not None
    assert (daemon.shortfall.seen, daemon.shortfall.expected) == ("inactive", "active")
    said(cards_host, "systemctl", "start", "nvidia-persistenced")


def failing(host: LabHost) -> set[str]:
    """Ids of the findings whose tests fail on the host's snapshot."""
    entry = inventory.host(host.name, host.inventory)
    lock = inventory.lock_of(entry, None, host.inventory)
    snapshot = remote.probe(entry)
    case = verify.Case(host=entry, lock=lock, snapshot=snapshot, today=date.today(), is_live=False)
    return set(failed(case).values())


@pytest.fixture(scope="module")
def missing(cards_lab: None, lab_home: Path) -> set[str]:
    """What fails on lab01 with healthy cards, since nothing was provisioned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.gpu("lab01", "healthy8")
        return failing(lab.up(1)[0])


@pytest.mark.lab
@pytest.mark.parametrize("name", CARDS)
def test_a_scenario_of_the_cards_fails_the_tests_of_its_finding_and_no_other(
    name: str, missing: set[str], cards_lab: None, own_lab: Path
) -> None:
    (host,) = lab.up(1)
    lab.gpu(host.name, name)
    assert failing(host) - missing == {scenario.load(name).finding}


@pytest.mark.lab
def test_a_dead_host_is_one_line_and_the_others_are_reported(cards_host: LabHost, tmp_path: Path) -> None:
    folder = tmp_path / "inventory"
    shutil.copytree(cards_host.inventory.parent, folder)
    document = yaml.safe_load((folder / "hosts.yml").read_text())
    hosts = document["all"]["children"]["lab"]["hosts"]
    hosts["dead"] = {**hosts["lab01"], "ansible_host": "10.77.0.99"}
    hosts["stranger"] = {**hosts["lab01"], "ansible_user": "nobody"}
    (folder / "hosts.yml").write_text(yaml.safe_dump(document))
    found = verify.verify("lab", path=folder / "hosts.yml", layers=["storage"], forks=3)
    states = {host.host: str(host.state) for host in found.hosts}
    assert states == {"lab01": "failed", "dead": "unreachable", "stranger": "unreachable"}
    errors = {host.host: host.error for host in found.hosts}
    assert "10.77.0.99" in errors["dead"] and "refuses the login" in errors["stranger"]
    assert [host.host for host in found.hosts if host.requirements] == ["lab01"]
    assert found.exit_code() == 1
    assert {host.name for host in inventory.select("@failed", folder / "hosts.yml")} == {"lab01", "dead", "stranger"}


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(argv, cwd=repository(), capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.lab
@pytest.mark.parametrize("hosts", ["ssh://lab01", "ansible://lab", "lab01", "ssh://10.77.0.11"])
def test_plain_pytest_asks_hosts_of_the_inventory(hosts: str, cards_host: LabHost, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    where = ("--hosts", hosts, "--inventory", str(cards_host.inventory), "--lock", "lab", "--results", str(results))
    done = run_pytest("tests/hosts/test_storage.py", *where)
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(results.read_text())
    assert list(found) == ["lab01"]
    outcomes = {row["name"]: row["outcome"] for row in found["lab01"]}
    assert outcomes["the locked path is a folder"] == "failed"
    assert outcomes["the path has the locked space"] == "skipped"  # what the missing folder explains


@pytest.mark.lab
def test_plain_pytest_tells_a_dead_host_once(cards_host: LabHost) -> None:
    where = ("--hosts", "ssh://10.77.0.98,ssh://lab01", "--inventory", str(cards_host.inventory), "--lock", "lab")
    done = run_pytest("tests/hosts/test_storage.py", *where)
    assert done.stdout.count("10.77.0.98 could not be read") >= 1
    assert "1 error" in done.stdout and "2 failed" in done.stdout
