"""What a play and its end look like, and which exit code they have."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from aerie.apply import Cell, Grid, HostInput
from aerie.engines.service.serving import Judged
from aerie.findings import Severity
from aerie.provision import HostOutcome, Outcome, State
from aerie.report import provision as views
from aerie.upgrade import Upgraded
from aerie.verification import HostVerification, Requirement, Verification
from aerie.verification import Outcome as Asked


def shown(view) -> str:
    stream = io.StringIO()
    Console(file=stream, width=100, soft_wrap=True).print(view)
    return stream.getvalue()


def ended(state: State, name: str = "gpu01", error: str = "", rebooted: bool = False) -> HostOutcome:
    return HostOutcome(host=name, state=state, layers={"driver": "changed"}, changed=3, rebooted=rebooted, error=error)


def verified(outcome: Asked = Asked.PASSED, name: str = "gpu01") -> Verification:
    asked = Requirement(
        name="it is the locked driver", test="t", layer="driver", finding="driver.version-mismatch",
        severity=Severity.FATAL, outcome=outcome,
    )  # fmt: skip
    return Verification(hosts=(HostVerification(host=name, lock="lab", requirements=(asked,)),))


def outcome(*hosts: HostOutcome, verification: Verification | None = None) -> Outcome:
    return Outcome(hosts=hosts, wall_s=61.0, folder=Path("/plays/1"), verification=verification)


@pytest.mark.parametrize(
    ("states", "asked", "code"),
    [
        ([State.UNCHANGED], Asked.PASSED, 0),
        ([State.DONE], Asked.PASSED, 0),
        ([State.DONE], Asked.FAILED, 3),
        ([State.REBOOT_PENDING], Asked.PASSED, 5),
        ([State.DONE, State.REBOOT_PENDING], Asked.FAILED, 5),
        ([State.DONE, State.FAILED], Asked.FAILED, 1),
        ([State.REBOOT_PENDING, State.UNREACHABLE], Asked.PASSED, 1),
        ([State.REFUSED], Asked.PASSED, 1),
        ([State.DONE], Asked.ERROR, 1),
    ],
)
def test_the_worst_host_gives_the_exit_code(states, asked, code):
    hosts = [ended(state, f"gpu{number:02}") for number, state in enumerate(states, 1)]
    assert outcome(*hosts, verification=verified(asked)).exit_code == code


def test_hosts_that_failed_are_those_that_are_not_done_and_those_that_do_not_verify():
    ends = [ended(State.DONE, "gpu01"), ended(State.REFUSED, "gpu02"), ended(State.UNCHANGED, "gpu03")]
    assert outcome(*ends, verification=verified(Asked.FAILED, "gpu03")).failed_hosts == ("gpu02", "gpu03")
    assert outcome(*ends[::2], verification=verified()).failed_hosts == ()


def test_a_failed_host_is_shown_with_its_error_and_the_command_that_tries_it_again():
    text = shown(
        views.outcome_view(outcome(ended(State.DONE, "gpu02"), ended(State.FAILED, error="apt\nbroke")), "provision")
    )
    assert "gpu01: apt\n  broke\n  remedy: mend what it says" in text
    assert text.splitlines()[-1].rstrip() == "next: ./invoke provision --host gpu01"


def test_a_failed_upgrade_offers_the_way_on_and_the_way_back():
    upgraded = Upgraded(outcome=outcome(ended(State.FAILED)), failed=("gpu01",), back=None, recorded=())
    last = [
        line.rstrip() for line in shown(views.upgraded_view(upgraded, "upgrade --to b", "my hosts.yml")).splitlines()
    ]
    assert last[-2:] == [
        "go on: ./invoke upgrade --to b --host gpu01 --inventory 'my hosts.yml'",
        "the way back: ./invoke rollback --host gpu01 --inventory 'my hosts.yml'",
    ]


def test_an_upgrade_taken_back_is_a_failure_however_well_that_went():
    back = outcome(ended(State.DONE), verification=verified())
    upgraded = Upgraded(outcome=outcome(ended(State.FAILED)), failed=("gpu01",), back=back, recorded=())
    assert upgraded.exit_code == 1
    assert "taken back:" in shown(views.upgraded_view(upgraded, "upgrade --to b"))


def test_a_service_that_accepts_less_after_an_upgrade_is_a_failure_and_how_services_change_is_said():
    fell = Judged(host="gpu01", model="tiny", acceptance={"fell": True, "words": "τ 3.000 → 2.000"})
    upgraded = Upgraded(
        outcome=outcome(ended(State.DONE), verification=verified()), failed=("gpu01",), back=None, recorded=(),
        judged=(fell,),
    )  # fmt: skip
    assert upgraded.exit_code == 1
    assert json.loads(json.dumps(upgraded.to_dict()))["services"][0]["acceptance"]["fell"] is True
    text = shown(views.upgraded_view(upgraded, "upgrade --to b"))
    assert "tiny on gpu01: engine.acceptance-fell: τ 3.000 → 2.000" in text
    assert "starts the lock's in the other slot" in text and "the way back: ./invoke rollback --host gpu01" in text


def a_grid(*names: str) -> Grid:
    return Grid.of(
        [HostInput(host=n, layers=("base", "driver"), group="g", group_variables={}, variables={}) for n in names]
    )


def test_failed_hosts_stand_first_and_the_rest_is_counted():
    grid = a_grid(*(f"gpu{number:02}" for number in range(1, 31)))
    grid.rows["gpu30"].error = "Install: no"
    text = shown(views.grid_view(grid, grid.started + 5))
    assert text.splitlines()[1].startswith("gpu30")
    assert "… and 10 more hosts" in text
    assert "30 hosts, 1 failed, 5.0 s" in text


def test_lines_tell_each_change_once():
    stream = io.StringIO()
    grid = a_grid("gpu01")
    with views.show(Console(file=stream, width=100), clock=lambda: 0.0) as listen:
        grid.rows["gpu01"].cells["base"] = Cell.RUNNING
        listen(grid)
        listen(grid)
        grid.rows["gpu01"].cells["base"] = Cell.CHANGED
        listen(grid)
    assert [line.split()[1:] for line in stream.getvalue().splitlines()] == [
        ["gpu01", "base", "running"],
        ["gpu01", "base", "changed"],
    ]


def test_json_lines_begin_with_their_schema():
    stream = io.StringIO()
    grid = a_grid("gpu01")
    listen = views.json_lines(stream)
    grid.rows["gpu01"].cells["driver"] = Cell.FAILED
    grid.rows["gpu01"].error = "no"
    listen(grid)
    head, line = (json.loads(text) for text in stream.getvalue().splitlines())
    assert head == {"schema": "aerie.events/1"}
    assert {key: line[key] for key in ("kind", "host", "layer", "state", "error")} == {
        "kind": "layer", "host": "gpu01", "layer": "driver", "state": "failed", "error": "no",
    }  # fmt: skip
