"""SGLang as an engine: launch arguments and environment, its own HTTP interface, and its counters.

Read in its wheels from 0.5.9 to 0.5.23 and run with 0.5.16. Nothing here starts a process or opens a connection.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aerie.engines import capability, plugins
from aerie.engines.acceptance import Acceptance
from aerie.engines.adapter import (
    SERVED_NAME,
    Answer,
    Capture,
    Drafter,
    Forced,
    LastState,
    Launch,
    Mode,
    Progress,
    Question,
    Served,
    chat_rendering,
    checked_length,
)
from aerie.engines.counts import of_meta_info
from aerie.engines.metrics import families
from aerie.engines.values import Engine, Gpus
from aerie.errors import UsageError

__all__ = ["Sglang"]

_CAPTURE_PLUGIN = "aerie_hidden_states"
_SUMS = {
    "sglang:generation_tokens_total": "generated_tokens",
    "sglang:prompt_tokens_total": "prompt_tokens",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:spec_verify_calls_total": "verify_steps",
}


class Sglang:
    """The adapter of SGLang, on NVIDIA GPUs."""

    name = "sglang"
    last_state: LastState = "after-norm"
    # Its schedulers do. On an H200 (0.5.16) the measured speed-up missed τ / R by 11 % while idle servers ran, by 3 %
    # while they were held.
    polls_when_idle = True

    def launch(self, served: Served, mode: Mode = None) -> Launch:
        """As Adapter.launch. For Capture it writes the plugin's folder."""
        gpus = served.engine.gpus
        if gpus is None:
            raise UsageError(
                "engine.gpus", seen="none", expected="GPUs", remedy="On a CPU vllm serves: set engine.name to vllm."
            )
        names = capability.names("sglang", served.version)
        variables = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            # DeepGEMM is for FP8 on SM90 and SM100; its JIT is a risk of a start elsewhere, and nothing here needs it.
            "SGLANG_ENABLE_JIT_DEEPGEMM": "0",
        }
        flags = [
            *("--model-path", str(served.model)),
            *("--served-model-name", SERVED_NAME),
            *("--dtype", served.dtype),
            *("--context-length", str(served.engine.max_model_len)),
            *("--max-running-requests", str(served.engine.max_num_seqs)),
            *("--tp-size", str(gpus.tensor_parallel)),
            *("--mem-fraction-static", str(gpus.memory_fraction)),
            *(names["flag.graph-batch"], str(served.engine.max_num_seqs)),
            # Keys other than these two end the start ("Unknown keys"); more than 16 threads load slower (#17970).
            *("--model-loader-extra-config", json.dumps(_loader(gpus))),
            *(("--trust-remote-code",) if served.trust_code else ()),
            "--enable-metrics",
            # A second repetition of the same prompts must do the same work as the first.
            "--disable-radix-cache",
            *_backends(served, gpus),
        ]
        match mode:
            case Drafter():
                flags += _eagle3(served, mode)
            case Forced():
                flags += _eagle3(served, mode.drafter)
                variables["SGLANG_SIMULATE_ACC_LEN"] = f"{checked_length(mode):g}"
                # The default up to 0.5.10, multinomial, misses the mean; this gave 192 steps for 576 tokens at 3.0.
                variables["SGLANG_SIMULATE_ACC_METHOD"] = "match-expected"
            case Capture():
                flags.append("--enable-return-hidden-states")
                variables |= _capture(served, mode)
        if isinstance(mode, Drafter | Forced) and "variable.overlap" in names:
            # Up to 0.5.10 drafting turned the overlap of scheduling and computing off unless this was set.
            variables[names["variable.overlap"]] = "1"
        program = (str(served.python), "-P", "-m", "sglang.launch_server")
        return Launch(
            program=program,
            flags=tuple(flags),
            variables=variables,
            model=SERVED_NAME,
            adapter=self,
            gpus=gpus.tensor_parallel,
        )

    def question(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 0,
        seed: int | None = None,
        ignore_eos: bool = False,
        stream: bool = False,
        top: int = 0,
        states: bool = False,
    ) -> Question:
        """As Adapter.question, to the native interface: the OpenAI one gives no token ids."""
        sampling: dict[str, Any] = {"max_new_tokens": max_tokens, "temperature": temperature, "ignore_eos": ignore_eos}
        if seed is not None:
            sampling["sampling_seed"] = seed
        body: dict[str, Any] = {"input_ids": list(prompt), "sampling_params": sampling, "stream": stream}
        if top:
            body |= {"return_logprob": True, "top_logprobs_num": top}
        if states:
            body["return_hidden_states"] = True
        return Question(path="/generate", body=body)

    def rendering(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Question:
        """As Adapter.rendering."""
        return chat_rendering(messages, options)

    def answer(self, event: Mapping[str, Any]) -> Answer:
        """As Adapter.answer. An event repeats the tokens before it unless the server streams increments."""
        if "error" in event:
            return Answer(error=str(event["error"]))
        meta = event["meta_info"]
        finish = (meta.get("finish_reason") or {}).get("type")
        if finish == "abort":
            return Answer(error=str(meta["finish_reason"].get("message", "aborted")))
        top = meta.get("output_top_logprobs") or [()]
        return Answer(
            token_ids=tuple(event["output_ids"]),
            total=meta.get("completion_tokens"),
            finish=finish,
            acceptance=of_meta_info(meta) if finish else None,
            top={int(token): value for value, token, *_ in top[0] or ()},
            # Where our plugin has them they are not in the answer, which has the key all the same.
            states_file=Path(f"{meta['id']}.safetensors") if meta.get("hidden_states") == [] else None,
        )

    def counters(self, metrics: str) -> Acceptance | None:
        """None: /metrics has gauges of the last interval and no counter of accepted drafts. The answers have them."""
        return None

    def progress(self, metrics: str) -> Progress:
        """As Adapter.progress; verify_steps from 0.5.13 on. Summed over data-parallel ranks."""
        seen: dict[str, int] = {}
        for family in families(metrics):
            for sample in family.samples:
                if sample.name in _SUMS:
                    key = _SUMS[sample.name]
                    seen[key] = seen.get(key, 0) + int(sample.value)
        return Progress(
            generated_tokens=seen.get("generated_tokens", 0),
            prompt_tokens=seen.get("prompt_tokens", 0),
            running=seen.get("running", 0),
            waiting=seen.get("waiting", 0),
            verify_steps=seen.get("verify_steps"),
        )

    def switches_forced(self, engine: Engine) -> bool:
        """No: SGLANG_SIMULATE_ACC_LEN is read when its modules are imported."""
        return False

    def switch_forced(self, forced: Forced, length: float) -> None:
        """Raises UsageError: a server of its own is needed for every length."""
        raise UsageError(
            "forced accept length",
            seen=f"{length:g} for a running SGLang",
            expected="the length that it was started with",
            remedy="Start another server.",
        )


def _loader(gpus: Gpus) -> dict[str, bool | int]:
    return {"enable_multithread_load": True, "num_threads": gpus.load_threads}


def _backends(served: Served, gpus: Gpus) -> list[str]:
    flags = []
    for kind, flag, chosen in (
        ("attention", "--attention-backend", gpus.attention),
        ("mm-attention", "--mm-attention-backend", ""),
        ("moe", "--moe-runner-backend", gpus.moe),
        ("sampling", "--sampling-backend", gpus.sampling),
    ):
        if backend := chosen or capability.default_backend("sglang", served.version, kind, served.arch):
            flags += [flag, backend]
    return flags


def _eagle3(served: Served, drafter: Drafter) -> list[str]:
    gpus = served.engine.gpus
    assert gpus is not None, "launch has refused"
    # Unset it inherits the target's backend, which may know MLA only and then ends the start (#23490).
    attention = gpus.draft_attention or capability.default_backend("sglang", served.version, "draft", served.arch)
    return [
        *("--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", str(drafter.path)),
        *("--speculative-num-steps", str(drafter.tokens)),
        *("--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(drafter.tokens + 1)),
        *(("--speculative-draft-attention-backend", attention) if attention else ()),
    ]


def _capture(served: Served, mode: Capture) -> dict[str, str]:
    capability.require(
        capability.Wish(engine="sglang", version=served.version, arch=served.arch, doing=frozenset({"capture"}))
    )
    return {
        "SGLANG_PLUGINS": _CAPTURE_PLUGIN,
        "AERIE_CAPTURE_FOLDER": str(mode.directory),
        "AERIE_CAPTURE_LAYERS": ",".join(map(str, mode.layers[:-1])),
        "PYTHONPATH": plugins.write(
            mode.directory,
            name=_CAPTURE_PLUGIN,
            group="sglang.srt.plugins",
            install="aerie.engines.sglang_plugin.hidden_states:install",
        ),
    }
