"""The target's own responses, and the hidden states that it had while it gave them."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.eagle3 import serving, serving_along, staged, together
from aerie.eagle3.head import text_config
from aerie.eagle3.profile import Drafter, Engine, Synthesis
from aerie.eagle3.samples import Samples, has_begun
from aerie.eagle3.serving_along import Fleet
from aerie.engines.adapter import Capture, Launch, Question, adapter
from aerie.engines.bench import Prompt
from aerie.engines.client import Client, connect, crowd
from aerie.engines.server import Server
from aerie.engines.states import States, awaited
from aerie.errors import AerieError
from aerie.pagecache import PassBy
from aerie.runbook.step import Context, Json, Verdict, go, write_atomic

__all__ = ["Extraction", "doc", "gate", "run", "sample", "unique"]

# An answer is silent until it is whole: 2,048 tokens take a minute where 32 at once share 1,167 tokens a second, and a
# thinking model's several. What hangs is found by the step's progress.
_ANSWER_S = 3600.0

doc = """
A drafter learns what this target says, so the training text is the target's own: greedy responses to the training
prompts. The engine writes the hidden states of prompt and response in the same request, so nothing is computed twice.

Start the server of step `serve-base` with these in addition. vLLM on a CPU (the connector lies in
aerie/engines/vllm_cpu, so put the checkout on PYTHONPATH; the layer ids are the drafter's three and, last, the number
of layers, which is the state before the final norm):

    --no-enable-chunked-prefill
    --speculative-config '{"method": "extract_hidden_states", "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4, 6]}}}'
    --kv-transfer-config '{"kv_connector": "CpuHiddenStatesConnector", "kv_role": "kv_producer",
        "kv_connector_module_path": "aerie.engines.vllm_cpu.hidden_states",
        "kv_connector_extra_config": {"shared_storage_path": "/absolute/folder"}}'

Send each prompt with `"kv_transfer_params": {"include_output_tokens": true}`; the answer names its state file.

SGLang, from 0.5.16 on, by a plugin (`aerie/engines/sglang_plugin/hidden_states.py`: by itself it gives out the chosen
layers or the last one, and as text). Its last state is the one after the final norm (`last_state` in the evidence):

    --enable-return-hidden-states
    AERIE_CAPTURE_FOLDER=/absolute/folder  AERIE_CAPTURE_LAYERS=2,3,4  SGLANG_PLUGINS=aerie_hidden_states

with a folder on PYTHONPATH beside the checkout that holds the plugin's entry point, as `aerie/engines/plugins.py`
writes it. Send each prompt to `/generate` with `"return_hidden_states": true`; the state file is named by
`meta_info.id`.

A state file is whole when the lock beside it can be taken. The last token was never an input, so it has no state: a
file has one position less than the sample has tokens. Check that the tokens in the file are the sample's and that all
is finite. Each is then kept a third smaller, without loss, with a sha256 over what it holds: the bytes of the numbers
lie in planes, and the plane of signs and exponents is coded (`bytes_per_byte` says what is left). It is put on the
disk and out of the page cache, where the weights of the next server lie. A sample is kept as soon as it is answered:
an attempt that is killed loses the answers that were open, and the next one asks for the rest.

With `synthesis.hosts` each of these hosts of the inventory serves the same target along with this one, by the same
launch, and the engine's own router stands in front, here and for this host alone:

    python -m vllm_router.launch_router --worker-urls http://HERE:PORT http://THERE:PORT --host 127.0.0.1 --port 8100 \
        --policy cache_aware --balance-abs-threshold 0 --balance-rel-threshold 1.0

(`sglang_router.launch_router` for SGLang.) Each server gets `synthesis.concurrency` requests at once. All hosts see the
runs' state (XDG_STATE_HOME), with locks of files, the checkout and the environments at the same paths: what another
host's server wrote is read, checked and packed here. Staged models lie on each, by `./invoke stage`. Step `gpus` asks
each host before anything long begins, and this step tries every server by itself, with one short answer and its states,
before the first prompt. A server of another host listens on the address from which that host reaches `hosts.address`
and on no other, by a port that is free; it knows no key, so that network must be one that you trust, and no firewall
may keep this host from it. It ends with the step, and by itself when it does not hear of this host for two minutes.

A host that dies is told by name; the router gives its open requests to another one. A prompt that is asked twice so is
one sample all the same: a sample is kept by its prompt, once, when its answer has come and its states are its own.
Hosts that cannot take part end the step before its first answer; an attempt that goes on from answers goes on without
them. A host whose network falls silent holds its open requests; the others answer all that is left, then the step is
ended for its silence, and the next attempt asks for those few. Other values of `synthesis.hosts` are another work,
which begins anew.

What the states cost, by `benchmarks/extraction.py` with the tiny target on two quiet cores, in two runs (2026-11-30):
extraction went at 0.98 and 1.09 of the plain prefill's rate for prompts of 900 tokens, and at 0.90 for 256, where the
2 ms in which vLLM writes a request's file are a tenth of its prefill. On GPUs it is not measured.
"""


@dataclass(slots=True, kw_only=True)
class _Made:
    """What this attempt generated. Bytes of state files, as the engine wrote them and as they are kept."""

    tokens: int = 0
    written_bytes: int = 0
    kept_bytes: int = 0


def unique(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """The prompts without repetitions of the same tokens, first ones kept: greedy responses would repeat as well."""
    first: dict[tuple[int, ...], Prompt] = {}
    for prompt in prompts:
        first.setdefault(prompt.input_ids, prompt)
    return tuple(first.values())


def sample(number: int, prompt: Prompt, response: Sequence[int]) -> dict[str, Any]:
    """One row of samples.jsonl: loss counts on the response alone. The file is named by number: ids may hold a /."""
    return {
        "id": prompt.id,
        "input_ids": [*prompt.input_ids, *response],
        "loss_mask": [0] * len(prompt.input_ids) + [1] * len(response),
        "states": f"states/{number:05d}.safetensors",
    }


def run(context: Context) -> Mapping[str, Json]:
    """Serve with capture, generate, check every file, keep it beside its sample."""
    engine, drafter = Engine(**context.values["engine"]), Drafter(**context.values["drafter"])
    values = Synthesis(**context.values["synthesis"])
    target = context.inputs["target"]
    asked = serving.read_prompts(target.path / "prompts.train.jsonl", values.prompts)
    prompts = unique(asked)
    config = text_config(staged.folder(target, "model"))
    layers = (*drafter.aux_layers, config["num_hidden_layers"])
    captured = context.scratch / "captured"
    captured.mkdir()
    capture = Capture(layers=layers, directory=captured)
    installed = serving.Installed.of(context, engine)
    launch = installed.launch(context, capture)
    with _serving(context, engine, launch, captured) as served:
        started = time.monotonic()
        with Samples(context.kept, prompts) as samples, PassBy() as passing:
            # What passes by are 828 GB at full size, and the weights are served again after this.
            before = len(samples.there)
            made = asyncio.run(_generate(context, served, captured, prompts, values, len(layers), samples, passing))
        wall_s = time.monotonic() - started
        hosts = served.fleet.evidence() if served.fleet else {}
    rows = [samples.there[prompt.id] for prompt in prompts]
    samples.move_states(context.out / "states")
    write_atomic(context.out / "samples.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    return {
        "engine": serving.engine_evidence(context, engine) | {"flags": list(launch.flags)},
        "hosts": hosts,
        "start_s": served.own.start_s,
        "layers": list(layers),
        "last_state": adapter(engine.name).last_state,
        "prompts": len(rows),
        "of_earlier_attempts": before,
        "duplicates": len(asked) - len(prompts),
        "prompt_tokens": sum(len(prompt.input_ids) for prompt in prompts),
        "new_tokens": sum(sum(row["loss_mask"]) for row in rows),
        "tok_s": round(made.tokens / wall_s, 1) if made.tokens else None,
        "wall_s": round(wall_s, 2),
        "bytes_per_byte": round(made.kept_bytes / made.written_bytes, 4) if made.tokens else None,
        "one_pass": True,
    }


def gate(evidence: Mapping[str, Json], values: Mapping[str, Json]) -> Verdict:
    """Goes on with what is answered, and names the hosts that are gone or were left out."""
    hosts = evidence["hosts"]
    gone = [f"{name} is gone: {one['gone']}" for name, one in hosts.items() if one["gone"]]
    shares = [f"{name} {one['generated_tokens']:,}" for name, one in hosts.items() if one["generated_tokens"]]
    return go(*([f"tokens generated: {', '.join(shares)}"] if shares else []), *gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """Samples with their states from a Capture server. layers: of each position; captured: where the server writes.

    patience_s: until what it writes on another host is seen on this one.
    """

    client: Client
    captured: Path
    layers: int
    samples: Samples
    passing: PassBy
    patience_s: float = 0

    async def take(self, number: int, prompt: Prompt, question: Question) -> tuple[int, int, int]:
        """(Generated tokens, bytes of states that the engine wrote, bytes that are kept); the sample is kept then.

        Raises AerieError for an answer without states, or with states that are not its own.
        """
        answer = await self.client.ask(question)
        row = sample(number, prompt, answer.token_ids)
        if answer.states_file is None:
            raise self.client.server.failure("an answer without its file of hidden states")
        written = self.captured / answer.states_file
        states = await asyncio.to_thread(_checked, written, row, self.layers, self.patience_s)
        kept_bytes = await asyncio.to_thread(self.samples.add, row, states, self.passing)
        written_bytes = written.stat().st_size
        written.unlink()
        return len(answer.token_ids), written_bytes, kept_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """Where requests go: to this host's own server, or to a router in front of it and of others."""

    own: Server
    fleet: Fleet | None

    @property
    def asked(self) -> Server:
        return self.fleet.router if self.fleet else self.own

    @property
    def size(self) -> int:
        return self.fleet.size if self.fleet else 1

    @property
    def note(self) -> str:
        """Which hosts are gone, "" for none."""
        return ", ".join(f"{name} is gone" for name in self.fleet.look()) if self.fleet else ""


@contextlib.contextmanager
def _serving(context: Context, engine: Engine, launch: Launch, captured: Path) -> Iterator[_Served]:
    others = together.of(context, "synthesis")
    if others is None:
        with serving.started(context, engine, {"capture": launch}) as ready:
            yield _Served(own=ready["capture"], fleet=None)
        return
    packages = context.inputs["environments"].evidence["engine"]["packages"]
    serving_along.check_router(engine.name, others.python, packages)
    wanted = serving_along.Wanted(
        launch=launch,
        python=others.python,
        captured=captured,
        gpus=launch.gpus,
        needed=[staged.folder(context.inputs["target"], "model")],
        port=engine.port,
        ready_timeout_s=engine.ready_timeout_s,
    )
    # A host that was lost is no reason to lose the night: where answers are kept already, the rest goes on without it.
    with serving_along.served(context, others, wanted, strict=not has_begun(context.kept)) as fleet:
        try:
            yield _Served(own=fleet.own, fleet=fleet)
        except AerieError as error:
            if not (gone := fleet.look()):
                raise
            raise AerieError(
                f"synthesis over {fleet.size} hosts",
                seen=f"{error.where}: {error.seen}; gone: {', '.join(gone)}",
                expected="hosts that serve to the end, or one of them at least",
                remedy="What is answered is kept; the next attempt goes on without a host that cannot be reached.\n"
                + "\n".join(f"{name}: {why}" for name, why in gone.items()),
            ) from error


async def _generate(
    context: Context,
    served: _Served,
    captured: Path,
    prompts: Sequence[Prompt],
    values: Synthesis,
    layers: int,
    samples: Samples,
    passing: PassBy,
) -> _Made:
    """Ask for what is not there yet; each sample is kept as soon as it is answered."""
    made = _Made()
    waiting = iter([(number, prompt) for number, prompt in enumerate(prompts) if prompt.id not in samples.there])
    patience_s = serving_along.PATIENCE_S if served.fleet else 0
    async with connect(served.asked, _ANSWER_S) as client:
        extraction = Extraction(
            client=client, captured=captured, layers=layers, samples=samples, passing=passing, patience_s=patience_s
        )

        async def user() -> None:
            for number, prompt in waiting:
                question = served.own.launch.adapter.question(
                    prompt.input_ids,
                    max_tokens=values.max_tokens,
                    temperature=values.temperature,
                    seed=number,
                    states=True,
                )
                tokens, written_bytes, kept_bytes = await extraction.take(number, prompt, question)
                made.tokens += tokens
                made.written_bytes += written_bytes
                made.kept_bytes += kept_bytes
                context.progress(len(samples.there), len(prompts), unit="prompts", note=served.note)

        await crowd(values.concurrency * served.size, user)
    return made


def _checked(written: Path, row: Mapping[str, Any], layers: int, patience_s: float) -> States:
    """The states that the engine wrote. Raises AerieError unless they are the sample's own, all of them and sound."""
    states = awaited(written, patience_s)
    seen = {"positions": states.shape[0], "layers": states.shape[1], "finite": states.is_finite}
    expected = {"positions": len(row["input_ids"]) - 1, "layers": layers, "finite": True}
    if seen != expected or list(states.token_ids) != row["input_ids"][:-1]:
        raise AerieError(
            f"hidden states of {row['id']}",
            seen=seen | {"token_ids": states.token_ids[:8]},
            expected=f"{expected} and the sample's own tokens, {row['input_ids'][:8]} …",
            remedy="The engine gave another request's states, or broken ones: nothing may be trained on them.",
        )
    return states
