"""Runs one attempt of a step, in the step's environment: job.json in, evidence.json (or error.json) out.

    python -P -m aerie.runbook.worker FOLDER

Standard library only. The exit code is 0 exactly when evidence.json was written.
"""

import importlib
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from aerie.errors import AerieError
from aerie.runbook.step import Context, Input, write_atomic

__all__ = ["main"]


def main(folder: Path) -> int:
    """Run the job in `folder`; the exit code."""
    # As an exception, so that the step's `finally` blocks run within the supervisor's grace period.
    signal.signal(signal.SIGTERM, _leave)
    job = json.loads((folder / "job.json").read_bytes())
    try:
        evidence = importlib.import_module(job["module"]).run(_context(job, folder))
        data = _encoded(job["module"], evidence)
    except Exception as error:
        import traceback  # here, as it takes 4 ms that a step which succeeds need not pay

        traceback.print_exc()
        write_atomic(folder / "error.json", json.dumps(_described(error)).encode())
        return 1
    write_atomic(folder / "evidence.json", data)
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _context(job: Mapping[str, Any], folder: Path) -> Context:
    inputs = {
        name: Input(path=Path(given["path"]), evidence=json.loads(Path(given["evidence"]).read_bytes()))
        for name, given in job["inputs"].items()
    }
    return Context(
        run=job["run"],
        step=job["step"],
        attempt=job["attempt"],
        values=job["values"],
        inputs=inputs,
        out=folder / "out",
        scratch=folder / "scratch",
        kept=Path(job["kept"]),
        interpreters={name: Path(path) for name, path in job["interpreters"].items()},
        progress_file=folder / "progress.json",
    )


def _encoded(module: str, evidence: object) -> bytes:
    if not isinstance(evidence, Mapping):
        raise AerieError(
            f"evidence of {module}", seen=type(evidence).__name__, expected="a mapping", remedy="Return one from run()."
        )
    try:
        return json.dumps(evidence, allow_nan=False, sort_keys=True, indent=1).encode()
    except (TypeError, ValueError) as error:
        raise AerieError(
            f"evidence of {module}", seen=str(error), expected="JSON types and finite numbers",
            remedy="Convert it in run().",
        ) from error  # fmt: skip


def _described(error: Exception) -> dict[str, Any]:
    said = {"type": type(error).__name__, "message": str(error) or type(error).__name__}
    if isinstance(error, AerieError):
        said |= {"where": error.where, "seen": _plain(error.seen), "expected": error.expected, "remedy": error.remedy}
    return said


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
