"""What preflight says of GPUs: every reason against them at once, and none of those that are about a processor."""

import json
from typing import Any

import pytest

from aerie.eagle3 import cards, preflight
from aerie.paths import repository
from aerie.probe import nvml
from aerie.runbook import spec
from aerie.runbook.spec import nest, values_of
from aerie.runbook.step import Decision

H200 = json.loads((repository() / "tests" / "hosts_data" / "h200.json").read_text())["gpus"][0]
IN_USE = [{"pid": 4242, "name": "python3", "memory_bytes": 1 << 30, "unit": None}]


def a_card(index: int = 0, **changes: Any) -> dict[str, Any]:
    return {key: H200[key] for key in cards._KEPT} | {"index": index, "held_bytes": 0} | changes


def values(*overrides: str) -> dict[str, Any]:
    loaded = spec.load("eagle3", "gpu-small", overrides=overrides)
    step = next(step for step in loaded.runbook.steps if step.id == "preflight")
    return nest(values_of(loaded.values, step.values))


def evidence(*found: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Of a host on which no CPU could serve: no AVX2, no libnuma, next to no memory."""
    return {
        "cpu": {"model": "some processor", "cores": 2, "flags": []},
        "memory_bytes": 1 << 30,
        "machine": "Linux x86_64",
        "glibc": "glibc 2.39",
        "has_libnuma": False,
        "environments_python": "/usr/bin/python3.11",
        "engine_version": "0.5.23",
        "shape": {"name": "mla", "reason": "GPUs serve"},
        "arithmetic": {"dtype": "bfloat16", "reason": "GPUs multiply bf16"},
        "device": {"type": "cuda", "reason": "engine.gpus"},
        "gpus": {"driver": "580.159.04", "error": None, "cards": list(found or [a_card()])},
    } | changes


def test_a_sound_gpu_needs_nothing_of_the_processor() -> None:
    verdict = preflight.gate(evidence(), values())
    assert (verdict.decision, verdict.reasons[0]) == (Decision.GO, "target shape mla: GPUs serve")


@pytest.mark.parametrize(
    ("found", "overrides", "said"),
    [
        ([a_card()], ["engine.gpus.tensor_parallel=2"], "1 GPUs; expected 2 GPUs (driver.gpu-missing)"),
        (
            [a_card(), a_card(1, compute_capability="12.0")],
            ["engine.gpus.tensor_parallel=2"],
            "GPUs: '12.0, 9.0', expected GPUs of one compute capability",
        ),
        ([a_card(held_bytes=100 << 30)], [], "GPU 0 has 43.4 of 150.8 GB free; engine.gpus.memory_fraction 0.4 takes"),
        ([a_card(processes=IN_USE)], [], "GPU 0: python3 (pid 4242); expected idle GPUs (engine.gpus-busy)"),
        ([a_card(ecc_uncorrected=3)], [], "GPU 0 has uncorrected errors; expected healthy GPUs (driver.ecc-errors)"),
        ([a_card(remap_failed=True)], [], "a bad row that it cannot replace"),
        ([a_card(recovery_action=1)], [], "GPU 0 has to be reset"),
        ([a_card(error="15 GPU is lost")], [], "GPU 0: 15 GPU is lost; expected 1 GPUs (driver.gpu-lost)"),
        ([a_card(compute_capability="7.5")], [], "'7.5', expected GPUs of one compute capability"),
        ([a_card()], ["engine.gpus.attention=trtllm_mla"], "sglang 0.5.23 on sm90: attention backend trtllm_mla"),
    ],
    ids=[
        *("too-few", "unlike", "memory-held", "in-use", "ecc", "remap", "recovery", "lost", "no-rows", "backend"),
    ],
)
def test_each_fault_stops_the_run_with_its_words(found: list[Any], overrides: list[str], said: str) -> None:
    verdict = preflight.gate(evidence(*found), values(*overrides))
    assert verdict.decision is Decision.STOP
    assert [said in reason for reason in verdict.reasons] == [True]


def test_every_reason_comes_at_once() -> None:
    faulty = a_card(ecc_uncorrected=1, processes=IN_USE, held_bytes=140 << 30)
    assert len(preflight.gate(evidence(faulty, engine_version=None, glibc="glibc 2.31"), values()).reasons) == 5


def test_without_a_driver_it_says_what_nvml_says() -> None:
    silent = {"driver": None, "error": "12 NVML Shared Library Not Found", "cards": []}
    verdict = preflight.gate(evidence(gpus=silent), values())
    assert verdict.reasons == ("12 NVML Shared Library Not Found; expected 1 GPUs (driver.not-loaded)",)


def test_gpus_that_the_run_does_not_take_may_be_used_by_others() -> None:
    assert preflight.gate(evidence(a_card(), a_card(1, processes=IN_USE)), values()).decision is Decision.GO


def test_environments_that_are_given_ask_for_no_glibc() -> None:
    given = [f"environments.{name}.python=/opt/image/bin/python" for name in ("engine", "train")]
    assert (
        preflight.gate(evidence(glibc="glibc 2.31", environments_python=None), values(*given)).decision is Decision.GO
    )
    assert preflight.gate(evidence(glibc="glibc 2.31"), values(given[0])).decision is Decision.STOP


def test_what_moves_by_itself_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"library_version": "580.159.04", "error": None, "gpus": [H200]}
    monkeypatch.setattr(nvml, "read", lambda: answer)
    monkeypatch.setattr(cards.gpu_memory, "used_bytes", lambda: {0: 500 << 20})
    first = cards.read()
    monkeypatch.setattr(nvml, "read", lambda: answer | {"gpus": [H200 | {"temperature_c": 80}]})
    monkeypatch.setattr(cards.gpu_memory, "used_bytes", lambda: {0: 300 << 20})
    assert cards.read() == first
    assert (
        preflight.stale({"cpu": {"flags": preflight._flags_of_interest(preflight.cpu().flags)}, "gpus": first}) is None
    )


def test_other_cards_are_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"cpu": {"flags": preflight._flags_of_interest(preflight.cpu().flags)}, "gpus": evidence()["gpus"]}
    monkeypatch.setattr(cards, "read", lambda: {"driver": "1", "error": None, "cards": [a_card(uuid="GPU-2")]})
    assert (preflight.stale(seen) or "").startswith("the GPUs are now NVIDIA H200 GPU-2, were NVIDIA H200 GPU-0000")
