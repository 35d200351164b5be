"""A synthesis over two hosts behind vLLM's own router: here both are this machine, each with a real vLLM."""

import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from aerie import environments
from aerie.eagle3 import preflight, synthesize
from aerie.eagle3.environments import OF_INTEREST
from aerie.engines.states import read_kept
from aerie.paths import repository
from aerie.runbook.step import Context, Input

pytestmark = pytest.mark.engine

SHAPE, _ = preflight.shape("auto", preflight.cpu().flags)
ARITHMETIC = dict(zip(("dtype", "reason"), preflight.arithmetic(preflight.cpu().flags), strict=True))
PROMPTS, TOKENS = 32, 12
# One request at a time in each server: beside others a near tie of two tokens may end otherwise.
VALUES: dict[str, Any] = {
    "engine": {
        "name": "vllm", "max_model_len": 512, "max_num_seqs": 1, "kv_cache_gib": 1, "threads": 1,
        "ready_timeout_s": 300, "port": 0, "gpus": None,
    },
    "drafter": {"draft_vocab_size": 256, "aux_layers": [2, 3, 4], "num_speculative_tokens": 3, "ttt_length": 3},
    "synthesis": {
        "prompts": PROMPTS, "max_tokens": TOKENS, "concurrency": 2, "temperature": 0, "hosts": [],
    },
    "hosts": {"address": "127.0.0.1", "inventory": ""},
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A synthesis on this host alone, not yet run."""
    folder = tmp_path_factory.mktemp("synthesis")
    made = environments.ensure("engine")
    script = Path(__file__).parent / "random_models.py"
    subprocess.run(
        [made.python, "-W", "ignore", script, folder, SHAPE],
        env={**os.environ, "PYTHONPATH": str(repository())}, check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    (folder / "target").rename(folder / "model")
    draw = random.Random(0)
    rows = [{"id": f"p/{i}", "input_ids": [3, *(draw.randrange(3, 500) for _ in range(12))]} for i in range(PROMPTS)]
    (folder / "prompts.train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    packages = {name: made.packages[name] for name in OF_INTEREST if name in made.packages}
    return Context(
        run="r", step="synthesize", attempt=1, values=VALUES,
        inputs={
            "target": Input(path=folder, evidence={}),
            "preflight": Input(path=folder, evidence={"arithmetic": ARITHMETIC}),
            "environments": Input(path=folder, evidence={"engine": {"packages": packages}}),
        },
        out=folder, scratch=folder, kept=folder, progress_file=folder,
        interpreters={"controller": repository() / ".venv" / "bin" / "python", "engine": made.python},
    )  # fmt: skip


def in_folder(context: Context, folder: Path, *, hosts: Sequence[str] = (), attempt: int = 1) -> Context:
    (folder / "hosts.yml").write_text("all: {hosts: {second: {ansible_connection: local}}}\n")
    values = {
        **VALUES,
        "synthesis": {**VALUES["synthesis"], "hosts": list(hosts)},
        "hosts": {"address": "127.0.0.1", "inventory": str(folder / "hosts.yml")},
    }
    folders = {name: folder / f"{name}-{attempt}" for name in ("out", "scratch")} | {"kept": folder / "kept"}
    for one in folders.values():
        one.mkdir(exist_ok=True)
    return replace(context, values=values, attempt=attempt, progress_file=folder / "progress.json", **folders)


def samples(context: Context) -> dict[str, Any]:
    lines = (context.out / "samples.jsonl").read_text().splitlines()
    rows = {row["id"]: row for row in map(json.loads, lines)}
    assert len(rows) == len(lines) == PROMPTS
    return rows


def of_second(kept: Path) -> Iterator[psutil.Process]:
    """The agent that serves along."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if "serve" in words and any(str(kept / "hosts") in word for word in words):
            yield process


def when(context: Context, answered: int, act: Any) -> threading.Thread:
    def watch() -> None:
        while True:
            try:
                said = json.loads(context.progress_file.read_bytes())
                if said["unit"] == "prompts" and said["done"] >= answered:
                    act()
                    return
            except (FileNotFoundError, NotADirectoryError):
                pass
            time.sleep(0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def kill_second(context: Context) -> None:
    """Its server, and not the guard above it."""
    (agent,) = of_second(context.kept)
    (guard,) = agent.children()
    (server,) = guard.children()
    server.kill()


def test_two_hosts_answer_what_one_does_and_one_of_them_may_die(
    alone: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # an operator's, for the world
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = in_folder(alone, tmp_path / "one"), in_folder(alone, tmp_path / "two", hosts=["second"])
    expected = synthesize.run(one)
    assert expected["hosts"] == {}

    killing = when(two, PROMPTS // 3, lambda: kill_second(two))
    evidence = synthesize.run(two)
    killing.join(1)
    assert not killing.is_alive()
    rows = samples(two)
    assert rows == samples(one)
    for row in rows.values():
        assert list(read_kept(two.out / row["states"]).token_ids) == row["input_ids"][:-1]
    here, second = evidence["hosts"]["this host"], evidence["hosts"]["second"]
    assert 0 < here["generated_tokens"] < evidence["new_tokens"], "the second host answered nothing"
    assert here["gone"] is None
    assert "ended with status" in second["gone"]
    assert list(of_second(two.kept)) == []
    assert (two.out / "logs" / "capture.second.log").stat().st_size > 0
    assert "second is gone: " in synthesize.gate(evidence, {}).reasons[-1]
