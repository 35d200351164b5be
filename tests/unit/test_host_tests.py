"""The tests of tests/hosts themselves: one for each finding of the catalogue, and each can fail, alone."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from aerie import lock as locks
from aerie.findings import diff, rows
from aerie.layers import LAYERS
from aerie.paths import repository
from aerie.verify import Case
from tests.hosts import conftest
from tests.snapshots import document_with, snapshot_with
from tests.unit.findings.examples import EXAMPLES, Example, a_host, lock_with, package, snapshot_of

OF_THE_INVENTORY = {"base.waiver-expired"}  # no state of a host
OF_A_CHANGE = {  # told where an engine was stopped or changed: tests/unit/engines
    "engine.acceptance-fell",
    "engine.gpu-memory-held",
}
HEALTHY = Example(id="")
DAY = date(2026, 11, 30)


@cache
def modules() -> tuple[ModuleType, ...]:
    found = [layer for layer in LAYERS if (repository() / f"tests/hosts/test_{layer}.py").exists()]
    return tuple(import_module(f"tests.hosts.test_{layer}") for layer in found)


@cache
def host_tests() -> dict[str, tuple[ModuleType, Callable[..., None]]]:
    return {
        name: (module, function)
        for module in modules()
        for name, function in vars(module).items()
        if name.startswith("test_")
    }


def finding_of(function: Callable[..., None]) -> str:
    return next(mark.args[0] for mark in function.pytestmark if mark.name == "finding")  # type: ignore[attr-defined]


def case_of(example: Example, **host: Any) -> Case:
    found = a_host(**{**example.host, **host})
    return Case(host=found, lock=lock_with(example.lock), snapshot=snapshot_of(example), today=DAY, is_live=False)


def fixture(module: ModuleType, name: str, values: dict[str, Any]) -> Any:
    """The value of a fixture of the module or of conftest, which are functions of other fixtures."""
    if name not in values:
        function = inspect.unwrap(getattr(module, name, None) or getattr(conftest, name))
        values[name] = function(**{one: fixture(module, one, values) for one in inspect.signature(function).parameters})
    return values[name]


def failed(case: Case) -> dict[str, str]:
    """Name and finding of the host tests that fail: called as pytest calls them, a thousand times faster."""
    found = {}
    for name, (module, function) in host_tests().items():
        values: dict[str, Any] = {"case": case, "_connections": None}
        try:
            used = getattr(module, "pytestmark", None)
            for one in (*(used.args if used else ()), *inspect.signature(function).parameters):
                fixture(module, one, values)
            function(**{one: values[one] for one in inspect.signature(function).parameters})
        except AssertionError:
            found[name] = finding_of(function)
        except pytest.skip.Exception:
            continue
    return found


def test_every_finding_of_a_host_has_a_test():
    tested = {finding_of(function) for _, function in host_tests().values()}
    assert set(rows()) - tested == OF_THE_INVENTORY | OF_A_CHANGE
    assert tested - set(rows()) == set()


def test_a_tests_finding_is_of_its_modules_layer():
    strays = [
        name
        for name, (module, function) in host_tests().items()
        if not finding_of(function).startswith(module.__name__.rpartition("test_")[2] + ".")
    ]
    assert strays == []


def test_names_are_unique():
    names = [name for module in modules() for name in vars(module) if name.startswith("test_")]
    assert len(names) == len(host_tests())


def test_a_host_test_reads_in_a_glance():
    long = {name: len(inspect.getsource(function).splitlines()) for name, (_, function) in host_tests().items()}
    assert {name: lines for name, lines in long.items() if lines > 15} == {}


def test_a_healthy_host_fails_nothing():
    assert failed(case_of(HEALTHY)) == {}


def test_tools_beside_the_driver_are_not_the_driver():
    beside = {"libnvidia-container1": "1.17.8-1", "nvidia-container-toolkit": "1.17.8-1", "nvidia-dkms-tools": "3.3.0"}
    changes = {f"base/packages/{name}": package(version) for name, version in beside.items()}
    case = case_of(Example(id="", changes=changes))
    assert failed(case) == {}
    assert diff(case.lock, case.snapshot, case.host) == ()


def test_a_host_without_gpus_is_asked_nothing_about_them():
    changes = {"gpus": [], "pci_gpus": [], "cuda/toolkits": [], "driver/nvml_error": "12 library not found"}
    case = case_of(Example(id="", changes=changes), gpus=type(a_host().gpus)())
    assert failed(case) == {}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.id + (f" ({one.name})" if one.name else ""))
def test_a_host_that_differs_in_one_thing_fails_the_tests_of_that_finding_and_no_other(example):
    found = failed(case_of(example))
    assert set(found.values()) == {example.id}, found


def test_on_a_real_host_they_find_what_the_plan_finds():
    lock, gpus = locks.load("ubuntu2404-cuda131"), type(a_host().gpus)(count=1)
    host, snapshot = a_host(gpus=gpus), snapshot_with({}, "h200")
    case = Case(host=host, lock=lock, snapshot=snapshot, today=DAY, is_live=False)
    assert set(failed(case).values()) == {finding.id for finding in diff(lock, snapshot, host)}


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(argv, cwd=repository(), capture_output=True, text=True, timeout=120, check=False)


def test_the_projects_own_tests_do_not_collect_them():
    done = run_pytest("--collect-only", "--quiet", "tests", "--ignore=tests/unit", "--ignore=tests/engine")
    assert "tests/hosts" not in done.stdout


def test_pytest_alone_runs_them_on_a_recorded_snapshot_and_says_what_to_do(tmp_path):
    file = tmp_path / "gpu01.json"
    file.write_text(json.dumps(document_with({"gpus/3/ecc_uncorrected": 2})))
    done = run_pytest("tests/hosts", "--snapshot", str(file), "--junitxml", str(tmp_path / "j.xml"))
    assert done.returncode == 1
    wanted = (
        "finding +driver.ecc-errors",
        "seen +GPU 3 .*: 2",
        "expected +no GPU has uncorrected",
        "remedy +Stop what",
    )
    assert [line for line in wanted if not re.search(rf"^{line}", done.stdout, re.M)] == []
    assert "1 failed" in done.stdout and "asks the host itself" in done.stdout
    assert '<property name="finding" value="driver.ecc-errors"' in (tmp_path / "j.xml").read_text()


def test_pytest_alone_says_which_options_name_hosts():
    done = run_pytest("tests/hosts")
    assert done.returncode == 4
    assert "--hosts" in done.stderr and "--snapshot" in done.stderr
