"""Several hosts that train together: here all of them are this machine, each with a torchrun of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerie import inventory
from aerie.eagle3 import agent, compute, planning, running, specforge, together, training_along
from aerie.eagle3.curve import Curve
from aerie.eagle3.profile import Finetune, Profile
from aerie.eagle3.stopping import Enough
from aerie.eagle3.together import Together
from aerie.errors import AerieError, UsageError
from aerie.paths import repository
from aerie.runbook import spec
from aerie.runbook.step import Context

HELLO = {"marker": "m", "missing": [], "code": "c1", "packages": {"torch": "2"}, "gpus": 8, "interface": "eth0"}
ENDLESS = """import os, pathlib, sys, time
pathlib.Path(sys.argv[2], os.environ["RANK"] + " works").touch()
for step in range(100_000):
    if os.environ["RANK"] == "0":
        print(f"step {step}", flush=True)
    time.sleep(0.05)
"""
SLEEPER = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('it broke')\ntime.sleep(300)\n"


@pytest.fixture
def second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Together:
    """A host "second" that is this machine, reached as Ansible reaches itself."""
    monkeypatch.setenv("PYTHONPATH", str(repository()))
    (tmp_path / "hosts.yml").write_text("all: {hosts: {second: {ansible_connection: local}}}\n")
    return Together(
        hosts=("second",),
        address="127.0.0.1",
        inventory=str(tmp_path / "hosts.yml"),
        controller=repository() / ".venv" / "bin" / "python",
        python=Path(sys.executable),
        table="finetune",
        packages=("torch", "specforge"),
    )


def others(*names: str) -> Together:
    return Together(
        hosts=names, address="10.0.0.1", inventory="", controller=Path("python"), python=Path("python"),
        table="finetune", packages=(),
    )  # fmt: skip


def loaded(profile: str) -> Profile:
    values = spec.load("eagle3", profile).values
    assert isinstance(values, Profile)
    return values


@pytest.fixture
def plan(tmp_path: Path) -> specforge.Plan:
    """A training of 16 steps for 2 processes."""
    pytest.importorskip("specforge")
    import small_training

    return small_training.plan(tmp_path, samples=16, held_out=8, epochs=2, learning_rate=1e-3)


def at_work(folder: Path) -> Iterator[Any]:
    """The processes whose command line names the folder."""
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if process.pid != os.getpid() and any(str(folder) in word for word in process.info["cmdline"] or ()):
            yield process


def test_two_hosts_train_as_two_processes_of_one_do(plan: specforge.Plan, second: Together, tmp_path: Path) -> None:
    listening = set()
    logs = set()

    def look(step: int, steps: int, curve: Curve) -> None:
        if step == 8:
            logs.update(path.name for path in (tmp_path / "both" / "hosts").rglob("*.log"))
            for process in at_work(tmp_path / "both"):
                listening.update(one.laddr.ip for one in process.net_connections() if one.status == "LISTEN")

    alone = replace(compute.CPU, processes=2, environment={**compute.CPU.environment, "OMP_NUM_THREADS": "1"})
    for name, launcher in (("one", alone), ("both", replace(alone, together=second))):
        (tmp_path / name).mkdir()
        done = specforge.train(plan, tmp_path / name, launcher, look)
        curve = done.curve
        assert (done.steps, len(curve.loss)) == (16, 16)
        if name == "one":
            expected = curve
    assert (curve.loss, curve.evaluations) == (expected.loss, expected.evaluations)
    assert sorted(path.name for path in done.checkpoint.glob("*rank*")) == [
        "training_state_rank0.pt",
        "training_state_rank1.pt",
    ]
    assert (listening, logs) == ({"127.0.0.1"}, {"1.log"})
    assert list(at_work(tmp_path / "both")) == []


def test_a_host_whose_part_fails_ends_the_others(second: Together, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    here = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{repository()}"}
    launcher = compute.Launcher(module="sleeper", environment=here, options={}, processes=2, together=second)
    began = time.monotonic()
    with pytest.raises(AerieError, match="host second: its part of the training: 'exit status 1'") as failed:
        running.run(["train", str(tmp_path)], tmp_path / "train.log", launcher, lambda line: None)
    assert "it broke" in failed.value.remedy
    assert time.monotonic() - began < 250  # SLEEPER's other rank would go on for 300
    assert list(at_work(tmp_path)) == []


def test_a_training_that_is_ended_here_ends_on_the_others(second: Together, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "trainer.py").write_text(ENDLESS)
    here = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{repository()}"}
    launcher = compute.Launcher(module="trainer", environment=here, options={}, processes=2, together=second)
    seen = []

    def on_line(line: str) -> None:
        seen.append(line)
        if line.startswith("step 3") and (tmp_path / "1 works").exists():
            raise Enough

    began = time.monotonic()
    with pytest.raises(Enough):
        running.run(["train", str(tmp_path)], tmp_path / "train.log", launcher, on_line)
    assert seen[-1].startswith("step 3")
    assert (tmp_path / "train.log").read_text().endswith(seen[-1])
    assert time.monotonic() - began < 60
    assert list(at_work(tmp_path)) == []


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "over"])
def test_a_part_ends_with_the_first_host(silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "SILENCE_S", 0.5)
    if silent:
        (tmp_path / "alive").write_text("7")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True) as process:
        agent._follow(process, tmp_path / "alive")
        assert process.poll() is None
        agent._end(process)
    assert process.returncode == -15


def test_a_host_that_nobody_knows_is_named(second: Together, tmp_path: Path) -> None:
    _, failures = together.ask("hello", replace(second, hosts=("secnd",)), tmp_path)
    assert "secnd" in str(failures["secnd"])
    assert "second" in failures["secnd"].remedy


@pytest.mark.parametrize(
    ("differs", "told"),
    [
        ({"marker": None}, "host gpu02: /.*another folder, or none"),
        ({"missing": ["/srv/w"]}, "host gpu02: /srv/w: 'nothing there'.*stage --host gpu02"),
        ({"code": "c2"}, "host gpu02: code: 'c2', expected c1, as here"),
        ({"packages": {"torch": "3"}}, "host gpu02: packages: {'torch': '3'}"),
        ({"gpus": 4}, r"host gpu02: GPUs: 4, expected 8 or more, engine\.gpus\.tensor_parallel"),
        ({"interface": ""}, r"no interface on which it reaches 10\.0\.0\.1"),
        ({}, ""),
    ],
)
def test_a_host_that_cannot_train_along_is_told_why(
    differs: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = others("gpu02")
    monkeypatch.setattr(together, "_here", lambda hosts, folder: HELLO)
    monkeypatch.setattr(together, "ask", lambda verb, hosts, folder: ({"gpu02": HELLO | differs}, {}))
    if not told:
        assert together.check(hosts, tmp_path, 8) == {"gpu02": HELLO}
        assert list((tmp_path / "hosts").iterdir()) == []
        return
    with pytest.raises(AerieError, match=told):
        together.check(hosts, tmp_path, 8)


@pytest.mark.parametrize(("table", "environment"), [("finetune", "train"), ("synthesis", "engine")])
def test_a_context_names_the_other_hosts_or_none(table: str, environment: str) -> None:
    values: dict[str, Any] = {table: {"hosts": []}, "hosts": {"address": "", "inventory": ""}}
    context = Context(
        run="r", step="gpus", attempt=1, values=values, inputs={}, out=Path(), scratch=Path(), kept=Path(),
        interpreters={"controller": Path("c"), "train": Path("train"), "engine": Path("engine")}, progress_file=Path(),
    )  # fmt: skip
    assert together.of(context, table) is None
    values[table]["hosts"] = ["gpu02"]
    values["hosts"]["address"] = "10.0.0.1"
    found = together.of(context, table)
    assert found is not None
    assert (found.hosts, found.address, found.python, found.table) == (
        ("gpu02",),
        "10.0.0.1",
        Path(environment),
        table,
    )


def test_what_a_host_lacks_is_named_by_its_agent(second: Together, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    launcher = compute.Launcher(module="none", environment={}, options={}, processes=2, together=second)
    with pytest.raises(AerieError, match=f"host second: {tmp_path / 'drafter'}: 'nothing there'"):
        running.run(["train"], tmp_path / "log", launcher, lambda line: None, [tmp_path, tmp_path / "drafter"])


def test_what_a_host_lacks_is_named_before_a_training_is_prepared(second: Together, tmp_path: Path) -> None:
    pytest.importorskip("specforge")
    with pytest.raises(AerieError, match=f"host second: {tmp_path / 'model'}: 'nothing there'"):
        together.check(second, tmp_path, 0, [tmp_path / "model"])
    (tmp_path / "model").mkdir()
    assert together.check(second, tmp_path, 0, [tmp_path / "model"])["second"]["missing"] == []


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(AerieError, match=r"hosts\.address 192\.0\.2\.1"):  # of RFC 5737, nobody's
        training_along._free_port("192.0.2.1")


@pytest.mark.parametrize("table", ["finetune", "synthesis"])
@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("", "hosts.address '': expected an IP address"),
        ("gpu01", "hosts.address 'gpu01': expected an IP address"),
        ("127.0.0.1", "expected one on which the other hosts reach this one"),
        ("0.0.0.0", "expected one on which the other hosts reach this one"),
        ("10.0.0.1", ""),
    ],
)
def test_hosts_need_an_address_that_they_reach(table: str, address: str, told: str) -> None:
    values = loaded("kimi-k2.5").model_dump()
    values[table]["hosts"] = ["a"]
    values["hosts"]["address"] = address
    if not told:
        assert getattr(Profile.model_validate(values), table).hosts == ["a"]
        return
    with pytest.raises(ValueError, match=told):
        Profile.model_validate(values)


def test_a_host_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="expected each once"):
        Finetune(epochs=1, batch=1, learning_rate=1e-3, hosts=["a", "a"])


def test_a_plan_refuses_hosts_that_the_inventory_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def host(name: str, path: Path | None) -> None:  # Ansible reads the real one, and the trainer's Python has none
        if (name, path) != ("second", Path("/hosts.yml")):
            raise UsageError("host", seen=name, expected="one of the inventory", remedy="Known: second.")

    monkeypatch.setattr(inventory, "host", host)
    kimi = loaded("kimi-k2.5")
    assert planning.obstacle("gpus", kimi) == ""
    network = kimi.hosts.model_copy(update={"address": "10.0.0.1", "inventory": "/hosts.yml"})
    for table in ("finetune", "synthesis"):
        for hosts, told in ((["second"], ""), (["secnd"], f"{table}.hosts: host: 'secnd'")):
            changed = getattr(kimi, table).model_copy(update={"hosts": hosts})
            said = planning.obstacle("gpus", kimi.model_copy(update={table: changed, "hosts": network}))
            assert said.startswith(told)
            assert bool(said) is bool(told)


def test_processors_train_alone() -> None:
    values = loaded("tiny").model_dump()
    values["finetune"]["hosts"], values["hosts"]["address"] = ["a"], "10.0.0.1"
    with pytest.raises(ValueError, match=r"finetune\.hosts without engine\.gpus"):
        Profile.model_validate(values)


def test_each_host_has_as_many_processes_and_the_optimizer_is_in_shards() -> None:
    hosts = others("gpu02", "gpu03")
    launcher = compute.on_gpus(1, hosts)
    assert (launcher.processes, launcher.processes_each, launcher.hosts) == (3, 1, 3)
    assert launcher.options["fsdp_sharding"] == "SHARD_GRAD_OP"
    assert specforge._topology(launcher) == {"nproc_per_node": 1, "nnodes": 3, "master_addr": "10.0.0.1"}
    assert specforge._topology(compute.on_gpus(8)) == {"nproc_per_node": 8}
