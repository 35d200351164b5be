"""Proofs that were made on real GPUs by tests/gpu/prove_extensions.py: what works passed, and each fault was found."""

import json
from pathlib import Path

import pytest

from aerie.extensions.onhost.evidence import Proof

FOLDER = Path(__file__).with_name("proofs")


def recorded() -> list[tuple[str, str, Proof]]:
    """Case, the finding that it is to have, and its proof, of every file."""
    return [
        (f"{path.stem}: {row['case']}", row["finding"], Proof.from_dict(row["proof"]))
        for path in sorted(FOLDER.glob("*.json"))
        for row in json.loads(path.read_text())
    ]


@pytest.mark.parametrize(
    ("case", "finding", "proof"), recorded(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_proof_on_a_gpu_says_what_is_right_and_what_is_wrong(case: str, finding: str, proof: Proof) -> None:
    assert {one.finding for one in proof.shortfalls} == ({finding} if finding else set()), case
    assert proof.gpus and all(gpu.uuid.startswith("GPU-") for gpu in proof.gpus)
    if not finding:
        assert proof.launches and all(one.is_right for one in proof.launches)
        assert all(one.states[gpu.arch] == "sass" for one in proof.libraries if one.is_launched for gpu in proof.gpus)
