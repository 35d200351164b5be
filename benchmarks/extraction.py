"""Extraction of hidden states against plain prefill: the same engine, model and prompts, in turns.

    python benchmarks/extraction.py MODEL [--profile tiny] [--python /ABSOLUTE/bin/python]
        [--prompts 32] [--tokens 900] [--repetitions 5]

MODEL is a target's folder, such as out/model of a run's step `target`. Two servers of the profile's engine are started,
one after the other: a plain one, and one that captures the layers of the profile's drafter. Each repetition sends both
the same random prompts, for one token each, as many at once as in the profile's synthesis; the server that is not
measured is held where it is. An extraction has ended when its states were read, checked, packed and kept, as in step
`synthesize`. The ratio is the median over the repetitions of paired rates, with its range.

On GPUs name the engine's interpreter and the profile: --profile gpu-small, whose memory_fraction leaves room for two.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from aerie import environments
from aerie.eagle3 import preflight, serving
from aerie.eagle3.environments import engine_version
from aerie.eagle3.profile import Profile
from aerie.eagle3.samples import Samples
from aerie.eagle3.synthesize import Extraction
from aerie.engines.adapter import Capture, Mode, Served, adapter
from aerie.engines.bench import Prompt, order
from aerie.engines.client import connect, crowd
from aerie.engines.holding import one_at_a_time
from aerie.engines.server import Server, serve
from aerie.pagecache import PassBy
from aerie.runbook import spec

TARGET = 0.9  # of the plain rate


def main(asked: argparse.Namespace) -> None:
    """Measure both and print rates, their ratio and the bytes."""
    profile = spec.load("eagle3", asked.profile).values
    assert isinstance(profile, Profile)
    config = json.loads((asked.model / "config.json").read_text())
    layers = (*profile.drafter.aux_layers, config["num_hidden_layers"])
    users = profile.synthesis.concurrency
    rates: dict[str, list[float]] = {"plain": [], "capture": []}
    with tempfile.TemporaryDirectory() as name:
        captured, kept = Path(name, "captured"), Path(name, "kept")
        captured.mkdir()
        modes: dict[str, Mode] = {"plain": None, "capture": Capture(layers=layers, directory=captured)}
        with _servers(profile, asked, modes, Path(name)) as servers, one_at_a_time(servers.values()) as let_run:
            for repetition in range(asked.repetitions + 1):
                prompts = _prompts(asked.prompts, asked.tokens, config["vocab_size"], seed=repetition)
                folder = kept / str(repetition)
                folder.mkdir(parents=True)
                for arm in order(list(servers), repetition + 1):
                    let_run(servers[arm])
                    with Samples(folder, prompts) as samples, PassBy() as passing:
                        keeping = partial(
                            Extraction, captured=captured, layers=len(layers), samples=samples, passing=passing
                        )
                        seconds = asyncio.run(
                            _prefill(servers[arm], prompts, users, keeping if arm == "capture" else None)
                        )
                    if repetition:  # the first one warms up
                        rates[arm].append(asked.prompts * asked.tokens / seconds)
            written = sum(file.stat().st_size for file in kept.rglob("*.safetensors"))
    ratios = [extracted / plain for extracted, plain in zip(rates["capture"], rates["plain"], strict=True)]
    ratio = statistics.median(ratios)
    tokens = (asked.repetitions + 1) * asked.prompts * asked.tokens
    print(f"{asked.repetitions} repetitions of {asked.prompts} prompts of {asked.tokens} tokens, {users} at once, "
          f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {profile.engine.name}, {len(layers)} states of "
          f"{config['hidden_size']} numbers, {written / tokens:,.0f} bytes a token kept")  # fmt: skip
    for arm, seen in rates.items():
        print(f"{arm}: {statistics.median(seen):,.0f} tokens/s ({min(seen):,.0f} to {max(seen):,.0f})")
    print(f"extraction at {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of plain prefill, target {TARGET}: "
          f"{'met' if ratio >= TARGET else 'MISSED'}")  # fmt: skip


@contextmanager
def _servers(
    profile: Profile, asked: argparse.Namespace, modes: dict[str, Mode], folder: Path
) -> Iterator[dict[str, Server]]:
    """One after the other: two that start together count the same memory of a GPU as free."""
    engine = profile.engine
    found = environments.given(asked.python) if asked.python else environments.ensure("engine")
    served = Served(
        python=found.python,
        model=asked.model,
        engine=engine,
        dtype="bfloat16" if engine.gpus else preflight.arithmetic(preflight.cpu().flags)[0],
        version=engine_version(engine.name, found.packages) or sys.exit(f"no {engine.name} in {found.python}"),
        arch=serving.arch(engine),
    )
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name, mode in modes.items():
            launch = adapter(engine.name).launch(served, mode)
            servers |= stack.enter_context(
                serve(
                    {name: launch},
                    port=0,
                    logs=folder,
                    ready_timeout_s=engine.ready_timeout_s,
                    on_wait=lambda ready, note: None,
                )
            )
        yield servers


def _prompts(count: int, tokens: int, vocabulary: int, *, seed: int) -> tuple[Prompt, ...]:
    drawn = random.Random(seed)
    return tuple(
        Prompt(id=f"p{number}", input_ids=tuple(drawn.randrange(vocabulary) for _ in range(tokens)))
        for number in range(count)
    )


async def _prefill(
    server: Server, prompts: Sequence[Prompt], users: int, keeping: Callable[..., Extraction] | None
) -> float:
    """Seconds for all prompts; with their states kept where that is asked for."""
    waiting = iter(list(enumerate(prompts)))
    async with connect(server) as client:
        take = keeping(client=client).take if keeping else None

        async def user() -> None:
            for number, prompt in waiting:
                question = server.launch.adapter.question(
                    prompt.input_ids, max_tokens=1, ignore_eos=True, states=take is not None
                )
                if take:
                    await take(number, prompt, question)
                else:
                    await client.ask(question)

        started = time.monotonic()
        await crowd(users, user)
        return time.monotonic() - started


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--python", default="")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=900)
    parser.add_argument("--repetitions", type=int, default=5)
    main(parser.parse_args())
