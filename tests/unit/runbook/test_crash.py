"""Whatever is killed, whenever: resume finishes, no finished step runs twice, a living job is attached to."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.runbook_fixture.quick import HOLD, STEPS, Quick

# A child that leaves its session and ignores being asked.
GRANDCHILD = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "grandchild").write_text(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not (folder / "grandchild").exists():
    time.sleep(0.01)
"""


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def supervisor_of(quick: Quick, step: str) -> int:
    return int((quick.state / "runs" / quick.newest().run / step / "1" / "supervisor").read_text().split()[0])


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_controller_is_resumed_and_the_living_job_runs_once(quick: Quick, step: str) -> None:
    quick.do(step, HOLD)
    controller = quick.start()
    quick.reached(step)
    before = quick.entries()
    kill(controller)
    assert quick.newest().state == "running"
    assert quick.newest().next_command == f"invoke resume {quick.newest().run}"
    quick.go()
    ended = quick.run(quick.newest().run)
    assert (ended.code, ended.last["state"]) == (0, "done")
    assert quick.ran() == list(STEPS)
    assert quick.kinds("step.done") == list(STEPS)
    assert quick.kinds("step.intended") == list(STEPS)
    assert quick.entries()[: len(before)] == before


@pytest.mark.parametrize("step", STEPS)
def test_a_job_that_ended_without_a_controller_is_taken_over(quick: Quick, step: str) -> None:
    quick.do(step, HOLD)
    controller = quick.start()
    quick.reached(step)
    kill(controller)
    quick.go()
    quick.until(lambda: not quick.alive(), "the end of the job")
    assert quick.newest().state == "lost"
    ended = quick.run()
    assert (ended.code, ended.last["run"]) == (0, quick.entries()[0].run)
    assert quick.ran() == list(STEPS)


def test_an_attached_job_is_said_to_be_attached(quick: Quick) -> None:
    quick.do("train", HOLD)
    controller = quick.start()
    quick.reached("train")
    kill(controller)
    resumed = quick.start("latest")
    quick.says(resumed, kind="step.started", step="train")
    quick.go()
    started = quick.finish(resumed).of("step.started")
    assert [(event["step"], event["attached"]) for event in started] == [
        ("train", True), ("judge", False), ("tell", False),
    ]  # fmt: skip


@pytest.mark.parametrize("step", STEPS[1:])
def test_a_killed_worker_is_tried_again(quick: Quick, step: str) -> None:
    quick.do(step, HOLD)
    controller = quick.start()
    quick.reached(step)
    os.kill(quick.pid(step), signal.SIGKILL)
    quick.go()
    ended = quick.finish(controller)
    assert [event["message"] for event in ended.of("step.failed")] == ["was killed by signal 9"]
    assert quick.ran().count(step) == 2
    assert ended.code == 0
    assert quick.kinds("step.done") == list(STEPS)


@pytest.mark.parametrize("step", STEPS[1:])
def test_a_killed_supervisor_loses_the_job_and_leaves_nothing(quick: Quick, step: str) -> None:
    quick.do(step, HOLD)
    controller = quick.start()
    quick.reached(step)
    worker = quick.pid(step)
    os.kill(supervisor_of(quick, step), signal.SIGKILL)
    quick.until(lambda: not Path(f"/proc/{worker}").exists(), f"the end of the worker, process {worker}")
    quick.go()
    ended = quick.finish(controller)
    assert [event["outcome"] for event in ended.of("step.failed")] == ["lost"]
    assert ended.code == 0
    assert quick.ran().count(step) == 2
    assert quick.alive() == []


def test_a_lost_step_without_retries_fails_the_run_and_a_resume_runs_it_again(quick: Quick) -> None:
    quick.do("look", HOLD)
    controller = quick.start()
    quick.reached("look")
    os.kill(supervisor_of(quick, "look"), signal.SIGKILL)
    ended = quick.finish(controller)
    assert (ended.code, ended.last["reasons"]) == (
        1, ["step look lost: its supervisor was killed, or the host restarted"],
    )  # fmt: skip
    quick.go()
    assert quick.run("latest").code == 0
    assert quick.ran() == ["look", *STEPS]


def test_controller_and_supervisor_killed_together(quick: Quick) -> None:
    quick.do("look", GRANDCHILD + HOLD)
    controller = quick.start()
    quick.reached("look")
    supervisor = supervisor_of(quick, "look")
    kill(controller)
    os.kill(supervisor, signal.SIGKILL)
    quick.until(lambda: len(quick.alive()) == 2, "the worker and its grandchild alone")
    assert quick.newest().state == "lost"
    quick.do("look", None)
    ended = quick.run("latest")
    assert [event["outcome"] for event in ended.of("step.failed")] == ["lost"]
    assert (ended.code, quick.ran(), quick.alive()) == (0, ["look", *STEPS], [])


def test_a_killed_grandchild_is_the_step_s_own_affair(quick: Quick) -> None:
    quick.do("train", GRANDCHILD + HOLD)
    controller = quick.start()
    quick.reached("train")
    os.kill(int((quick.folder / "grandchild").read_text()), signal.SIGKILL)
    quick.go()
    assert quick.finish(controller).code == 0
    assert quick.ran() == list(STEPS)


def test_a_step_that_is_done_leaves_no_grandchild(quick: Quick) -> None:
    quick.change(quick.spec, "id: look,", "id: look, retries: 0,")
    quick.do("look", GRANDCHILD.replace("signal.signal(signal.SIGTERM, signal.SIG_IGN)", ""))
    assert quick.run(until="look").code == 0
    assert quick.alive() == []


def test_a_failed_step_leaves_no_grandchild_even_without_its_environment(quick: Quick) -> None:
    sleep = f"611.{os.getpid()}"  # a name of its own: another run of these tests has its own
    bare = f"import subprocess; subprocess.Popen(['/usr/bin/env', '-i', 'setsid', 'sleep', '{sleep}'])"
    quick.do("look", f"{bare}\nraise ValueError('no')")
    ended = quick.run()
    assert ended.last["reasons"] == ["step look failed: ValueError: no"]
    assert subprocess.run(["pgrep", "-f", f"^sleep {sleep}$"], check=False).returncode == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_stops_the_job_and_leaves_a_run_to_resume(quick: Quick, number: int, code: int) -> None:
    quick.do("train", HOLD)
    controller = quick.start()
    quick.reached("train")
    controller.send_signal(number)
    ended = quick.finish(controller)
    assert (ended.code, ended.last["state"]) == (code, "stopped")
    assert quick.alive() == []
    assert quick.kinds("step.failed") == ["train"]
    assert quick.newest().next_command == f"invoke resume {ended.last['run']}"
    quick.go()
    assert quick.run().last["run"] == ended.last["run"]
    assert quick.ran() == ["look", "fetch", "train", "train", "judge", "tell"]


def test_a_stopped_step_may_clean_up_first(quick: Quick) -> None:
    quick.do("look", f"try:\n    exec({HOLD!r})\nfinally:\n    (folder / 'cleaned').touch()")
    controller = quick.start()
    quick.reached("look")
    controller.send_signal(signal.SIGINT)
    assert quick.finish(controller).code == 130
    assert (quick.folder / "cleaned").exists()


def test_a_second_interrupt_kills_at_once(quick: Quick) -> None:
    asked = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: (folder / 'asked').touch())"
    quick.do("look", asked + GRANDCHILD + HOLD)
    controller = quick.start(grace_s=3600)
    quick.reached("look")
    controller.send_signal(signal.SIGINT)
    quick.until((quick.folder / "asked").exists, "the step asked to stop")  # two signals at once would be one
    assert controller.poll() is None
    controller.send_signal(signal.SIGINT)
    assert quick.finish(controller).code == 130  # the first one would have waited for an hour
    assert quick.alive() == []


def test_a_second_run_on_the_host_is_refused_with_the_holder(quick: Quick) -> None:
    quick.do("look", HOLD)
    controller = quick.start()
    quick.reached("look")
    run = quick.newest().run
    second = quick.run()
    assert second.code == 1
    assert second.last["message"] == (
        f"host localhost: 'run {run} at work', expected no other run on the host. "
        "Wait for its end, or stop it with Ctrl-C where it runs."
    )
    quick.go()
    assert quick.finish(controller).code == 0


def test_another_run_is_refused_while_the_job_of_a_killed_controller_lives(quick: Quick) -> None:
    (quick.profile.parent / "other.yml").write_text(quick.profile.read_text())
    quick.do("look", HOLD)
    controller = quick.start()
    quick.reached("look")
    kill(controller)
    run = quick.newest().run
    second = quick.run(profile="other")
    assert second.code == 1
    assert f"a job of run {run} alive" in second.last["message"]
    assert f"invoke resume {run}" in second.last["message"]
    quick.go()
    assert quick.run(run).code == 0


def test_a_living_job_that_is_no_longer_asked_for_is_stopped(quick: Quick) -> None:
    quick.do("train", HOLD)
    controller = quick.start()
    quick.reached("train")
    kill(controller)
    quick.do("train", None)
    ended = quick.run(overrides=["train.words=7"])
    assert ended.code == 0
    assert [(entry.step, entry.data["outcome"]) for entry in quick.entries() if entry.kind == "step.failed"] == [
        ("train", "stopped")
    ]
    assert quick.ran() == ["look", "fetch", "train", "train", "judge", "tell"]


def test_a_killed_controller_between_steps_never_breaks_the_journal(quick: Quick) -> None:
    before: tuple[object, ...] = ()
    for delay_s in (0.4, 0.6, 0.8, 1.0, 1.2):
        controller = quick.start()
        time.sleep(delay_s)
        kill(controller)
        now = quick.entries()
        assert now[: len(before)] == before
        before = now
    assert quick.run().code == 0
    assert sorted(set(quick.kinds("step.done"))) == sorted(STEPS)
    assert len(quick.kinds("step.done")) == len(STEPS)


FETCH = "values: [fetch], timeout_s: 120, retries: 1, backoff_s: 0.1"
PARTS = """
from pathlib import Path
import os, signal
there = sorted(path.name for path in context.kept.iterdir())
(folder / "there").open("a").write(" ".join(there) + "\\n")
(context.kept / f"part-{context.attempt}").write_text("done")
if context.attempt < 3:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_step_keeps_is_there_for_its_next_attempt_and_gone_when_it_is_done(quick: Quick) -> None:
    quick.change(quick.spec, FETCH, FETCH.replace("retries: 1", "retries: 3"))
    quick.do("fetch", PARTS)
    assert quick.run().code == 0
    assert (quick.folder / "there").read_text().splitlines() == ["", "part-1", "part-1 part-2"]
    assert list(quick.state.glob("runs/*/fetch/kept")) == []


def test_what_a_step_kept_is_not_for_other_values(quick: Quick) -> None:
    quick.do("fetch", PARTS)
    assert quick.run().code == 1
    quick.do("fetch", PARTS.replace("context.attempt < 3", "False"))
    assert quick.run(overrides=["fetch.words=6"]).code == 0
    assert (quick.folder / "there").read_text().splitlines() == ["", "part-1", ""]
