"""The table of exit codes, and what a person reads with each."""

import gc
import subprocess
import sys
import warnings
from typing import Any

import pytest
from invoke import Collection, Exit, task

from aerie.errors import AerieError, StepFailed, UsageError
from aerie.paths import repository
from aerie.program import Program, end_with, error_text
from aerie.runbook.yamlfile import Problem, SpecError


@task(auto_shortflags=False)
def ends(c: Any, name: str, number: int = 0) -> None:
    """Ends in the way that is named."""
    ways = {"gate": 4, "person": 5, "done": 0}
    if name in ways:
        end_with(ways[name])
    elif name == "usage":
        raise UsageError("profile", seen="tyni", expected="tiny", remedy="Correct it.")
    elif name == "step":
        raise StepFailed("target", seen="a\nb", expected="evidence", remedy="Read the log.")
    elif name == "command":
        c.run("exit 3", hide=True, in_stream=False)
    elif name == "loud-command":
        c.run("exit 7", in_stream=False)
    elif name == "exit":
        raise Exit("with a message", code=5)
    elif name == "ctrl-c":
        raise KeyboardInterrupt
    elif name == "timeout":
        c.run("sleep 600", timeout=1, hide=True, in_stream=False)


def run(*arguments: str) -> int:
    program = Program(namespace=Collection(ends), name="aerie", binary="invoke")
    code = 0
    try:
        program.run(["invoke", *arguments])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    with warnings.catch_warnings():
        # Invoke 2.2.1 leaves the pipes of a command to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return code


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["ends", "done"], 0, ""),
        (["ends", "gate"], 4, ""),
        (["ends", "person"], 5, ""),
        (["ends", "exit"], 5, "with a message"),
        (["ends", "usage"], 2, "error: profile\n  seen     tyni\n  expected tiny\n  remedy   Correct it."),
        (["ends", "step"], 1, "error: target\n  seen     a\n           b"),
        (["ends", "command"], 1, "exit 3"),
        (["ends", "loud-command"], 1, "'exit 7' failed"),
        (["ends", "timeout"], 1, "did not complete within"),
        (["ends", "ctrl-c"], 130, "interrupted"),
        (["ens"], 2, "No idea what 'ens' is"),
        (["ends"], 2, "positional"),
        (["ends", "x", "--numbr", "3"], 2, "--numbr"),
        (["ends", "x", "--number"], 2, "needed value"),
        (["ends", "x", "--number", "three"], 2, "error: --number\n  seen     three\n  expected a whole number\n"),
        (["ends", "x", "--number=three"], 2, "error: --number\n  seen     three\n"),
        (["--no-such-flag"], 2, "--no-such-flag"),
        (["--list-depth", "x"], 2, "error: --list-depth\n  seen     x\n"),
        (["--list", "nope"], 2, "nope"),
        (["--help", "nope"], 2, "nope"),
        (["nope", "-h"], 2, "nope"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_exit_code_and_message(arguments, code, said, capfd):
    assert run(*arguments) == code
    out, err = capfd.readouterr()
    assert said in err
    assert "Traceback" not in err
    assert (out, code if err else "") == ("", code if said else ""), "errors go to stderr, results say nothing there"


@pytest.mark.parametrize("arguments", [["ends", "-h"], ["ends", "--help"], ["ends", "x", "-h"], ["--help", "ends"]])
def test_help_of_a_task_works_before_and_after_its_name(arguments, capfd):
    assert run(*arguments) == 0
    out, err = capfd.readouterr()
    assert "Ends in the way that is named." in out
    assert err == ""


def test_debug_shows_the_traceback(capfd):
    assert run("--debug", "ends", "usage") == 2
    assert "Traceback" in capfd.readouterr().err


def test_a_long_field_keeps_its_end_and_fits_a_screen():
    seen = "\n".join(f"line {number}" for number in range(100))
    text = error_text(AerieError("engine", seen=seen, expected="an engine that starts", remedy="Read the log."))
    assert len(text.splitlines()) <= 24
    assert "line 99" in text
    assert "82 lines before" in text


def test_a_field_that_is_not_text_is_shown_as_python_writes_it():
    assert "seen     17" in error_text(AerieError("cores", seen=17, expected="2", remedy=""))


def test_a_reader_that_goes_away_causes_no_traceback():
    script = f"'{sys.executable}' -c 'from aerie.program import main; main()' --list | true"
    result = subprocess.run(["sh", "-c", script], cwd=repository(), capture_output=True, text=True, check=False)
    assert result.stderr == ""


def test_everything_that_is_wrong_is_shown_at_once() -> None:
    problems = [
        Problem(where="--set a.b=x", key="a.b", seen="'x'", expected="integer"),
        Problem(
            where="runbook.yml:3", key="stepps", seen="an unknown key", expected="steps", remedy="Did you mean steps?"
        ),
    ]
    assert error_text(SpecError(problems)).splitlines() == [
        "error: --set a.b=x: a.b",
        "  seen     'x'",
        "  expected integer",
        "error: runbook.yml:3: stepps",
        "  seen     an unknown key",
        "  expected steps",
        "  remedy   Did you mean steps?",
    ]


def test_a_program_that_ends_does_not_look_through_its_memory_first():
    code = "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count(), file=sys.stderr))\n"
    argv = [sys.executable, "-c", f"{code}from aerie.program import main; main()", "--version"]
    done = subprocess.run(argv, cwd=repository(), capture_output=True, text=True, check=True)
    assert int(done.stderr) > 1000
