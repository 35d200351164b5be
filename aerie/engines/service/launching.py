"""From the lock's table and what lies on a host to the service that a slot runs."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from aerie.engines.adapter import Drafter, Served, adapter
from aerie.engines.values import Engine, Gpus
from aerie.errors import AerieError
from aerie.lock import EngineModel, Lock

from .onhost.definition import Key, Service, Weights

__all__ = ["CACHE", "KEYS", "environment_of", "missing", "service_of"]

ENVIRONMENTS = "/opt/aerie/environments"
CACHE = "/srv/aerie/engine/cache"  # as the role's engine.env has it for the libraries'
OVERHEAD_BYTES = 4 << 30  # of a CPU engine beside weights, keys and values: 2.6 GiB resident were measured, and spikes
KEYS: Mapping[str, Key] = {"vllm": "environment", "sglang": "config"}
# All ranks are on this host. Left alone, gloo listens on the address of an interface, for anybody on the network (13
# ports, vLLM 0.32.0 on the processor); NCCL's bootstrap does the same by its documentation.
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
# What an adapter passes so that a measurement's second repetition does the work of its first.
OF_MEASURING = ("--no-enable-prefix-caching", "--disable-radix-cache")


def environment_of(settings: EngineModel) -> str:
    """Folder on the host of the environment that serves."""
    return f"{ENVIRONMENTS}/{settings.environment}"


def service_of(
    model: str,
    engine: str,
    *,
    lock: Lock,
    version: str,
    weights: Sequence[Weights],
    config: Mapping[str, Any],
    size_bytes: int,
    gpus: int,
    arch: str,
    draft_tokens: int | None = None,
) -> Service:
    """The service that serves `model`, the first of `weights`, with the second as its drafter where there is one.

    config: the model's config.json; size_bytes: of the weights together; draft_tokens: instead of the lock's. Raises
    UsageError for what the engine is known to serve wrongly, or not at all.
    """
    settings = lock.engine.models.get(model, EngineModel())
    values = _values(engine, settings, gpus)
    tokens = settings.draft_tokens if draft_tokens is None else draft_tokens
    mode = Drafter(path=Path(weights[1].folder), tokens=tokens) if len(weights) > 1 else None
    with tempfile.TemporaryDirectory() as folder:  # the adapter reads config.json where the model lies, here
        Path(folder, "config.json").write_text(json.dumps(config))
        served = Served(
            python=Path(environment_of(settings), "bin", "python"),
            model=Path(folder),
            engine=values,
            dtype=settings.dtype,
            version=version,
            arch=arch,
            trust_code=settings.trust_code,
        )
        launch = adapter(engine).launch(served, mode)
        flags = [weights[0].folder if flag == folder else flag for flag in launch.flags if flag not in OF_MEASURING]
    bind = f"[{lock.engine.bind}]" if ":" in lock.engine.bind else lock.engine.bind
    variables = {name: value for name, value in launch.variables.items() if name != "VLLM_CACHE_ROOT"}
    return Service(
        model=model,
        engine=engine,
        version=version,
        program=(*launch.program, *_named(flags, model)),
        environment=variables | ON_LOOPBACK | ({"VLLM_CACHE_ROOT": f"{CACHE}/vllm"} if engine == "vllm" else {}),
        key=KEYS[engine],
        weights=tuple(weights),
        gpus=gpus,
        draft_counter=_draft_counter(engine, version) if mode else "",
        front=f"{bind}:{settings.port}",
        port=settings.port + 1,
        beside_bytes=0 if gpus else 2 * size_bytes + (settings.kv_cache_gib << 30) + OVERHEAD_BYTES,
        ready_timeout_s=settings.ready_timeout_s,
    )


def _values(engine: str, settings: EngineModel, gpus: int) -> Engine:
    """What the adapter takes of the lock's table."""
    return Engine(
        name=engine,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        kv_cache_gib=settings.kv_cache_gib,
        threads=settings.threads,
        ready_timeout_s=settings.ready_timeout_s,
        port=0,
        gpus=Gpus(tensor_parallel=gpus, memory_fraction=settings.memory_fraction) if gpus else None,
    )


def _named(flags: Sequence[str], model: str) -> tuple[str, ...]:
    """The flags with the model's own name as the one that clients ask for."""
    at = flags.index("--served-model-name") + 1
    return (*flags[:at], model, *flags[at + 1 :])


def _draft_counter(engine: str, version: str) -> str:
    """The counter of verify steps in /metrics; "" where the engine has none."""
    if engine == "vllm":
        return "vllm:spec_decode_num_drafts_total"
    return "sglang:spec_verify_calls_total" if Version(version) >= Version("0.5.13") else ""


def missing(engine: str, where: str, seen: Mapping[str, str]) -> AerieError:
    """The error of an environment without the engine."""
    return AerieError(
        where,
        seen=", ".join(f"{name} {version}" for name, version in seen.items()) or "no engine",
        expected=engine,
        remedy="Name an environment of the lock that has it: [engine.models.<name>] environment, then provision.",
    )
