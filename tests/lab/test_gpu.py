"""The GPU stand-in shows a host what eight cards would: on the bus, in the kernel, in NVML, in the log."""

import inspect
import json
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

import lab
from aerie.errors import AerieError, UsageError
from lab import LabHost, scenario

Said = Callable[..., str]

# What tests ask of a host, in one round trip; pynvml goes with it.
LOOK = """
import json
def ask(call, *arguments):
    try:
        return call(*arguments)
    except NVMLError as error:
        return f"error {error.value}"
try:
    nvmlInit()
except NVMLError as error:
    print(json.dumps({"error": error.value}))
    raise SystemExit
count = nvmlDeviceGetCount()
found = {"driver": nvmlSystemGetDriverVersion(), "cuda": nvmlSystemGetCudaDriverVersion_v2(), "gpus": []}
for index in range(count):
    gpu = ask(nvmlDeviceGetHandleByIndex, index)
    if isinstance(gpu, str):
        found["gpus"].append(gpu)
        continue
    found["gpus"].append({
        "name": ask(nvmlDeviceGetName, gpu),
        "bus_id": nvmlDeviceGetPciInfo(gpu).busId,
        "pci": nvmlDeviceGetPciInfo(gpu).pciDeviceId,
        "capability": ask(nvmlDeviceGetCudaComputeCapability, gpu),
        "memory_mib": nvmlDeviceGetMemoryInfo(gpu).total >> 20,
        "bar1_mib": nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total >> 20,
        "width": ask(nvmlDeviceGetCurrPcieLinkWidth, gpu),
        "persistence": ask(nvmlDeviceGetPersistenceMode, gpu),
        "ecc": ask(nvmlDeviceGetEccMode, gpu),
        "errors": ask(nvmlDeviceGetTotalEccErrors, gpu, 1, 1),
        "rows": ask(nvmlDeviceGetRemappedRows, gpu),
        "mig": ask(nvmlDeviceGetMigMode, gpu),
        "power_mw": ask(nvmlDeviceGetPowerManagementLimit, gpu),
        "limits_mw": ask(nvmlDeviceGetPowerManagementLimitConstraints, gpu),
        "reasons": ask(nvmlDeviceGetCurrentClocksEventReasons, gpu),
        "gsp": nvmlDeviceGetGspFirmwareVersion(gpu).decode(),
        "mode": ask(nvmlDeviceGetAddressingMode, gpu),
        "recovery": nvmlDeviceGetFieldValues(gpu, [230])[0].value.uiVal,
        "nvlink": ask(nvmlDeviceGetNvLinkState, gpu, 0),
        "p2p": [
            nvmlDeviceGetP2PStatus(gpu, nvmlDeviceGetHandleByIndex(other), 0)
            for other in range(count) if not isinstance(ask(nvmlDeviceGetHandleByIndex, other), str)
        ],
    })
print(json.dumps(found))
"""


@pytest.fixture
def nvml(said: Said) -> Callable[[LabHost], Any]:
    """What pynvml says on a host."""
    source = inspect.getsource(pynvml)

    def look(host: LabHost) -> Any:
        done = host.ssh(["python3", "-I", "-W", "ignore", "-"], stdin=f"{source}\n{LOOK}".encode())
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    return look


@pytest.mark.lab
def test_healthy_cards_are_eight_of_the_kind_that_the_inventory_names(
    cards_host: LabHost, said: Said, nvml: Callable[[LabHost], Any]
) -> None:
    seen = nvml(cards_host)
    assert (seen["driver"], seen["cuda"]) == ("590.44.01", 13010)
    assert [gpu["bus_id"] for gpu in seen["gpus"]] == [card["bus_id"] for card in scenario.cards().values()]
    for gpu in seen["gpus"]:
        same = {key: value for key, value in gpu.items() if key != "bus_id"}
        assert same == {
            "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "pci": 0x2BB510DE, "capability": [12, 0],
            "memory_mib": 97887, "bar1_mib": 131072, "width": 16, "persistence": 1, "ecc": [1, 1], "errors": 0,
            "rows": [0, 0, 0, 0], "mig": [0, 0], "power_mw": 600000, "limits_mw": [300000, 600000], "reasons": 1,
            "gsp": "590.44.01", "mode": 0, "recovery": 0, "nvlink": "error 3", "p2p": [0] * 8,
        }  # fmt: skip
    listed = said(cards_host, "lspci", "-Dn", "-d", "10de:2bb5").splitlines()
    assert [line.split()[:2] for line in listed] == [
        [card["bus_id"][4:].lower(), "0302:"] for card in scenario.cards().values()
    ]
    assert "Open Kernel Module" in said(cards_host, "cat", "/proc/driver/nvidia/version")
    assert said(cards_host, "sh", "-c", "cat /sys/kernel/iommu_groups/*/type | sort -u") == "identity"


GPUS: list[tuple[str, int, dict[str, Any]]] = [
    ("ecc-pending", 3, {"ecc": [1, 0]}),
    ("ecc-off", 3, {"ecc": [0, 0]}),
    ("ecc-errors", 2, {"errors": 4}),
    ("remap-pending", 5, {"rows": [0, 1, 1, 0]}),
    ("remap-failed", 5, {"rows": [0, 8, 0, 1]}),
    ("hmm-on", 0, {"mode": 1}),
    ("narrow-link", 6, {"width": 8}),
    ("small-bar1", 1, {"bar1_mib": 256}),
    ("mig-on", 0, {"mig": [1, 1]}),
    ("power-limited", 5, {"power_mw": 450000}),
    ("throttled", 5, {"reasons": 0xC8}),
    ("recovery-needed", 1, {"recovery": 2}),
    ("p2p-broken", 0, {"p2p": [0, 0, 0, 0, 1, 0, 0, 0]}),
]


@pytest.mark.lab
@pytest.mark.parametrize(("name", "index", "expected"), GPUS, ids=[row[0] for row in GPUS])
def test_a_scenario_shows_in_nvml(
    name: str, index: int, expected: dict[str, Any], cards_host: LabHost, nvml: Callable[[LabHost], Any]
) -> None:
    lab.gpu(cards_host.name, name)
    gpu = nvml(cards_host)["gpus"][index]
    assert {key: gpu[key] for key in expected} == expected


@pytest.mark.lab
def test_missing_and_lost_cards_differ(cards_host: LabHost, said: Said, nvml: Callable[[LabHost], Any]) -> None:
    def on_bus() -> int:
        return len(said(cards_host, "lspci", "-n", "-d", "10de:2bb5").splitlines())

    lab.gpu(cards_host.name, "seven-of-eight-nvml")
    assert (on_bus(), len(nvml(cards_host)["gpus"])) == (8, 7)
    lab.gpu(cards_host.name, "seven-on-bus")
    assert (on_bus(), len(nvml(cards_host)["gpus"])) == (7, 7)
    lab.gpu(cards_host.name, "gpu-lost")
    assert on_bus() == 8
    assert nvml(cards_host)["gpus"][4] == "error 15"


@pytest.mark.lab
@pytest.mark.parametrize(("name", "error"), [("library-mismatch", 18), ("not-loaded", 9), ("nvml-failed", 999)])
def test_nvml_fails_as_the_real_one(name: str, error: int, cards_host: LabHost, nvml: Callable[[LabHost], Any]) -> None:
    lab.gpu(cards_host.name, name)
    assert nvml(cards_host) == {"error": error}


@pytest.mark.lab
def test_the_kernels_log_is_in_the_journal_until_the_next_scenario(cards_host: LabHost, said: Said) -> None:
    def messages() -> list[str]:
        shown = said(cards_host, "journalctl", "-k", "-o", "json", "--no-pager")
        return [json.loads(line)["MESSAGE"] for line in shown.splitlines() if line.startswith("{")]

    lab.gpu(cards_host.name, "xid-79")
    assert [line for line in messages() if "Xid" in line] == [
        "NVRM: Xid (PCI:0000:86:00): 79, pid=4711, name=python3, GPU has fallen off the bus."
    ]
    lab.gpu(cards_host.name, "healthy8")
    assert [line for line in messages() if "NVRM" in line] == []


@pytest.mark.lab
def test_acs_bits_are_in_config_space_and_can_be_cleared(cards_host: LabHost, said: Said) -> None:
    lab.gpu(cards_host.name, "acs-on")
    assert said(cards_host, "setpci", "-s", "05:00.0", "ECAP_ACS+6.w") == "001d"
    said(cards_host, "setpci", "-s", "05:00.0", "ECAP_ACS+6.w=0000")
    assert said(cards_host, "setpci", "-s", "05:00.0", "ECAP_ACS+6.w") == "0000"
    assert "ReqRedir- CmpltRedir- UpstreamFwd-" in said(cards_host, "lspci", "-vvs", "05:00.0")


@pytest.mark.lab
def test_a_reboot_ends_what_lasts_until_a_reboot(
    cards_host: LabHost, said: Said, reboot: Callable[..., None], nvml: Callable[[LabHost], Any]
) -> None:
    lab.gpu(cards_host.name, "library-mismatch")
    reboot(cards_host)
    assert nvml(cards_host)["driver"] == "590.44.01"
    lab.gpu(cards_host.name, "ecc-errors")
    reboot(cards_host)
    assert nvml(cards_host)["gpus"][2]["errors"] == 4


@pytest.mark.lab
def test_the_command_line_is_the_boot_loaders(cards_host: LabHost, said: Said, reboot: Callable[..., None]) -> None:
    line = 'GRUB_CMDLINE_LINUX="iommu=pt pcie_aspm=off"\n'
    assert cards_host.ssh(["tee", "/etc/default/grub.d/iommu.cfg"], stdin=line.encode()).returncode == 0
    said(cards_host, "update-grub")
    assert "pcie_aspm" not in said(cards_host, "cat", "/proc/cmdline")
    reboot(cards_host)
    assert said(cards_host, "cat", "/proc/cmdline").endswith("ro iommu=pt pcie_aspm=off quiet")


@pytest.mark.lab
def test_bare_cards_have_no_driver_and_the_inventory_counts_them(own_lab: Any, said: Said) -> None:
    import yaml

    lab.down()
    (host,) = lab.up(1, gpus="bare")
    assert len(said(host, "lspci", "-n", "-d", "10de:2bb5").splitlines()) == 8
    assert host.ssh(["ls", "/proc/driver/nvidia"]).returncode == 2
    row = yaml.safe_load(host.inventory.read_text())["all"]["children"]["lab"]["hosts"][host.name]
    assert row["aerie_gpus"]["count"] == 8
    assert row["aerie_gpus"]["bus_ids"][0] == "00000000:06:00.0"
    lab.down()


def test_every_scenario_says_what_it_is() -> None:
    loaded = [scenario.load(name) for name in scenario.names()]
    assert [one.name for one in loaded if not one.about] == []
    assert [one.name for one in loaded if one.finding is None] == ["bare", "healthy8"]


def test_an_unknown_scenario_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="ecc-pending"):
        scenario.load("ecc-pendign")


def test_a_scenario_with_an_unknown_key_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu/cards.toml").write_text((scenario.HERE / "gpu/cards.toml").read_text())
    (tmp_path / "scenarios/wrong.toml").write_text('about = "x"\n[always.gpu.9]\necc = 1\n[always.gpu.1]\neec = 1\n')
    monkeypatch.setattr(scenario, "HERE", tmp_path)
    with pytest.raises(AerieError) as caught:
        scenario.load("wrong")
    assert caught.value.seen == "always.gpu.9, always.gpu.1.eec"
