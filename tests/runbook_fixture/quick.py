"""The quick runbook in a state folder of its own, with controllers that are real processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerie.paths import repository
from aerie.runbook import runner
from aerie.runbook.journal import Entry

FIXTURE = repository() / "tests" / "runbook_fixture"
STEPS: Sequence[str] = ("look", "fetch", "train", "judge", "tell")

# For Quick.do: say that the step is in its middle, and stay there until the test lets it go.
HOLD = """
import time
(folder / f"{context.step}.reached").touch()
while not (folder / "go").exists():
    time.sleep(0.02)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a controller printed, and its exit code."""

    code: int
    events: list[dict[str, Any]]

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]


class Quick:
    """The quick runbook, to be run, killed, looked at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "steps"
        self.folder.mkdir()
        self.state = folder / "state" / "aerie"
        self.directory = folder / "runbooks"
        shutil.copytree(FIXTURE / "runbooks", self.directory)
        self.spec = self.directory / "quick" / "runbook.yml"
        self.profile = self.directory / "quick" / "profiles" / "small.yml"
        self._started: list[tuple[subprocess.Popen[str], Path]] = []

    def do(self, step: str, script: str | None) -> None:
        """Make the step run `script` at its start; None: no longer."""
        file = self.folder / f"{step}.do"
        file.unlink(missing_ok=True) if script is None else file.write_text(script, encoding="utf-8")

    def change(self, file: Path, old: str, new: str) -> None:
        """Edit the runbook or the profile."""
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    def start(self, run: str | None = None, **options: Any) -> subprocess.Popen[str]:
        """Start a controller: of a new call of `run`, or to resume `run`. options: see the controller too."""
        request: dict[str, Any] = {"do": "resume", "run": run, **options}
        if run is None:
            request = {"do": "run", "runbook": "quick", "directory": str(self.directory), **options}
        said = self.folder / f"controller-{len(self._started)}.jsonl"
        with open(said, "w", encoding="utf-8") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.runbook_fixture.controller", json.dumps(request)],
                stdout=output, text=True, cwd=repository(),
            )  # fmt: skip
        self._started.append((process, said))
        return process

    def finish(self, process: subprocess.Popen[str], timeout_s: float = 300) -> Ended:
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the controller did not end within {timeout_s} s; {self.story()}")
        return Ended(code=process.returncode, events=self.said(process))

    def said(self, process: subprocess.Popen[str]) -> list[dict[str, Any]]:
        """The events that a controller has told of so far."""
        (file,) = (file for started, file in self._started if started is process)
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def says(self, process: subprocess.Popen[str], **wanted: Any) -> None:
        """Wait until the controller tells of an event with these fields."""
        self.until(lambda: any(wanted.items() <= event.items() for event in self.said(process)), f"an event {wanted}")

    def run(self, run: str | None = None, **options: Any) -> Ended:
        return self.finish(self.start(run, **options))

    def reached(self, step: str) -> None:
        """Wait until the step, made to HOLD, is in its middle."""
        self.until((self.folder / f"{step}.reached").exists, f"step {step} in its middle")

    def go(self) -> None:
        """Let every step that holds go on."""
        (self.folder / "go").touch()

    def until(self, condition: Callable[[], object], what: str, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}; {self.story()}"
            time.sleep(0.02)

    def story(self) -> str:
        """What happened so far, for a test that failed."""
        lines = [f"{entry.kind} {entry.step or ''} {entry.data.get('message', '')}" for entry in self.entries()]
        told = [f"{file.name}: {file.read_text(encoding='utf-8')}" for _, file in self._started]
        return "\n".join([f"alive {self.alive()}, ran {self.ran()}", *lines, *told])

    def ran(self) -> list[str]:
        """The steps in the order in which they were started; one that ran twice is there twice."""
        file = self.folder / "ran"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []

    def pid(self, step: str) -> int:
        """The worker of the step's latest start."""
        lines = [line.split() for line in (self.folder / "ran").read_text().splitlines()]
        return next(int(pid) for name, _, pid in reversed(lines) if name == step)

    def entries(self) -> tuple[Entry, ...]:
        """Every event of every run."""
        with runner.open_journal() as journal:
            return tuple(entry for run in journal.runs() for entry in journal.events(run))

    def kinds(self, kind: str) -> list[str | None]:
        """The steps of all events of this kind."""
        return [entry.step for entry in self.entries() if entry.kind == kind]

    def newest(self) -> runner.RunSummary:
        return runner.runs()[0]

    def alive(self) -> list[int]:
        """Processes of any job of this state folder, found by their environment."""
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if folder.name.isdigit() and f"={self.state}/runs/".encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def clean(self) -> None:
        """End whatever the test left running."""
        for process, _ in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
