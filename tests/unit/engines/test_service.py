"""Services of engines: what a slot holds, the gates before it, a change and its way back, and the plan."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aerie.engines.service import launching, planning
from aerie.engines.service.onhost import asking, definition, front, gates, state, switch, unit, units
from aerie.engines.service.onhost.definition import Service, Weights
from aerie.engines.service.status import Status
from aerie.errors import AerieError, UsageError
from aerie.lock import EngineModel, load, names
from tests.snapshots import document_with, snapshot_with
from tests.unit.findings.examples import PIN, TARGET, lock_with, served, staged

SERVICE = Service(
    model="tiny",
    engine="vllm",
    version="0.33.0",
    program=("/opt/python", "-m", "vllm"),
    environment={"VLLM_PLUGINS": ""},
    key="environment",
    weights=(Weights(model="tiny", folder=TARGET, manifest_sha256=PIN),),
    gpus=8,
    draft_counter="",
    front="127.0.0.1:8000",
    port=8001,
    beside_bytes=0,
    ready_timeout_s=600,
)
ALONE = {f"gpus/{index}/processes": [] for index in range(8)}
STRANGER = [{"pid": 7, "name": "python", "memory_bytes": 1, "unit": None}]
OWN = [{"pid": 7, "name": "python", "memory_bytes": 1, "unit": "aerie-engine-tiny-blue.service"}]


def test_a_service_is_read_back_as_it_was_written() -> None:
    again = definition.parse(json.loads(json.dumps(SERVICE.to_dict())))
    assert again == SERVICE
    assert (again.port_of("blue"), again.port_of("green")) == (8001, 8002)
    with pytest.raises(AerieError, match=r"aerie\.service/1"):
        definition.parse({**SERVICE.to_dict(), "schema": "aerie.service/2"})


@pytest.mark.parametrize(
    ("changes", "findings"),
    [
        ({}, []),
        ({"weights/staged": {}}, ["weights.not-staged"]),
        (staged(verified_at=None), ["weights.not-staged"]),
        (staged(manifest_sha256="c" * 64), ["weights.manifest-mismatch"]),
        (staged(missing=["b"], changed={"a": "has 3 bytes of 40"}), ["weights.incomplete", "weights.changed"]),
        ({"driver/loaded_version": None}, ["driver.not-loaded"]),
        (
            {"gpus": {"unknown": "18"}, "driver/nvml_error": "18 Driver/library version mismatch"},
            ["driver.nvml-failed"],
        ),
        ({"gpus/3/error": "15 GPU is lost"}, ["driver.gpu-lost"]),
        ({"gpus/3/ecc_uncorrected": 2}, ["driver.ecc-errors"]),
        ({"gpus/3/remap_failed": True}, ["driver.remap-failed"]),
        ({"gpus/3/recovery_action": 2}, ["driver.recovery-needed"]),
        ({"gpus/3/ecc_uncorrected": {"unknown": "not supported"}, "gpus/4/recovery_action": None}, []),
        ({"gpus/3/processes": STRANGER}, ["engine.gpus-busy"]),
        ({"gpus/3/processes": OWN}, []),
    ],
)
def test_the_gates_name_every_reason_by_its_finding(changes: dict[str, Any], findings: list[str]) -> None:
    document = document_with({**staged(), **ALONE, **changes})
    stops = gates.judge(SERVICE, document, own=["aerie-engine-tiny-blue.service"])
    assert [stop.finding for stop in stops] == findings
    assert all(stop.seen and stop.expected and stop.remedy for stop in stops)


def test_an_engine_on_the_processor_is_not_asked_for_gpus() -> None:
    document = document_with({**staged(), "driver/loaded_version": None, "gpus": []})
    assert gates.judge(replace(SERVICE, gpus=0), document) == ()


class Engine:
    """A server that generates and counts, as the two engines do in what a change asks them."""

    def __init__(self) -> None:
        self.steps, self.code, self.drafts, self.running, self.keys = 0, 200, True, 0, []  # type: ignore[var-annotated]
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def answer(self, code: int, body: str) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def do_GET(self) -> None:
                self.answer(
                    200, f'steps_total{{engine="0"}} {engine.steps}\nvllm:num_requests_running{{}} {engine.running}\n'
                )

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                engine.keys.append(self.headers["Authorization"])
                engine.steps += engine.drafts
                made = {"usage": {"completion_tokens": asked["max_tokens"]}, "choices": [{"finish_reason": "length"}]}
                self.answer(engine.code, json.dumps(made))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.port = self.server.server_address[1]


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def drafting(engine: Engine) -> Service:
    """A service whose blue engine, and front, is the running one."""
    return replace(SERVICE, port=engine.port, front=f"127.0.0.1:{engine.port}", draft_counter="steps_total")


def test_a_smoke_generates_with_the_key_and_sees_the_drafter_work(engine: Engine, drafting: Service) -> None:
    switch.smoke(drafting, f"http://127.0.0.1:{engine.port}", "secret")
    assert engine.keys == ["Bearer secret"]


def test_a_drafter_that_never_verifies_fails_the_smoke(engine: Engine, drafting: Service) -> None:
    engine.drafts = False
    with pytest.raises(AerieError, match="steps_total still 0 after 24 tokens"):
        switch.smoke(drafting, f"http://127.0.0.1:{engine.port}", "secret")


def test_a_counter_that_the_engine_lacks_is_told(engine: Engine) -> None:
    with pytest.raises(AerieError, match="no such counter"):
        asking.counter(f"http://127.0.0.1:{engine.port}", "step")


@pytest.mark.parametrize(("code", "error"), [(500, AerieError), (503, asking.NotYet)])
def test_an_engine_that_refuses_is_told_from_one_that_is_not_up(engine: Engine, code: int, error: type) -> None:
    engine.code = code
    with pytest.raises(error):
        asking.generate(f"http://127.0.0.1:{engine.port}", "tiny", "k", 4)


def test_nobody_there_is_not_yet() -> None:
    with pytest.raises(asking.NotYet):
        asking.generate("http://127.0.0.1:9", "tiny", "k", 4)


class Manager:
    """systemd's answers to a change. fails: the unit whose start fails."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.done = fails, []  # type: ignore[var-annotated]

    def start(self, name: str) -> None:
        self.done.append(f"start {name}")
        if name == self.fails:
            raise AerieError(name, seen="did not start", expected="an engine", remedy="")

    def stop(self, name: str) -> None:
        self.done.append(f"stop {name}")

    def systemctl(self, *words: str, check: bool = True) -> str:
        self.done.append(" ".join(words))
        return ""

    def enable(self, name: str, *, at_boot: bool) -> None:
        self.done.append(f"{'enable' if at_boot else 'disable'} {name}")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drafting: Service) -> SimpleNamespace:
    """A host's folders with both slots filled, blue live, and units that only note what is asked of them."""
    for module in (definition, switch):
        monkeypatch.setattr(module, "CONFIGURATION", tmp_path / "etc")
    monkeypatch.setattr(front, "FOLDER", tmp_path / "etc/front.d")
    monkeypatch.setattr(state, "STATE", tmp_path / "var")
    (tmp_path / "etc/front.d").mkdir(parents=True)
    (tmp_path / "etc/tiny").mkdir()
    (tmp_path / "etc/tiny/api-key").write_text("secret\n")
    for slot in ("blue", "green"):
        # Green's port is the one after blue's: both slots have the one engine there is.
        one = replace(drafting, port=drafting.port - (slot == "green"), version=slot)
        (tmp_path / f"etc/tiny/{slot}.json").write_text(json.dumps(one.to_dict()))
    state.write(state.State(model="tiny", live="blue", previous=None, last=None))
    manager = Manager()
    for name in ("start", "stop", "systemctl", "enable"):
        monkeypatch.setattr(units, name, getattr(manager, name))
    return SimpleNamespace(manager=manager, part=tmp_path / "etc/front.d/tiny.conf", patch=monkeypatch)


BLUE, GREEN = "aerie-engine-tiny-blue.service", "aerie-engine-tiny-green.service"
RELOAD, WAS = "reload-or-restart aerie-front.service", "vllm blue, no drafter"


def change(to: definition.Slot = "green") -> state.Change:
    return switch.Switch(model="tiny", to=to, say=lambda phase: None).run()


def test_on_gpus_the_old_one_stops_first_and_the_front_goes_to_the_new(host: SimpleNamespace, engine: Engine) -> None:
    made = change()
    assert (made.outcome, made.to, made.before) == (
        "switched",
        "green: vllm green, no drafter",
        "vllm blue, no drafter",
    )
    assert host.manager.done[:4] == [
        f"stop {BLUE}",
        f"stop {GREEN}",
        f"start {GREEN}",
        "reload-or-restart aerie-front.service",
    ]
    assert f"127.0.0.1:{engine.port};" in host.part.read_text()
    now = state.read("tiny")
    assert (now.live, now.previous, now.last) == ("green", "blue", made)


def test_where_there_is_room_the_old_one_stops_last(host: SimpleNamespace) -> None:
    host.patch.setattr(switch, "can_stand_beside", lambda service: True)
    change()
    assert host.manager.done[0] == f"stop {GREEN}"
    assert host.manager.done[-1] == f"stop {BLUE}"


def test_a_start_that_fails_brings_the_old_one_back_and_says_so(host: SimpleNamespace) -> None:
    host.manager.fails = GREEN
    made = change()
    assert (made.outcome, made.why) == ("kept", "did not start")
    assert host.manager.done[-3:] == [f"stop {GREEN}", f"start {BLUE}", RELOAD]
    now = state.read("tiny")
    assert (now.live, now.last) == ("blue", made)


def test_a_smoke_that_fails_keeps_the_old_one(host: SimpleNamespace, engine: Engine) -> None:
    engine.drafts = False
    made = change()
    assert made.outcome == "kept" and "still 0" in made.why
    assert state.read("tiny").live == "blue"


def test_a_slot_that_was_filled_anew_and_failed_is_no_way_back(host: SimpleNamespace) -> None:
    state.write(state.State(model="tiny", live="blue", previous="green", last=None))
    host.manager.fails = GREEN
    assert change().outcome == "kept"
    assert state.read("tiny").previous is None


def test_when_the_old_one_does_not_come_back_either_the_receipt_says_both(
    host: SimpleNamespace, engine: Engine
) -> None:
    engine.code = 500
    made = change()
    assert made.outcome == "failed"
    assert "HTTP 500" in made.why and "blue did not come back" in made.why


def test_a_first_start_that_fails_leaves_nothing_in_front(host: SimpleNamespace) -> None:
    state.write(state.State(model="tiny", live=None, previous=None, last=None))
    host.manager.fails = GREEN
    assert change().outcome == "failed"
    assert not host.part.exists()
    assert state.read("tiny").live is None


def test_a_front_that_nginx_refuses_is_as_it_was(host: SimpleNamespace, drafting: Service) -> None:
    host.part.write_text("before")

    def refuse(*words: str, check: bool = True) -> str:
        raise AerieError("nginx", seen="refused", expected="taken", remedy="")

    host.patch.setattr(units, "systemctl", refuse)
    with pytest.raises(AerieError, match="refused"):
        front.point(drafting, "blue")
    assert host.part.read_text() == "before"


@pytest.mark.parametrize(("available_kib", "fits"), [(9 << 20, True), (7 << 20, False)])
def test_room_beside_is_counted_in_available_memory(tmp_path: Path, available_kib: int, fits: bool) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {32 << 20} kB\nMemAvailable: {available_kib} kB\n")
    assert switch.can_stand_beside(replace(SERVICE, beside_bytes=8 << 30), meminfo, 32 << 30) is fits
    assert not switch.can_stand_beside(replace(SERVICE, beside_bytes=8 << 30), meminfo, 4 << 30)
    assert not switch.can_stand_beside(SERVICE, meminfo, 32 << 30)


def become(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str], dict[str, str]]:
    """What `run` would execute."""
    (tmp_path / "api-key").write_text("secret\n")
    (tmp_path / "blue.json").write_text(json.dumps(service.to_dict()))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    seen: list[Any] = []
    monkeypatch.setattr(unit.os, "execve", lambda *given: seen.append(given))
    unit.run(tmp_path / "blue.json", "blue")
    path, argv, environment = seen[0]
    return path, argv, environment


def test_the_key_reaches_vllm_by_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, argv, environment = become(SERVICE, tmp_path, monkeypatch)
    assert (path, argv[-4:]) == ("/opt/python", ["--host", "127.0.0.1", "--port", "8001"])
    assert environment["VLLM_API_KEY"] == "secret" and "secret" not in argv


def test_the_key_reaches_sglang_by_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, argv, environment = become(replace(SERVICE, engine="sglang", key="config"), tmp_path, monkeypatch)
    file = Path(argv[argv.index("--config") + 1])
    assert (file.read_text(), file.stat().st_mode & 0o777) == ('api-key: "secret"\n', 0o600)
    assert "secret" not in " ".join(argv) and "secret" not in environment.values()


def made(engine: str = "vllm", *, gpus: int = 0, drafter: bool = True, **settings: Any) -> Service:
    names = ("tiny", "d1") if drafter else ("tiny",)
    weights = [Weights(model=name, folder=f"/srv/w/{name}", manifest_sha256=PIN) for name in names]
    models = {"tiny": EngineModel(environment="engine", port=8100, **settings).model_dump()}
    return launching.service_of(
        "tiny",
        engine,
        lock=lock_with({"engine/models": models}),
        version={"vllm": "0.33.0", "sglang": "0.5.23"}[engine],
        weights=weights,
        config={"architectures": ["LlamaForCausalLM"]},
        size_bytes=1 << 30,
        gpus=gpus,
        arch="sm120" if gpus else "cpu",
    )


def test_a_service_on_the_processor_has_its_models_folder_name_and_memory() -> None:
    service = made(kv_cache_gib=2, dtype="float32")
    flags = dict(zip(service.program, service.program[1:], strict=False))
    assert flags["--model"] == "/srv/w/tiny" and flags["--served-model-name"] == "tiny"
    assert "/srv/w/d1" in flags["--speculative-config"] and flags["--dtype"] == "float32"
    assert "--no-enable-prefix-caching" not in service.program
    assert service.environment["GLOO_SOCKET_IFNAME"] == service.environment["NCCL_SOCKET_IFNAME"] == "lo"
    assert service.environment["VLLM_CACHE_ROOT"] == "/srv/aerie/engine/cache/vllm"
    assert (service.beside_bytes, service.draft_counter) == (8 << 30, "vllm:spec_decode_num_drafts_total")
    assert (service.front, service.port, service.drafter) == ("127.0.0.1:8100", 8101, "d1")


def test_a_service_on_gpus_never_stands_beside_another() -> None:
    service = made("sglang", gpus=8)
    assert (service.beside_bytes, service.gpus, service.key) == (0, 8, "config")
    assert service.draft_counter == "sglang:spec_verify_calls_total"
    assert "--disable-radix-cache" not in service.program
    assert made("sglang", gpus=8, drafter=False).draft_counter == ""


def test_code_of_a_models_folder_runs_where_the_lock_says_so() -> None:
    for engine in ("vllm", "sglang"):
        assert "--trust-remote-code" not in made(engine, gpus=8).program
        assert "--trust-remote-code" in made(engine, gpus=8, trust_code=True).program


def test_every_lock_with_kimi_lets_its_tokenizer_run() -> None:
    locks = [lock for lock in map(load, names()) if "kimi-k2.5" in lock.weights.models]
    assert len(locks) == 2
    assert [lock.name for lock in locks if not lock.engine.models["kimi-k2.5"].trust_code] == []


@pytest.mark.parametrize(("port", "is_refused"), [(8100, True), (8102, True), (8098, True), (8103, False)])
def test_ports_of_another_model_are_refused(port: int, is_refused: bool) -> None:
    other = served()["engine/services"][0] | {"model": "other", "address": f"127.0.0.1:{port}"}
    snapshot = snapshot_with({"engine/services": [other], **staged()})
    now = status(configs={made().weights[0].folder: {}})
    problems = [one for one in planning.refusals(made(), now, snapshot) if one.startswith("port 8100")]
    assert bool(problems) is is_refused


def test_what_the_adapter_refuses_is_refused() -> None:
    with pytest.raises(UsageError):
        made("sglang")


def status(live: str | None = None, *, services: dict[Any, Service] | None = None, **differences: Any) -> Status:
    return replace(
        Status(
            host="gpu01",
            model="tiny",
            state={"live": live, "previous": None, "last": None},
            services=services or {},
            units={slot: {"ActiveState": "active"} for slot in services or {}},
            front="active",
            job="none",
            engines={},
            configs={},
        ),
        **differences,
    )


@pytest.mark.parametrize(
    ("now", "problems", "action", "slot"),
    [
        (status(), (), "start", "blue"),
        (status("blue", services={"blue": SERVICE}), (), "nothing", "blue"),
        (status("blue", services={"blue": SERVICE}, front="failed"), (), "change", "green"),
        (status("blue", services={"blue": replace(SERVICE, version="0.32.0")}), (), "change", "green"),
        (status("green", services={"green": replace(SERVICE, version="0.32.0")}), (), "change", "blue"),
        (status("blue", services={"blue": replace(SERVICE, version="0.32.0")}), ("no",), "refuse", "green"),
        (status(job="running"), ("no",), "attach", "blue"),
    ],
)
def test_the_plan_says_what_is_to_be_done(now: Status, problems: tuple[str, ...], action: str, slot: str) -> None:
    plan = planning.plan_of(now, SERVICE, problems)
    assert (plan.action, plan.slot) == (action, slot)
    assert plan.exit_code == (2 if action == "refuse" else 0)
    assert json.loads(json.dumps(plan.to_dict()))["action"] == action
