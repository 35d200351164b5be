"""On a host that is as its lock wants it, every scenario of the GPU stand-in gives its finding and only that."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lab
from aerie.paths import repository
from lab import LabHost, scenario

pytestmark = pytest.mark.lab

Invoke = Callable[..., dict[str, Any]]
# A provisioned host has its driver, and ACS is cleared: what `bare` says of a new host is over.
NAMES = [name for name in scenario.names() if name != "bare"]


@pytest.fixture(scope="module")
def invoke(lab_home: Path) -> Iterator[Invoke]:
    """Runs a task on lab01, with the lab's inventory; its JSON document. lab01 is provisioned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        (host,) = lab.up(1, gpus="bare")

        def run(task: str, *flags: str) -> dict[str, Any]:
            argv = [Path(sys.executable).parent / "invoke", task, "--host", host.name, "--inventory", host.inventory]
            done = subprocess.run(
                [*argv, "--json", *flags],
                capture_output=True, text=True, check=False, timeout=900, cwd=repository(), stdin=subprocess.DEVNULL,
                env={**os.environ, "XDG_STATE_HOME": str(lab_home)},
            )  # fmt: skip
            assert done.stdout.strip(), f"{task}: exit {done.returncode}\n{done.stderr}"
            document: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
            return document

        ended = run("provision", "--yes")
        assert [one["state"] for one in ended["hosts"]] == ["done"], ended
        yield run
        lab.down()


@pytest.fixture
def host(invoke: Invoke, own_lab: Path) -> LabHost:
    """lab01."""
    return lab.up(1)[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_gives_its_finding_and_only_that(name: str, host: LabHost, invoke: Invoke) -> None:
    chosen = lab.gpu(host.name, name)
    (planned,) = invoke("plan")["hosts"]
    seen = {finding["id"]: finding["seen"] for finding in planned["findings"]}
    assert list(seen) == ([] if chosen.finding is None else [chosen.finding]), seen
