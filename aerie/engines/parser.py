"""Reads command lines with an engine's own argument parser, in its environment. Run, not imported:

    python -P parser.py ENGINE < LINES        LINES: JSON, a list of lists of arguments

The answers are the last line of stdout: a list with null, or what the parser says. Standard library and the engine
alone. No model is loaded and no GPU is asked; the import takes seconds.
"""

import argparse
import contextlib
import io
import json
import sys
from typing import Any

__all__ = ["main", "problem"]


def main(engine: str, lines: list[list[str]]) -> list[str | None]:
    """For each line what the parser says against it; None where nothing."""
    made: Any = _sglang if engine == "sglang" else _vllm
    return [problem(made, line) for line in lines]


def problem(made: Any, line: list[str]) -> str | None:
    """What a parser, made by `made`, says against a line; None where it takes it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            made().parse_args(line)
    except SystemExit:  # argparse ends the program
        return said.getvalue().strip().splitlines()[-1]
    except (ValueError, TypeError) as error:  # of a type function
        return str(error)
    return None


def _sglang() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def _vllm() -> argparse.ArgumentParser:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # seen in 0.32.0
    except ImportError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    parser: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    return parser


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(sys.argv[1], json.load(sys.stdin))) + "\n")
