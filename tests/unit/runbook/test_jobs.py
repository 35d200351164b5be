"""How a step's job may end, and what is said then."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aerie.runbook import runner, supervise
from tests.runbook_fixture.quick import HOLD, STEPS, Quick

SEE = """
import json, os
inputs = context.inputs
seen = [context.values, sorted(inputs), inputs["fetch"].evidence, os.getcwd() == str(context.scratch),
        sorted(context.interpreters)]
(folder / "seen").write_text(json.dumps(seen))
"""


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("raise ValueError('no such file')", "step look failed: ValueError: no such file"),
        ("import os; os._exit(7)", "step look failed: ended with exit code 7"),
        ("import os; os._exit(0)", "step look failed: step look: 'exit code 0 without evidence', expected run() to"
         " return it. Read {folder}/log."),
        ("import os; os.kill(os.getpid(), 11)", "step look failed: was killed by signal 11"),
        ("(context.out / 'link').symlink_to('/etc/hostname')", "step look failed: artifact link: 'a link or device',"
         " expected plain files in `out`. Copy the file into the step's folder."),
        ("from aerie.errors import AerieError\nraise AerieError('port 8000', seen='in use', expected='free',"
         " remedy='Set engine.port.')", "step look failed: port 8000: 'in use', expected free. Set engine.port."),
    ],
    ids=["exception", "exit", "no-evidence", "signal", "link", "aerie-error"],
)  # fmt: skip
def test_a_failed_step_says_why(quick: Quick, script: str, message: str) -> None:
    quick.do("look", script)
    ended = quick.run()
    folder = quick.state / "runs" / ended.last["run"] / "look" / "1"
    assert (ended.code, ended.last["state"]) == (1, "failed")
    assert ended.last["reasons"] == [message.format(folder=folder)]
    assert quick.newest().next_command == f"invoke resume {ended.last['run']}"


def test_an_aerie_error_comes_whole(quick: Quick) -> None:
    quick.do("look", "from aerie.errors import AerieError\nraise AerieError('gpu 3', seen=94, expected='at most 90 °C',"
             " remedy='Look at the fans.')")  # fmt: skip
    assert quick.run().last["error"] == {
        "where": "gpu 3", "seen": 94, "expected": "at most 90 °C", "remedy": "Look at the fans.",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        ("{'x': float('nan')}", "Out of range float values are not JSON compliant"),
        ("{'x': {1, 2}}", "Object of type set is not JSON serializable"),
        ("[1]", "evidence of tests.runbook_fixture.look: 'list', expected a mapping"),
    ],
)
def test_evidence_must_be_json(quick: Quick, evidence: str, message: str) -> None:
    quick.do("look", f"evidence = {evidence}")
    [reason] = quick.run().last["reasons"]
    assert message in reason


def test_the_last_log_lines_are_in_the_failure(quick: Quick) -> None:
    quick.do("look", "for n in range(30): print('line', n)\nraise ValueError('no')")
    [failed] = quick.run().of("step.failed")
    assert len(failed["tail"]) == 10
    assert failed["tail"][-1] == "ValueError: no"


def test_a_timeout_ends_the_step(quick: Quick) -> None:
    quick.change(
        quick.spec,
        "module: tests.runbook_fixture.look, timeout_s: 120",
        "module: tests.runbook_fixture.look, timeout_s: 0.5",
    )
    quick.do("look", "import time, subprocess\nsubprocess.Popen(['setsid', 'sleep', '600'])\ntime.sleep(600)")
    ended = quick.run()
    assert ended.last["reasons"] == ["step look timeout: ran longer than timeout_s, 0.5 s"]
    assert quick.alive() == []


def test_a_stall_ends_the_step(quick: Quick) -> None:
    quick.change(quick.spec, "id: look,", "id: look, stall_s: 0.6,")
    quick.do("look", "import time\nwhile True: context.progress(1, unit='parts', note='same'); time.sleep(0.1)")
    ended = quick.run(until="look")
    assert ended.last["reasons"] == ["step look stalled: no progress for stall_s, 0.6 s"]
    assert quick.alive() == []


@pytest.mark.parametrize(
    ("said", "ended"),
    [(lambda now: int(now / 9), ("timeout", 60)), (lambda now: 7, ("stalled", 10)), (None, ("stalled", 10))],
    ids=["progress", "always-the-same", "nothing"],
)
def test_progress_alone_keeps_a_stall_away(
    said: Callable[[float], int] | None, ended: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of its own: on a busy machine any worker may stand still for seconds."""
    now = 0.0

    def passes(signals: object, seconds: float) -> None:
        nonlocal now
        now += seconds
        if said is not None:
            (tmp_path / "progress.json").write_text(json.dumps({"at": now, "done": said(now)}))

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(signal, "sigtimedwait", passes)
    monkeypatch.setattr(supervise, "_reap", lambda worker: None)
    outcome, _ = supervise._watch(str(tmp_path), 1, set(), timeout_s=60, stall_s=10)
    monkeypatch.undo()
    assert (outcome, round(now, -1)) == ended


def test_a_stall_is_found_without_a_controller(quick: Quick) -> None:
    quick.change(quick.spec, "id: look,", "id: look, stall_s: 0.3,")
    quick.do("look", "import time\ntime.sleep(600)")
    quick.finish(quick.start(dies_at="step.started"))
    quick.until(lambda: not quick.alive(), "the end of the job")
    quick.do("look", None)
    quick.change(quick.spec, "id: look, stall_s: 0.3,", "id: look,")
    ended = quick.run()
    assert [(event["outcome"], event["message"]) for event in ended.of("step.failed")] == [
        ("stalled", "no progress for stall_s, 0.3 s")
    ]
    assert ended.code == 0


def test_retries_back_off_and_then_fail(quick: Quick) -> None:
    quick.change(quick.spec, "id: look,", "id: look, retries: 2, backoff_s: 0.2,")
    quick.do("look", "raise ValueError(context.attempt)")
    ended = quick.run()
    assert [(event["attempt"], event["delay_s"], event["left"]) for event in ended.of("step.retry")] == [
        (1, 0.2, 1), (2, 0.4, 0),
    ]  # fmt: skip
    assert ended.last["reasons"] == ["step look failed: ValueError: 3"]
    assert quick.ran() == ["look"] * 3


def test_a_retry_that_works_goes_on(quick: Quick) -> None:
    quick.do("fetch", "if context.attempt == 1: raise ValueError('once')")
    assert quick.run().code == 0
    assert quick.ran() == ["look", "fetch", "fetch", "train", "judge", "tell"]


def test_an_attached_job_that_fails_uses_up_a_try(quick: Quick) -> None:
    quick.do("look", HOLD + "raise ValueError('no')")
    controller = quick.start()
    quick.reached("look")
    controller.kill()
    controller.wait()
    resumed = quick.start("latest")
    quick.says(resumed, kind="step.started", attached=True)
    quick.go()
    ended = quick.finish(resumed)
    assert (ended.code, quick.ran()) == (1, ["look"])


# Says what it did by a clock of its own, and how far it is once the test has heard of the first part.
TELLS = """
from types import SimpleNamespace
from aerie.runbook import step
step.time = SimpleNamespace(time=lambda: 1000.0)
context.progress(10, 100, unit="bytes")
while not (folder / "heard").exists():
    time.sleep(0.02)
step.time = SimpleNamespace(time=lambda: 1002.0)
context.progress(50, 100, unit="bytes")
"""


def test_progress_is_told_with_rate_and_age(quick: Quick) -> None:
    quick.do("look", "import time" + TELLS + HOLD)
    controller = quick.start(until="look")
    quick.says(controller, kind="step.progress", done=10, rate=None)
    (quick.folder / "heard").touch()
    quick.says(controller, kind="step.progress", done=50)
    quick.until(lambda: quick.said(controller)[-1].get("age_s", 0) > 1, "an age of the last progress")
    quick.go()
    first, *_, last = [event for event in quick.finish(controller).of("step.progress") if event["done"] == 50]
    assert (first["unit"], first["total"], first["rate"], first["eta_s"]) == ("bytes", 100, 20, 2.5)
    assert last["age_s"] > first["age_s"]


def test_secrets_in_the_environment_stay_out_of_the_run_folder(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert quick.run().code == 0
    files = [path for path in quick.state.rglob("*") if path.is_file()]
    assert [path for path in files if b"hf_secret" in path.read_bytes()] == []


def test_a_step_sees_its_values_inputs_and_folders(quick: Quick) -> None:
    quick.do("train", SEE)
    assert quick.run().code == 0
    values, inputs, evidence, is_in_scratch, interpreters = json.loads((quick.folder / "seen").read_text())
    assert values == {"train": {"words": 5, "seconds": 0.05}}
    assert (inputs, evidence, is_in_scratch) == (["fetch"], {"words": 10}, True)
    assert "controller" in interpreters
    assert not list(quick.state.rglob("scratch"))


def test_every_step_is_told_once(quick: Quick) -> None:
    ended = quick.run()
    assert [event["step"] for event in ended.of("step.done")] == list(STEPS)
    assert runner.runs()[0].state == "done"
