"""What the steps of the eagle3 runbook take whose target is staged: counted by `figures` of its profile.

Until a step has been measured on the host: then its own rate counts.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aerie.eagle3.arithmetic import KEPT, Captured, rate_of_one
from aerie.eagle3.made import FEWER_SAMPLES, LESS_CACHE, second_environment
from aerie.eagle3.pinned import bytes_in, files
from aerie.eagle3.profile import Figures, Profile
from aerie.runbook.budget import Budget, Measured, Share

__all__ = ["of_figures"]

# Of the reference: in fp32 the states before a layer of experts, what its experts are asked, and their answers, or the
# states after it; in bf16 the states, which wait.
_STATE_BYTES = 3 * 4 + 2


def of_figures(step: str, profile: Profile, measured: Measured | None) -> Budget | None:
    """What the step takes; None for a profile without figures, and for a step that they say nothing of."""
    counted = _COUNTED.get(step)
    return counted(profile, profile.figures, measured) if counted and profile.figures else None


def _target(profile: Profile, figures: Figures, measured: Measured | None) -> Budget:
    size, source, folder = files(profile.target.staged, figures.weight_bytes)
    missing = max(0, size - bytes_in(folder))
    seconds, rate = missing / figures.fetch_bytes_s, f"{figures.fetch_bytes_s / 1e9:.2g} GB/s assumed"
    if measured and measured.evidence["staged"]["fetched_bytes"]:
        staged = measured.evidence["staged"]
        seconds = missing * staged["seconds"] / staged["fetched_bytes"]
        rate = f"{staged['fetched_bytes'] / staged['seconds'] / 1e9:.2g} GB/s, as measured"
    return Budget(
        disk_bytes=missing,
        folder=folder,
        ram_bytes=size,
        seconds=seconds,
        basis=(
            f"weights of {size:,} bytes ({source}), {missing:,} of them missing in {folder}, fetched at {rate}",
            "memory that holds all of them in the page cache: every later start of an engine is then a warm one",
        ),
    )


def _drafter(profile: Profile, figures: Figures, measured: Measured | None) -> Budget:
    size, source, folder = files(profile.baseline.staged, figures.drafter_bytes)
    missing = max(0, size - bytes_in(folder))
    return Budget(
        disk_bytes=missing,
        folder=folder,
        seconds=missing / figures.fetch_bytes_s,
        basis=(f"a drafter of {size:,} bytes ({source}), {missing:,} of them missing in {folder}",),
    )


def _serve_base(profile: Profile, figures: Figures, measured: Measured | None) -> Budget:
    evidence = measured.evidence if measured else {}
    seconds, basis = _load(figures.load_s, evidence.get("start_s"))
    work_s, work = _bench_s(profile, figures, {"base": evidence["bench"]} if evidence else {}, arms=1, repetitions=1)
    return _on_gpus(
        profile, figures, seconds=seconds + work_s,
        basis=(f"{basis}; {figures.warm_load_s:g} s instead where memory holds the weights already", work),
    )  # fmt: skip


def _synthesize(profile: Profile, figures: Figures, measured: Measured | None) -> Budget:
    """States as they are kept, and time to generate and to extract; one measured rate stands for both."""
    evidence = measured.evidence if measured else {}
    tok_s, ratio = rate_of_one(evidence), evidence.get("bytes_per_byte")
    answers = evidence["new_tokens"] / evidence["prompts"] if tok_s else figures.answer_tokens
    prompts = evidence["prompt_tokens"] / evidence["prompts"] if tok_s else figures.prompt_tokens
    counts = _captured(profile, figures, prompts + answers)
    kept = counts.kept_bytes if ratio is None else math.ceil(counts.state_bytes * ratio)
    loading, basis = _load(figures.warm_load_s, evidence.get("start_s"))
    generated = counts.samples * answers
    hosts = 1 + len(profile.synthesis.hosts)
    if tok_s:
        working = generated / tok_s
        rates = f"{generated:,.0f} new tokens at {tok_s:,.0f}/s with their states, as measured"
    else:
        working = generated / figures.crowd_tok_s + counts.tokens / figures.extract_tok_s
        rates = (
            f"{generated:,.0f} new tokens at {figures.crowd_tok_s:,g}/s, and states of {counts.tokens:,.0f} tokens at "
            f"{figures.extract_tok_s:,g}/s: a step that has both in one pass takes less"
        )
    seconds = loading + working / hosts
    if hosts > 1:
        rate = counts.state_bytes * hosts / working
        rates += (
            f"; shared by {hosts} hosts, if the shared file system takes {rate / 1e6:,.0f} MB/s of states, and this "
            "host checks and packs as many"
        )
    size = (
        f"{counts.samples:,} samples of {counts.tokens_per_sample:,.0f} tokens, {counts.bytes_per_token:,} bytes each: "
        f"{counts.state_bytes:,} bytes of states, of which {ratio or KEPT:g} are kept"
        + (", as measured" if ratio else ", as was measured of a tiny target")
    )
    return _on_gpus(
        profile, figures, seconds=seconds, basis=(size, f"{basis}; {rates}"), disk_bytes=kept,
        share=Share(value="synthesis.prompts", count=counts.samples, bytes_each=kept / counts.samples),
        smaller=(
            f"{FEWER_SAMPLES}; the states are kept without loss already, at {kept / counts.state_bytes:.0%}",
            "no layer can be left out: the drafter reads three, and the trainer the last one",
        ),
    )  # fmt: skip


def _parity(profile: Profile, figures: Figures, measured: Measured | None) -> Budget:
    """Each layer read and computed with in both formats, on one GPU that no server shares by then."""
    size, source, _ = files(profile.target.staged, figures.weight_bytes)
    samples, longest = profile.parity.samples, profile.engine.max_model_len
    positions = samples * longest
    states = positions * figures.hidden_size * _STATE_BYTES
    kept = 2 * positions * figures.hidden_size * (4 + 2)  # both formats, the old file until the new one is whole
    captured = positions * _captured(profile, figures, longest).bytes_per_token
    rate, basis = figures.reference_bytes_s, f"{figures.reference_bytes_s / 1e9:.2g} GB/s, computing included"
    if measured:
        rate = 2 * size / measured.seconds
        basis = f"{rate / 1e9:.2g} GB/s, as measured"
    where = "GPU" if profile.engine.gpus else "host"
    needed = states + figures.layer_bytes
    return Budget(
        disk_bytes=kept,
        ram_bytes=captured + (0 if profile.engine.gpus else needed),
        gpus=1 if profile.engine.gpus else 0,
        gpu_bytes=needed if profile.engine.gpus else 0,
        seconds=2 * size / rate,
        basis=(
            f"weights of {size:,} bytes ({source}), read in fp32 and in bf16 out of the page cache at {basis}",
            f"the {where}: {states:,} bytes of states of {samples} samples of at most {longest:,} tokens, "
            f"{_STATE_BYTES} of each number, and {figures.layer_bytes:,} of one layer with one of its experts",
            f"{captured:,} bytes of the engine's own states in memory; {kept:,} on the disk, to go on from",
        ),
        gpu_smaller=("fewer parity.samples",),
    )


def _finetune(profile: Profile, figures: Figures, measured: Measured | None) -> Budget:
    counts = _captured(profile, figures, figures.prompt_tokens + figures.answer_tokens)
    epochs = profile.finetune.epochs
    tok_s, source = figures.train_tok_s, "assumed"
    if measured:
        evidence = measured.evidence
        done = evidence.get("epochs_done", evidence["epochs"])  # evidence of an older run has all of them done
        tok_s, source = evidence["tokens"] * done / measured.seconds, "as measured"
        counts = _captured(profile, figures, evidence["tokens"] / evidence["samples"])
    checkpoints = (figures.checkpoints + 1) * figures.checkpoint_bytes
    gpus = profile.engine.gpus
    return Budget(
        disk_bytes=counts.feature_bytes + checkpoints,
        share=Share(
            value="synthesis.prompts", count=counts.samples, bytes_each=counts.feature_bytes / counts.samples
        ),
        gpus=gpus.tensor_parallel if gpus else 0,
        gpu_bytes=figures.train_gpu_bytes if gpus else 0,
        seconds=epochs * counts.tokens / tok_s,
        basis=(
            f"{counts.feature_bytes:,} bytes of features, uncompressed for the trainer, and {figures.checkpoints} "
            f"checkpoints and the best one's copy of {figures.checkpoint_bytes:,} bytes each",
            f"{epochs} epochs over {counts.tokens:,.0f} tokens at {tok_s:,.0f}/s, {source}"
            + (f", which {', '.join(profile.finetune.hosts)} may raise" if profile.finetune.hosts else "")
            + ("; less where it ends early" if profile.finetune.patience else ""),
        ),
        smaller=(
            f"features that were compressed as the states are would take {counts.kept_bytes / 1e9:.0f} GB, and no "
            "trainer reads them yet",
            "online extraction keeps no features, and needs a second host: beside the target the trainer has no room",
        ),
    )  # fmt: skip


def _export(profile: Profile, figures: Figures, measured: Measured | None) -> Budget:
    size = figures.drafter_bytes
    return Budget(disk_bytes=size, basis=(f"a drafter of at most {size:,} bytes, as the published one",))


def _control(profile: Profile, figures: Figures, measured: Measured | None) -> Budget:
    return _experiment(profile, figures, measured.evidence["arms"] if measured else {}, plain=1)


def _control_second(profile: Profile, figures: Figures, measured: Measured | None) -> Budget:
    """The same experiment, with the first engine's plain server among them."""
    if profile.second is None:
        return Budget()
    served = profile.model_copy(update={"engine": profile.second.engine})
    # What cannot run, or was not asked for, has measured nothing.
    counted = _experiment(served, figures, measured.evidence.get("arms", {}) if measured else {}, plain=2)
    size, basis = second_environment(profile)
    return replace(counted, disk_bytes=size, basis=(*basis, *counted.basis))


def _experiment(profile: Profile, figures: Figures, arms: Mapping[str, Any], *, plain: int) -> Budget:
    """plain: servers without a drafter."""
    starts = 2 + plain + len(profile.cost.accept_lengths)
    start_s = sum(arm["start_s"] for arm in arms.values()) / len(arms) if arms else None
    loading, basis = _load(figures.warm_load_s, start_s)
    work_s, work = _bench_s(profile, figures, arms, arms=2 + plain, repetitions=profile.bench.repetitions)
    lengths = len(profile.cost.accept_lengths)
    forced = (lengths + 1 if lengths else 0) * profile.cost.prompts * profile.bench.max_tokens
    forced_s = forced * profile.bench.repetitions / figures.single_tok_s
    return _on_gpus(
        profile, figures, seconds=starts * loading + work_s + forced_s,
        basis=(f"{starts} servers, each: {basis}", work, f"{forced_s:,.0f} s for {lengths} forced accept lengths"),
    )  # fmt: skip


def _on_gpus(profile: Profile, figures: Figures, **more: Any) -> Budget:
    """The budget of a step that serves the target: its weights and a KV cache for every request at full length."""
    size, _, _ = files(profile.target.staged, figures.weight_bytes)
    gpus, engine = profile.engine.gpus, profile.engine
    if gpus is None:
        return Budget(ram_bytes=size, **more)
    cache_bytes = engine.max_num_seqs * engine.max_model_len * figures.kv_bytes_per_token
    wanted = math.ceil((figures.gpu_weight_bytes + cache_bytes) / gpus.memory_fraction)
    more["basis"] += (
        f"each GPU: {figures.gpu_weight_bytes:,} bytes of weights and {cache_bytes:,} of KV cache "
        f"({engine.max_num_seqs} requests of {engine.max_model_len} tokens), at most {gpus.memory_fraction:g} of it",
    )
    least = figures.gpu_weight_bytes / gpus.memory_fraction / 1e9
    return Budget(
        ram_bytes=size,
        gpus=gpus.tensor_parallel,
        gpu_bytes=wanted,
        gpu_smaller=(f"{LESS_CACHE}; the weights alone ask for {least:.1f} GB",),
        **more,
    )


def _load(assumed_s: float, measured_s: float | None) -> tuple[float, str]:
    if measured_s:
        return measured_s, f"{measured_s:,.0f} s to start, as measured"
    return assumed_s, f"{assumed_s:,g} s to load"


def _bench_s(
    profile: Profile, figures: Figures, measured: Mapping[str, Any], *, arms: int, repetitions: int
) -> tuple[float, str]:
    """(Seconds, basis) of all prompts once for each arm, repetition and concurrency, at the slowest measured rate."""
    tokens = profile.bench.prompts * profile.bench.max_tokens
    runs = [run for arm in measured.values() for run in arm["runs"] if run["tok_s"]]
    total, rates = 0.0, []
    for concurrency in profile.bench.concurrency:
        seen = [run["tok_s"] for run in runs if run["concurrency"] == concurrency]
        rate = min(seen) if seen else figures.single_tok_s if concurrency == 1 else figures.crowd_tok_s
        total += tokens / rate
        rates.append(f"{rate:,g}/s{' as measured' if seen else ''} for {concurrency}")
    return arms * repetitions * total, f"{arms * repetitions} x {tokens:,} tokens of answers at {', '.join(rates)}"


def _captured(profile: Profile, figures: Figures, tokens_per_sample: float) -> Captured:
    return Captured(
        samples=profile.synthesis.prompts,
        tokens_per_sample=tokens_per_sample,
        layers=len(profile.drafter.aux_layers) + 1,
        hidden=figures.hidden_size,
    )


_COUNTED: Mapping[str, Callable[[Profile, Figures, Measured | None], Budget]] = {
    "target": _target,
    "baseline-drafter": _drafter,
    "serve-base": _serve_base,
    "synthesize": _synthesize,
    "parity": _parity,
    "finetune": _finetune,
    "export": _export,
    "control": _control,
    "control-second": _control_second,
}
