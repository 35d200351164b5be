"""A real vLLM through the adapter: forced acceptance, hidden states, and what is left when it is killed."""

import asyncio
import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from aerie import environments
from aerie.eagle3 import preflight
from aerie.eagle3.profile import Engine
from aerie.engines import arguments, bench, guard
from aerie.engines.adapter import Capture, Drafter, Forced, Served, adapter
from aerie.engines.client import connect
from aerie.engines.server import serve
from aerie.engines.states import read_states
from aerie.errors import AerieError
from aerie.paths import repository

pytestmark = pytest.mark.engine

ENGINE = Engine(name="vllm", max_model_len=512, max_num_seqs=8, kv_cache_gib=1, threads=1, ready_timeout_s=600, port=0)
# As the runbook would serve on this machine: MLA in bf16 with AMX, a Llama in fp32 where there is no bf16.
SHAPE, _ = preflight.shape("auto", preflight.cpu().flags)
DTYPE, _ = preflight.arithmetic(preflight.cpu().flags)
PROMPTS = tuple(bench.Prompt(id=f"p{i}", input_ids=(3, 40 + i, 80 + i)) for i in range(4))


VLLM = adapter("vllm")


def served(python, models):
    return Served(python=python, model=models / "target", engine=ENGINE, dtype=DTYPE, version="0.32.0")


def forced(models, folder):
    return Forced(drafter=Drafter(path=models / "drafter", tokens=3), length=1.0, folder=folder / "forced")


@pytest.fixture(scope="module")
def python():
    return environments.ensure("engine").python


@pytest.fixture(scope="module")
def models(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    script = Path(__file__).parent / "random_models.py"
    environment = {**os.environ, "PYTHONPATH": str(repository())}
    command = [python, "-W", "ignore", script, folder, SHAPE]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def servers(python, models, folder):
    """Two servers for the whole module: forced acceptance and capture."""
    (folder / "captured").mkdir()
    modes = {
        "forced": forced(models, folder),
        "capture": Capture(layers=(2, 3, 4, 6), directory=folder / "captured"),
    }
    launches = {name: VLLM.launch(served(python, models), mode) for name, mode in modes.items()}
    with serve(
        launches, port=0, logs=folder, ready_timeout_s=ENGINE.ready_timeout_s, on_wait=lambda ready, note: None
    ) as started:
        trees = [pid for one in started.values() for pid in (one.pid, *guard.descendants(one.pid))]
        assert len(trees) >= 2 * 3  # guard, front end, engine
        yield started
    assert [pid for pid in trees if psutil.pid_exists(pid)] == []


def test_its_own_parser_takes_the_arguments_of_every_mode(python, models, folder):
    subject = served(python, models)
    capture = Capture(layers=(2, 3, 4, 6), directory=folder)
    modes = {"base": None, "forced": forced(models, folder), "capture": capture}
    launches = {name: VLLM.launch(subject, mode) for name, mode in modes.items()}
    of_another = replace(launches["base"], flags=(*launches["base"].flags, "--cuda-graph-max-bs", "8"))
    lines = [one.argv("127.0.0.1", 1)[len(one.program) :] for one in (*launches.values(), of_another)]
    *taken, refused = arguments.problems("vllm", lines, python, launches["base"].environment)
    assert taken == [None] * len(launches)
    assert refused is not None and "--cuda-graph-max-bs" in refused


def test_forced_lengths_are_exact_and_switch_on_one_server(servers, models, folder):
    arms = [
        bench.Arm(
            name=str(length),
            server=servers["forced"],
            prompts=PROMPTS,
            max_tokens=31,
            concurrency=(1, 4),
            ignore_eos=True,
            before=partial(VLLM.switch_forced, forced(models, folder), length),
        )
        for length in (2.0, 3.0)
    ]
    runs, _ = bench.measure(arms, repetitions=2, on_progress=lambda done, total, note: None)
    assert len(runs) == 8
    for run in runs:
        assert run.acceptance.tau == float(run.arm)
        assert run.acceptance.by_position == {"2.0": (1, 0, 0), "3.0": (1, 1, 0)}[run.arm]
        assert {len(record.streamed.token_ids) for record in run.records} == {31}


def test_states_of_prompt_and_response_come_with_the_response(servers):
    async def ask(prompt):
        async with connect(servers["capture"]) as client:
            return await client.ask(VLLM.question(prompt.input_ids, max_tokens=9, states=True))

    async def ask_all():
        return await asyncio.gather(*map(ask, PROMPTS))

    for prompt, answer in zip(PROMPTS, asyncio.run(ask_all()), strict=True):
        states = read_states(answer.states_file)
        tokens = (*prompt.input_ids, *answer.token_ids)
        assert states.token_ids == tokens[:-1]
        assert states.shape == (len(tokens) - 1, 4, 192)
        assert states.is_finite


def test_a_drafter_of_another_shape_is_an_error_with_the_log(python, models, tmp_path):
    config = json.loads((models / "drafter" / "config.json").read_text())
    (tmp_path / "drafter").mkdir()
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config | {"draft_vocab_size": 128}))
    (tmp_path / "drafter" / "model.safetensors").symlink_to(models / "drafter" / "model.safetensors")
    mode = Drafter(path=tmp_path / "drafter", tokens=3)
    launch = VLLM.launch(served(python, models), mode)
    before = set(guard.descendants(os.getpid()))
    with (
        pytest.raises(AerieError, match=r"(?s)engine server bad: 'ended with status 1'.*Error: "),
        serve({"bad": launch}, port=0, logs=tmp_path, ready_timeout_s=240, on_wait=lambda ready, note: None),
    ):
        pytest.fail("was given out")
    assert set(guard.descendants(os.getpid())) - before == set()


def test_killing_the_engine_in_a_generation_fails_quickly(servers):
    """The last test: it leaves the forced server dead."""
    server = servers["forced"]
    (engine,) = (p for p in guard.descendants(server.pid) if "EngineCore" in " ".join(psutil.Process(p).cmdline()))
    killed = 0.0

    async def ask():
        nonlocal killed
        async with connect(server) as client:
            asking = asyncio.create_task(client.stream([3, 4], max_tokens=400, ignore_eos=True))
            await asyncio.sleep(0.3)
            assert not asking.done(), "400 tokens came before it could be killed"
            os.kill(engine, signal.SIGKILL)
            killed = time.monotonic()
            await asking

    with pytest.raises(AerieError, match="engine server forced"):
        asyncio.run(ask())
    assert time.monotonic() - killed < 60
    deadline = killed + 120
    while server.is_alive():
        assert time.monotonic() < deadline, "the front end outlives its engine"
        time.sleep(0.1)
