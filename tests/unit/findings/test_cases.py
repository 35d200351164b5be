"""States that operators reported in public, each with its exact right findings. Numbers as in the project's facts."""

import pytest

from aerie.findings import Fix, Severity
from tests.snapshots import GONE
from tests.unit.findings import examples
from tests.unit.findings.examples import (
    BUS_IDS,
    GPU_IDS,
    PACKAGES,
    SERIALS,
    Example,
    a_host,
    bare,
    each_gpu,
    judge,
    package,
    stack,
    xid,
)  # fmt: skip


def found(changes=None, lock=None, host=None):
    return judge(Example(id="", changes=changes or {}, lock=lock or {}, host=host or {}))


def ids(findings):
    return [finding.id for finding in findings]


def only(findings):
    assert len(findings) == 1, findings
    return findings[0]


# 1 -------------------------------------------------------------------------------------------------------------------
def test_a_library_newer_than_the_module_needs_one_reboot_and_no_reinstallation():
    changes = {
        **stack("580.126.09"), "driver/library_version": "580.126.09", "driver/loaded_version": "580.95.05",
        "driver/nvml_error": "18 Driver/library version mismatch", "gpus": {"unknown": "18"},
        "driver/modules/6.8.0-88-generic/version": "580.126.09", "interconnect/p2p": {"unknown": "18"},
        f"{PACKAGES}/nvidia-driver-pinning-590.48.01": GONE, "base/unattended/blacklist": [],
    }  # fmt: skip
    lock = {"driver/version": "580.126.09", "cuda/min_driver": "580.65.06"}
    upgrades, mismatch = found(changes, lock)
    assert (mismatch.id, mismatch.severity, mismatch.fix) == ("driver.version-mismatch", Severity.FATAL, Fix.REBOOT)
    assert mismatch.seen == "package 580.126.09, library 580.126.09, loaded 580.95.05"
    assert (upgrades.id, upgrades.fix) == ("base.unattended-upgrades-unsafe", Fix.PROVISION)


def test_after_the_reboot_only_the_upgrades_are_left():
    changes = {"base/unattended/blacklist": []}
    assert ids(found(changes)) == ["base.unattended-upgrades-unsafe"]


# 4 -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("580.126.09", "nvidia-open-580"),
        ("590.48.01", "nvidia-driver-pinning-590.48.01, nvidia-open"),
        ("595.58.03", "nvidia-driver-pinning-595.58.03, nvidia-open"),
        ("610.57.04", "nvidia-driver-pinning-610.57.04, nvidia-open"),
    ],
)
def test_package_names_carry_the_branch_up_to_580_only(version, names):
    finding = found(bare(), {"driver/version": version})[0]
    assert finding.id == "driver.not-installed"
    assert f"installs {names} (to be resolved" in finding.remedy


# 6 -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("tree", ["ubuntu2404", "debian12"])
def test_debian_13_needs_its_own_repository(tree):
    uri = f"https://developer.download.nvidia.com/compute/cuda/repos/{tree}/x86_64/"
    changes = {"os/id": "debian", "os/version_id": "13", "base/apt_sources/2/uri": uri}
    finding = only(found(changes, {"systems": ["debian-13"], "driver/repository/uri": uri}))
    assert (finding.id, finding.severity, finding.fix) == ("driver.repository-wrong", Severity.FATAL, Fix.PERSON)
    assert finding.expected == "tree debian13" and "debian13" in finding.remedy


def test_a_key_that_debian_13_refuses_is_not_trusted_in_silence():
    uri = "https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64/"
    changes = {"os/id": "debian", "os/version_id": "13", "base/apt_sources/2/uri": uri}
    key = "02182E60104FCDC26EAE1B8597A5D4CB8793F200"
    lock = {"systems": ["debian-13"], "driver/repository/uri": uri, "driver/repository/key_fingerprint": key}
    finding = only(found(changes, lock))
    assert (finding.id, finding.seen) == ("driver.repository-wrong", f"{uri} with key 3BF863CC")
    assert finding.expected.endswith("with key 8793F200")


# 8 -------------------------------------------------------------------------------------------------------------------
def test_a_bare_host_is_told_what_will_be_installed_once_the_repository_is_there():
    driver, cuda = found(bare())
    assert (driver.id, cuda.id) == ("driver.not-installed", "cuda.not-installed")
    assert driver.remedy == (
        "./invoke provision --host gpu01 installs nvidia-driver-pinning-590.48.01, nvidia-open "
        "(to be resolved after the repository is added)."
    )


def test_with_the_repository_there_nothing_is_left_to_resolve():
    changes = {key: value for key, value in bare().items() if key != "base/apt_sources/2"}
    assert found(changes)[0].remedy.endswith("nvidia-open.")


# 13 ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changes",
    [{}, {"driver/dkms/6.17.0-35-generic": "590.48.01 built"}, {"driver/dkms": {"unknown": "dkms: exit 3"}}],
    ids=["no-line", "built-only", "dkms-unreadable"],
)
def test_a_kernel_without_a_module_is_fatal_before_it_boots(changes):
    newer = {
        "kernel/next_release": "6.17.0-35-generic", "kernel/installed/0": "6.17.0-35-generic",
        "kernel/headers/0": "6.17.0-35-generic",
    }  # fmt: skip
    first = found({**newer, **changes}, {"kernel/series": ["6.8", "6.17"]})[0]
    assert (first.id, first.severity, first.fix) == ("driver.module-missing", Severity.FATAL, Fix.PROVISION)
    assert first.seen.startswith("6.17.0-35-generic: ") and "do not reboot before" in first.remedy


# 14 ------------------------------------------------------------------------------------------------------------------
def test_headers_that_are_gone_are_not_taken_for_installed():
    release = "6.14.0-24-generic"
    changes = {
        "kernel/release": release, "kernel/next_release": release, "kernel/installed": [release], "kernel/headers": [],
        f"driver/modules/{release}": {"version": "590.48.01", "license": "Dual MIT/GPL"},
        f"driver/dkms/{release}": "590.48.01 installed",
    }  # fmt: skip
    finding = only(found(changes, {"kernel/series": ["6.14"]}))
    assert (finding.id, finding.expected) == ("kernel.headers-missing", f"linux-headers-{release}")
    assert "a newer kernel with its headers first" in finding.remedy


def test_a_container_is_not_asked_for_headers_of_a_kernel_that_is_not_its_own():
    assert found({"kernel/installed": [], "kernel/headers": []}) == ()


# 15 ------------------------------------------------------------------------------------------------------------------
def test_the_closed_module_on_blackwell_is_switched():
    example = next(one for one in examples.EXAMPLES if one.id == "driver.closed-module")
    finding = only(judge(example))
    assert (finding.fix, finding.needs_reboot) == (Fix.PROVISION, True)
    assert "switches to the open flavour" in finding.remedy


# 17 ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("system", "enrolled", "commands"),
    [
        ("ubuntu", False, "`sudo mokutil --import /var/lib/shim-signed/mok/MOK.der`;"),
        ("ubuntu", None, "`sudo update-secureboot-policy --new-key`, `sudo mokutil --import"),
        ("debian", False, "`sudo mokutil --import /var/lib/dkms/mok.pub`;"),
    ],
)
def test_secure_boot_without_the_key_stops_with_the_steps_to_type(system, enrolled, commands):
    changes = {"os/id": system, "kernel/secure_boot": True, "kernel/is_signing_key_enrolled": enrolled}
    finding = next(one for one in found(changes) if one.id == "kernel.secure-boot-unenrolled")
    assert finding.fix is Fix.PERSON and not finding.needs_reboot
    assert commands in finding.remedy and "Enroll MOK" in finding.remedy


def test_an_enrolled_key_or_secure_boot_off_is_no_finding():
    assert found({"kernel/secure_boot": True, "kernel/is_signing_key_enrolled": True}) == ()
    assert found({"kernel/secure_boot": False, "kernel/is_signing_key_enrolled": False}) == ()


# 18 ------------------------------------------------------------------------------------------------------------------
def test_hmm_is_told_although_all_eight_gpus_are_there():
    changes = {**each_gpu("addressing_mode", "hmm"), "driver/uvm_disable_hmm": False, "driver/modprobe_options": {}}
    finding = only(found(changes))
    assert (finding.id, finding.severity, finding.fix) == ("driver.uvm-hmm", Severity.FATAL, Fix.PROVISION)
    assert finding.needs_reboot


def test_hmm_with_the_option_set_already_needs_the_reboot_only():
    finding = only(found({**each_gpu("addressing_mode", "hmm"), "driver/uvm_disable_hmm": False}))
    assert (finding.id, finding.fix) == ("driver.uvm-hmm", Fix.REBOOT)


# 21 ------------------------------------------------------------------------------------------------------------------
def test_a_gpu_that_the_driver_lost_and_one_that_the_bus_lost_are_two_findings():
    driver = only(found({"gpus/5": GONE}))
    bus = only(found({"gpus/5": GONE, "pci_gpus/5": GONE}))
    assert (driver.id, bus.id) == ("driver.gpu-missing", "interconnect.gpu-missing")
    assert BUS_IDS[5] in driver.seen
    assert BUS_IDS[5] in bus.seen and SERIALS[5] in bus.seen
    assert driver.severity is bus.severity is Severity.FATAL


# 22 ------------------------------------------------------------------------------------------------------------------
def test_nvcc_for_login_shells_only_is_not_enough():
    finding = only(found({"cuda/nvcc_in_path": None}))
    assert (finding.id, finding.layer) == ("cuda.nvcc-not-in-path", "cuda")


# 25 ------------------------------------------------------------------------------------------------------------------
def test_links_that_pcie_cards_do_not_have_are_no_finding():
    # NVLink is not in the snapshot at all, and what a card does not support is None there.
    unsupported = ("ecc", "ecc_pending", "mig", "mig_pending", "recovery_action", "remap_failed")
    changes = {f"gpus/{index}/{key}": None for index in GPU_IDS for key in unsupported}
    assert found({**changes, **each_gpu("link_gen", 1)}) == ()


# 27 ------------------------------------------------------------------------------------------------------------------
def test_a_580_driver_with_the_toolkit_of_590_is_refused_by_its_version():
    changes = {**stack("580.173.02"), "driver/loaded_version": "580.173.02", "driver/library_version": "580.173.02"}
    findings = found(changes)
    assert ids(findings) == ["driver.version-mismatch", "cuda.ptx-jit"]
    assert findings[1].seen == "driver 580.173.02, toolkit 13.1.1"
    assert findings[1].severity is Severity.FATAL


def test_a_lock_whose_own_driver_is_too_old_is_a_persons_to_change():
    changes = {**stack("580.173.02"), "driver/loaded_version": "580.173.02", "driver/library_version": "580.173.02",
               "driver/modules/6.8.0-88-generic/version": "580.173.02"}  # fmt: skip
    finding = only(found(changes, {"driver/version": "580.173.02"}))
    assert (finding.id, finding.fix) == ("cuda.ptx-jit", Fix.PERSON)
    assert "at least 590.48.01" in finding.remedy


def test_a_library_on_a_module_of_another_version_runs_nothing_that_could_be_wrong():
    assert ids(found({"driver/loaded_version": "580.173.02"})) == ["driver.version-mismatch"]


def test_one_release_back_in_the_same_branch_is_the_version_mismatch_alone():
    older = {"driver/loaded_version": "590.44.01", "driver/library_version": "590.44.01"}
    assert ids(found({**stack("590.44.01"), **older})) == ["driver.version-mismatch"]


# 30 ------------------------------------------------------------------------------------------------------------------
def test_xid_79_asks_for_a_reboot_or_power_cycle_not_for_a_gpu_reset():
    finding = only(found({"xids": [xid(79, 3)]}))
    assert (finding.id, finding.severity) == ("driver.xid", Severity.FATAL)
    assert "Reboot gpu01; power-cycle it" in finding.remedy and "--gpu-reset" not in finding.remedy


@pytest.mark.parametrize(
    ("codes", "severity", "word"),
    [
        ([119], "warn", "--gpu-reset"), ([63], "info", "Nothing to do"), ([31], "info", "Restart the program"),
        ([13, 79, 31], "fatal", "power-cycle"), ([48], "fatal", "have it replaced"), ([54], "fatal", "power cables"),
        ([154], "warn", "GPU Recovery Action"), ([999], "warn", "Look the code up"),
    ],
)  # fmt: skip
def test_the_worst_xid_says_what_to_do(codes, severity, word):
    finding = only(found({"xids": [xid(code, 3) for code in codes]}))
    assert (finding.severity, word in finding.remedy) == (severity, True)


def test_an_xid_that_asks_for_a_reset_is_fatal_until_the_driver_asks_for_nothing():
    asks = only(found({"xids": [xid(119, 3)], "gpus/3/recovery_action": {"unknown": "not answered"}})[:1])
    assert asks.severity is Severity.FATAL


def test_equal_xids_are_counted_and_the_worst_stands_first():
    finding = only(found({"xids": [xid(31, 1), xid(31, 1), xid(79, 3)]}))
    assert finding.seen == (
        f"Xid 79 on {BUS_IDS[3]} (GPU has fallen off the bus); Xid 31 on {BUS_IDS[1]} (GPU memory page fault), 2 times"
    )


# 32 ------------------------------------------------------------------------------------------------------------------
def test_the_gpu_with_the_small_bar1_is_named():
    finding = only(found({"gpus/2/bar1_bytes": 256 << 20}))
    assert finding.seen.startswith(f"GPU 2 ({BUS_IDS[2]}): 256 MiB of ")
    assert "pci=realloc" in finding.remedy


# more faces ----------------------------------------------------------------------------------------------------------
def test_a_driver_that_no_package_holds_is_told_as_it_is():
    """A container that has the driver from its host."""
    ours = [
        name for name, row in examples.read("healthy")["base"]["packages"].items() if row["version"].startswith("590.")
    ]
    changes = {f"{PACKAGES}/{name}": GONE for name in ours}
    changes |= {"driver/loaded_version": "580.105.08", "driver/library_version": "580.105.08"}
    assert found(changes)[0].seen == "no package, library 580.105.08, loaded 580.105.08"


@pytest.mark.parametrize(
    ("cmdline", "next_cmdline", "fix", "needs_reboot"),
    [
        ("ro", "ro", Fix.PROVISION, True),
        ("ro", "ro iommu=pt", Fix.REBOOT, False),
        ("ro iommu=pt", "ro", Fix.PROVISION, False),
        ("ro iommu=pt iommu=off", "ro iommu=pt", Fix.REBOOT, False),
    ],
)
def test_a_command_line_is_judged_now_and_at_the_next_boot(cmdline, next_cmdline, fix, needs_reboot):
    finding = only(found({"kernel/cmdline": cmdline, "kernel/next_cmdline": next_cmdline}))
    assert (finding.id, finding.fix, finding.needs_reboot) == ("kernel.cmdline-drift", fix, needs_reboot)


@pytest.mark.parametrize(
    ("series", "fits"), [(["6.8"], True), (["6"], True), (["6.17"], False), (["6.8.0-8"], False), ([], True)]
)
def test_a_series_ends_at_a_number(series, fits):
    assert (found(lock={"kernel/series": series}) == ()) is fits


@pytest.mark.parametrize(
    ("release", "next_release", "image", "fix"),
    [
        ("6.14.0-24-generic", "6.8.0-88-generic", "linux-image-generic", Fix.REBOOT),
        ("6.5.0-24-generic", "6.5.0-24-generic", "linux-image-generic", Fix.PROVISION),
        ("6.5.0-24-generic", "6.5.0-24-generic", "", Fix.PERSON),
        ("6.14.0-24-generic", "6.14.0-24-generic", "linux-image-generic", Fix.PERSON),
        ("6.8.0-88-generic", "6.14.0-24-generic", "linux-image-generic", Fix.PERSON),
    ],
)
def test_a_kernel_outside_the_series(release, next_release, image, fix):
    changes = {"kernel/release": release, "kernel/next_release": next_release}
    finding = next(one for one in found(changes, {"kernel/image": image}) if one.layer == "kernel")
    assert (finding.id, finding.fix) == ("kernel.series-mismatch", fix)


@pytest.mark.parametrize(
    ("blacklist", "is_safe"),
    [([".*"], True), (["linux", "nvidia", "lib", "cuda"], True), (["nvidia"], False), (["["], False), ([], False)],
)
def test_a_blacklist_is_read_as_unattended_upgrades_reads_it(blacklist, is_safe):
    assert (found({"base/unattended/blacklist": blacklist}) == ()) is is_safe


def test_upgrades_that_are_off_are_safe():
    assert found({"base/unattended": None}) == ()
    assert found({"base/unattended/is_enabled": False, "base/unattended/blacklist": []}) == ()


def test_one_keyring_for_two_files_of_one_source_is_no_conflict():
    again = {**examples.read("healthy")["base"]["apt_sources"][2], "file": "/etc/apt/sources.list.d/again.sources"}
    assert found({"base/apt_sources/1": again}) == ()


def test_fabricmanager_belongs_on_hosts_with_nvswitch():
    changes = {**each_gpu("name", "NVIDIA H200"), f"{PACKAGES}/nvidia-fabricmanager": package("590.48.01-1")}
    assert found(changes, host={"gpus": type(a_host().gpus)(count=8)}) == ()


def test_an_ecc_mode_that_is_about_to_go_off_is_a_persons_to_take_back():
    finding = only(found({"gpus/3/ecc_pending": False}))
    assert (finding.id, finding.fix) == ("driver.ecc-pending", Fix.PERSON)


@pytest.mark.parametrize(
    ("action", "fix"), [(1, Fix.REBOOT), (2, Fix.REBOOT), (3, Fix.PERSON), (4, Fix.REBOOT), (9, Fix.PERSON)]
)
def test_nvmls_recovery_action_says_who_mends_it(action, fix):
    assert only(found({"gpus/3/recovery_action": action})).fix is fix


def test_power_limits_name_the_command():
    one = only(found({"gpus/3/power_limit_mw": 450000}))
    assert "`sudo nvidia-smi --id=3 --power-limit=600`" in one.remedy
    every = only(found(host={"gpus": type(a_host().gpus)(count=8, power_limit_w=500)}))
    assert "`sudo nvidia-smi --power-limit=500`" in every.remedy


def test_what_could_not_be_read_is_one_finding_and_says_whether_root_would_help():
    changes = {
        "is_root": False,
        "base/session_limits": {"unknown": "needs root"},
        "kernel/next_cmdline": {"unknown": "needs root"},
    }
    finding = only(found(changes))
    assert finding.seen == "base.session_limits, kernel.next_cmdline (needs root)"
    assert "sudo" in finding.remedy


@pytest.mark.parametrize("fact", ["temperature_c", "utilization_percent", "numa_node", "link_gen", "gsp_version"])
def test_what_nothing_is_judged_by_may_stay_unknown(fact):
    assert found({f"gpus/3/{fact}": {"unknown": "not answered"}}) == ()


def test_a_closed_module_that_no_package_holds_is_told_too():
    changes = {**bare(), "driver/loaded_version": "590.48.01", "driver/loaded_flavour": "closed", "xids": [xid(169)]}
    changes["driver/modprobe_options"] = {"nvidia_uvm": "uvm_disable_hmm=1"}
    assert ids(found(changes)) == ["driver.not-installed", "driver.closed-module", "cuda.not-installed"]


def test_a_fabric_manager_without_a_driver_package_does_not_belong_either():
    changes = {f"{PACKAGES}/nvidia-fabricmanager": package("590.48.01-1"), "driver/loaded_version": "590.48.01"}
    changes = {**bare(), **changes, "gpus": examples.read("healthy")["gpus"], "driver/nvml_error": None}
    assert "driver.fabricmanager-present" in ids(found(changes))
