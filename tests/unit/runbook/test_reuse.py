"""What runs again and what does not, and why: in words, and by the side effects of the steps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aerie.errors import AerieError, UsageError
from aerie.runbook import runner
from tests.runbook_fixture.quick import STEPS, Quick


def reasons(quick: Quick, **options: object) -> dict[str, str]:
    """What would run, and why."""
    plan = runner.plan("quick", directory=quick.directory, **options)  # type: ignore[arg-type]
    return {line.id: line.reason for line in plan.steps if line.action == "run"}


def artifact(quick: Quick, step: str, name: str) -> Path:
    record = next(line for line in runner.record("latest").steps if line.id == step)
    return Path(record.folder) / "out" / name


@pytest.fixture
def done(quick: Quick) -> Quick:
    """The quick runbook after one whole run."""
    assert quick.run().code == 0
    (quick.folder / "ran").unlink()
    return quick


def test_the_first_plan_runs_everything_and_changes_nothing(quick: Quick) -> None:
    assert reasons(quick) == {
        "look": "never ran", "fetch": "input look runs first", "train": "input fetch runs first",
        "judge": "input train runs first", "tell": "input look runs first",
    }  # fmt: skip
    assert quick.entries() == ()


def test_a_second_run_opens_none_and_starts_nothing(done: Quick) -> None:
    before = done.entries()
    ended = done.run()
    assert (ended.code, ended.last["is_unchanged"], ended.last["run"]) == (0, True, before[0].run)
    assert (done.ran(), done.entries()) == ([], before)


def test_an_edited_value_runs_its_step_and_those_whose_input_changed(done: Quick) -> None:
    done.change(done.profile, "train: {words: 5", "train: {words: 6")
    assert reasons(done)["train"] == "values changed: train.words 5 → 6"
    ended = done.run()
    assert (ended.last["ran"], ended.last["reused"]) == (["train", "judge", "tell"], ["look", "fetch"])
    assert done.kinds("step.reused") == ["look", "fetch"]
    assert [event["reason"] for event in ended.of("step.started")] == [
        "values changed: train.words 5 → 6", "input train changed", "input judge changed",
    ]  # fmt: skip


def test_an_equal_output_cuts_the_rest_off(done: Quick) -> None:
    ended = done.run(overrides=["train.seconds=0.01"])
    assert ended.last["ran"] == ["train"]
    assert done.ran() == ["train"]


def test_going_back_to_an_old_value_runs_nothing(done: Quick) -> None:
    done.run(overrides=["fetch.words=20"])
    assert done.run().last["ran"] == []


def test_an_edited_title_timeout_or_doc_runs_nothing(done: Quick) -> None:
    done.change(done.spec, "title: Train on words", "title: Train")
    done.change(done.spec, "timeout_s: 120", "timeout_s: 121")
    assert reasons(done) == {}


def test_what_a_step_made_outside_is_looked_at(done: Quick) -> None:
    (done.folder / "machine").write_text("there", encoding="utf-8")
    assert reasons(done)["look"] == "machine is there now"


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"x"), "hash differs"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "size 49, expected 50 bytes"),
        (lambda file: file.unlink(), "gone"),
    ],
    ids=["flipped", "truncated", "deleted"],
)
def test_a_spoilt_artifact_is_made_again(done: Quick, spoil, seen: str) -> None:
    spoil(artifact(done, "fetch", "data/words.txt"))
    assert reasons(done)["fetch"] == f"artifact data/words.txt: {seen}"
    ended = done.run()
    assert (ended.code, done.ran()) == (0, ["fetch"])
    assert done.kinds("step.damaged") == ["fetch"]
    assert ended.of("step.started")[0]["reason"] == f"artifact data/words.txt: {seen}"


def test_a_spoilt_artifact_with_the_old_time_stamp_is_found_before_it_is_used(done: Quick) -> None:
    file = artifact(done, "fetch", "data/words.txt")
    status = file.stat()
    with open(file, "r+b") as open_file:
        open_file.write(b"W")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert reasons(done) == {}
    ended = done.run(overrides=["train.words=6"])
    assert (ended.code, done.ran()) == (0, ["fetch", "train", "judge", "tell"])


def test_spoilt_evidence_is_made_again(done: Quick) -> None:
    (artifact(done, "look", "").parent / "evidence.json").write_text("{}", encoding="utf-8")
    assert reasons(done)["look"] == "artifact evidence.json: hash differs"
    assert done.run().last["ran"] == ["look"]


def test_a_copied_file_with_the_same_content_is_fine(done: Quick) -> None:
    file = artifact(done, "fetch", "data/words.txt")
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data)
    assert reasons(done) == {}


def test_only_and_again(done: Quick) -> None:
    assert done.run(only=["fetch"], again=True).code == 0
    assert done.ran() == ["fetch"]


def test_until_then_the_rest_in_the_same_run(quick: Quick) -> None:
    first = quick.run(until="fetch")
    assert (first.code, first.last["state"], first.last["reasons"]) == (
        0, "stopped", ["not selected: train, judge, tell"],
    )  # fmt: skip
    second = quick.run()
    assert (second.code, second.last["run"], quick.ran()) == (0, first.last["run"], list(STEPS))


def test_only_needs_what_it_needs(quick: Quick) -> None:
    ended = quick.run(only=["train"])
    assert ended.code == 2
    assert ended.last["message"] == (
        "step train: 'fetch not selected and without a result that holds', expected every needed step done or "
        "selected. Select it too, or run without a selection."
    )
    assert quick.entries() == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"from_": "trian"}, "--from trian: 'trian', expected one of look, fetch, train, judge, tell. Did you mean"
         " train?"),
        ({"from_": "tell", "until": "look"}, "--from tell --until look: 'nothing between them', expected --from before"
         " look. Swap them."),
        ({"only": ["look"], "until": "look"}, "--only: 'with --from or --until', expected one way to select steps."
         " Leave one of them out."),
    ],
)  # fmt: skip
def test_a_wrong_selection_is_refused(quick: Quick, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        runner.plan("quick", directory=quick.directory, **options)  # type: ignore[arg-type]
    assert str(error.value) == message


def test_a_gate_stops_the_run_and_an_approval_lets_it_on(quick: Quick) -> None:
    stopped = quick.run(overrides=["limit=0.9"])
    assert (stopped.code, stopped.last["state"]) == (4, "stopped")
    assert stopped.last["reasons"] == ["gate of judge", "share 0.5, allowed from 0.9"]
    run = stopped.last["run"]
    assert stopped.last["next_command"] == f"invoke approve {run} judge --reason TEXT"
    plan = runner.plan("quick", directory=quick.directory, overrides=["limit=0.9"])
    assert (plan.steps[4].action, plan.steps[4].reason) == ("blocked", "gate of judge: share 0.5, allowed from 0.9")
    assert quick.run(run).code == 4
    with pytest.raises(UsageError, match="expected judge, whose gate holds the run"):
        runner.approve(run, "train", "because")
    with pytest.raises(UsageError, match="expected a sentence"):
        runner.approve(run, "judge", " ")
    runner.approve(run, "judge", "the corpus is small")
    ended = quick.run(run)
    assert (ended.code, quick.ran()) == (0, list(STEPS))
    assert ended.of("gate.judged")[-1]["decision"] == "approved"
    assert "the corpus is small" in ended.of("gate.judged")[-1]["reasons"][-1]


def test_an_approval_holds_for_that_output_only(quick: Quick) -> None:
    run = quick.run(overrides=["limit=0.9"]).last["run"]
    runner.approve(run, "judge", "once")
    assert quick.run(overrides=["limit=0.9", "train.words=6"]).code == 4


def test_a_step_may_wait_for_a_person(quick: Quick) -> None:
    quick.change(quick.spec, "id: fetch,", 'id: fetch, approval: "Are the words yours?",')
    waiting = quick.run()
    assert (waiting.code, waiting.last["state"]) == (5, "waiting")
    assert waiting.last["reasons"] == ["approval after fetch", "Are the words yours?"]
    runner.approve("latest", "fetch", "they are")
    assert quick.run().code == 0
    assert quick.ran() == list(STEPS)


def test_a_disk_too_small_is_said_before_anything_starts(quick: Quick) -> None:
    quick.change(quick.spec, "id: fetch,", "id: fetch, disk_bytes: 4_000_000_000_000_000,")
    quick.change(quick.spec, "id: train,", "id: train, disk_bytes: 1_000_000_000_000,")
    ended = quick.run()
    assert ended.code == 1
    assert "expected 4001000.0 GB (fetch 4000000.0 GB + train 1000.0 GB)" in ended.last["message"]
    assert quick.entries() == ()
    assert quick.run(until="look").code == 0


def test_unknown_runs_and_no_runs(quick: Quick) -> None:
    assert runner.runs() == ()
    with pytest.raises(UsageError, match="run latest"):
        runner.record("latest")
    with pytest.raises(AerieError, match="run 1999"):
        runner.resume("1999")


def test_a_record_has_what_a_report_needs(done: Quick) -> None:
    record = runner.record("latest")
    assert [(step.id, step.state, step.attempts) for step in record.steps] == [(step, "done", 1) for step in STEPS]
    assert record.summary.state == "done"
    assert record.wall_s >= sum(step.seconds for step in record.steps)
    fetch = record.steps[1]
    assert [file["path"] for file in fetch.artifacts] == ["data/words.txt"]
    assert fetch.started_at < fetch.ended_at


def test_a_step_runs_with_the_python_that_the_profile_gives(quick: Quick, tmp_path: Path) -> None:
    python, other = tmp_path / "python-of-an-image", tmp_path / "python-of-another"
    for link in (python, other):
        link.symlink_to(getattr(sys, "_base_executable", sys.executable))
    quick.change(
        quick.spec, "module: tests.runbook_fixture.train,", "module: tests.runbook_fixture.train, environment: train,"
    )
    quick.do("train", "import sys; (folder / 'python').write_text(sys.executable)")
    ended = quick.run(overrides=[f"environments.train.python={python}"])
    assert (ended.code, (quick.folder / "python").read_text()) == (0, str(python))
    again = quick.run(overrides=[f"environments.train.python={other}"])
    assert again.last["is_unchanged"], "the same packages elsewhere are the same environment"
    with pytest.raises(UsageError, match="/nowhere/python"):
        reasons(quick, overrides=["environments.train.python=/nowhere/python"])


def test_other_packages_in_a_given_environment_run_its_steps_again(quick: Quick, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    quick.change(
        quick.spec, "module: tests.runbook_fixture.train,", "module: tests.runbook_fixture.train, environment: train,"
    )
    given = [f"environments.train.python={venv}/bin/python"]
    assert quick.run(overrides=given).code == 0
    (package,) = venv.glob("lib/python*/site-packages")
    (package / "kernels-1.0.dist-info").mkdir()
    (package / "kernels-1.0.dist-info" / "METADATA").write_text("Name: kernels\nVersion: 1.0\n")
    ended = quick.run(overrides=given)  # another process: what is installed is asked once in each
    assert [(event["step"], event["reason"]) for event in ended.of("step.started")] == [
        ("train", "environment changed")
    ]
