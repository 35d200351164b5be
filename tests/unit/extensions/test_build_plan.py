"""The plan of a build for hosts: what each says of itself, one build for all that need the same, and its document."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from aerie import schemas
from aerie.errors import AerieError
from aerie.extensions import beside, plans
from aerie.extensions.applying import HostResult, Outcome, State
from aerie.extensions.decide import Action
from aerie.extensions.plans import BuildPlan, Row
from aerie.report import extensions as views
from tests.snapshots import snapshot_with
from tests.unit.findings.examples import BUILT, a_host, lock_with, served

GB = 1_024_000_000
ANSWER = {
    "environment": {
        "path": "/e", "site": "/e/s", "python": "3.12", "machine": "x86_64", "glibc": [2, 39], "torch": "2.14.1+cu130",
        "cuda": "13.0", "cxx11_abi": True,
    },
    "installed": None, "store": [], "damaged": [], "free_bytes": 1, "job": "none", "running": [],
    "capacity": {"processors": 96, "available_bytes": 880 * GB, "limits": [], "processors_source": "affinity"},
}  # fmt: skip


class Hosts:
    """What hosts answer, in the place of the code that is sent to them."""

    def __init__(self, **differs: Any) -> None:
        self.differs = differs

    def ask(self, host: Any, arguments: Any, *, stdin: bytes) -> dict[str, Any]:
        assert arguments == ["look"] and json.loads(stdin)["environment"] == "serve"
        return {**ANSWER, **self.differs.get(host.name, {})}


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """Looks at these hosts, of which some answer differently."""
    monkeypatch.setattr(plans, "controller_store", lambda: tmp_path)

    def look(*names: str, rebuild: bool = False, changes: Any = None, **differs: Any) -> list[Row]:
        monkeypatch.setattr(plans, "HOSTJOB", Hosts(**differs))
        lock = lock_with(BUILT)
        (package,) = lock.extensions.packages
        found = []
        for name in names:
            row = Row(host=replace(a_host(), name=name), lock=lock, package=package)
            found.append(plans.look(row, snapshot_with((changes or {}).get(name, {})), rebuild=rebuild))
        return list(plans._once(found))

    return look


def test_a_build_is_sized_by_what_the_host_says_of_itself(rows):
    (row,) = rows("gpu01")
    assert row.decision is not None and row.decision.build is not None
    assert (row.decision.action, row.capabilities) == (Action.BUILD, ("12.0",))
    assert 1 <= row.decision.build.sizing.jobs <= 96
    assert row.decision.build.sizing.memory_bytes <= row.decision.build.sizing.budget_bytes
    assert row.decision.build.estimate is None  # nobody measured this package
    small = {"capacity": {**ANSWER["capacity"], "available_bytes": 16 * GB, "processors": 8}}  # type: ignore[dict-item]
    (row,) = rows("gpu01", gpu01=small)
    assert row.decision is not None and row.decision.build is not None and row.decision.build.sizing.jobs == 2


def test_what_running_services_may_still_take_is_not_given_to_compilers(rows):
    service = {"name": "aerie-engine-tiny-blue.service", "workers": 8, "held_bytes": 8 << 30, "room_bytes": None}
    differs = {"capacity": {**ANSWER["capacity"], "available_bytes": 100 << 30}}  # type: ignore[dict-item]
    (alone,), (beside,) = rows("gpu01", gpu01=differs), rows("gpu01", gpu01={**differs, "running": [service]})
    free, kept = alone.decision.build.sizing, beside.decision.build.sizing
    assert free.budget_bytes - kept.budget_bytes == 24 << 30  # 8 workers of 4 GiB, of which 8 GiB are held
    assert kept.jobs < free.jobs
    assert "24.0 GiB reserved for aerie-engine-tiny-blue.service: it holds 8.0 GiB, 8 workers" in kept.reasons
    assert any("24.0 GiB of them reserved for running services" in one for one in kept.reasons)


def test_the_host_is_asked_for_engines_and_for_what_is_on_its_gpus():
    on_gpus = {
        "gpus/0/processes": [process(7, "aerie-engine-tiny-blue.service"), process(9, None)],
        "gpus/1/processes": [process(8, "aerie-engine-tiny-blue.service"), process(9, None)],
    }
    asked = beside.asked(snapshot_with(served() | on_gpus))
    assert asked == [
        {"unit": "aerie-engine-tiny-blue.service", "pids": [7, 8], "workers": 2},
        {"unit": None, "pids": [9], "workers": 1},
    ]
    (starting,) = beside.asked(snapshot_with(served(active="activating")))
    assert (starting["pids"], starting["workers"]) == ([], 8)
    assert beside.asked(snapshot_with({})) == []


def test_what_could_not_be_seen_is_a_warning_and_not_taken_for_nothing(rows):
    (row,) = rows("gpu01", changes={"gpu01": {"gpus/1/processes": {"unknown": "NVML: no permission"}}})
    (warning,) = row.decision.build.sizing.warnings
    assert warning == "what runs on GPU 1 could not be read (NVML: no permission), so no memory is reserved for it"


def test_another_folder_of_the_same_source_is_another_build():
    (package,) = lock_with(BUILT).extensions.packages
    moved = package.model_copy(update={"source": package.source.model_copy(update={"folder": "kernels"})})
    assert plans._patched(package) == "e" * 64
    assert len({plans._patched(package), plans._patched(moved)}) == 2 and len(plans._patched(moved)) == 64


def process(pid: int, unit: str | None) -> dict[str, Any]:
    return {"pid": pid, "name": "python", "memory_bytes": 1, "unit": unit}


def test_of_hosts_that_need_the_same_one_builds_and_the_others_need_no_compiler(rows):
    found = rows("gpu01", "gpu02", "gpu03", changes={"gpu02": {"cuda/toolkits": []}})
    assert [row.state for row in found] == ["build", "after", "after"]
    assert found[1].decision is not None
    assert found[1].decision.reasons[0] == "gpu01 builds the same, and this host installs it"
    older = {"environment": {**ANSWER["environment"], "torch": "2.13.0+cu130"}}  # type: ignore[dict-item]
    assert [row.state for row in rows("gpu01", "gpu02", gpu02=older)] == ["build", "build"]


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({"environment": None}, "environment serve: 'not there', expected the environment that tinycuda belongs to"),
        ({"environment": {"no_torch": "ModuleNotFoundError: torch"}}, "'ModuleNotFoundError: torch', expected a torch"),
        ({"environment": {"torch": "2.14.1+cpu", "cuda": None}}, "torch 2.14.1+cpu without CUDA"),
        ({"error": AerieError("x", seen="y", expected="z", remedy="w").to_dict()}, "x: 'y', expected z. w"),
    ],
)
def test_what_a_host_lacks_is_said(rows, differs, said):
    (row,) = rows("gpu01", gpu01=differs)
    assert row.decision is None and said in row.error
    assert BuildPlan(rows=(row,)).exit_code == 1


def test_a_host_whose_cards_do_not_answer_is_asked_nothing_else(rows):
    (row,) = rows("gpu01", changes={"gpu01": {"gpus": {"unknown": "18"}, "driver/nvml_error": "18 mismatch"}})
    assert "no GPU by NVML (18 mismatch)" in row.error


def test_the_document_is_as_its_schema_says_and_the_screen_has_reason_jobs_memory_and_the_next_command(rows):
    plan = BuildPlan(rows=tuple(rows("gpu01", "gpu02", "gpu03", gpu03={"environment": None})))
    document = json.dumps(plan.to_dict())
    read = schemas.BuildPlanDocument.model_validate_json(document)
    assert read.model_dump(mode="json", by_alias=True) == json.loads(document)
    out = Console(file=io.StringIO(), width=200)
    out.print(views.plan_view(plan))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    for words in ("no wheel fits", "tinycuda is not installed", " jobs of 1 nvcc thread, ", "time not known yet"):
        assert words in text
    assert text.splitlines()[-1] == "next: ./invoke build --host gpu01,gpu02 --package tinycuda"


def test_lines_tell_each_step_once_and_counts_at_most_every_half_minute(rows):
    (row,) = rows("gpu01")
    now, told = [0.0], []
    listen = views.lines(told.append, lambda: now[0])
    for note in ("fetching the source", "fetching the source", "1 compiled, 0 from the cache", "2 compiled, 0 from"):
        listen(row, note)
    assert [line.partition(": ")[2] for line in told] == ["fetching the source", "1 compiled, 0 from the cache"]
    now[0] = 31.0
    listen(row, "3 compiled, 0 from the cache")
    assert told[-1].endswith("tinycuda: 3 compiled, 0 from the cache")


def test_the_end_says_what_was_done_for_each_and_what_is_next():
    def shown(*results: HostResult) -> str:
        out = Console(file=io.StringIO(), width=200)
        out.print(views.outcome_view(Outcome(results=results, wall_s=12.0)))
        return out.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    fields: dict[str, Any] = {"package": "p", "version": "1", "action": "build", "seconds": 9.0, "wheel": "p-1.whl"}
    figures = {"units_compiled": 3, "units_cached": 1, "cpu_s": 61.0, "peak_bytes": 10**9}
    good = HostResult(
        host="gpu01", state=State.DONE, build=figures, replaced="it was short", notes=("no limit",), **fields
    )
    text = shown(good)
    for words in ("built and installed p-1.whl in 9.0 s", "3 files compiled, 1 from the cache", "1 m 01 s", "1 GB"):
        assert words in text
    assert "made anew, for the store's was damaged: it was short" in text
    assert "\n  no limit\n" in text
    assert text.splitlines()[-1].startswith("next: ./invoke verify --host gpu01 --layer extensions --deep")
    bad = HostResult(host="gpu02", state=State.FAILED, error="x: 'y', expected z.", **fields)
    text = shown(good, bad)
    assert "1 done, 1 failed in 12 s" in text and "x: 'y', expected z." in text
    assert text.splitlines()[-1].startswith("next: mend what it says")
    assert Outcome(results=(good, bad), wall_s=1.0).exit_code == 1
