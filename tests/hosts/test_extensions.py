"""The CUDA extensions of a host's environments: with --deep, that they work on each of its GPUs."""

import pytest

from aerie.extensions import proof
from aerie.extensions.onhost.evidence import Proof
from aerie.snapshot import Gpu
from aerie.verify import Case

PROOFS: dict[tuple[str, str], Proof] = {}  # by host and package: an import of torch and a launch on every GPU each


@pytest.fixture
def proofs(needs_gpus: None, case: Case, gpus: tuple[Gpu, ...]) -> dict[str, Proof]:
    """By package that the lock requires, what it did on the host's GPUs; skips the test where that is not tried."""
    if not case.is_live:
        pytest.skip("asks the host itself, and this is a recorded snapshot")
    if not case.is_deep:
        pytest.skip("runs kernels on the GPUs: only with --deep")
    wanted = [one for one in case.lock.extensions.packages if one.name in case.lock.extensions.required]
    for one in wanted:
        if (case.host.name, one.name) not in PROOFS:
            python = f"/opt/aerie/environments/{one.environment}/bin/python"
            PROOFS[case.host.name, one.name] = proof.prove(case.host, package=one.name, python=python, gpus=gpus)
    return {one.name: PROOFS[case.host.name, one.name] for one in wanted}


def of(proofs: dict[str, Proof], *findings: str) -> dict[str, str]:
    """What the proofs hold against the packages, of these findings."""
    found = {
        name: "; ".join(one.seen for one in proof.shortfalls if one.finding in findings)
        for name, proof in proofs.items()
    }
    return {name: seen for name, seen in found.items() if seen}


@pytest.mark.finding("extensions.import-failed")
def test_every_extension_imports_in_a_fresh_process(proofs: dict[str, Proof]) -> None:
    assert of(proofs, "extensions.import-failed") == {}


@pytest.mark.finding("extensions.kernel-failed")
def test_the_kernels_of_every_extension_run_on_every_gpu(proofs: dict[str, Proof]) -> None:
    assert of(proofs, "extensions.kernel-failed") == {}


@pytest.mark.finding("extensions.wrong-result")
def test_the_kernels_of_every_extension_agree_with_plain_torch(proofs: dict[str, Proof]) -> None:
    assert of(proofs, "extensions.wrong-result") == {}
