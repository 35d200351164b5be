"""The command line's outer edge: Invoke's Program with aerie's exit codes.

    0  done
    1  failed: an error, a command that ended non-zero, a bug of ours (the only one with a traceback)
    2  usage: nothing was started
    3  drift: hosts differ from their locks     (a result; tasks pass it to end_with)
    4  stopped by a gate        (a result; tasks pass it to end_with)
    5  waiting for a person     (a result; tasks pass it to end_with)
  130  interrupted (143: by SIGTERM)

Invoke 2.2.1 itself gives 1 for a usage error, and the child's code for a command that failed, which
could read as any of the others.
"""

import gc
import itertools
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from . import lean  # noqa: F401  before Invoke

# isort: split
from invoke import Collection, Exit, Failure, ParseError, UnexpectedExit
from invoke import Program as InvokeProgram

from .errors import AerieError, UsageError
from .paths import repository

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Program", "ask", "end_with", "error_text", "main"]

USAGE = 2
INTERRUPTED = 130
SCREEN_LINES = 18  # of one field; with the other fields that fits a terminal of 24 lines


def end_with(code: int) -> None:
    """End the program with `code`, silently; 0 goes on to the next task."""
    if code:
        raise Exit(code=code)


def ask(question: str, *, no_input: bool = False) -> None:
    """Return when a person answers yes. Any other answer, and the end of input, ends the program with nothing changed.

    Raises UsageError where there is nobody to ask.
    """
    if no_input or not sys.stdin.isatty():
        raise UsageError(
            question,
            seen="--no-input" if no_input else "no terminal to ask on",
            expected="an answer",
            remedy="Nothing was changed. Give --yes to go on without being asked.",
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Exit("nothing was changed", code=1)


def error_text(error: AerieError) -> str:
    """The error for a person: where, and one field a line; a long field keeps its last lines."""
    return "\n".join(_part(one) for one in error.parts)


def _refused(error: Exception, argv: Sequence[str]) -> str:
    """What Invoke's parser refused. Of a word where a number belongs Python tells the word; its flag is added."""
    no_number = re.search("invalid literal for int.*: '(.*)'$", str(error))
    if no_number is None:
        return f"error: {error}"
    before = [flag for flag, text in itertools.pairwise(argv) if text == no_number[1]]
    joined = [one.partition("=")[0] for one in argv if one.endswith(f"={no_number[1]}")]
    (flag, *_) = [*before, *joined, "an option"]
    return error_text(UsageError(flag, seen=no_number[1], expected="a whole number", remedy="Write it in digits."))


class Program(InvokeProgram):
    """Invoke with the exit codes above; errors of aerie's own tree are shown without a traceback."""

    def print_version(self) -> None:
        """The version in pyproject.toml, read only when it is asked for."""
        import tomllib

        with open(repository() / "pyproject.toml", "rb") as file:
            self.version = tomllib.load(file)["project"]["version"]
        super().print_version()

    def parse_core(self, argv: list[str] | None) -> None:
        """As Invoke, but a usage error ends with 2 and byte code is still cached."""
        before = sys.dont_write_bytecode
        try:
            super().parse_core(argv)
        except (ParseError, ValueError) as error:  # ValueError: `--list-depth x`, text where a number belongs
            raise Exit(_refused(error, self.argv), code=USAGE) from error
        finally:
            # Invoke turns it off, which would compile aerie anew at every start.
            sys.dont_write_bytecode = before

    def parse_tasks(self) -> None:
        """As Invoke, but a usage error ends with 2, and `TASK -h` is help where TASK has a positional argument."""
        tokens = self.core.unparsed
        if tokens[1:2] in (["-h"], ["--help"]):
            self.args.help.value = tokens[0]  # Invoke 2.2.1 would take -h as the argument's value
            tokens.clear()
        try:
            super().parse_tasks()
        except (ParseError, ValueError) as error:
            said = f"{_refused(error, self.argv)}\nSee: ./invoke --list, ./invoke TASK --help"
            raise Exit(said, code=USAGE) from error

    def parse_cleanup(self) -> None:
        """As Invoke, but help or a list for an unknown name ends with 2."""
        try:
            super().parse_cleanup()
        except ParseError as error:
            raise Exit(f"error: {error}\nSee: ./invoke --list", code=USAGE) from error
        except Exit as end:
            raise (Exit(f"error: {end.message}", code=USAGE) if end.message else end) from None

    def execute(self) -> None:
        """Run the tasks; what an operator can act on ends with its own code and one screen of text."""
        try:
            super().execute()
        except AerieError as error:
            self._end(error_text(error), error.exit_code)
        except UnexpectedExit as error:
            # Invoke has shown the command's output already unless it was hidden.
            self._end(str(error) if error.result.hide else f"error: {error.result.command!r} failed", 1)
        except Failure as error:
            self._end(f"error: {error}", 1)
        except KeyboardInterrupt as error:
            self._end(str(error) or "interrupted", getattr(error, "exit_code", INTERRUPTED))

    def _end(self, text: str, code: int) -> NoReturn:
        if self.args.debug.value:
            traceback.print_exc()
        raise Exit(text, code=code) from None


def main() -> None:
    """Entry of ./invoke and of .venv's own `invoke`: the tasks of this checkout, from whatever folder."""
    # Modules are not garbage: at the default of 700 the collector walks through all that was imported again and again.
    gc.set_threshold(50_000)
    try:
        program = Program(namespace=Collection.from_module(_tasks()), name="aerie", binary="invoke")
        program.run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader went away (`invoke runs | head`): no traceback here, nor at the flush on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    finally:
        # All of it ends with the process. Python would look through it for garbage first: 0.1 s.
        gc.freeze()


def _tasks() -> "ModuleType":
    root = str(repository())
    if sys.path[0] != root:
        sys.path.insert(0, root)  # before any other module named `tasks`
    import tasks

    return tasks


def _part(error: AerieError) -> str:
    seen = error.seen if isinstance(error.seen, str) else repr(error.seen)
    fields = (("seen", seen), ("expected", error.expected), ("remedy", error.remedy))
    return "\n".join([f"error: {error.where}", *(_field(name, text) for name, text in fields if text)])


def _field(name: str, text: str) -> str:
    lines = text.splitlines()
    if len(lines) > SCREEN_LINES:
        lines = [f"… {len(lines) - SCREEN_LINES} lines before", *lines[-SCREEN_LINES:]]
    return f"  {name:9}" + "\n           ".join(lines)
