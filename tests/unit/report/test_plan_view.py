"""The plan screen: verdicts first, equal hosts folded, interruptions and the next command last."""

import io
import re

import pytest
from rich.console import Console

from aerie.plan import HostState, Plan, host_plan, unjudged
from aerie.report.hosts import fold, plan_view
from tests.snapshots import snapshot_with
from tests.unit.findings.examples import a_host, bare, lock_with, waiver, weights_disk, xid
from tests.unit.test_plan import BUSY, DRIVER, LOADED, TODAY

LOCK = "ubuntu2404-cuda131"


def shown(*hosts, width=120, **more):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, highlight=False, markup=False).print(
        plan_view(Plan(hosts=hosts), **more)
    )
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def planned(name, changes=None, **host):
    return host_plan(a_host(name=name, **host), lock_with({}), snapshot_with(changes or {}), TODAY)


def lost(name, error="no answer within 10 s"):
    return unjudged(name, LOCK, HostState.UNREACHABLE, f"{name}: {error}")


def test_a_host_begins_with_its_verdict_and_ends_with_what_it_stops():
    lines = shown(planned("gpu01", {**DRIVER, **BUSY, **weights_disk(readahead_kib=128)}), width=200)
    assert [re.sub(r"(?<=\S)  +", "  ", line) for line in lines] == [
        "gpu01  1 fatal  1 warn  lock: ubuntu2404-cuda131  layers: driver storage  reboot: yes, once",
        "  FATAL  driver.version-mismatch  package 590.44.01, library 590.44.01, loaded 590.44.01; "
        "expected 590.48.01 in each  provision installs it and boots into it.",
        "  WARN  storage.readahead-low  128 KiB on nvme1n1; expected 4096 KiB  provision sets it now and at each boot.",
        "  ok  base kernel interconnect cuda python extensions weights engine",
        "reboot because: driver.version-mismatch",
        "stops: aerie-vllm.service: since 2026-11-27T06:00:00Z, 3 d",
        "stops: sglang.service: on GPU 0, 1",
        "stops: python3 (pid 99): on GPU 2",
        "",
        "1 host: 1 to change, 0 as they are, 0 unreachable",
        "next: ./invoke provision --host gpu01",
    ]


def test_equal_hosts_are_one_block_and_the_command_names_those_to_change():
    lines = shown(*(planned(name, bare()) for name in ("gpu01", "gpu02", "gpu03")), planned("gpu04"))
    assert lines[0].startswith("gpu[01:03]  3 hosts, each:  2 fatal  ")
    assert "gpu04  matches its lock  lock: ubuntu2404-cuda131" in lines
    assert sum("driver.not-installed" in line for line in lines) == 2  # the finding, and the reboot's reason
    assert lines[-2:] == [
        "4 hosts: 3 to change, 1 as it is, 0 unreachable",
        "next: ./invoke provision --host 'gpu[01:03]'",
    ]


def test_hosts_that_differ_in_a_value_are_not_folded():
    lines = shown(planned("gpu01", {"xids": [xid(79, 3)]}), planned("gpu02", {"xids": [xid(79, 4)]}))
    assert sum(line.startswith("gpu0") for line in lines) == 2
    assert lines[-1] == "next: ./invoke plan --host 'gpu[01:02]'"
    assert "2 to mend by hand" in lines[-2]


def test_remedies_of_folded_hosts_name_them_all():
    text = " ".join(" ".join(shown(*(planned(name, {"xids": [xid(79, 3)]}) for name in ("gpu01", "gpu02")))).split())
    assert "Reboot gpu[01:02]; power-cycle" in text


def test_unreachable_hosts_say_why_and_are_not_to_change():
    lines = shown(lost("gpu01"), lost("gpu02"), lost("gpu03", "connection refused"), planned("gpu04"))
    assert lines[:5] == [
        "gpu[01:02]  unreachable", "  gpu[01:02]: no answer within 10 s", "", "gpu03  unreachable",
        "  gpu03: connection refused",
    ]  # fmt: skip
    assert lines[-2:] == [
        "4 hosts: 0 to change, 1 as it is, 3 unreachable", "next: ./invoke plan --host 'gpu[01:03]'",
    ]  # fmt: skip


def test_what_blocks_a_host_is_said_and_no_layer_offered():
    lines = shown(planned("gpu01", {"driver/runfile": "/usr/bin/nvidia-uninstall", "base/needrestart": "a"}))
    assert lines[0] == "gpu01  1 fatal  1 warn  lock: ubuntu2404-cuda131"
    assert "nothing is changed before a person mended driver.runfile" in lines
    assert lines[-2:] == [
        "1 host: 0 to change, 0 as they are, 1 blocked, 0 unreachable",
        "next: ./invoke plan --host gpu01",
    ]


def test_a_local_host_is_to_be_rebooted_by_its_user():
    lines = shown(planned("localhost", LOADED, connection="local"))
    assert lines[0].endswith("reboot: yes, by you")
    assert any(line.startswith("not rebooted: ") and "run again after you rebooted" in line for line in lines)


def test_a_waived_finding_is_shown_with_reason_and_day():
    lines = shown(planned("gpu01", {"engine/user": None}, waivers=(waiver("engine.user-missing", "2027-01-31"),)))
    assert lines[0].startswith("gpu01  matches its lock")
    assert any("waived" in line and "ticket 4711; until 2027-01-31" in line for line in lines)
    assert lines[-1] == "next: ./invoke verify --host gpu01"


def test_the_next_command_has_the_inventory_that_was_given():
    assert shown(planned("gpu01"), inventory="lab/hosts.yml")[-1] == (
        "next: ./invoke verify --host gpu01 --inventory lab/hosts.yml"
    )


@pytest.mark.parametrize("width", [60, 80, 200])
def test_ids_are_whole_on_any_terminal(width):
    text = "\n".join(shown(planned("gpu01", {**bare(), "base/needrestart": "a"}), width=width))
    for finding in ("driver.not-installed", "cuda.not-installed", "base.needrestart-automatic"):
        assert finding in text


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["gpu01"], "gpu01"), (["gpu01", "gpu02", "gpu03"], "gpu[01:03]"), (["gpu09", "gpu10"], "gpu[09:10]"),
        (["gpu9", "gpu10"], "gpu[9:10]"), (["gpu01", "gpu03"], "gpu01,gpu03"), (["a", "b"], "a,b"),
        (["gpu01", "gpu02", "lab02"], "gpu[01:02],lab02"), (["10.0.0.1", "10.0.0.2"], "10.0.0.[1:2]"),
        (["gpu099", "gpu100"], "gpu[099:100]"), (["gpu07", "gpu8"], "gpu07,gpu8"), (["gpu02", "gpu01"], "gpu02,gpu01"),
    ],
)  # fmt: skip
def test_names_fold_into_a_pattern(names, pattern):
    assert fold(names) == pattern
