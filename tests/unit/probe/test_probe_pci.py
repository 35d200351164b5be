"""The PCI bus by a tree like /sys."""

import pytest

from aerie.probe import pci

GPU = {"vendor": "0x10de\n", "device": "0x2bb5\n", "class": "0x030200\n"}


def bus(devices: dict[str, dict[str, str | bytes]]) -> dict[str, str | bytes]:
    """Files of these devices, each by its place below /sys/devices, and their names in /sys/bus/pci/devices."""
    files: dict[str, str | bytes] = {}
    for place, facts in devices.items():
        files |= {f"/sys/devices/pci0000:00/{place}/{name}": value for name, value in facts.items()}
        files[f"/sys/bus/pci/devices/{place.split('/')[-1]}"] = f"-> ../../../devices/pci0000:00/{place}"
    return files


def config(acs: int | None) -> bytes:
    """4096 bytes of configuration space whose list of capabilities is AER (0x0001), then ACS with this control."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | (0x148 if acs is not None else 0) << 20).to_bytes(4, "little")
    if acs is not None:
        space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[0x14C:0x14E] = (0x001F).to_bytes(2, "little")  # what it could do
        space[0x14E:0x150] = acs.to_bytes(2, "little")
    return bytes(space)


def test_gpus_whatever_their_driver_says(tree):
    root = tree(
        {
            "/sys/bus/pci/drivers/nvidia/new_id": "",
            **bus(
                {
                    "0000:00:01.1/0000:05:00.0": {**GPU, "driver": "-> ../../../../bus/pci/drivers/nvidia"},
                    "0000:00:02.1/0000:06:00.0": GPU,
                    "0000:00:02.1/0000:06:00.1": {**GPU, "class": "0x040300\n"},
                    "0000:00:03.1/0000:07:00.0": {**GPU, "vendor": "0x1002\n"},
                }
            ),
        }
    )
    assert pci.gpus(root) == [
        {"bus_id": "0000:05:00.0", "pci_id": "10de:2bb5", "driver": "nvidia"},
        {"bus_id": "0000:06:00.0", "pci_id": "10de:2bb5", "driver": None},
    ]


def test_a_host_without_a_bus_has_no_gpus(tree):
    assert pci.gpus(tree({})) == []


@pytest.mark.parametrize(
    ("control", "found"),
    [(0x001D, [0x1D]), (0x0000, []), (0x0003, []), (0x0010, [0x10]), (None, [])],
    ids=["as-linux-sets-it", "cleared", "validation-only", "upstream-forwarding", "has-none"],
)
def test_bridges_that_redirect(tree, control, found):
    root = tree(
        bus(
            {
                "0000:00:01.1": {"class": "0x060400\n", "vendor": "0x1022\n", "config": config(control)},
                "0000:00:01.1/0000:05:00.0": {**GPU, "config": config(0x1D)},
                "0000:00:09.1": {"class": "0x060400\n", "vendor": "0x1022\n", "config": config(0x1D)},
            }
        )
    )
    assert [bridge["control"] for bridge in pci.acs(root)] == found
    assert all(bridge["bus_id"] == "0000:00:01.1" for bridge in pci.acs(root))


def test_without_root_the_configuration_is_cut_off(tree):
    root = tree(
        bus(
            {
                "0000:00:01.1": {"class": "0x060400\n", "config": config(0x1D)[:64]},
                "0000:00:01.1/0000:05:00.0": GPU,
            }
        )
    )
    with pytest.raises(PermissionError):
        pci.acs(root)


def test_a_list_of_capabilities_that_bites_its_tail_ends():
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert pci.control(bytes(space)) is None


@pytest.mark.parametrize(
    ("types", "found"),
    [(["identity"], "pt"), (["DMA-FQ"], "translated"), (["identity", "DMA"], "translated")],
    ids=["passthrough", "translated", "one-of-two"],
)
def test_how_the_iommu_treats_gpus(tree, types, found):
    devices = {
        f"0000:00:0{n}.1/0000:0{n}:00.0": {**GPU, "iommu_group/type": f"{kind}\n"} for n, kind in enumerate(types, 1)
    }
    other = {"0000:00:14.0": {"class": "0x0c0330\n", "vendor": "0x8086\n", "iommu_group/type": "DMA\n"}}
    assert pci.iommu(tree({**bus({**devices, **other})})) == found


def test_no_iommu_is_off(tree):
    assert pci.iommu(tree(bus({"0000:00:01.1/0000:05:00.0": GPU}))) == "off"
