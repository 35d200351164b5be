"""The eagle3 runbook as an operator calls it: real engine, real trainer, judged by its own evidence."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerie.paths import repository
from aerie.runbook.journal import Entry, Journal

pytestmark = pytest.mark.engine
LAUNCHER = repository() / "invoke"
# Of the bench; what is asked of the run is not its speed, and two more would take two minutes.
ONCE = ("--set", "bench.repetitions=1")
# Enough to see that the fallback trains and is served; what it learns is not asked.
SHORT_LLAMA = ("--set", "target.shape=llama", "--set", "target.llama.steps=20", *ONCE)
# The engine of the run itself, which has to come out alike: no other that serves on a processor is there as a wheel.
SECOND_ENGINE = "{name: vllm, max_model_len: 1024, max_num_seqs: 8, ready_timeout_s: 300, port: 0}"
SECOND = ("--set", f"second={{engine: {SECOND_ENGINE}, environment: {{requirements: engine}}}}")
JUDGING = {"cost", "lossless", "diagnose", "engines", "decide", "report"}
AFTER_FINETUNE = {"finetune", "export", "control", "control-second", *JUDGING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Someone with a state folder of his own; the environments in the cache are shared."""

    state: Path

    def starts(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "XDG_STATE_HOME": str(self.state)}
        return subprocess.Popen([LAUNCHER, *arguments], env=environment, stdout=subprocess.PIPE, text=True)

    def calls(self, *arguments: str) -> tuple[int, str]:
        with self.starts(*arguments) as process:
            text, _ = process.communicate()
        return process.returncode, text

    def journal(self) -> list[Entry]:
        with Journal(self.state / "aerie" / "journal.sqlite") as journal:
            return [entry for run in journal.runs() for entry in journal.events(run)]

    def report(self) -> dict[str, Any]:
        code, text = self.calls("report", "latest", "--json")
        assert code == 0
        found: dict[str, Any] = json.loads(text)
        return found


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return Operator(state=tmp_path_factory.mktemp("state"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The tiny runbook, run whole: its report, its journal, and the events of its last controller."""

    report: dict[str, Any]
    journal: list[Entry]
    last_events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def finished(operator: Operator) -> Finished:
    """Run whole, though killed three times. What is asked of its result holds as for a run that nothing disturbed.

    Kill -9: of the controller in the target's and the drafter's training, of the engine while it generates.
    """
    with operator.starts("runbook", "eagle3", "--json", *ONCE) as controller:
        for event in _events(controller):
            if _is_progress(event, "target", lambda done: done >= 10):
                controller.kill()
                break
    with operator.starts("resume", "latest", "--json") as controller:
        for event in _events(controller):
            if _is_progress(event, "synthesize", lambda done: done >= 1):
                os.kill(_process_of("synthesize", "EngineCore"), signal.SIGKILL)
                break
        for event in _events(controller):
            if _is_progress(event, "finetune", lambda done: done >= 10):
                controller.kill()
                break
    with operator.starts("resume", "latest", "--json") as controller:
        seen = list(_events(controller))
    assert controller.returncode == 0
    return Finished(report=operator.report(), journal=operator.journal(), last_events=seen)


def _shape_and_dtype() -> tuple[str, str]:
    """What this processor has to be given, read here once more and not by the runbook's own code."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    shape = "mla" if {"amx_bf16", "amx_tile"} <= flags else "llama"
    return shape, "bfloat16" if {"amx_bf16", "avx512_bf16"} & flags else "float32"


def test_the_tiny_runbook_meets_its_expectations(finished: Finished) -> None:
    report = finished.report
    baseline, finetuned = (report["drafters"][name] for name in ("baseline", "finetuned"))
    for drafter in (baseline, finetuned):
        assert drafter["tau"] == pytest.approx(1 + drafter["accepted"] / drafter["verify_steps"])
        assert drafter["accept_rate"] == pytest.approx(drafter["accepted"] / drafter["proposed"])
        assert len(drafter["accept_by_position"]) == 3
    if report["target"]["shape"]["name"] == "mla":
        assert finetuned["tau"] >= 2.3
        assert finetuned["tau"] >= 1.6 * baseline["tau"]
    assert finetuned["tau"] >= baseline["tau"] + 0.4
    assert report["parity"]["mean_rel"] < 0.02
    assert report["lossless"]["unexplained"] == 0
    assert report["lossless"]["equal"] + report["lossless"]["near_ties"] == report["lossless"]["prompts"]


def test_its_report_says_what_was_run_and_decides(finished: Finished) -> None:
    report = finished.report
    assert report["profile"] == "tiny"
    assert (report["engine"]["name"], report["engine"]["version"]) == ("vllm", "0.32.0")
    shape, dtype = _shape_and_dtype()
    assert report["target"]["shape"]["name"] == shape
    assert report["engine"]["flags"][report["engine"]["flags"].index("--dtype") + 1] == dtype
    assert report["baseline"]["tok_s_c1"] > 0
    assert report["baseline"]["tok_s_c8"] > 0
    assert report["speedup"]["R"] > 1
    assert report["decision"]["choice"] in {"serve", "train-more", "do-not-speculate"}
    assert report["decision"]["undecidable"]


def test_it_survives_a_killed_controller_and_a_killed_engine(finished: Finished) -> None:
    """A finished step never runs twice; training goes on without its controller; only the engine's step is repeated."""
    started = [event for event in finished.last_events if event["kind"] == "step.started"]
    assert [event["attached"] for event in started if event["step"] == "finetune"] == [True]
    assert len({entry.run for entry in finished.journal}) == 1
    done = [entry.step for entry in finished.journal if entry.kind == "step.done"]
    assert sorted(done) == sorted(set(done)), "a finished step ran twice"
    attempts = {entry.step: entry.attempt for entry in finished.journal if entry.kind == "step.intended"}
    assert {step: attempts[step] for step in ("target", "synthesize", "finetune")} == {
        "target": 1,
        "synthesize": 2,
        "finetune": 1,
    }


def test_the_engines_step_goes_on_where_it_was_killed(operator: Operator, finished: Finished) -> None:
    (done,) = [entry for entry in finished.journal if (entry.kind, entry.step) == ("step.done", "synthesize")]
    evidence = json.loads((operator.state / "aerie" / done.data["folder"] / "evidence.json").read_bytes())
    assert 1 <= evidence["of_earlier_attempts"] < evidence["prompts"]


def test_running_it_again_changes_nothing(operator: Operator, finished: Finished) -> None:
    code, text = operator.calls("runbook", "eagle3", "--json", *ONCE)
    assert code == 0
    assert json.loads(text.splitlines()[-1])["is_unchanged"] is True
    assert operator.journal() == finished.journal


def test_more_epochs_train_again_and_nothing_before(operator: Operator, finished: Finished) -> None:
    code, text = operator.calls("runbook", "eagle3", "--plan", "--json", *ONCE, "--set", "finetune.epochs=9")
    assert code == 0
    steps = json.loads(text)["steps"]
    assert {step["id"] for step in steps if step["action"] == "run"} == AFTER_FINETUNE


def test_a_second_engine_is_measured_without_doing_anything_else_again(operator: Operator, finished: Finished) -> None:
    code, text = operator.calls("runbook", "eagle3", "--json", *ONCE, *SECOND)
    assert code == 0, text
    ran = {entry.step for entry in operator.journal()[len(finished.journal) :] if entry.kind == "step.done"}
    assert "control-second" in ran and ran <= {"control-second", *JUDGING}
    engines = operator.report()["engines"]
    assert [(way["is_first"], way["arm"]) for way in engines["ways"]] == [
        (is_first, arm) for is_first in (True, False) for arm in ("base", "baseline", "finetuned")
    ]
    assert [one["engine"] for one in engines["engines"]] == [{"name": "vllm", "version": "0.32.0"}] * 2
    # The same engine: its drafters are accepted as before, and it says the same without one, but for near ties.
    assert {name: one["loser"] for name, one in engines["acceptance"].items()} == {"baseline": None, "finetuned": None}
    assert engines["plain"]["unexplained"] == 0 and engines["plain"]["prompts"] == 20
    assert [one["lossless"]["unexplained"] for one in engines["engines"]] == [0, 0]


def test_the_other_shape_of_target_is_served_or_refused_with_the_reason(tmp_path: Path) -> None:
    other = Operator(state=tmp_path)
    if _shape_and_dtype()[0] == "mla":
        code, text = other.calls("runbook", "eagle3", "--json", "--until", "serve-base", *SHORT_LLAMA)
        assert code == 0, text
        assert {"target", "serve-base"} <= {entry.step for entry in other.journal() if entry.kind == "step.done"}
    else:
        code, text = other.calls("runbook", "eagle3", "--json", "--set", "target.shape=mla")
        assert code == 1
        assert json.loads(text.splitlines()[-1])["error"]["where"] == "target.shape"
        assert [entry for entry in other.journal() if entry.kind == "step.done"] == []


def _events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if "kind" in event:
            yield event


def _is_progress(event: dict[str, Any], step: str, reached: Callable[[float], bool]) -> bool:
    is_it = event["kind"] == "step.progress" and event["step"] == step and event["done"] is not None
    return is_it and reached(event["done"])


def _process_of(step: str, title: str) -> int:
    """The process of the step's job whose command line has `title`."""
    for folder in Path("/proc").iterdir():
        try:
            environment = (folder / "environ").read_bytes() if folder.name.isdigit() else b""
            command = (folder / "cmdline").read_bytes().decode() if environment else ""
        except OSError:
            continue
        if f"/{step}/".encode() in environment and title in command:
            return int(folder.name)
    raise AssertionError(f"no process {title} of step {step}")
