"""What the steps of the eagle3 runbook take whose target is made on the spot: counted by its shape."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from aerie.eagle3.arithmetic import captured, parameters, rate_of_one
from aerie.eagle3.profile import Profile
from aerie.eagle3.second import environments, told
from aerie.runbook.budget import Budget, Measured

__all__ = ["FEWER_SAMPLES", "LESS_CACHE", "of_made", "second_environment"]

_CHECKPOINTS = 4  # the three that the trainer keeps, and the copy beside the evidence
_BYTES_PER_PARAMETER = 14  # of a checkpoint: the weight in bf16, and three numbers of the optimizer in fp32
_CACHE_BYTES = 4 * 576  # of a token in a layer: MLA's 576 numbers in bf16, and as much again for a drafter's cache
_TRAINING_BYTES = 16  # of a parameter of the target in training: weight, gradient and two numbers of AdamW in fp32
_CPU_ENVIRONMENT_BYTES = 2_800_000_000  # of requirements/engine.txt, unpacked; measured
_GPU_ENVIRONMENT_BYTES = 10_000_000_000  # torch and CUDA's libraries for GPUs, unpacked; assumed
FEWER_SAMPLES = "fewer synthesis.prompts or a smaller synthesis.max_tokens"
LESS_CACHE = "a smaller engine.max_num_seqs or engine.max_model_len"


def of_made(step: str, profile: Profile, measured: Measured | None) -> Budget | None:
    """What the step takes; None where the runbook's file says all there is to say."""
    counted = _COUNTED.get(step)
    if counted is None and profile.engine.gpus and profile.target.staged is None:
        counted = _ON_GPUS.get(step)
    return counted(profile, measured) if counted else None


def second_environment(profile: Profile) -> tuple[int, tuple[str, ...]]:
    """(Bytes, basis) of what step control-second installs."""
    second = profile.second
    if second is None or second.environment.python:
        return 0, tuple(told(profile))
    made = f"requirements/{environments(second.environment).requirements('engine')}.txt"
    if profile.engine.gpus is None:
        return _CPU_ENVIRONMENT_BYTES, (*told(profile), f"{made}: {_CPU_ENVIRONMENT_BYTES / 1e9:g} GB")
    return _GPU_ENVIRONMENT_BYTES, (*told(profile), f"{made}: {_GPU_ENVIRONMENT_BYTES / 1e9:g} GB, assumed")


def _second(profile: Profile, measured: Measured | None) -> Budget | None:
    """Nothing without a second engine; with one its environment, and on GPUs what a server of it takes."""
    if profile.second is None:
        return Budget()
    size, basis = second_environment(profile)
    installed = Budget(disk_bytes=size, basis=basis)
    if profile.engine.gpus is None or profile.target.staged is not None:
        return installed
    served = _serving(profile.model_copy(update={"engine": profile.second.engine}), measured)
    return replace(served, disk_bytes=size, basis=(*basis, *served.basis))


def _environments(profile: Profile, measured: Measured | None) -> Budget | None:
    chosen = profile.environments
    made = [name for name in (chosen.requirements("engine"), chosen.requirements("train")) if name]
    if not made:
        return Budget(basis=("both environments are given: nothing is installed",))
    if profile.engine.gpus is None:
        return None
    each = _GPU_ENVIRONMENT_BYTES
    return Budget(
        disk_bytes=len(made) * each,
        basis=(f"{' and '.join(f'requirements/{name}.txt' for name in made)}: {each / 1e9:g} GB each, assumed",),
    )


def _synthesize(profile: Profile, measured: Measured | None) -> Budget:
    """States on the disk, those that the engine still holds back included; time by the measured rate."""
    counts, new_tokens = captured(profile), profile.synthesis.prompts * profile.synthesis.max_tokens
    seconds, rate = None, ""
    if measured and (tok_s := rate_of_one(measured.evidence)):
        start_s = measured.evidence["start_s"]
        tok_s *= 1 + len(profile.synthesis.hosts)
        seconds = start_s + new_tokens / tok_s
        rate = f"; {new_tokens:,} new tokens at {tok_s:,.0f}/s, as measured, after {start_s:.0f} s"
    states = Budget(
        disk_bytes=counts.state_bytes,
        seconds=seconds,
        basis=(
            f"{counts.samples:,} samples of at most {counts.tokens_per_sample:g} tokens, {counts.layers} layers of "
            f"{counts.hidden} numbers each in {'bf16' if counts.number_bytes == 2 else 'fp32'}{rate}",
        ),
        smaller=(FEWER_SAMPLES,),
    )
    if profile.engine.gpus is None:
        return states
    served = _serving(profile, measured)
    return replace(
        states, gpus=served.gpus, gpu_bytes=served.gpu_bytes, gpu_smaller=served.gpu_smaller,
        basis=(*states.basis, *served.basis),
    )  # fmt: skip


def _finetune(profile: Profile, measured: Measured | None) -> Budget:
    """Features as the trainer reads them, and checkpoints."""
    counts = captured(profile)
    checkpoints = _checkpoints(profile)
    return Budget(
        disk_bytes=counts.feature_bytes + checkpoints,
        basis=(
            f"{counts.samples:,} features, uncompressed for the trainer, of at most {counts.tokens_per_sample:g} "
            f"tokens; {checkpoints / 1e6:.0f} MB of checkpoints",
        ),
        smaller=(FEWER_SAMPLES,),
    )


def _baseline(profile: Profile, measured: Measured | None) -> Budget | None:
    """As the fine-tuning, on rows of the manual that are cut at a sequence."""
    values, counts = profile.baseline, captured(profile)
    if values.samples is None:  # a drafter is staged instead
        return None
    rows = replace(counts, samples=values.samples, tokens_per_sample=profile.target.sequence)
    checkpoints = _checkpoints(profile)
    return Budget(
        disk_bytes=rows.feature_bytes + checkpoints,
        basis=(
            f"{rows.samples:,} features of at most {rows.tokens_per_sample:g} tokens; {checkpoints / 1e6:.0f} MB of "
            "checkpoints",
        ),
        smaller=("fewer baseline.samples",),
    )


def _checkpoints(profile: Profile) -> int:
    """Bytes of a drafter's checkpoints."""
    hidden = captured(profile).hidden
    # fc, query, key, value and output, three matrices of twice the width, and lm_head (draft_config in specforge.py).
    drafter = hidden * (16 * hidden + profile.drafter.draft_vocab_size)
    return _CHECKPOINTS * _BYTES_PER_PARAMETER * drafter


def _target(profile: Profile, measured: Measured | None) -> Budget:
    count, target = _parameters(profile), profile.target
    logits = 3 * 4 * target.batch * target.sequence * target.vocab_size
    return Budget(
        disk_bytes=2 * count,
        gpus=1,
        gpu_bytes=_TRAINING_BYTES * count + logits,
        basis=(
            f"{count:,} parameters in bf16; in training {_TRAINING_BYTES} bytes of each, and {logits / 1e9:.1f} GB for "
            f"the logits of a batch, their softmax and their gradient in fp32",
        ),
        gpu_smaller=("a smaller target.batch",),
    )


def _serving(profile: Profile, measured: Measured | None) -> Budget:
    """Its weights and a KV cache for every request at full length, on each GPU."""
    engine, gpus = profile.engine, profile.engine.gpus
    assert gpus is not None, "asked where GPUs serve"
    weights = 2 * _parameters(profile) // gpus.tensor_parallel
    layers = max(shape.layers for shape in (profile.target.mla, profile.target.llama) if shape)
    cache = engine.max_num_seqs * engine.max_model_len * layers * _CACHE_BYTES
    return Budget(
        gpus=gpus.tensor_parallel,
        gpu_bytes=math.ceil((weights + cache) / gpus.memory_fraction),
        basis=(
            f"each GPU: {weights:,} bytes of weights and {cache:,} of KV cache ({engine.max_num_seqs} requests of "
            f"{engine.max_model_len} tokens), at most {gpus.memory_fraction:g} of it",
        ),
        gpu_smaller=(LESS_CACHE,),
    )


def _parameters(profile: Profile) -> int:
    return max(parameters(name, profile.target) for name in ("mla", "llama"))


_COUNTED: Mapping[str, Callable[[Profile, Measured | None], Budget | None]] = {
    "environments": _environments,
    "synthesize": _synthesize,
    "finetune": _finetune,
    "control-second": _second,
}
_ON_GPUS: Mapping[str, Callable[[Profile, Measured | None], Budget | None]] = {
    "target": _target,
    "baseline-drafter": _baseline,
    "serve-base": _serving,
    "control": _serving,
}
