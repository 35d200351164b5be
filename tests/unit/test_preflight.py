"""What preflight concludes from a processor, a C library and a memory size."""

import pytest

from aerie.eagle3 import preflight
from aerie.errors import UsageError
from aerie.runbook.step import Decision

# Shortened from /proc/cpuinfo of the named processors; flags that no rule reads are left out.
SAPPHIRE_RAPIDS = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8481C
flags\t\t: fpu avx avx2 avx512f avx512_bf16 amx_bf16 amx_tile amx_int8

processor\t: 1
model name\t: another
flags\t\t: fpu
"""
ICE_LAKE = "model name\t: Intel(R) Xeon(R) Gold 6338\nflags\t\t: fpu avx avx2 avx512f avx512_vnni\n"
EPYC_9004 = "model name\t: AMD EPYC 9554 64-Core Processor\nflags\t\t: fpu avx avx2 avx512f avx512_bf16\n"
EPYC_7003 = "model name\t: AMD EPYC 7763 64-Core Processor\nflags\t\t: fpu avx avx2\n"
IVY_BRIDGE = "model name\t: Intel(R) Core(TM) i7-3770\nflags\t\t: fpu avx\n"
GRAVITON = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd bf16\n"


@pytest.mark.parametrize(
    ("text", "model", "amx", "target"),
    [
        (SAPPHIRE_RAPIDS, "Intel(R) Xeon(R) Platinum 8481C", True, "mla"),
        (ICE_LAKE, "Intel(R) Xeon(R) Gold 6338", False, "llama"),
        (EPYC_7003, "AMD EPYC 7763 64-Core Processor", False, "llama"),
        (GRAVITON, "unknown", False, "llama"),
        ("", "unknown", False, "llama"),
    ],
    ids=["amx", "avx512-without-amx", "amd", "arm", "no-cpuinfo"],
)
def test_the_target_follows_the_processor(text, model, amx, target):
    cpu = preflight.parse_cpuinfo(text)
    assert (cpu.model, "amx_bf16" in cpu.flags) == (model, amx)
    assert preflight.shape("auto", cpu.flags)[0] == target


@pytest.mark.parametrize(
    ("text", "dtype", "said"),
    [
        (SAPPHIRE_RAPIDS, "bfloat16", "the processor has amx_bf16 and avx512_bf16"),
        (EPYC_9004, "bfloat16", "the processor has avx512_bf16"),
        (ICE_LAKE, "float32", "neither amx_bf16 nor avx512_bf16"),
        (EPYC_7003, "float32", "neither amx_bf16 nor avx512_bf16"),
        ("", "float32", "neither"),
    ],
    ids=["amx", "avx512-with-bf16", "avx512-without-bf16", "avx2", "no-cpuinfo"],
)
def test_training_is_in_bf16_where_the_processor_multiplies_it(text, dtype, said):
    name, reason = preflight.arithmetic(preflight.parse_cpuinfo(text).flags)
    assert (name, said in reason) == (dtype, True)


def test_one_amx_flag_alone_is_not_enough():
    name, reason = preflight.shape("auto", frozenset({"amx_bf16"}))
    assert (name, "amx_tile" in reason, "amx_bf16" in reason) == ("llama", True, False)


def test_the_profile_forces_the_plain_target_on_any_processor():
    assert preflight.shape("llama", preflight.parse_cpuinfo(SAPPHIRE_RAPIDS).flags) == (
        "llama",
        "target.shape is llama in the profile",
    )


def test_mla_cannot_be_forced_without_amx():
    with pytest.raises(UsageError, match=r"without amx_bf16 and amx_tile.*block size.*auto or llama"):
        preflight.shape("mla", preflight.parse_cpuinfo(ICE_LAKE).flags)
    assert preflight.shape("mla", preflight.parse_cpuinfo(SAPPHIRE_RAPIDS).flags)[0] == "mla"


def test_the_profile_chooses_the_device():
    assert preflight.device(None)[0] == "cpu"
    assert preflight.device({"tensor_parallel": 2}) == ("cuda", "engine.gpus of the profile asks for 2")


def test_on_gpus_the_target_follows_the_profile_alone():
    assert [preflight.shape_on_gpus(name)[0] for name in ("auto", "mla", "llama")] == ["mla", "mla", "llama"]


MADE = {"python": ""}
VALUES = {"environments": {"engine": MADE, "train": MADE}}


def evidence(**changes):
    cpu = {"model": "some processor", "cores": 2, "flags": ["avx2"]} | changes.pop("cpu", {})
    return {
        "cpu": cpu,
        "memory_bytes": 16 * 2**30,
        "machine": "Linux x86_64",
        "glibc": "glibc 2.39",
        "has_libnuma": True,
        "python": "3.12.3",
        "environments_python": "/usr/bin/python3.11",
        "shape": {"name": "llama", "reason": "no AMX"},
        "arithmetic": {"dtype": "float32", "reason": "no bf16"},
        "device": {"type": "cpu", "reason": "the profile has no engine.gpus"},
        "gpus": None,
    } | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"glibc": "glibc 2.28"}, None),
        ({"machine": "Linux aarch64"}, "Linux aarch64"),
        ({"machine": "Darwin x86_64"}, "Darwin"),
        ({"cpu": {"flags": []}}, "no avx2"),
        ({"glibc": "glibc 2.27"}, "glibc 2.27"),
        ({"glibc": "glibc 2.9"}, "glibc 2.9"),
        ({"glibc": ""}, "not glibc"),
        ({"has_libnuma": False}, "apt install libnuma1"),
        ({"memory_bytes": 2 * 2**30}, "2.0 GiB"),
    ],
    ids=[
        "fits",
        "oldest-glibc",
        "arm",
        "mac",
        "no-avx2",
        "old-glibc",
        "old-glibc-short",
        "musl",
        "no-libnuma",
        "small",
    ],
)
def test_the_gate_stops_where_the_engine_cannot_run(changes, said):
    verdict = preflight.gate(evidence(**changes), VALUES)
    assert verdict.decision is (Decision.STOP if said else Decision.GO)
    assert said is None or [said in reason for reason in verdict.reasons] == [True]


def test_a_missing_python_is_said_and_does_not_stop():
    verdict = preflight.gate(evidence(environments_python=None), VALUES)
    assert (verdict.decision, "downloads" in verdict.reasons[-1]) == (Decision.GO, True)


def test_the_gate_gives_every_reason_at_once():
    assert len(preflight.gate(evidence(machine="Darwin arm64", glibc="", cpu={"flags": []}), VALUES).reasons) == 3


def test_evidence_of_another_processor_is_stale(monkeypatch):
    monkeypatch.setattr(preflight, "_cpuinfo", lambda: ICE_LAKE)
    seen = preflight._flags_of_interest(preflight.parse_cpuinfo(SAPPHIRE_RAPIDS).flags)
    assert "amx_bf16" in (preflight.stale({"cpu": {"flags": seen}, "gpus": None}) or "")
    assert preflight.stale({"cpu": {"flags": ["avx2", "avx512f"]}, "gpus": None}) is None
