"""What the watchdog makes of observations, and which step it takes: tables, and real processes that hang."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from aerie.engines import capability, guard
from aerie.engines.service.onhost.definition import Service
from aerie.engines.watchdog import patterns, proc
from aerie.engines.watchdog.code import WATCHDOG, spec_of
from aerie.engines.watchdog.diagnosis import Diagnosis, Kind, diagnose
from aerie.engines.watchdog.known import Known
from aerie.engines.watchdog.main import Watchdog
from aerie.engines.watchdog.observation import Gpu, Observation, Process
from aerie.engines.watchdog.observer import Observer
from aerie.engines.watchdog.recovery import Attempt, Step, decide
from aerie.engines.watchdog.service import State
from aerie.engines.watchdog.spec import Limits, Spec
from aerie.errors import UsageError
from tests.ports import reserved

LIMITS = Limits(decode_stall_s=60)
OURS = {100, 101}
GIB = 1 << 30


def rank(number, **changes):
    title = f"VLLM::Worker_TP{number}"
    usual = {"pid": 100 + number, "name": title, "state": "S", "rank": title, "progressed": 0, "resident_bytes": 0}
    return Process(**(usual | changes))


def gpu(index, **changes):
    usual = {
        "index": index, "utilisation": 0.0, "power_w": 80.0, "power_limit_w": 600.0, "used_bytes": 70 * GIB,
        "pids": (100 + index,),
    }  # fmt: skip
    return Gpu(**(usual | changes))


def look(at, **changes):
    usual = {
        "unit": "active", "processes": (rank(0), rank(1)), "answers": True, "tokens": 100.0, "running": 0.0,
        "generated": None, "gpus": (gpu(0), gpu(1)), "log_lines": 5,
    }  # fmt: skip
    return Observation(at=at, **(usual | changes))


def spinning(**changes):
    return tuple(gpu(index, utilisation=1.0, power_w=130.0, **changes) for index in (0, 1))


LOADING = {"answers": False, "tokens": None, "running": None}
GONE = {**LOADING, "unit": "failed", "processes": ()}
FREE = tuple(gpu(index, used_bytes=0, pids=()) for index in (0, 1))


@pytest.mark.parametrize(
    ("seen", "kind", "said"),
    [
        ([look(0), look(100)], Kind.HEALTHY, "100 tokens so far"),
        ([look(0, running=3.0), look(59, running=3.0)], Kind.HEALTHY, ""),
        ([look(0, running=3.0), look(61, running=3.0)], Kind.STOPPED_DECODE, "3 requests at work, and makes no token"),
        ([look(0, running=3.0), *(look(at, running=3.0, tokens=101.0) for at in (50, 61))], Kind.HEALTHY, ""),
        ([look(0, tokens=None), look(70, tokens=None, generated=False), look(140, tokens=None, generated=False)],
         Kind.STOPPED_DECODE, "a request of the watchdog's unanswered"),
        ([look(0), look(61, **LOADING)], Kind.STOPPED_DECODE, "was ready, and answers its health page no more"),
        ([look(0, running=1.0), look(61, running=1.0, gpus=spinning())], Kind.STUCK_COLLECTIVE, "busy at 130 to 130 W"),
        # The same, at the power of real work: the kernel works, it is not a collective that spins.
        ([look(0, running=1.0), look(301, running=1.0, gpus=(gpu(0, utilisation=1.0, power_w=400.0), gpu(1)))],
         Kind.STOPPED_DECODE, ""),
        ([look(0, running=1.0), look(299, running=1.0, gpus=(gpu(0, utilisation=1.0, power_w=400.0), gpu(1)))],
         Kind.HEALTHY, ""),
        ([look(0, **LOADING, gpus=spinning()), look(301, **LOADING, gpus=spinning())], Kind.STUCK_COLLECTIVE, "301 s"),
        ([look(0, **LOADING), look(301, **LOADING)], Kind.STALLED_LOAD, "no byte read"),
        ([look(0, **LOADING), look(200, **LOADING)], Kind.LOADING, ""),
        ([look(0, **LOADING), *(look(at, **LOADING, log_lines=6) for at in (250, 500))], Kind.SLOW_LOAD, ""),
        ([look(0, **LOADING), look(400, **LOADING, processes=(rank(0, progressed=2 * GIB), rank(1)))],
         Kind.SLOW_LOAD, "2.1 GB moved in 400 s, 0.01 GB/s, the last of it 0 s ago"),
        ([look(0, **LOADING), look(400, **LOADING, gpus=(gpu(0, used_bytes=71 * GIB), gpu(1)))], Kind.SLOW_LOAD, ""),
        ([look(0), look(5, processes=(rank(0, state="T"), rank(1)))], Kind.STOPPED_WORKER, "VLLM::Worker_TP0 (100)"),
        ([look(0), look(5, processes=(rank(0, waits_in="futex_wait"),))], Kind.CRASHED_RANK,
         "VLLM::Worker_TP1 gone (process 101); the others wait: VLLM::Worker_TP0 (S, futex_wait)"),
        ([look(0), look(5, processes=(rank(0), rank(1, state="Z")))], Kind.CRASHED_RANK, ""),
        ([look(0), look(5, **GONE)], Kind.DOWN, "the unit is failed"),  # memory is given back a moment later
        ([look(0, **GONE), look(5, **GONE)], Kind.MEMORY_HELD, "GPU 0 not free: 0%, 80 W, 71680 MiB, processes 100"),
        ([look(at, **GONE, gpus=(gpu(0, pids=(7,)),)) for at in (0, 5)], Kind.DOWN, ""),  # another service has it now
        ([look(at, **GONE, gpus=(gpu(0, pids=()),)) for at in (0, 5)], Kind.MEMORY_HELD, "processes none"),
        ([look(0, **GONE, gpus=FREE), look(5, **GONE, gpus=FREE)], Kind.DOWN, ""),
        ([look(0, **GONE, gpus=spinning(pids=())), look(5, **GONE, gpus=spinning(pids=()))], Kind.WEDGED_GPU,
         "GPU 0 busy with no process: 100%, 130 W"),
        ([look(0, **GONE, gpus=None), look(5, **GONE, gpus=None)], Kind.DOWN, ""),
        ([look(0, **GONE), look(5, **(GONE | {"unit": "deactivating"}))], Kind.DOWN, ""),
    ],
)  # fmt: skip
def test_what_it_is(seen, kind, said):
    found = diagnose(seen, LIMITS, OURS)
    assert found.kind is kind
    assert said in found.reason


def test_a_known_hang_is_told_in_the_capability_table_alone():
    rows = tomllib.loads(patterns.FILE.read_text())["pattern"]
    known = {hang.id: hang for hang in capability.table().hangs}
    assert len(known) == len(capability.table().hangs)
    assert [row["id"] for row in rows if ("hang" in row) == ("remedy" in row or "source" in row)] == []
    assert {row["hang"] for row in rows if "hang" in row} <= set(known)
    for one in patterns.patterns().values():
        if one.hang:
            assert one.remedy.startswith(one.hang) and one.remedy.endswith(known[one.hang].remedy)
            assert one.source == known[one.hang].source
    # What has a source of its own is in no row there.
    issues = {issue for hang in known.values() for issue in re.findall(r"\w+#\d+", hang.source)}
    assert [
        one.id for one in patterns.patterns().values() if not one.hang and any(i in one.source for i in issues)
    ] == []


def test_the_code_for_hosts_knows_its_patterns(tmp_path):
    for name, content in WATCHDOG.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    program = "from aerie.engines.watchdog.patterns import patterns; print(*patterns())"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[0] = sys.argv[1]; {program}", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.stdout.split() == list(patterns.patterns()), done.stderr


def test_the_catalogue_adds_its_remedy():
    hits = patterns.hits(["sglang is using nccl==2.27.5"])
    assert hits == ("first-collective",)
    stuck = [look(at, **LOADING, log_hits=hits) for at in (0, 301)]
    found = diagnose(stuck, LIMITS)  # without NVML's word, by the log's
    assert found.kind is Kind.STUCK_COLLECTIVE
    assert "NCCL_P2P_DISABLE=1" in found.advice[0]
    assert diagnose([look(0, log_hits=hits)], LIMITS).advice == ()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["using nccl==2.27.5", *["loading shard"] * 3], ()),  # it went on
        (["torch.OutOfMemoryError: CUDA out of memory", *["x"] * 9], ("cuda-out-of-memory",)),
        (["[rank3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1"], ("nccl-watchdog",)),
        (["triton.errors.OutOfResources: out of resource: shared memory, Required: 106496"], ("shared-memory",)),
        (["NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus"], ("xid",)),
        ([""], ()),
    ],
)  # fmt: skip
def test_lines_of_the_catalogue(lines, expected):
    assert patterns.hits(lines) == expected


def test_every_pattern_points_to_a_diagnosis_and_has_a_source():
    kinds = {"", *Kind}
    assert [one.id for one in patterns.patterns().values() if one.points_to not in kinds or len(one.source) < 8] == []


def test_a_heartbeat_of_a_hang_is_no_progress():
    waits = "No available shared memory broadcast block found in 60 seconds."
    assert patterns.telling([waits, "Waiting for 1 local, 0 remote core engine proc(s) to start.", "", "shard 3"]) == 1


def test_counters_are_summed_over_labels():
    text = 'vllm:generation_tokens_total{engine="0"} 3142.0\nvllm:generation_tokens_total{engine="1"} 1e2\n'
    assert patterns.counter(text, patterns.metric_names("tokens")) == 3242
    assert patterns.counter('sglang:num_running_reqs{x="y"} 2.0\n', patterns.metric_names("running")) == 2
    assert patterns.counter("# nothing\n", patterns.metric_names("tokens")) is None
    recorded = (Path(__file__).parent / "vllm-0.32.0.metrics.txt").read_text()
    assert patterns.counter(recorded, patterns.metric_names("tokens")) == 3142
    assert patterns.counter(recorded, patterns.metric_names("running")) == 0


def trouble(kind, *pids):
    return Diagnosis(kind=kind, reason="because", pids=pids)


def attempt(at, step, kind=Kind.STOPPED_DECODE, is_over=False):
    return Attempt(at=at, kind=kind, step=step, is_over=is_over)


@pytest.mark.parametrize(
    ("found", "past", "step"),
    [
        (trouble(Kind.HEALTHY), [], Step.WAIT),
        (trouble(Kind.SLOW_LOAD), [], Step.WAIT),
        (trouble(Kind.STOPPED_WORKER, 7), [], Step.CONTINUE),
        (trouble(Kind.STOPPED_DECODE), [], Step.RESTART),
        (trouble(Kind.STOPPED_DECODE), [attempt(990, Step.RESTART)], Step.WAIT),
        (trouble(Kind.STOPPED_DECODE), [attempt(900, Step.RESTART)], Step.KILL),
        # The same trouble by another name does not begin anew.
        (trouble(Kind.STUCK_COLLECTIVE), [attempt(900, Step.RESTART)], Step.KILL),
        (trouble(Kind.STOPPED_DECODE), [attempt(800, Step.RESTART), attempt(900, Step.KILL)], Step.GIVE_UP),
        (trouble(Kind.STOPPED_DECODE), [attempt(900, Step.GIVE_UP)], Step.WAIT),
        (trouble(Kind.STOPPED_DECODE), [attempt(900, Step.RESTART, is_over=True)], Step.RESTART),
        # Healthy in between each time, and yet no loop.
        (trouble(Kind.STOPPED_DECODE), [attempt(at, Step.RESTART, is_over=True) for at in (1, 2, 3)], Step.GIVE_UP),
        (trouble(Kind.STOPPED_DECODE), [attempt(at, Step.RESTART, is_over=True) for at in (-3000, 2, 3)], Step.RESTART),
        (trouble(Kind.MEMORY_HELD, 7), [], Step.END_HOLDERS),
        (trouble(Kind.MEMORY_HELD, 8), [], Step.GIVE_UP),  # another's process is not ours to end
        (trouble(Kind.MEMORY_HELD), [], Step.GIVE_UP),
        (trouble(Kind.WEDGED_GPU), [], Step.GIVE_UP),
    ],
)  # fmt: skip
def test_the_least_step_not_tried(found, past, step):
    assert decide(found, past, {7}, 1000.0, LIMITS).step is step


def test_what_is_left_to_a_person_is_said():
    assert "--gpu-reset" in decide(trouble(Kind.WEDGED_GPU), [], (), 0, LIMITS).reason
    assert decide(trouble(Kind.MEMORY_HELD, 7, 8), [], {7}, 0, LIMITS).pids == (7,)


def test_a_spec_is_read_as_it_was_written(tmp_path):
    spec = Spec(unit="u", url="http://x", model="m", folder=tmp_path, gpus=(0, 1), limits=Limits(actions=1))
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_dict()))
    assert Spec.read(tmp_path / "spec.json") == spec
    (tmp_path / "spec.json").write_text('{"unit": "u", "folder": "/x", "limitz": {}}')
    with pytest.raises(UsageError, match="limitz"):
        Spec.read(tmp_path / "spec.json")


# A process may stand still for seconds on a busy machine: only what a test is to see as a stall has a short limit.
PATIENT = Limits(
    load_stall_s=300, decode_stall_s=300, probe_every_s=0.2, probe_timeout_s=60, settle_s=0.3, held_bytes=1 << 20
)
STALLING_LOAD = replace(PATIENT, load_stall_s=0.7)
STALLING_DECODE = replace(PATIENT, decode_stall_s=0.8, probe_timeout_s=0.3)


class Group:
    """A service without systemd: watched.py in a session of its own. later: how it behaves from its second start on."""

    def __init__(self, folder, port, behaviour, later="serves"):
        self.folder, self.port, self.later, self.starts = folder, port, later, 0
        (folder / "behaviour").write_text(behaviour)
        self.steps, self.left = [], set()
        self.run()

    def run(self):
        self.starts += 1
        command = [sys.executable, Path(__file__).parent / "watched.py", str(self.port), self.folder / "behaviour"]
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def state(self):
        is_alive = self.process.poll() is None
        pids = (self.process.pid, *guard.descendants(self.process.pid)) if is_alive else ()
        self.left |= set(pids)
        return State(unit="active" if is_alive else "failed", start=str(self.process.pid), pids=pids)

    def tell(self, line):
        with open(self.folder / "log", "a") as log:
            log.write(f"{line}\n")

    def log(self, lines):
        return (self.folder / "log").read_text().splitlines()[-lines:]

    def end(self):
        self.state()
        for pid in self.left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def again(self, step):
        self.steps.append(step)
        self.end()
        (self.folder / "behaviour").write_text(self.later)
        self.run()

    def start(self):
        self.again("start")

    def restart(self):
        self.again("restart")

    def kill(self):
        self.again("kill")


class Nvml:
    """One GPU, whose memory is held by a process for as long as it lives. Recorded from an H200: 56,922 MiB."""

    class NVMLError(Exception):
        pass

    def __init__(self):
        self.pid = None

    def is_held(self):
        found = proc.process(self.pid) if self.pid else None
        return found is not None and found.state != "Z"

    def __getattr__(self, name):
        held = self.is_held()
        answers = {
            "nvmlDeviceGetHandleByIndex": 0,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0),
            "nvmlDeviceGetPowerUsage": 76_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=56_922 << 20 if held else 0),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=self.pid)] if held else [],
        }
        return lambda *_: answers[name]


@pytest.fixture
def watch(tmp_path):
    groups, ports = [], contextlib.ExitStack()

    def make(behaviour, later="serves", nvml=None, limits=PATIENT):
        port = ports.enter_context(reserved())
        group = Group(tmp_path, port, behaviour, later)
        groups.append(group)
        gpus = (0,) if nvml else ()
        url = f"http://127.0.0.1:{port}"
        spec = Spec(unit="model.service", url=url, model="m", folder=tmp_path / "dog", gpus=gpus, limits=limits)
        spec.folder.mkdir()
        told = []
        return group, Watchdog(spec, group, Observer(spec, group, nvml), told.append), told

    yield make
    for group in groups:
        group.end()
    ports.close()


def until(dog, condition, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not condition(found := dog.turn()):
        told = "\n".join(dog.service.log(20))
        assert time.monotonic() < deadline, (
            f"after {timeout_s} s: {found}, {dog.attempts}, {dog.seen[-1]}, log:\n{told}"
        )
        time.sleep(0.05)
    return found


def ready(dog):
    """Healthy, and its ranks seen: a look asks for processes first, so a server may answer before they are known."""
    return until(dog, lambda found: found.kind is Kind.HEALTHY and len(dog.seen[-1].ranks) == 2)


def steps(told):
    return [(one["kind"], one["step"]) for one in told if one["step"] != "wait"]


def worker(group, number):
    (pid,) = [pid for pid in group.state().pids if f"TP{number}" in Path(f"/proc/{pid}/cmdline").read_text()]
    return pid


def test_a_stopped_worker_is_continued(watch):
    group, dog, told = watch("serves")
    ready(dog)
    os.kill(worker(group, 1), signal.SIGSTOP)
    until(dog, lambda found: found.kind is Kind.STOPPED_WORKER)
    ready(dog)
    assert steps(told) == [("stopped-worker", "continue")]
    assert group.starts == 1 and [one.is_over for one in dog.attempts] == [True]


def test_a_killed_rank_is_told_from_those_that_wait(watch):
    group, dog, told = watch("serves")
    ready(dog)
    killed, waiting = worker(group, 1), worker(group, 0)
    os.kill(killed, signal.SIGKILL)
    found = until(dog, lambda found: found.kind is Kind.CRASHED_RANK)
    assert f"VLLM::Worker_TP1 gone (process {killed})" in found.reason and waiting in found.pids
    ready(dog)
    assert steps(told) == [("crashed-rank", "restart")] and group.starts == 2


def test_health_without_generation_is_a_stopped_decode_with_evidence(watch):
    _, dog, told = watch("deaf", limits=STALLING_DECODE)
    until(dog, lambda found: found.kind is Kind.STOPPED_DECODE)
    assert steps(told) == [("stopped-decode", "restart")]
    folder = Path(told[-1]["evidence"])
    incident = json.loads((folder / "incident.json").read_text())
    assert incident["kind"] == "stopped-decode" and incident["observations"][-1]["generated"] is False
    assert "loading" in (folder / "log.txt").read_text()
    assert all(
        f"== {one['pid']}" in (folder / "stacks.txt").read_text() for one in incident["observations"][-1]["processes"]
    )
    ready(dog)
    assert json.loads((dog.spec.folder / "status.json").read_text())["kind"] == "healthy"


def test_a_load_that_stalls_is_tried_twice_and_then_left_to_a_person(watch):
    group, dog, told = watch("stalls", later="stalls", limits=STALLING_LOAD)
    until(dog, lambda found: bool(told) and told[-1]["step"] == "give-up")
    assert steps(told) == [("stalled-load", "restart"), ("stalled-load", "kill"), ("stalled-load", "give-up")]
    assert group.steps == ["restart", "kill"]
    again = Watchdog(dog.spec, group, Observer(dog.spec, group), told.append)  # a watchdog that was restarted itself
    for _ in range(10):
        again.turn()
        time.sleep(0.1)
    assert group.steps == ["restart", "kill"] and group.starts == 3


def test_a_slow_load_that_moves_is_let_alone(watch):
    group, dog, told = watch("stalls", limits=STALLING_LOAD)
    kinds = []
    while not kinds or dog.seen[-1].at - dog.seen[0].at < 2 * STALLING_LOAD.load_stall_s:
        group.tell(f"shard {len(kinds)}")  # before each look, however late it comes
        kinds.append(dog.turn().kind)
        time.sleep(0.05)
    assert kinds[-1] is Kind.SLOW_LOAD and set(kinds) <= {Kind.LOADING, Kind.SLOW_LOAD}
    assert steps(told) == [] and group.starts == 1


def test_memory_that_is_not_freed_is_taken_from_our_own_process(watch):
    nvml = Nvml()
    group, dog, told = watch("holds", nvml=nvml)
    ready(dog)
    nvml.pid = worker(group, 0)
    group.process.terminate()  # the front end ends, its ranks stay, as SGLang's scheduler did
    group.process.wait()
    found = until(dog, lambda found: found.kind is Kind.MEMORY_HELD)
    assert "56922 MiB" in found.reason and found.pids == (nvml.pid,)
    ready(dog)
    assert not nvml.is_held()
    assert steps(told) == [("memory-held", "end-holders")] and group.steps == ["start"]


def left_over(watch):
    """A service whose front end has ended and whose rank holds memory, and a watchdog that was started after that."""
    nvml = Nvml()
    group, dog, told = watch("holds", nvml=nvml)
    ready(dog)
    nvml.pid = worker(group, 0)
    group.process.terminate()
    group.process.wait()
    return nvml, group, dog, told, lambda: Watchdog(dog.spec, group, Observer(dog.spec, group, nvml), told.append)


def test_a_watchdog_that_was_restarted_knows_what_is_left(watch):
    nvml, group, _, told, start = left_over(watch)
    ready(start())
    assert not nvml.is_held()
    assert steps(told) == [("memory-held", "end-holders")] and group.steps == ["start"]


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told | {"boot": "another"},
        lambda told: told | {"processes": [one | {"start_ticks": 1} for one in told["processes"]]},
        lambda told: {"schema": told["schema"]},
    ],
    ids=["another-boot", "another-process-by-now", "damaged"],
)
def test_a_number_alone_makes_no_process_ours(watch, change):
    nvml, group, dog, told, start = left_over(watch)
    file = dog.spec.folder / "processes.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    again = start()
    assert [again.turn().kind, again.turn().kind] == [Kind.DOWN, Kind.DOWN]
    assert nvml.is_held() and steps(told) == [] and group.steps == []


def test_what_has_ended_is_forgotten(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    known = Known(tmp_path / "processes.json")
    known.add([gone.pid, os.getpid()])
    assert known.alive() == {gone.pid, os.getpid()} == Known(tmp_path / "processes.json").alive()
    gone.wait()
    known.add([])
    rows = json.loads((tmp_path / "processes.json").read_text())["processes"]
    assert known.alive() == {os.getpid()} == {row["pid"] for row in rows}


def test_memory_of_another_process_is_not_ours_to_free(watch):
    nvml = Nvml()
    group, dog, told = watch("serves", nvml=nvml)
    ready(dog)
    nvml.pid = os.getpid()
    group.process.terminate()
    group.process.wait()
    until(dog, lambda found: found.kind is Kind.DOWN)
    assert dog.turn().kind is Kind.DOWN and nvml.is_held()
    assert steps(told) == [] and group.steps == []


def test_a_new_start_forgets_what_was_before():
    before = [look(0), look(5, processes=(rank(0),))]
    assert diagnose(before, LIMITS).kind is Kind.CRASHED_RANK
    assert diagnose([replace(before[-1], at=6.0)], LIMITS).kind is Kind.HEALTHY


def test_a_slots_watchdog_asks_its_engine_past_the_front():
    service = Service(
        model="m", engine="vllm", version="0.33.0", program=("/env/bin/python",), environment={}, key="environment",
        weights=(), gpus=2, draft_counter="", front="0.0.0.0:8100", port=8101, beside_bytes=0, ready_timeout_s=600,
    )  # fmt: skip
    spec = spec_of(service, "green")
    assert (spec.unit, spec.url, spec.gpus) == ("aerie-engine-m-green.service", "http://127.0.0.1:8102", (0, 1))
    assert spec.key_file == "/etc/aerie/engine/m/api-key"
    on_cpu = spec_of(replace(service, gpus=0), "blue")
    assert on_cpu.gpus == () and on_cpu.limits.decode_stall_s > spec.limits.decode_stall_s
