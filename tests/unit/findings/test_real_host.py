"""A real Ubuntu 24.04 host with an H200, driver 580 and CUDA 13.0, judged by the lock for 590 and 13.1."""

from datetime import date

from aerie import lock
from aerie.inventory import Gpus, Host
from aerie.plan import host_plan
from tests.snapshots import snapshot_with


def plan():
    host = Host(name="h200", address="h200", user=None, connection="local", gpus=Gpus(count=1))
    return host_plan(host, lock.load("ubuntu2404-cuda131"), snapshot_with({}, "h200"), date(2026, 11, 30))


def test_what_it_is_and_is_not():
    assert [(str(one.severity), one.id) for one in plan().findings] == [
        ("fatal", "kernel.series-mismatch"),
        ("fatal", "kernel.cmdline-drift"),
        ("fatal", "driver.version-mismatch"),
        ("fatal", "driver.uvm-hmm"),
        ("fatal", "cuda.version-mismatch"),
        ("fatal", "storage.path-missing"),
        ("fatal", "weights.tools-missing"),
        ("fatal", "engine.user-missing"),
        ("warn", "base.limits-low"),
        ("warn", "base.packages-missing"),
        ("warn", "base.unknown"),
        ("warn", "kernel.nouveau-not-blacklisted"),
    ]


def test_versions_are_told_as_they_are():
    seen = {one.id: (one.seen, one.expected) for one in plan().findings}
    assert seen["driver.version-mismatch"] == (
        "no package, library 580.159.04, loaded 580.159.04",
        "590.48.01 in each",
    )
    assert seen["cuda.version-mismatch"] == (
        "CUDA (nvcc 13.0.88) at /usr/local/cuda-13.0",
        "13.1.1 (nvcc 13.1.115) at /usr/local/cuda-13.1",
    )


def test_it_is_not_rebooted_by_aerie_as_its_connection_is_local():
    reboot = plan().reboot
    assert reboot.needed
    assert reboot.refused == "its connection is local; reboot it yourself, then run again after you rebooted"


def test_without_systemd_its_units_are_unknown_and_not_fine():
    (unknown,) = [one for one in plan().findings if one.id == "base.unknown"]
    assert unknown.seen == "base.failed_units, engine.listening, engine.units (no systemd here: process 1 is init)"
