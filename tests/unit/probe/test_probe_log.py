"""Lines of the kernel's log, as the driver, the AMD IOMMU and the Intel one write them."""

import json

import pytest

from aerie.probe import log
from aerie.probe.reading import Later, ProgramFailed

# Wordings from public reports (open-gpu-kernel-modules #1151, #1045; kernel mailing list).
XID_79 = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_154 = "NVRM: Xid (PCI:0000:C1:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
XID_BARE = "NVRM: Xid (PCI:0000:00:1e.0): 31"
AMD = "nvidia 0000:05:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000b address=0xb6674000 flags=0x0000]"
INTEL = (
    "DMAR: [DMA Read NO_PASID] Request device [17:00.0] fault addr 0x0 [fault reason 0x06] PTE Read access is not set"
)
OTHER = [
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  590.48.01",
    "DMAR: [Firmware Bug]: No firmware reserved region",
]


def test_xids():
    lines = [(1764482400.5, line) for line in (XID_79, *OTHER, XID_154, XID_BARE)]
    assert log.xids(lines) == [
        {
            "time": "2025-11-30T06:00:00Z",
            "code": 79,
            "bus_id": "0000:05:00.0",
            "text": "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        },
        {
            "time": "2025-11-30T06:00:00Z",
            "code": 154,
            "bus_id": "0000:c1:00.0",
            "text": "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        },
        {"time": "2025-11-30T06:00:00Z", "code": 31, "bus_id": "0000:00:1e.0", "text": ""},
    ]


def test_faults_of_both_makers():
    assert log.faults([(0.0, line) for line in (AMD, INTEL, *OTHER)]) == 2


def journal(*messages):
    lines = [json.dumps({"MESSAGE": m, "__REALTIME_TIMESTAMP": "1764482400000000"}) for m in messages]
    return Later(lambda: "\n".join(lines))


def test_the_journal_comes_first(tree):
    root = tree({"/dev/kmsg": f"3,1,5,-;{AMD}\n", "/proc/uptime": "10 10"})
    assert log.entries(journal(XID_79), root) == [(1764482400.0, XID_79)]


def test_a_journal_with_nothing_to_tell_is_an_answer(tree):
    found = log.entries(journal("Linux version 6.8.0-88-generic (buildd@lcy02)"), tree({}))
    assert (log.xids(found), log.faults(found)) == ([], 0)


def test_the_kernel_s_buffer_stands_in_for_a_journal_without_kernel_messages(tree):
    kmsg = f"4,901,5000000,-;{XID_79}\n SUBSYSTEM=pci\n6,902,6000000,-;x\n"
    root = tree({"/dev/kmsg": kmsg, "/proc/uptime": "10.0 10.0"})
    found = log.entries(journal(), root)
    assert [line for _, line in found] == [XID_79, "x"]
    assert found[1][0] - found[0][0] == pytest.approx(1.0)


def test_no_log_at_all_is_no_answer(tree):
    def missing():
        raise ProgramFailed("journalctl: not installed")

    with pytest.raises(ProgramFailed, match="journalctl: not installed, and there is no /dev/kmsg"):
        log.entries(Later(missing), tree({}))


def test_messages_that_are_not_text_are_bytes():
    line = json.dumps({"MESSAGE": list(XID_79.encode()), "__REALTIME_TIMESTAMP": "0"})
    assert list(log.from_journal(f"{line}\nnot json\n")) == [(0.0, XID_79)]
