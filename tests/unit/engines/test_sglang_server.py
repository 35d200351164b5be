"""SGLang's adapter through server, client and bench, against a stand-in that speaks its interface."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aerie.engines import bench, gpu_memory
from aerie.engines.adapter import Drafter, Forced, Served, adapter
from aerie.engines.client import connect
from aerie.engines.server import serve
from aerie.engines.values import Engine, Gpus
from aerie.errors import AerieError

SGLANG = adapter("sglang")
ENGINE = Engine(name="sglang", max_model_len=512, max_num_seqs=8, ready_timeout_s=120, port=0, gpus=Gpus())
STAND_IN = str(Path(__file__).with_name("sglang_stand_in.py"))
DRAFTER = Drafter(path=Path("/d"), tokens=3)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts stand-ins with the arguments that the adapter would give SGLang; no GPU is asked."""
    monkeypatch.setattr(gpu_memory, "used_bytes", dict)

    def make(names, **modes):
        served = Served(
            python=Path(sys.executable), model=tmp_path, engine=ENGINE, dtype="bfloat16", version="0.5.16", arch="sm90"
        )
        launches = {
            name: replace(
                SGLANG.launch(served, mode), program=(sys.executable, STAND_IN, names, str(tmp_path / "pids"))
            )
            for name, mode in modes.items()
        }
        return serve(launches, port=0, logs=tmp_path, ready_timeout_s=120, on_wait=lambda ready, note: None)

    return make


def measure(*servers, repetitions=1):
    prompts = tuple(bench.Prompt(id=f"p{i}", input_ids=(3,) * (4 + i)) for i in range(2))
    arms = [
        bench.Arm(name=one.name, server=one, prompts=prompts, max_tokens=61, concurrency=(1,), ignore_eos=True)
        for one in servers
    ]
    runs, _ = bench.measure(arms, repetitions=repetitions, on_progress=lambda done, total, note: None)
    return {run.arm: run for run in runs}


@pytest.mark.parametrize("names", ["0.5.10", "0.5.11", "0.5.16"])
def test_acceptance_is_the_sum_over_requests_whatever_the_names(start, names):
    with start(names, drafted=DRAFTER) as servers:
        runs = measure(servers["drafted"])
    # 61 tokens: one of the prompt's pass, then 20 steps of 3, for each of 2 requests.
    acceptance = runs["drafted"].acceptance
    assert (acceptance.verify_steps, acceptance.proposed, acceptance.accepted) == (40, 120, 80)
    assert (acceptance.tau, acceptance.by_position) == (3.0, (1.0, 1.0))


def test_a_plain_and_a_drafted_server_give_the_same_tokens(start, tmp_path):
    modes = {"base": None, "forced": Forced(drafter=DRAFTER, length=2.0, folder=tmp_path)}
    with start("0.5.16", **modes) as servers:
        runs = measure(*servers.values())
        assert {server.start_s is not None for server in servers.values()} == {True}
    tokens = {name: [record.streamed.token_ids for record in run.records] for name, run in runs.items()}
    assert tokens["base"] == tokens["forced"]
    assert runs["base"].acceptance is None
    assert runs["forced"].acceptance.tau == 2.0


def test_counters_of_the_server_agree_with_its_answers(start):
    async def ask(server):
        async with connect(server) as client:
            before = SGLANG.progress(await client.metrics())
            answer = await client.stream([3, 4, 5], max_tokens=31)
            return before, SGLANG.progress(await client.metrics()), answer

    with start("0.5.16", drafted=DRAFTER) as servers:
        before, after, answer = asyncio.run(ask(servers["drafted"]))
    assert after.verify_steps - before.verify_steps == answer.acceptance.verify_steps == 10
    assert after.generated_tokens - before.generated_tokens == len(answer.token_ids) == 31


@pytest.mark.parametrize(
    ("after", "found"), [({0: 1 << 30}, None), ({0: 60 << 30}, "GPU 0: 60416 MiB")], ids=["freed", "held"]
)
def test_memory_that_stays_in_use_is_a_finding(after, found):
    finding = gpu_memory.held_after({0: 1 << 30}, read=lambda: after, timeout_s=0)
    assert (finding and (finding.id, finding.seen)) == (found and ("engine.gpu-memory-held", found))


def test_memory_that_comes_free_in_time_is_none():
    readings = iter([{0: 60 << 30}, {0: 60 << 30}, {0: 1 << 30}])
    assert gpu_memory.held_after({0: 1 << 30}, read=lambda: next(readings), timeout_s=10) is None


def test_a_stop_that_leaves_memory_is_an_error(start, monkeypatch):
    used = iter([{0: 0}])
    monkeypatch.setattr(gpu_memory, "used_bytes", lambda: next(used))
    monkeypatch.setattr(gpu_memory, "held_after", lambda before: gpu_memory_finding())
    with pytest.raises(AerieError, match="GPU 0: 56922 MiB"), start("0.5.16", base=None):
        pass


def gpu_memory_finding():
    from aerie.findings import catalogue

    return catalogue.make("engine.gpu-memory-held", seen="GPU 0: 56922 MiB", expected="0", host="localhost")
