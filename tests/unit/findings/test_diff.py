"""Judging: the healthy host has no finding, and each example of a host has its finding and only that."""

import pytest

from aerie.findings import Fix, Severity, rows
from aerie.layers import LAYERS
from tests.snapshots import healthy
from tests.unit.findings.examples import EXAMPLES, Example, a_host, bare, judge, lock_with

OF_THE_PLAN = {"base.waiver-expired"}  # tests/unit/test_plan.py
OF_CONTENT = {"weights.corrupt", "engine.no-answer"}  # no snapshot tells them: tests/lab/test_stage.py, test_serve.py
OF_GPUS_AT_WORK = {  # nor these: tests/unit/gpus
    "driver.kernel-failed",
    "driver.wrong-data",
    "interconnect.collective-failed",
    "interconnect.collective-wrong-data",
    "interconnect.peer-failed",
    "interconnect.peer-wrong-data",
}
OF_ENGINES_AT_WORK = {  # tests/unit/engines/test_sglang_server.py, test_service.py
    "engine.acceptance-fell",
    "engine.gpu-memory-held",
}
OF_EXTENSIONS_AT_WORK = {  # tests/unit/extensions/test_proof_of_extensions.py
    "extensions.import-failed",
    "extensions.kernel-failed",
    "extensions.wrong-result",
}


def ids(findings):
    return [finding.id for finding in findings]


def named(example):
    return f"{example.id}{f' ({example.name})' if example.name else ''}"


def test_the_healthy_host_has_no_finding():
    assert judge(Example(id="")) == ()


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_a_host_that_differs_in_one_thing_has_that_finding_and_only_that(example):
    found = judge(example)
    assert ids(found) == [example.id], "\n".join(map(str, found))
    if example.seen is not None:
        assert found[0].seen == example.seen


def test_every_finding_has_an_example():
    assert set(rows()) - {example.id for example in EXAMPLES} == (
        OF_THE_PLAN | OF_CONTENT | OF_GPUS_AT_WORK | OF_EXTENSIONS_AT_WORK | OF_ENGINES_AT_WORK
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_a_finding_says_what_was_seen_and_expected_and_what_to_do(example):
    for finding in judge(example):
        assert finding.seen and finding.expected and finding.remedy
        assert "\n" not in finding.seen + finding.expected + finding.remedy
        assert not set("{}") & set(finding.remedy)
        assert finding.layer in LAYERS and finding.id.startswith(f"{finding.layer}.")
        if finding.fix is Fix.PROVISION:
            assert finding.remedy.startswith("./invoke provision --host gpu01 ")
        else:
            assert not finding.needs_reboot


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_the_lock_may_set_another_severity(example):
    changed = Example(
        id=example.id,
        changes=example.changes,
        host=example.host,
        lock={**example.lock, "severity": {example.id: "info"}},
    )
    assert [finding.severity for finding in judge(changed)] == [Severity.INFO]


def test_a_host_without_gpus_has_no_finding_about_them():
    changes = {**bare(), "pci_gpus": [], "kernel/secure_boot": True, "interconnect/iommu": "translated"}
    assert judge(Example(id="", changes=changes, host={"gpus": type(a_host().gpus)()})) == ()


def test_fatal_ones_come_first_then_layers_in_order():
    changes = {**bare(), "base/needrestart": "a", "kernel/headers": [], "engine/user": None}
    assert ids(judge(Example(id="", changes=changes))) == [
        "kernel.headers-missing", "driver.not-installed", "cuda.not-installed", "engine.user-missing",
        "base.needrestart-automatic",
    ]  # fmt: skip


def test_a_hosts_variable_goes_before_the_lock():
    found = judge(Example(id="", host={"variables": {"storage_min_free_gb": 5000, "storage_readahead_kib": 1}}))
    assert [(finding.id, finding.expected) for finding in found] == [("storage.free-low", "5000 GB")]


def test_judging_changes_nothing_and_repeats():
    lock, snapshot, host = lock_with({}), healthy(), a_host()
    from aerie.findings import diff

    assert diff(lock, snapshot, host) == diff(lock, snapshot, host)
