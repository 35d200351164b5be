"""The proof of the run's GPUs: what is asked, what a sound host passes, and which words a fault gives."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aerie.eagle3 import gpus, together
from aerie.errors import AerieError
from aerie.gpus import here
from aerie.gpus.proof import parse
from aerie.paths import repository
from aerie.runbook.step import Context, Decision, Input, go

RECORDED = repository() / "tests" / "unit" / "gpus" / "recorded"


def recorded(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return document


def verdict(proof: dict[str, Any] | None, expected: int = 2) -> tuple[Decision, tuple[str, ...]]:
    found = gpus.gate({"expected": expected, "proof": proof}, {})
    return found.decision, found.reasons


def test_two_h200_pass_with_their_figures() -> None:
    decision, (said,) = verdict(recorded("h200-x2"))
    assert decision is Decision.GO
    assert said.startswith("2 GPUs compute right; data between them arrives right, at ")
    assert "an all-reduce over 2 ends with the sum" in said


def test_an_all_reduce_that_never_ended_stops_the_run_and_names_what_to_mend() -> None:
    decision, (said,) = verdict(recorded("h200-x2-stopped-rank"))
    assert decision is Decision.STOP
    assert "(interconnect.collective-failed)" in said
    assert "acs-redirecting" in said and "iommu-translating" in said


def wrong_words(proof: dict[str, Any]) -> None:
    proof["gpus"][1]["wrong_words"] = 7


def wrong_copy(proof: dict[str, Any]) -> None:
    proof["pairs"][0]["copy_wrong_words"] = 9


def failed_pair(proof: dict[str, Any]) -> None:
    proof["pairs"][1]["error"] = "no answer within 120 s"


def wrong_sum(proof: dict[str, Any]) -> None:
    proof["collective"]["ranks"][1]["wrong"] = 4096


def unseen(proof: dict[str, Any]) -> None:
    proof["gpus"].pop()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (wrong_words, "7 of 131072 words are wrong; expected every word as it was to be (driver.wrong-data)"),
        (wrong_copy, "9 of 8388608 words; expected data as it was (interconnect.peer-wrong-data)"),
        (failed_pair, "no answer within 120 s; expected a copy between every two GPUs (interconnect.peer-failed)"),
        (wrong_sum, "rank 1: 4096 elements; expected the sum on every rank (interconnect.collective-wrong-data)"),
        (unseen, "CUDA sees 1 GPUs; expected 2 GPUs that run a kernel (driver.kernel-failed)"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_fault_stops_the_run(spoil: Any, said: str) -> None:
    proof = recorded("h200-x2")
    spoil(proof)
    decision, reasons = verdict(proof)
    assert (decision, [said in reason for reason in reasons]) == (Decision.STOP, [True])


def context(tmp_path: Path, chosen: dict[str, Any] | None) -> Context:
    cards = [{"uuid": f"GPU-{index}"} for index in range(4)]
    return Context(
        run="r1", step="gpus", attempt=1,
        values={
            "engine": {"name": "sglang", "gpus": chosen}, "synthesis": {"hosts": []}, "finetune": {"hosts": []},
            "hosts": {"address": "10.0.0.1", "inventory": ""},
        },
        inputs={
            "preflight": Input(path=tmp_path, evidence={"gpus": {"cards": cards}}),
            "environments": Input(path=tmp_path, evidence={"engine": {"packages": {}}}),
        },
        out=tmp_path, scratch=tmp_path, kept=tmp_path,
        interpreters={name: Path(f"/opt/{name}/bin/python") for name in ("controller", "train", "engine")},
        progress_file=tmp_path / "progress.json",
    )  # fmt: skip


def test_a_run_on_a_processor_proves_nothing(tmp_path: Path) -> None:
    evidence = gpus.run(context(tmp_path, None))
    assert evidence == {"expected": 0, "proof": None, "hosts": {}, "serving": {}}
    assert verdict(evidence["proof"]) == (Decision.GO, ())


def test_hosts_that_serve_along_are_asked_where_a_processor_serves_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(together, "check", lambda others, kept, count: asked.append((others, kept, count)) or {"b": {}})
    given = context(tmp_path, None)
    given.values["synthesis"]["hosts"].append("b")
    given.inputs["environments"].evidence["engine"]["packages"]["vllm-router"] = "0.1.17"
    with pytest.raises(AerieError, match=r"no sglang-router.*expected the engine's own router"):
        gpus.run(given)
    given.values["engine"]["name"] = "vllm"
    evidence = gpus.run(given)
    assert [(others.hosts, others.table, kept, count) for others, kept, count in asked] == [
        (("b",), "synthesis", tmp_path, 0)
    ]
    assert gpus.gate(evidence, {}) == go("b can serve along")


def test_those_that_a_server_takes_are_proven_and_two_of_them_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(here, "prove", lambda folder, **more: asked.append(more) or {"schema": "x"})
    for count in (1, 2):
        gpus.run(context(tmp_path, {"tensor_parallel": count}))
    assert asked == [
        {"uuids": ["GPU-0"], "python": ""},
        {"uuids": ["GPU-0", "GPU-1"], "python": "/opt/train/bin/python"},
    ]


def test_without_a_driver_the_proof_itself_says_so(tmp_path: Path) -> None:
    document = here.prove(tmp_path, uuids=["GPU-0"], python="", limit_s=600)
    proof = parse(document)
    assert proof.gpus == () and proof.start_error
    decision, (said,) = verdict(dict(document), expected=1)
    assert (decision, "(driver.kernel-failed)" in said) == (Decision.STOP, True)


def test_code_that_does_not_run_is_a_fault_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess(args=[], returncode=1, stdout=b"", stderr=b"ImportError: no module")
    monkeypatch.setattr(here.subprocess, "run", lambda *arguments, **options: ended)
    with pytest.raises(AerieError, match="ImportError: no module"):
        here.prove(tmp_path, uuids=[], python="")
