"""The room of the engine: its account, and who can reach what it serves."""

import json

import pytest
from testinfra.host import Host as Connection

from aerie.lock import Lock
from aerie.snapshot import EngineService, Gpu, Limits, Snapshot, Unknown
from tests.hosts.reading import known

NO_LOGIN = ("/usr/sbin/nologin", "/sbin/nologin", "/bin/false", "/usr/bin/false")


@pytest.mark.finding("engine.user-missing")
def test_the_service_account_exists(snapshot: Snapshot, lock: Lock) -> None:
    assert snapshot.engine.user == lock.engine.user


@pytest.mark.finding("engine.user-shell")
def test_nobody_can_log_in_as_the_service_account(snapshot: Snapshot) -> None:
    if snapshot.engine.user is None:
        pytest.skip("the service account does not exist")
    assert snapshot.engine.user_shell in NO_LOGIN


@pytest.mark.finding("engine.bind-open")
def test_engines_listen_on_the_locked_address_only(snapshot: Snapshot, lock: Lock) -> None:
    addresses = known(snapshot.engine.listening)
    allowed = (lock.engine.bind, "127.0.0.1", "::1")
    assert [one for one in addresses if one.rpartition(":")[0].strip("[]") not in allowed] == []


# The key goes from its file into curl's configuration on stdin: never into arguments.
GENERATE = """
printf 'header = "Authorization: Bearer %%s"\\n' "$(cat /etc/aerie/engine/%s/api-key)" |
curl -sS --max-time 120 -K - -H 'Content-Type: application/json' --data '%s' http://%s/v1/completions
"""


@pytest.fixture
def services(snapshot: Snapshot) -> tuple[EngineService, ...]:
    """What is to be served; skips the test where nothing is."""
    found = known(snapshot.engine.services)
    if not found:
        pytest.skip("no model is served here")
    return found


def question(model: str) -> str:
    """The body of a request for four tokens."""
    body = {"model": model, "prompt": [1, *[3] * 31], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    return json.dumps(body)


@pytest.mark.finding("engine.service-failed")
def test_no_engine_has_given_up_starting(services: tuple[EngineService, ...]) -> None:
    assert {one.unit: one.result for one in services if one.active == "failed"} == {}


@pytest.mark.finding("engine.service-down")
def test_every_model_is_served_that_is_to_be(services: tuple[EngineService, ...]) -> None:
    alive = [one for one in services if one.active != "failed"]
    states = [(one.unit, one.active) for one in alive] + [("aerie-front.service", one.front_active) for one in alive]
    assert {unit: state for unit, state in states if state not in ("active", "activating", "reloading")} == {}


@pytest.mark.finding("engine.restarting")
def test_no_engine_was_restarted_by_systemd(services: tuple[EngineService, ...]) -> None:
    up = [one for one in services if one.active in ("active", "activating")]
    assert {one.unit: one.restarts for one in up if one.restarts} == {}


@pytest.mark.finding("engine.no-answer")
def test_every_engine_generates_through_the_front(services: tuple[EngineService, ...], host: Connection) -> None:
    up = [one for one in services if one.active == "active" and one.front_active == "active"]
    said = {one.model: host.run(GENERATE % (one.model, question(one.model), one.address)) for one in up}
    wrong = [model for model, done in said.items() if '"completion_tokens":4' not in done.stdout.replace(" ", "")]
    assert {model: said[model].stderr or said[model].stdout for model in wrong} == {}


@pytest.mark.finding("engine.limits-low")
def test_engines_have_the_locked_limits(services: tuple[EngineService, ...], lock: Lock) -> None:
    wanted = {name: getattr(lock.base, name) for name in Limits.__dataclass_fields__}
    seen = {one.unit: one.limits for one in services if one.limits}
    low = {
        f"{unit} {name}": value
        for unit, limits in seen.items()
        for name, least in wanted.items()
        if (value := getattr(limits, name)) is not None and (least < 0 or value < least)
    }
    assert low == {}


@pytest.mark.finding("engine.key-open")
def test_only_root_reads_the_keys(services: tuple[EngineService, ...]) -> None:
    modes = {one.model: one.key_mode for one in services if not isinstance(one.key_mode, Unknown)}
    assert {model: mode for model, mode in modes.items() if mode != "600 0"} == {}


@pytest.mark.finding("engine.gpus-busy")
def test_nothing_else_uses_the_gpus_of_an_engine(services: tuple[EngineService, ...], gpus: tuple[Gpu, ...]) -> None:
    units = {one.unit for one in services}
    users = {
        f"GPU {gpu.index}: pid {process.pid}": process.unit or process.name
        for gpu in gpus
        if not isinstance(gpu.processes, Unknown)
        for process in gpu.processes
        if process.unit not in units
    }
    assert users == {}
