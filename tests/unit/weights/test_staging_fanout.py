"""Which host fetches from the source, and what becomes of the others when one is gone. Hosts are answers here."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerie import remote
from aerie.errors import UsageError
from aerie.inventory import Host
from aerie.lock import Weights
from aerie.weights import fanout, following, staging
from aerie.weights.following import State
from aerie.weights.manifest import File, Manifest, Source, digest
from aerie.weights.staging import HostState, Options, Prepared, StagePlan

MANIFEST = Manifest(
    model="m",
    source=Source(kind="http", location="http://source/m/"),
    files=(File(path="a", size=10, sha256="a" * 64), File(path="b", size=20, sha256="b" * 64)),
)
NAMES = ("gpu01", "gpu02", "gpu03")
PIN = digest(MANIFEST)


def host(name: str) -> Host:
    return Host(name=name, address=f"192.0.2.{name[-1]}", user="root", connection="ssh")


def prepared(*names: str, options: Options | None = None) -> Prepared:
    model = {"source": "http", "location": "http://source/m/", "manifest_sha256": PIN}
    return Prepared(
        plan=StagePlan(model="m", manifest_sha256=PIN, files=2, size_bytes=30, seeder="", hosts=()),
        inventory=Path("hosts.yml"),
        hosts={name: host(name) for name in names},
        addresses={name: f"192.0.2.{name[-1]}" for name in names},
        weights=Weights.model_validate({"models": {"m": model}}),
        manifest=MANIFEST,
        options=options or Options(),
    )


def answer(verified: int = 0, resident: int | None = None, job: str = "none", **differs: Any) -> dict[str, Any]:
    """What hostjob's look says of a host with so many of two files."""
    present = (0, 10, 30)[verified]
    plan = {
        "files": {"total": 2, "verified": verified},
        "bytes": {"present": present, "partial": 0, "to_fetch": 30 - present},
        "free_bytes": 1000, "needed_bytes": 31, "why_not_warm": None, "partials": [], "problems": [],
    }  # fmt: skip
    rest = {"resident_bytes": resident, "job": job, "is_recorded": verified == 2, "can_seed": True}
    return {"plan": {**plan, **differs}, **rest}


def gone(name: str) -> remote.Unreachable:
    return remote.Unreachable(host(name), "route", seen="no way", expected="a host", remedy="Look.")


Answers = dict[str, Any]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[StagePlan, list[tuple[str, bool]]]]:
    """The plan made of what the hosts answer, and who was asked as the one that may use the source."""

    def make(answers: Answers, options: Options | None = None) -> tuple[StagePlan, list[tuple[str, bool]]]:
        asked = []

        def ask(to: Host, arguments: list[str], *, stdin: bytes) -> dict[str, Any]:
            asked.append((to.name, json.loads(stdin)["may_use_origin"]))
            found = answers[to.name]
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(staging.shipping, "ask", ask)
        return staging.plan_of(prepared(*answers, options=options), forks=1), asked

    return make


@pytest.mark.parametrize(
    ("answers", "states", "seeder"),
    [
        ((answer(), answer(), answer()), ("to-stage", "to-stage", "to-stage"), "gpu01"),
        ((answer(2, 30), answer(1), answer()), ("staged", "to-stage", "to-stage"), "gpu01"),
        ((gone("gpu01"), answer(), answer()), ("unreachable", "to-stage", "to-stage"), "gpu02"),
        ((answer(2, 30), answer(2, 30), answer(2, 30)), ("staged", "staged", "staged"), ""),
        ((answer(2, 3), answer(2, 30), answer(2, 30)), ("to-stage", "staged", "staged"), ""),
        ((answer(job="running"), answer(), gone("gpu03")), ("running", "to-stage", "unreachable"), "gpu01"),
        ((gone("gpu01"), gone("gpu02"), gone("gpu03")), ("unreachable",) * 3, ""),
    ],
    ids=["all-new", "one-has-it", "first-is-gone", "nothing-to-do", "cold", "at-work", "all-gone"],
)
def test_a_plan_of_three_hosts(plan, answers, states, seeder) -> None:
    made, asked = plan(dict(zip(NAMES, answers, strict=True)))
    assert (tuple(str(one.state) for one in made.hosts), made.seeder) == (states, seeder)
    if seeder and made.hosts[NAMES.index(seeder)].state is not HostState.STAGED:
        assert (seeder, True) in asked


def test_a_host_with_a_problem_is_blocked_and_its_remedy_names_it(plan) -> None:
    problem = {"where": "tools", "seen": "no aria2c", "expected": "it", "remedy": "./invoke provision --host HOST"}
    made, _ = plan({"gpu01": answer(problems=[problem])})
    assert (made.hosts[0].state, made.exit_code) == (HostState.BLOCKED, 1)
    assert made.hosts[0].error.endswith("./invoke provision --host gpu01")


@pytest.mark.parametrize(
    ("options", "state"),
    [(Options(), "to-stage"), (Options(warm=False), "staged"), (Options(warm=False, deep=True), "to-stage")],
    ids=["cold", "cold-is-enough", "deep"],
)
def test_what_was_asked_for_decides_whether_there_is_something_to_do(plan, options: Options, state: str) -> None:
    made, _ = plan({"gpu01": answer(2, 0)}, options)
    assert made.hosts[0].state == state


def test_a_host_is_told_its_peers_and_one_alone_the_source() -> None:
    spec = json.loads(prepared(*NAMES).spec("gpu02", NAMES, may_use_origin=False))
    folder = f"m@{PIN[:12]}"
    assert spec["peers"] == [
        {"name": "gpu01", "url": f"http://192.0.2.1:8378/{folder}/"},
        {"name": "gpu03", "url": f"http://192.0.2.3:8378/{folder}/"},
    ]
    assert (spec["position"], spec["may_use_origin"], spec["target"]) == (1, False, f"/srv/aerie/weights/{folder}")
    assert spec["sources"] == [{"kind": "http", "url": "http://source/m/"}]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("root@gpu01:/srv/weights/m@1", {"kind": "rsync", "url": "root@gpu01:/srv/weights/m@1/"}),
        ("rsync://mirror/models/m/", {"kind": "rsync", "url": "rsync://mirror/models/m/"}),
        ("https://mirror/m", {"kind": "http", "url": "https://mirror/m/"}),
        ("/mnt/disk/m", {"kind": "folder", "url": "/mnt/disk/m/"}),
    ],
    ids=["ssh", "rsync-server", "http", "folder"],
)
def test_a_source_that_was_named_is_asked_before_the_locks(source: str, told: dict[str, str]) -> None:
    chosen = prepared("gpu01", options=Options(source=source))
    assert json.loads(chosen.spec("gpu01", ["gpu01"], may_use_origin=True))["sources"] == [
        told,
        {"kind": "http", "url": "http://source/m/"},
    ]


@pytest.mark.parametrize("source", ["ftp://mirror/m", "folder/m", "gpu01:m", "/a b"])
def test_a_source_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(UsageError) as error:
        prepared("gpu01", options=Options(source=source)).spec("gpu01", ["gpu01"], may_use_origin=True)
    assert (error.value.where, error.value.seen) == ("--source", source)


class Jobs:
    """The jobs of hosts as hostjob tells of them. ends: by host, "done", "failed" or "gone"."""

    def __init__(self, **ends: str) -> None:
        self.ends, self.asked = ends, []
        self.origin: dict[str, bool] = {}
        self.done: set[str] = set()

    def ask(self, to: Host, arguments: list[str], *, stdin: bytes = b"", runner: Any) -> dict[str, Any]:
        verb, name = arguments[0], to.name
        self.asked.append((name, verb))
        if verb == "start":
            self.origin[name] = json.loads(stdin)["may_use_origin"]
            return {"job": "running", "is_new": True}
        if verb == "stop":
            return {"job": "ended"}
        if self.ends[name] == "gone":
            raise gone(name)
        if self.ends[name] == "done" and not (self.origin[name] or self.done):  # nobody has the files yet
            return {"job": "running", "progress": None, "outcome": None, "result": None, "log": []}
        return {"job": "ended", "progress": None, "outcome": self._outcome(name), "result": None, "log": []}

    def _outcome(self, name: str) -> dict[str, Any]:
        state = self.ends[name]
        if state == "done":
            self.done.add(name)
        errors = [] if state == "done" else [{"where": "disk", "seen": "full", "expected": "", "remedy": ""}]
        common = {"seconds": 1.0, "retries": 0, "bytes": {"by_source": {}}, "warm": {"state": "warm", "reason": None}}
        return {"state": state, "errors": errors, **common}


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan) -> Callable[[Jobs, Answers], fanout.Outcome]:
    """Staging on hosts whose jobs are those; whether seeders run is kept in `seeding`."""

    def run(jobs: Jobs, answers: Answers) -> fanout.Outcome:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.setattr(
            fanout, "_play", lambda prepared, names, forks, state: (list(names), plays.append(state) or [])
        )
        monkeypatch.setattr(following, "POLL_S", 0.01)
        monkeypatch.setattr(following, "CONTACT_S", 0.0)
        monkeypatch.setattr(fanout, "TICK_S", 0.03)
        made, _ = plan(answers)
        monkeypatch.setattr(following.shipping, "ask", jobs.ask)
        return fanout.stage(replace(prepared(*answers), plan=made))

    plays: list[str] = []
    run.plays = plays  # type: ignore[attr-defined]
    return run


def test_where_the_one_with_the_source_fails_another_takes_over_and_the_seeders_stop(stage) -> None:
    jobs = Jobs(gpu01="failed", gpu02="done", gpu03="done")
    outcome = stage(jobs, dict.fromkeys(NAMES, answer()))
    assert [(one.host, one.state) for one in outcome.hosts] == [
        ("gpu01", State.FAILED), ("gpu02", State.DONE), ("gpu03", State.DONE),
    ]  # fmt: skip
    assert jobs.origin == {"gpu01": True, "gpu02": True, "gpu03": False}
    assert (outcome.exit_code, outcome.failed, stage.plays) == (1, ("gpu01",), ["started", "stopped"])


def test_a_host_that_is_lost_on_the_way_is_told_as_itself(stage) -> None:
    outcome = stage(Jobs(gpu01="done", gpu02="gone"), {"gpu01": answer(), "gpu02": answer()})
    assert [one.state for one in outcome.hosts] == [State.DONE, State.UNREACHABLE]
    assert "attaches to it" in outcome.hosts[1].error


def test_one_host_alone_needs_no_seeder(stage) -> None:
    outcome = stage(Jobs(gpu01="done"), {"gpu01": answer()})
    assert (outcome.exit_code, stage.plays) == (0, [])


def test_where_nothing_is_to_do_nothing_is_asked(stage) -> None:
    jobs = Jobs()
    outcome = stage(jobs, dict.fromkeys(NAMES, answer(2, 30)))
    assert [one.state for one in outcome.hosts] == [State.UNCHANGED] * 3
    assert (jobs.asked, stage.plays, outcome.exit_code) == ([], [], 0)


def test_where_no_host_can_serve_the_others_that_is_said_before_any_job(stage) -> None:
    jobs = Jobs()
    answers = {name: {**answer(), "can_seed": False} for name in NAMES}
    with pytest.raises(Exception, match="--layer weights"):
        stage(jobs, answers)
    assert jobs.asked == []


def test_locks_with_different_manifests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    pins = iter("ab")
    monkeypatch.setattr(staging, "lock_of", lambda host, name, path: None)
    monkeypatch.setattr(
        staging.models, "model_of", lambda lock, model: SimpleNamespace(manifest_sha256=next(pins) * 64)
    )
    with pytest.raises(UsageError, match="one for all"):
        staging.lock_for([host("gpu01"), host("gpu02")], "m", Path("hosts.yml"))
