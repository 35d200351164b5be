"""The target served without speculation, measured once: what every drafter is compared with."""

import asyncio
from collections.abc import Mapping

from aerie.eagle3 import rendering, serving
from aerie.eagle3.profile import Bench, Engine
from aerie.engines import bench
from aerie.runbook.step import Context, Json, Verdict, go, stop

__all__ = ["doc", "gate", "run"]

doc = """
Start the target without a drafter and measure greedy decoding of the held-out prompts, at every concurrency once.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 \\
    TORCHDYNAMO_DISABLE=1 \\
    python -m vllm.entrypoints.openai.api_server --model model --served-model-name target --dtype bfloat16 \\
        --max-model-len 1024 --max-num-seqs 8 --enforce-eager --no-enable-prefix-caching \\
        --distributed-executor-backend uni --host 127.0.0.1 --port 8000

(`--dtype float32` where step `preflight` chose it.)

(`vllm serve` fails with the CPU wheel: it looks for the metadata of a package named `vllm`.)

Wait until it generates; `/health` alone is green too early. Send each prompt as token ids to `/v1/completions` with
`"temperature": 0, "stream": true, "return_token_ids": true`, and note when the first and the last token came.
Tokens per second of one user leave out the first chunk, which is the time of the prompt.

First the engine renders some of the prompts anew from their messages (POST `/tokenize` with `messages` and, as
`chat_template_kwargs`, the options of step `target`), and every token must be the one that step `target` has there:
another chat template, thinking mode or encoding would train a drafter on text that is never served.

Weights that came in too slowly stop the run: the engine's log says how many seconds it loaded, and /proc of its process
tree how much came from disk and by how many major faults. That tells a warm load from a cold one and from a fault storm
(docs/weights.md); a target below 1 GiB is too little to judge.

The step `control` measures the same again, interleaved with the drafters; only those figures are compared.
"""


def run(context: Context) -> Mapping[str, Json]:
    """Serve, measure, stop."""
    engine, values = Engine(**context.values["engine"]), Bench(**context.values["bench"])
    target = context.inputs["target"]
    files = [target.path / f"prompts.{part}.jsonl" for part in ("held", "train")]
    prompts = serving.read_prompts(files[0], values.prompts)
    weights = serving.Weights.of(context)
    with serving.servers(context, engine, {"base": None}) as servers:
        server = servers["base"]
        loaded = weights.loaded_by(server)
        rendered = asyncio.run(rendering.check(server, files, target.evidence["template_options"]))
        arm = bench.Arm(
            name="base",
            server=server,
            prompts=prompts,
            max_tokens=values.max_tokens,
            concurrency=tuple(values.concurrency),
        )
        runs, load = bench.measure(
            [arm],
            repetitions=1,
            on_progress=lambda done, total, note: context.progress(done, total, unit="requests", note=note),
        )
    return {
        "engine": serving.engine_evidence(context, engine) | {"flags": list(server.launch.flags)},
        "start_s": server.start_s,
        "load": loaded,
        "rendered_alike": rendered,
        "bench": {
            "start_s": server.start_s,
            "flags": list(server.launch.flags),
            "runs": [bench.summarize(run) for run in runs],
        },
        "client": load.to_dict(),
    }


def gate(evidence: Mapping[str, Json], values: Mapping[str, Json]) -> Verdict:
    """Stops after a load that was cold, a fault storm, or slow for another reason."""
    loaded = evidence["load"]
    reason = f"weights: {loaded['kind']}, {loaded['reason']}"
    return go(reason) if loaded["is_good"] else stop(reason)
