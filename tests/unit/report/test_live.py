"""Listeners, fed with the runner's own events and a clock that tests turn."""

import io
import json

import pytest
from rich.console import Console

from aerie.report.live import ROWS, Board, JsonLines, Lines, show
from aerie.runbook import events


class Clock:
    now = 1_764_468_000.0  # 2025-11-30T02:00:00Z

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def opened(*steps):
    return events.RunOpened(
        run="r1", runbook="eagle3", profile="tiny", host="localhost", resumed=False, folder="/state/runs/r1",
        steps=steps, titles=steps, disk_needed_bytes=0,
    )  # fmt: skip


def started(step="target", attempt=1, attached=False):
    return events.StepStarted(
        run="r1", step=step, attempt=attempt, reason="never ran", attached=attached, log="/log", expected_s=217.0
    )


def progress(step="target", done=120.0, total=500.0, unit="steps", age_s=0.4, elapsed_s=31.0):
    return events.StepProgress(
        run="r1", step=step, attempt=1, done=done, total=total, unit=unit, note="loss 3.1", rate=2.7, eta_s=140.0,
        age_s=age_s, elapsed_s=elapsed_s, stall_s=300.0,
    )  # fmt: skip


def done(step="target"):
    return events.StepDone(
        run="r1", step=step, attempt=1, seconds=217.0, evidence="/e", artifacts=5, size_bytes=35_100_000
    )


def failed(step="target"):
    return events.StepFailed(
        run="r1", step=step, attempt=1, outcome="stalled", message="no progress for stall_s, 300 s", log="/log", tail=()
    )


def closed():
    return events.RunClosed(
        run="r1", state="stopped", exit_code=4, reasons=("parity mean 0.31",), seconds=250.0,
        next_command="invoke approve r1 parity --reason TEXT",
    )  # fmt: skip


def text_of(view, width=100):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(view)
    return stream.getvalue()


def lines_of(clock, heard):
    stream = io.StringIO()
    listener = Lines(Console(file=stream, width=100, color_system=None, markup=False), clock)
    for after_s, event in heard:
        clock.now += after_s
        listener(event)
    return stream.getvalue().splitlines()


def test_lines_are_dated_and_one_per_change(clock):
    heard = [(0, opened("target", "parity")), (1, started()), (217, done()), (1, closed())]
    assert lines_of(clock, heard) == [
        "2025-11-30T02:00:00Z  run                 opened    eagle3 · profile tiny · localhost · r1",
        "2025-11-30T02:00:01Z  target              running   never ran, took 3 m 37 s before",
        "2025-11-30T02:03:38Z  target              done      3 m 37 s, 5 files, 35.1 MB",
        "2025-11-30T02:03:39Z  run                 stopped   after 4 m 10 s: parity mean 0.31; "
        "next: ./invoke approve r1 parity --reason TEXT",
    ]


def test_heartbeat_comes_every_30_s_and_not_more_often(clock):
    heard = [(0, started()), *[(1, progress())] * 90]
    beats = lines_of(clock, heard)[1:]
    assert len(beats) == 3
    assert beats[0].endswith(
        "running   loss 3.1: 120/500 steps, 2.7 steps/s, ETA 2 m 20 s, 31 s elapsed, last progress 0 s ago"
    )


def test_a_step_that_said_nothing_yet_still_shows_its_age(clock):
    quiet = events.StepProgress(
        run="r1", step="target", attempt=1, done=None, total=None, unit="", note="", rate=None, eta_s=None, age_s=170.0,
        elapsed_s=170.0, stall_s=300.0,
    )  # fmt: skip
    assert lines_of(clock, [(31, quiet)])[0].endswith(
        "2 m 50 s elapsed, WARN last progress 170 s ago, stopped at 300 s"
    )


def test_bytes_are_sizes(clock):
    line = lines_of(clock, [(31, progress(done=120e6, total=500e6, unit="bytes"))])[0]
    assert "120 MB/500 MB" in line


def test_json_lines_begin_with_the_schema_and_carry_every_field(clock):
    stream = io.StringIO()
    listener = JsonLines(stream, clock)
    for event in (opened("target"), started(), progress(), done(), closed()):
        listener(event)
    first, *others = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert first == {"schema": "aerie.events/1"}
    assert [one["kind"] for one in others] == ["run.opened", "step.started", "step.progress", "step.done", "run.closed"]
    assert others[2]["done"] == 120.0
    assert others[4]["next_command"] == "invoke approve r1 parity --reason TEXT"
    assert all(one["at"] == "2025-11-30T02:00:00Z" for one in others)


def test_board_shows_states_as_words_with_bar_rate_and_age(clock):
    board = Board(clock)
    for event in (opened("preflight", "target", "parity"), done("preflight"), started(), progress()):
        board(event)
    clock.now += 12
    text = text_of(board.view(), width=140)
    assert "done     preflight  3 m 37 s, 5 files, 35.1 MB" in text
    assert "running  target" in text and "pending  parity" in text
    assert "120/500 steps, 2.7 steps/s, ETA 2 m 20 s, 43 s elapsed, last progress 12 s ago" in text


def test_board_warns_before_the_hang_limit(clock):
    board = Board(clock)
    for event in (opened("target"), started(), progress(age_s=160.0)):
        board(event)
    assert "WARN last progress 160 s ago, stopped at 300 s" in text_of(board.view(), width=160)


def test_board_of_200_steps_shows_20_and_counts_the_rest(clock):
    board = Board(clock)
    names = [f"s{number:03}" for number in range(200)]
    board(opened(*names))
    board(failed("s001"))
    for name in names[2:100]:
        board(done(name))
    board(started("s100"))
    text = text_of(board.view(), width=140)
    shown = [name for name in names if f" {name} " in text]
    assert len(shown) == ROWS
    assert {"s001", "s100", "s099"} <= set(shown)
    assert "and " in text and "80 done" in text and "100 pending" in text


def test_board_keeps_why_an_attempt_failed(clock):
    board = Board(clock)
    for event in (opened("target"), started(), failed(), started(attempt=2)):
        board(event)
    text = text_of(board.view(), width=140)
    assert "target, attempt 1: no progress for stall_s, 300 s; log /log" in text
    assert "attempt 2, never ran" in text


@pytest.mark.parametrize(
    ("decision", "word"), [("stop", "stopped"), ("wait", "waiting"), ("approved", "approved"), ("go", "done")]
)
def test_a_gate_that_goes_on_leaves_the_step_done(clock, decision, word):
    board = Board(clock)
    for event in (
        opened("parity"), started("parity"), done("parity"),
        events.GateJudged(run="r1", step="parity", decision=decision, reasons=("mean 0.31",)),
    ):  # fmt: skip
        board(event)
    assert board.rows["parity"].word == word


def test_show_takes_lines_where_the_console_is_not_interactive(clock):
    stream = io.StringIO()
    with show(Console(file=stream, width=100), clock) as listener:
        listener(started())
    assert "\x1b" not in stream.getvalue()
    assert "target" in stream.getvalue()


def test_show_draws_a_table_on_a_terminal(clock):
    stream = io.StringIO()
    with show(Console(file=stream, width=100, force_terminal=True, force_interactive=True), clock) as listener:
        for event in (opened("target"), started(), done()):
            listener(event)
    assert "3 m 37 s, 5 files" in stream.getvalue()


def test_every_event_of_the_runner_is_said():
    from aerie.report.live import said

    kinds = {name for name in events.__all__ if name not in ("Event", "Listener")}
    known = {"RunOpened", "StepReused", "StepStarted", "StepProgress", "StepDone", "StepFailed", "StepRetry"}
    assert kinds == known | {"GateJudged", "Noted", "RunClosed"}
    assert said(events.Noted(run="r", step="s", text="artifact x: hash differs")) == (
        "note",
        "artifact x: hash differs",
    )
