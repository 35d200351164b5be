"""Plans: which layers are applied, whether and why there is a reboot, what it stops, what waivers do."""

from datetime import date

import pytest

from aerie import plan
from aerie.findings import Severity
from aerie.plan import HostState, Plan, host_plan
from tests.snapshots import snapshot_with
from tests.unit.findings.examples import (
    CUDA_DEBIAN,
    CUDA_UBUNTU,
    KEY,
    PACKAGES,
    a_host,
    bare,
    each_gpu,
    lock_with,
    package,
    process,
    source,
    stack,
    waiver,
)

TODAY = date(2026, 11, 30)
LOADED = {"driver/loaded_version": "590.44.01"}
TOOLKIT = {"cuda/toolkits/0/nvcc": "13.1.80"}
KERNEL = {"kernel/release": "6.5.0-9-generic", "kernel/next_release": "6.5.0-9-generic"}
DRIVER = {**stack("590.44.01"), **LOADED, "driver/library_version": "590.44.01"}
NEXT = "6.8.0-90-generic"
NO_MODULE = {"kernel/next_release": NEXT, "kernel/installed/0": NEXT, "kernel/headers/0": NEXT}


def made(changes=None, lock=None, **host):
    return host_plan(a_host(**host), lock_with(lock or {}), snapshot_with(changes or {}), TODAY)


def ids(found):
    return [finding.id for finding in found]


# Case 10: nothing, driver only, toolkit only, kernel and driver.
@pytest.mark.parametrize(
    ("changes", "apply", "reboots"),
    [
        ({}, (), 0),
        (DRIVER, ("driver",), 1),
        (TOOLKIT, ("cuda",), 0),
        ({**KERNEL, **DRIVER}, ("kernel", "driver"), 1),
        (LOADED, (), 1),
        (bare(), ("driver", "cuda"), 1),
        ({"base/needrestart": "a", "engine/user": None}, ("base", "engine"), 0),
        ({"interconnect/acs": [{"bus_id": "0000:00:01.1", "control": 29}]}, ("interconnect",), 0),
    ],
    ids=["nothing", "driver", "toolkit", "kernel-and-driver", "module-of-before", "bare", "base-and-engine", "acs"],
)
def test_layers_and_reboots(changes, apply, reboots):
    result = made(changes)
    assert result.apply == apply
    assert result.reboot.needed is bool(reboots)
    assert bool(result.reboot.reasons) is bool(reboots)


def test_a_reboots_reasons_begin_with_the_findings_id():
    assert made({**KERNEL, **DRIVER}).reboot.reasons == (
        "kernel.series-mismatch: 6.5.0-9-generic runs, expected 6.8",
        "driver.version-mismatch: package 590.44.01, library 590.44.01, loaded 590.44.01, expected 590.48.01 in each",
    )


def test_a_library_newer_than_the_module_reinstalls_nothing():
    result = made({**LOADED, "base/unattended/blacklist": []})
    assert (result.apply, result.reboot.needed) == (("base",), True)
    assert result.reboot.reasons[0].startswith("driver.version-mismatch: ")


def test_a_local_host_is_never_rebooted_by_aerie():
    reboot = made(LOADED, connection="local").reboot
    assert reboot.needed and reboot.reasons
    assert "run again after you rebooted" in reboot.refused


def test_info_is_no_reason_to_do_anything():
    newer = {**NO_MODULE, f"driver/modules/{NEXT}": {"version": "590.48.01", "license": "Dual MIT/GPL"},
             f"driver/dkms/{NEXT}": "590.48.01 installed"}  # fmt: skip
    result = made(newer)
    assert ids(result.findings) == ["kernel.reboot-pending"]
    assert (result.state, result.apply, result.reboot.needed) == (HostState.MATCHES, (), False)


def test_a_kernel_without_a_module_is_not_booted_unless_the_driver_is_applied():
    built = made({**NO_MODULE, "kernel/cmdline": "ro", "kernel/next_cmdline": "ro"})
    assert (built.apply, built.reboot.needed) == (("kernel", "driver"), True)
    kept = made(
        {**NO_MODULE, "kernel/cmdline": "ro", "kernel/next_cmdline": "ro"},
        waivers=(waiver("driver.module-missing", "2026-12-31"),),
    )
    assert (kept.apply, kept.reboot.needed) == (("kernel",), False)
    assert kept.reboot.refused.startswith("driver.module-missing") and kept.reboot.reasons


@pytest.mark.parametrize(
    ("changes", "lock", "blocked"),
    [
        ({"kernel/secure_boot": True, **DRIVER}, {}, "kernel.secure-boot-unenrolled"),
        ({"driver/runfile": "/usr/bin/nvidia-uninstall", **TOOLKIT}, {}, "driver.runfile"),
        ({f"{PACKAGES}/nvidia-dkms": package("590.48.01-1")}, {}, "driver.mixed-flavours"),
        ({"os/id": "debian", "os/version_id": "13"}, {"systems": ["debian-13"]}, "driver.repository-wrong"),
        ({"os/version_id": "22.04", "base/needrestart": "a"}, {}, "base.unsupported-system"),
        ({"base/apt_sources/1": source(CUDA_DEBIAN, "/x.gpg", KEY), **DRIVER}, {}, "driver.repository-wrong"),
        ({"base/apt_sources/1": source(CUDA_UBUNTU, "/x.gpg", KEY)}, {}, "base.apt-source-conflict"),
    ],
)
def test_what_a_person_must_mend_first_stops_every_change(changes, lock, blocked):
    result = made(changes, lock)
    assert (result.blocked, result.apply, result.reboot.needed, result.stops) == ((blocked,), (), False, ())
    assert result.findings[0].severity is Severity.FATAL


def test_a_repository_whose_key_is_another_is_provisions_to_mend():
    result = made({"base/apt_sources/2/fingerprints": ["0" * 40]})
    assert (result.blocked, result.apply) == ((), ("driver",))


def test_an_old_driver_below_the_toolkit_is_the_drivers_to_mend():
    old = {"driver/loaded_version": "580.173.02", "driver/library_version": "580.173.02"}
    result = made({**stack("580.173.02"), **old})
    assert ids(result.findings) == ["driver.version-mismatch", "cuda.ptx-jit"]
    assert result.apply == ("driver",)
    assert len(result.reboot.reasons) == 2


# Waivers --------------------------------------------------------------------------------------------------------------
def test_a_waived_finding_is_shown_as_such_and_does_not_count():
    result = made({"engine/user": None}, waivers=(waiver("engine.user-missing", "2026-11-30"),))
    assert (result.state, result.findings, result.apply) == (HostState.MATCHES, (), ())
    one = result.waived[0]
    assert (one.finding.id, one.reason, one.expires) == ("engine.user-missing", "ticket 4711", "2026-11-30")


def test_an_expired_waiver_does_not_waive_and_says_so():
    result = made({"engine/user": None}, waivers=(waiver("engine.user-missing", "2026-11-29"),))
    assert ids(result.findings) == ["engine.user-missing", "base.waiver-expired"]
    assert result.findings[1].seen == "engine.user-missing until 2026-11-29"
    assert (result.waived, result.apply) == ((), ("engine",))


def test_an_expired_waiver_of_what_is_mended_is_silent():
    assert made(waivers=(waiver("engine.user-missing", "2026-11-29"),)).findings == ()


# What it stops --------------------------------------------------------------------------------------------------------
BUSY = {
    **{f"gpus/{index}/processes": [process(4711 + index, "sglang", "sglang.service")] for index in (0, 1)},
    "gpus/2/processes": [process(99, "python3", None)],
    "engine/units": [{"name": "aerie-vllm.service", "active": "active", "enabled": "enabled",
                      "since": "2026-11-27T06:00:00Z"},
                     {"name": "aerie-acs.service", "active": "active", "enabled": "enabled",
                      "since": "2026-11-27T06:00:00Z"},
                     {"name": "aerie-old.service", "active": "inactive", "enabled": "disabled", "since": None}],
}  # fmt: skip


def test_engines_and_users_of_gpus_are_named_before_they_are_stopped():
    assert made({**DRIVER, **BUSY}).stops == (
        "aerie-vllm.service: since 2026-11-27T06:00:00Z, 3 d",
        "sglang.service: on GPU 0, 1",
        "python3 (pid 99): on GPU 2",
    )


@pytest.mark.parametrize("changes", [TOOLKIT, {}, {"base/needrestart": "a"}])
def test_nothing_is_stopped_where_gpus_are_left_alone(changes):
    assert made({**changes, **BUSY}).stops == ()


def test_a_reboot_alone_stops_them_too():
    assert made({**each_gpu("remap_pending", True), **BUSY}).stops[1] == "sglang.service: on GPU 0, 1"


# Exit codes and the document ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "fail_on", "code"),
    [
        ({}, Severity.FATAL, 0), ({"engine/user": None}, Severity.FATAL, 3),
        ({"base/needrestart": "a"}, Severity.FATAL, 0),
        ({"base/needrestart": "a"}, Severity.WARN, 3), ({"base/apt_lock_holder": "apt (pid 1)"}, Severity.WARN, 0),
    ],
)  # fmt: skip
def test_exit_codes(changes, fail_on, code):
    assert Plan(hosts=(made(changes),)).exit_code(fail_on) == code


@pytest.mark.parametrize("state", [HostState.UNREACHABLE, HostState.UNPROBED])
def test_a_host_that_could_not_be_judged_is_a_failure_not_a_drift(state):
    lost = plan.unjudged("gpu02", "ubuntu2404-cuda131", state, "gpu02: no route to host")
    assert Plan(hosts=(made({"engine/user": None}), lost)).exit_code() == 1
    assert Plan(hosts=(lost,)).changing() == []


def test_the_document_is_the_documented_schema():
    document = Plan(hosts=(made(DRIVER),)).to_dict()
    assert document["schema"] == "aerie.plan/1"
    host = document["hosts"][0]
    keys = {"host", "lock", "lock_sha256", "state", "findings", "waived", "apply", "reboot", "stops", "blocked"}
    keys |= {"judged", "error"}
    assert set(host) == keys
    assert {"id", "layer", "severity", "seen", "expected", "remedy"} <= set(host["findings"][0])
    assert host["apply"] == ["driver"]
    assert host["reboot"]["needed"] is True and host["reboot"]["reasons"]


def test_layers_of_gpus_are_not_said_to_be_right_where_they_were_not_looked_at():
    assert made().judged == (
        "base",
        "kernel",
        "driver",
        "interconnect",
        "cuda",
        "python",
        "extensions",
        "storage",
        "weights",
        "engine",
    )
    assert made(gpus=type(a_host().gpus)()).judged == ("base", "kernel", "python", "storage", "weights", "engine")
