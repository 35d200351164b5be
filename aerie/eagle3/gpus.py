"""Step: proof that every GPU of the run computes and reaches the others, before anything long begins."""

from collections.abc import Iterator, Mapping

from aerie.eagle3 import serving_along, together
from aerie.gpus import here
from aerie.gpus.proof import Proof, parse
from aerie.runbook.step import Context, Json, Verdict, go, stop

__all__ = ["doc", "gate", "run"]

doc = """\
Try the GPUs that `engine.gpus` takes. Cards that NVML calls healthy can write wrong data, and a transfer between two of
them can hang for ever, so every part runs in processes of its own that are ended after two minutes, their whole group.

    ./invoke verify --host HOST --deep --layer driver,interconnect       # the same parts, on a host of the inventory

1. Compile a kernel in the driver for each GPU, run it, compare every word that it wrote.
2. For every ordered pair copy by the copy engine and by a kernel that reads, and compare every word.
3. With more than one GPU: an all-reduce over all of them by the training environment's torch, the sum compared on every
   rank, with its latency at 16 and 64 KiB (a decode and a verify step of Kimi-K2.5) and its bandwidth.

4. Where `synthesis.hosts` serve along or `finetune.hosts` train along, ask each of them: does it see the runs' state at
   the same path, has it this host's code, torch and engine or SpecForge, as many GPUs, and a way to `hosts.address`?
   Its GPUs are not tried.

Stop if anything fails, is late or wrong; the reason names its finding in docs/findings.md, and what mends it: ACS, the
IOMMU's translation and the topology where GPUs do not reach each other. A profile without GPUs proves nothing here.
"""


def run(context: Context) -> Mapping[str, Json]:
    """The proof, or null where the CPU serves. Takes some 300 MB of each GPU for seconds."""
    gpus = context.values["engine"]["gpus"]
    if gpus is None:
        return {"expected": 0, "proof": None, "hosts": {}, "serving": _serving(context, 0)}
    expected = gpus["tensor_parallel"]
    cards = context.inputs["preflight"].evidence["gpus"]["cards"][:expected]
    context.progress(0, unit="parts", note=f"{expected} GPUs")
    proof = here.prove(
        context.scratch,
        uuids=[card["uuid"] for card in cards],
        python=str(context.interpreters["train"]) if expected > 1 else "",
    )
    others = together.of(context, "finetune")
    hosts = together.check(others, context.kept, expected) if others else {}
    return {"expected": expected, "proof": proof, "hosts": hosts, "serving": _serving(context, expected)}


def _serving(context: Context, gpus: int) -> dict[str, Json]:
    """What the hosts have that are to serve along."""
    others = together.of(context, "synthesis")
    if others is None:
        return {}
    packages = context.inputs["environments"].evidence["engine"]["packages"]
    serving_along.check_router(context.values["engine"]["name"], others.python, packages)
    return together.check(others, context.kept, gpus)


def gate(evidence: Mapping[str, Json], values: Mapping[str, Json]) -> Verdict:
    """Stops for GPUs that fail, hang, or give wrong data, alone or together; every reason at once."""
    if evidence["proof"] is None:
        return go(*_along(evidence))
    proof = parse(evidence["proof"])
    found = list(_faults(proof, evidence["expected"]))
    if found:
        return stop(*found)
    rates = [pair.copy_gb_s for pair in proof.pairs]
    said = [f"{len(proof.gpus)} GPUs compute right"]
    if rates:
        said.append(f"data between them arrives right, at {min(rates):g} GB/s or more")
    if proof.collective:
        slowest = min(rank.bus_gb_s for rank in proof.collective.ranks)
        said.append(
            f"an all-reduce over {proof.collective.world} ends with the sum, at {slowest:g} GB/s of bus bandwidth"
        )
    return go("; ".join([*said, *_along(evidence)]))


def _along(evidence: Mapping[str, Json]) -> Iterator[str]:
    for key, what in (("hosts", "train"), ("serving", "serve")):
        if hosts := evidence.get(key):
            yield f"{', '.join(hosts)} can {what} along"


def _faults(proof: Proof, expected: int) -> Iterator[str]:
    failed = {proof.name(gpu.index): gpu.fault for gpu in proof.gpus if gpu.error}
    if proof.start_error or failed or len(proof.gpus) < expected:
        seen = proof.start_error or _listed(failed) or f"CUDA sees {len(proof.gpus)} GPUs"
        yield _reason("driver.kernel-failed", seen, f"{expected} GPUs that run a kernel")
    if wrong := {proof.name(gpu.index): gpu.fault for gpu in proof.gpus if gpu.wrong_words}:
        yield _reason("driver.wrong-data", _listed(wrong), "every word as it was to be")
    if failed := {pair.name: pair.error for pair in proof.pairs if pair.error}:
        yield _reason("interconnect.peer-failed", _listed(failed), "a copy between every two GPUs")
    if wrong := {pair.name: f"{pair.wrong_words} of {pair.words} words" for pair in proof.pairs if pair.wrong_words}:
        yield _reason("interconnect.peer-wrong-data", _listed(wrong), "data as it was")
    if (collective := proof.collective) is None:
        return
    if collective.error:
        yield _reason("interconnect.collective-failed", collective.error, f"an all-reduce over {collective.world} GPUs")
    if wrong := {f"rank {rank.rank}": f"{rank.wrong} elements" for rank in collective.ranks if rank.wrong}:
        yield _reason("interconnect.collective-wrong-data", _listed(wrong), "the sum on every rank")


def _reason(finding: str, seen: str, expected: str) -> str:
    from aerie.findings import catalogue  # half a second, for a run that stops here

    made = catalogue.make(finding, seen=seen, expected=expected, host="this host")
    return f"{seen}; expected {expected} ({finding}). {made.remedy}"


def _listed(faults: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {fault}" for name, fault in faults.items())
