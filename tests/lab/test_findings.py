"""Each scenario of the lab's cards gives its finding, and only that beside what an unprovisioned host lacks anyway."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import lab
from aerie import inventory, lock, remote
from aerie.findings import Finding, diff
from lab import LabHost, scenario

pytestmark = pytest.mark.lab

SCENARIOS = [name for name in scenario.names() if scenario.load(name).finding]


@pytest.fixture(scope="module")
def host(lab_home: Path) -> Iterator[LabHost]:
    """lab01 with healthy cards and their driver; nothing was provisioned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        yield lab.up(1, cards="healthy8")[0]
        lab.down()


def found(host: LabHost) -> dict[str, Finding]:
    entry = inventory.host(host.name, host.inventory)
    wanted = lock.load(entry.lock or "", inventory.folder(host.inventory))
    return {finding.id: finding for finding in diff(wanted, remote.probe(entry), entry)}


@pytest.fixture(scope="module")
def before(host: LabHost, lab_home: Path) -> set[str]:
    """What an unprovisioned host lacks."""
    return set(found(host))


def test_healthy_cards_have_no_finding(before: set[str]) -> None:
    assert {one for one in before if one.startswith(("driver.", "interconnect."))} == {"driver.repository-missing"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_gives_its_finding_and_only_that(name: str, host: LabHost, before: set[str], own_lab: Path) -> None:
    chosen = lab.gpu(host.name, name)
    mine = found(host)
    assert set(mine) - before == {chosen.finding}, mine
