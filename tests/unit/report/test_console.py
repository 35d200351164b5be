"""What the terminal shows, on real consoles of several kinds."""

import io
import os
import pty
import re
from dataclasses import replace

import pytest
from rich.console import Console

from aerie.report.console import open_console, plan_view, report_view, result_view, runs_view
from aerie.runbook.budget import Budget
from aerie.runbook.plan import Plan, PlannedStep
from aerie.runbook.runner import RunResult
from aerie.runbook.state import RunSummary
from tests.unit import recorded


def shown(view, width=100):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, highlight=False, markup=False).print(view)
    return stream.getvalue()


def stream_of(encoding):
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


def bytes_of(stream):
    stream.flush()
    return stream.buffer.getvalue()


BUDGET = Budget(disk_bytes=600_000_000, basis=("800 features of at most 112 tokens",))
NOTHING = Budget()


def step(name, action, reason="", origin="", expected_s=None, budget=NOTHING):
    return PlannedStep(
        id=name, title=name, action=action, reason=reason, key="k", origin=origin, budget=budget, expected_s=expected_s
    )


def a_plan(*steps):
    return Plan(
        runbook="eagle3", profile="tiny", host="localhost", steps=steps, ram_bytes=24_000_000_000,
        disk_free_bytes={"/root": 40_000_000_000},
    )  # fmt: skip


def test_report_has_the_numbers_the_decision_and_what_is_open(summary):
    text = shown(report_view(summary, ["/state/report.html"]))
    for part in (
        "430.1", "1.236", "2.346", "44.9%", "1.18 (1.18–1.28)", "1.42 (1.33–1.49)", "1.65 plain steps a verify step",
        "mean 0.0058, limit 0.02; worst position 0.041", "70 of 80 outputs equal, 10 part at a near tie",
        "diagnosis  healthy", "decision  serve", "Would another engine serve this drafter", "/state/report.html",
        "to try next, best first", "1. 1.18 serve with the fine-tuned drafter",
    ):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize("steps", [[], ["preflight"], ["serve-base"], ["control"]], ids=str)
def test_report_of_an_unfinished_run(evidence, steps):
    text = shown(report_view(recorded.summary({name: evidence[name] for name in steps})))
    assert "decision  none yet: the run is stopped" in text
    assert "None" not in text


def test_plan_begins_and_ends_with_totals():
    text = shown(
        plan_view(
            a_plan(
                step("preflight", "done", origin="r1", expected_s=0.3),
                step("finetune", "run", "values changed: finetune.epochs 2 → 3", expected_s=28, budget=BUDGET),
                step("export", "run", "input finetune runs first", expected_s=5),
                step("control", "blocked", "gate of parity: mean 0.31"),
            )
        )
    ).splitlines()
    assert text[0].rstrip() == ("eagle3 · profile tiny · localhost: 1 done, 2 will run, 1 blocked; about 33 s")
    assert any("will run  finetune" in line and "finetune.epochs 2 → 3" in line for line in text)
    assert text[-2].rstrip() == "finetune: 800 features of at most 112 tokens"
    assert text[-1].rstrip() == "1 done, 2 will run, 1 blocked; may write 600 MB, 40 GB free in /root"


def test_a_plan_shows_what_steps_take_where_one_takes_any():
    big = Budget(disk_bytes=10**9, ram_bytes=600 * 10**9, gpu_bytes=72 * 10**9, gpus=8)
    text = shown(plan_view(a_plan(step("serve", "run", "never ran", budget=big), step("cost", "run", "never ran"))))
    (head,) = [line.split() for line in text.splitlines() if "why" in line]
    assert head == ["state", "step", "why", "disk", "memory", "GPUs", "time"]
    (serve,) = [line for line in text.splitlines() if " serve " in line]
    assert serve.split()[-9:] == ["1", "GB", "600", "GB", "8", "x", "72", "GB", "–"]
    assert "GPUs" not in shown(plan_view(a_plan(step("fetch", "run", budget=BUDGET))))
    assert "disk" not in shown(plan_view(a_plan(step("cost", "run")))).splitlines()[1]


def test_a_plan_with_nothing_to_do_says_so():
    assert (
        shown(plan_view(a_plan(step("preflight", "done", origin="r1")))).rstrip().endswith("1 done; nothing to write")
    )


def test_an_estimate_of_some_steps_says_of_how_many():
    text = shown(plan_view(a_plan(step("a", "run", "never ran"), step("b", "run", "never ran", "", 4.0))))
    assert text.splitlines()[0].rstrip().endswith("2 will run; 1 of them about 4.0 s")
    assert "about" not in shown(plan_view(a_plan(step("a", "run", "never ran"))))


def test_a_plan_tells_what_cannot_run_and_how_many_gpus_there_are():
    plan = a_plan(replace(step("parity", "run", budget=Budget(disk_bytes=2 * 10**12)), obstacle="not on GPUs yet"))
    text = shown(plan_view(replace(plan, gpu_bytes=(96 * 10**9,) * 8))).splitlines()
    assert [line.rstrip() for line in text[-2:]] == [
        "parity cannot run: not on GPUs yet", "1 will run; may write 2 TB, 40 GB free in /root, 8 GPUs here",
    ]  # fmt: skip


def a_run(state, reasons=(), command="invoke resume r1"):
    return RunSummary(
        run="20261130-020000-ab12", runbook="eagle3", profile="tiny", host="localhost", state=state, step="parity",
        opened_at="2026-11-30T02:00:00.123Z", changed_at="2026-11-30T02:09:00.123Z", reasons=reasons,
        next_command=command,
    )  # fmt: skip


def test_runs_say_what_holds_each_and_what_to_type():
    text = shown(runs_view([a_run("stopped", ("parity mean 0.31, expected below 0.02",)), a_run("done")]))
    assert text.rstrip().splitlines()[-2:] == [
        "20261130-020000-ab12: parity mean 0.31, expected below 0.02", "  next: ./invoke resume r1",
    ]  # fmt: skip


def test_no_runs():
    assert "no runs yet" in shown(runs_view([]))


def test_the_last_line_of_a_result_is_the_next_command():
    result = RunResult(
        run="r1", state="stopped", exit_code=4, reasons=("parity mean 0.31, expected below 0.02",),
        next_command="invoke approve r1 parity --reason TEXT", ran=("preflight",), reused=(), seconds=62.0,
    )  # fmt: skip
    text = shown(result_view(result)).splitlines()
    assert text[0] == "run r1  stopped  1 ran, 0 reused, 1 m 02 s"
    assert text[-1] == "next: ./invoke approve r1 parity --reason TEXT"


@pytest.mark.parametrize("environ", [{}, {"FORCE_COLOR": "0"}, {"FORCE_COLOR": "1"}], ids=str)
def test_a_pipe_is_no_terminal_whatever_force_color_says(environ, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    console = open_console(stream_of("utf-8"), environ)
    assert (console.is_terminal, console.is_interactive) == (False, False)


@pytest.mark.parametrize(
    ("environ", "has_colour"),
    [
        ({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "0"}, False), ({"FORCE_COLOR": ""}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False), ({"FORCE_COLOR": "1", "NO_COLOR": ""}, True),
    ],
    ids=str,
)  # fmt: skip
def test_colour_on_a_pipe(environ, has_colour, monkeypatch, summary):
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    stream = stream_of("utf-8")
    open_console(stream, environ).print(report_view(summary))
    assert (b"\x1b[" in bytes_of(stream)) == has_colour


@pytest.mark.parametrize(("term", "is_interactive"), [("xterm-256color", True), ("dumb", False)])
def test_a_terminal_is_interactive_unless_it_is_dumb(term, is_interactive, monkeypatch):
    monkeypatch.setenv("TERM", term)
    main, other = pty.openpty()
    try:
        with open(other, "w", encoding="utf-8", closefd=False) as stream:
            assert open_console(stream, {"TERM": term}).is_interactive == is_interactive
    finally:
        os.close(main)
        os.close(other)


def test_a_stream_without_unicode_gets_spelled_text(summary):
    stream = stream_of("ascii")
    open_console(stream, {}).print(report_view(summary))
    text = bytes_of(stream).decode("ascii")
    assert "tau 2.346 against R 1.65" in text
    assert "1.18 (1.18-1.28)" in text
    assert re.findall(r".*(?<![a-z0])\?.*", text) == []  # all that are left end a question


def test_text_of_others_is_never_markup(summary):
    stream = stream_of("utf-8")
    open_console(stream, {}).print(plan_view(a_plan(step("a", "run", "[red]values[/] changed"))))
    assert "[red]values[/] changed" in bytes_of(stream).decode()
