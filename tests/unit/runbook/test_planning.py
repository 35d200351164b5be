"""A runbook's planning module: what it counts is in the plan, and what cannot run is refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from aerie.errors import AerieError
from aerie.runbook import runner, spec
from aerie.runbook.budget import Budget, Share
from aerie.runbook.fit import refuse_what_cannot_run
from aerie.runbook.plan import Plan, PlannedStep
from aerie.runbook.spec import SpecError
from tests.runbook_fixture.quick import Quick


@pytest.fixture
def counted(quick: Quick) -> Quick:
    quick.change(
        quick.spec, "default_profile: small", "default_profile: small\nplanning: tests.runbook_fixture.counting"
    )
    return quick


def test_what_is_counted_is_in_the_plan_and_changes_no_result(counted: Quick) -> None:
    assert counted.run().code == 0
    plan = runner.plan("quick", directory=counted.directory, overrides=["fetch.words=7"])
    fetch = next(step for step in plan.steps if step.id == "fetch")
    assert (fetch.action, fetch.expected_s, fetch.budget.basis) == ("run", 3.5, ("10 words before",))
    counted.change(counted.spec, "planning: tests.runbook_fixture.counting\n", "")
    assert {step.action for step in runner.plan("quick", directory=counted.directory).steps} == {"done"}


def test_what_another_profile_measured_does_not_count(counted: Quick) -> None:
    assert counted.run().code == 0
    (counted.profile.parent / "other.yml").write_text(counted.profile.read_text().replace("words: 10", "words: 20"))
    plan = runner.plan("quick", profile="other", directory=counted.directory)
    assert next(step for step in plan.steps if step.id == "fetch").budget.basis == ("never ran",)
    assert next(
        step for step in runner.plan("quick", directory=counted.directory).steps if step.id == "fetch"
    ).budget.basis == ("10 words before",)


def test_a_run_with_a_step_that_cannot_run_starts_none(counted: Quick) -> None:
    ended = counted.run(overrides=["fetch.words=999"])
    assert ended.code == 1
    assert counted.ran() == []
    with pytest.raises(AerieError, match=r"profile small.*fetch: 999 words are too many.*--until and --only"):
        refuse_what_cannot_run(runner.plan("quick", directory=counted.directory, overrides=["fetch.words=999"]))
    plan = runner.plan("quick", directory=counted.directory, overrides=["fetch.words=999"], until="look")
    refuse_what_cannot_run(plan)


def test_a_step_that_is_planned_to_take_longer_gets_the_time(counted: Quick) -> None:
    ended = counted.run(overrides=["fetch.words=500"], until="fetch")
    assert ended.code == 0
    given = {entry.step: entry.data["timeout_s"] for entry in counted.entries() if entry.kind == "step.intended"}
    assert given == {"look": 120, "fetch": 750}, "three times the 250 s of its budget, as its timeout_s is 120"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests.runbook_fixture.counted", "ModuleNotFoundError"),
        ("tests.runbook_fixture.look", "expected a module with the functions `budget` and `obstacle`"),
    ],
)
def test_a_planning_module_that_is_none(counted: Quick, name: str, said: str) -> None:
    counted.change(counted.spec, "tests.runbook_fixture.counting", name)
    with pytest.raises(SpecError, match=f"planning: {name}.*{said}"):
        spec.load("quick", directory=counted.directory)


def a_plan(*budgets: Budget, free: dict[str, int] | None = None, disks: tuple[str, ...] = (), **host: Any) -> Plan:
    steps = tuple(
        PlannedStep(
            id=f"step-{index}", title="", action="run", reason="", key="", origin="", budget=budget, expected_s=None,
            disks=disks if budget.folder else ("/state",),
        )
        for index, budget in enumerate(budgets)
    )  # fmt: skip
    values: dict[str, Any] = {"ram_bytes": 10**12, "disk_free_bytes": free or {"/state": 10**12}} | host
    return Plan(runbook="r", profile="p", host="h", steps=steps, **values)


def test_a_disk_that_is_too_small_names_the_steps_and_how_many_samples_fit() -> None:
    each = Share(value="samples", count=100, bytes_each=6e9)
    plan = a_plan(
        Budget(disk_bytes=600 * 10**9, share=each, smaller=("shorter samples",)),
        Budget(disk_bytes=450 * 10**9, share=Share(value="samples", count=100, bytes_each=4e9)),
    )
    with pytest.raises(AerieError) as refused:
        refuse_what_cannot_run(plan)
    assert refused.value.seen == "1000.0 GB free in /state"
    assert refused.value.expected == "1050.0 GB (step-0 600.0 GB + step-1 450.0 GB)"
    assert refused.value.remedy.startswith(
        "step-0: shorter samples. samples of 95 instead of 100 would fit (--set samples=95)."
    )


def test_what_goes_to_a_folder_of_its_own_asks_for_room_there_alone() -> None:
    weights, states = Budget(disk_bytes=600, folder="/srv/weights"), Budget(disk_bytes=500)
    refuse_what_cannot_run(a_plan(weights, states, free={"/state": 500, "/srv": 600}, disks=("/srv",)))
    with pytest.raises(AerieError, match=r"free in /srv.*Free some space there"):
        refuse_what_cannot_run(a_plan(weights, states, free={"/state": 500, "/srv": 599}, disks=("/srv",)))
    with pytest.raises(AerieError, match=r"free in /state.*step-0.*step-1"):
        refuse_what_cannot_run(a_plan(weights, states, free={"/state": 1099}, disks=("/state",)))


@pytest.mark.parametrize(
    ("cards", "seen"),
    [
        ((), "no driver of GPUs"),
        ((100,) * 7, "7 of 0.0 GB"),
        ((100,) * 7 + (99,), "8 of 0.0 GB"),
    ],
    ids=["none", "too-few", "one-too-small"],
)
def test_gpus_that_are_too_few_or_too_small(cards: tuple[int, ...], seen: str) -> None:
    wanted = Budget(gpus=8, gpu_bytes=100, gpu_smaller=("fewer requests at once",))
    with pytest.raises(AerieError, match=rf"GPUs of h, step step-0.*{seen}.*8 of at least.*fewer requests at once"):
        refuse_what_cannot_run(a_plan(wanted, gpu_bytes=cards))
    refuse_what_cannot_run(a_plan(wanted, gpu_bytes=(100,) * 8))
    refuse_what_cannot_run(a_plan(wanted, gpu_bytes=None))


def test_memory_that_is_too_small() -> None:
    with pytest.raises(AerieError, match=r"memory of h, step step-0.*expected '?2000\.0 GB.*fewer"):
        refuse_what_cannot_run(a_plan(Budget(ram_bytes=2 * 10**12, smaller=("fewer",))))


def test_the_state_folder_is_measured_where_it_is(counted: Quick) -> None:
    plan = runner.plan("quick", directory=counted.directory)
    assert all(step.disks for step in plan.steps)
    assert {disk for step in plan.steps for disk in step.disks} <= plan.disk_free_bytes.keys()
    assert all(Path(disk).is_dir() for disk in plan.disk_free_bytes)
