"""What a staging looks like before, while and after it runs."""

import io
import json

import pytest
from rich.console import Console

from aerie.report import staging as views
from aerie.weights.fanout import Outcome
from aerie.weights.following import Active, HostResult, Progress, State
from aerie.weights.staging import HostPlan, HostState, Look, StagePlan

GB = 10**9


def shown(view) -> str:
    stream = io.StringIO()
    Console(file=stream, width=110, soft_wrap=True).print(view)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def look(**differs) -> Look:
    values = {
        "files": 64, "files_verified": 0, "bytes_present": 0, "bytes_partial": 0, "bytes_to_fetch": 595 * GB,
        "bytes_free": 900 * GB, "bytes_needed": 625 * GB, "bytes_resident": None, "why_not_warm": None, "stale": {},
        "problems": (), "job": "none", "is_recorded": False, "can_seed": True,
    }  # fmt: skip
    return Look(**{**values, **differs})


def plan(*hosts: HostPlan) -> StagePlan:
    return StagePlan(
        model="kimi", manifest_sha256="ab" * 32, files=64, size_bytes=595 * GB, seeder=hosts[0].host, hosts=hosts
    )


NEW = HostPlan(host="gpu01", state=HostState.TO_STAGE, look=look())
STAGED = HostPlan(
    host="gpu02",
    state=HostState.STAGED,
    look=look(files_verified=64, bytes_present=595 * GB, bytes_to_fetch=0, bytes_resident=595 * GB),
)


def test_a_plan_says_what_is_fetched_by_whom_and_what_to_type():
    text = shown(views.plan_view(plan(NEW, STAGED), "my hosts.yml"))
    assert text.startswith("kimi · manifest abababababab · 64 files, 595 GB\n")
    assert (
        "2 hosts: 1 staged, 1 to stage; up to 595 GB a host, gpu01 from the source, the others from each other" in text
    )
    assert text.endswith("next: ./invoke stage --model kimi --host 'gpu[01:02]' --inventory 'my hosts.yml'")


def test_a_plan_tells_what_stands_in_the_way_and_what_others_left():
    blocked = HostPlan(
        host="gpu01", state=HostState.BLOCKED, look=look(stale={"/srv/x.incomplete": 7 * GB}), error="disk: full"
    )
    text = shown(views.plan_view(plan(blocked)))
    assert "gpu01: disk: full" in text
    assert "gpu01: 7 GB in a partial file that nobody goes on with: /srv/x.incomplete (--sweep-partials)" in text


def progress(state: State, host: str = "gpu01", **differs) -> Progress:
    return Progress(host=host, state=state, bytes_total=595 * GB, files=64, **differs)


def test_a_live_table_has_one_denominator_and_says_when_nothing_moves():
    file = Active(path="model-00001.safetensors", bytes=GB, size_bytes=9 * GB, source="hub", stage="fetching")
    moving = progress(State.FETCHING, bytes_on_disk=119 * GB, rate_bytes_s=GB, eta_s=476, active=(file,), moved_at=100)
    text = shown(views.progress_view([moving], now=105, began=0))
    assert "119 GB of 595 GB 20%" in text and "1 GB/s" in text and "7 m 56 s" in text
    assert "model-00001.safetensors from hub" in text and "no byte" not in text
    assert "no byte for 30 s" in shown(views.progress_view([moving], now=130, began=0))


def test_of_many_hosts_the_failed_come_first_and_the_rest_is_counted():
    hosts = [progress(State.DONE, f"gpu{number:02}") for number in range(1, 40)]
    text = shown(views.progress_view([*hosts, progress(State.FAILED, "gpu99")], now=1, began=0))
    assert text.splitlines()[1].startswith("gpu99")
    assert "… and 20 more hosts" in text and text.endswith("40 hosts, 40 ended, 0 B/s in all, 1.0 s")


def outcome(*hosts: HostResult) -> Outcome:
    return Outcome(
        model="kimi", target="/srv/w/kimi@ab", manifest_sha256="ab" * 32, size_bytes=595 * GB, hosts=hosts,
        seeder="gpu01", wall_s=400,
    )  # fmt: skip


def test_an_end_names_what_failed_last_with_its_remedy_and_the_command_for_it_alone():
    done = HostResult(host="gpu02", state=State.DONE, by_source={"gpu01": 595 * GB}, seconds=390, warm="warm")
    failed = HostResult(host="gpu01", state=State.FAILED, error="disk: full")
    text = shown(views.outcome_view(outcome(failed, done), "stage --model kimi"))
    lines = text.splitlines()
    assert (lines[1].split()[:4], lines[2].split()[:2]) == (["gpu02", "done", "gpu01", "595"], ["gpu01", "failed"])
    assert "remedy: mend what it says" in text
    assert lines[-2].startswith("1 done, 1 failed; 595 GB each at /srv/w/kimi@ab")
    assert lines[-1] == "next: ./invoke stage --model kimi --host gpu01"


def test_a_good_end_leads_to_its_verification():
    done = HostResult(host="gpu01", state=State.UNCHANGED)
    text = shown(views.outcome_view(outcome(done), "stage --model kimi"))
    assert text.endswith("next: ./invoke verify --layer weights --host gpu01")


@pytest.mark.parametrize(("seconds", "lines"), [(0.1, 2), (6.0, 3)], ids=["at-once", "later"])
def test_json_lines_begin_with_the_schema_and_tell_changes_and_movement(seconds: float, lines: int):
    stream, now = io.StringIO(), [10.0]
    listen = views.json_lines(stream, lambda: now[0])
    listen([progress(State.FETCHING)])
    now[0] += seconds
    listen([progress(State.FETCHING, bytes_on_disk=GB)])
    rows = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert rows[0] == {"schema": "aerie.events/1"} and len(rows) == lines
    assert (rows[-1]["kind"], rows[-1]["host"], rows[-1]["state"]) == ("stage", "gpu01", "fetching")


def test_without_a_terminal_each_change_is_a_line():
    stream = io.StringIO()
    with views.show(Console(file=stream, width=200), lambda: 0.0) as listen:
        for state in (State.FETCHING, State.FETCHING, State.DONE):
            listen([progress(state, bytes_on_disk=GB)])
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == ["fetching:", "done:"]
