"""What an engine must find before it starts: its weights verified, its GPUs there, healthy and idle. Pure."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .definition import Service, Weights

__all__ = ["Stop", "judge", "of_gpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why it may not start. finding: its id in docs/findings.md."""

    finding: str
    seen: str
    expected: str
    remedy: str


def judge(service: Service, snapshot: Mapping[str, Any], own: Collection[str] = ()) -> tuple[Stop, ...]:
    """Every reason against a start, from the host's snapshot as JSON.

    own: units that will have been stopped by then; that they use the GPUs is no reason.
    """
    stops = [stop for weights in service.weights for stop in _of_weights(weights, snapshot["weights"]["staged"])]
    return (*stops, *of_gpus(service.gpus, snapshot, own)) if service.gpus else tuple(stops)


def _of_weights(weights: Weights, staged: Mapping[str, Any]) -> Iterator[Stop]:
    again = f"./invoke stage --host HOST --model {weights.model}"
    there = staged.get(weights.folder)
    if there is None or "unknown" in there or not there["verified_at"]:
        seen = "nothing" if there is None else there.get("unknown", "never verified")
        yield Stop(
            finding="weights.not-staged",
            seen=f"{weights.folder}: {seen}",
            expected=f"{weights.model}, verified",
            remedy=f"Run {again}.",
        )
        return
    if there["manifest_sha256"] != weights.manifest_sha256:
        yield Stop(
            finding="weights.manifest-mismatch",
            seen=f"{weights.folder}: manifest {str(there['manifest_sha256'])[:12]}",
            expected=weights.manifest_sha256[:12],
            remedy=f"Run {again}, then ./invoke serve.",
        )
    for finding, what, paths in (
        ("weights.incomplete", "not there or never verified", [*there["missing"], *there["unverified"]]),
        ("weights.changed", "changed since it was verified", list(there["changed"])),
    ):
        if paths:
            yield Stop(
                finding=finding,
                seen=f"{weights.model}: {', '.join(paths[:3])} {what}",
                expected="every file as it was verified",
                remedy=f"Run {again} --deep.",
            )


def of_gpus(count: int, snapshot: Mapping[str, Any], own: Collection[str] = ()) -> Iterator[Stop]:
    """Every reason why `count` of the snapshot's GPUs cannot be used: missing, lost, unwell, busy. own: as in judge."""
    driver, gpus = snapshot["driver"], snapshot["gpus"]
    if driver["loaded_version"] is None or not isinstance(gpus, list):
        seen = driver["nvml_error"] or "the driver is not loaded"
        id_ = "driver.not-loaded" if driver["loaded_version"] is None else "driver.nvml-failed"
        yield Stop(finding=id_, seen=seen, expected=f"{count} GPUs", remedy="Run ./invoke plan --host HOST.")
        return
    alive = [gpu for gpu in gpus if gpu["error"] is None]
    if len(alive) < count:
        lost = "; ".join(f"GPU {gpu['index']}: {gpu['error']}" for gpu in gpus if gpu["error"])
        id_ = "driver.gpu-lost" if lost else "driver.gpu-missing"
        seen = lost or f"{len(gpus)} GPUs"
        yield Stop(finding=id_, seen=seen, expected=f"{count} GPUs", remedy="Run ./invoke plan --host HOST.")
    for finding, words in (
        ("driver.ecc-errors", _bad(alive, "ecc_uncorrected", "uncorrected errors")),
        ("driver.remap-failed", _bad(alive, "remap_failed", "a bad row that it cannot replace")),
        ("driver.recovery-needed", _bad(alive, "recovery_action", "to be reset")),
    ):
        if words:
            seen, remedy = "; ".join(words), "Run ./invoke plan --host HOST."
            yield Stop(finding=finding, seen=seen, expected="healthy GPUs", remedy=remedy)
    yield from _busy(alive, own)


def _busy(alive: "list[dict[str, Any]]", own: Collection[str]) -> Iterator[Stop]:
    users = {
        f"GPU {gpu['index']}: {process['unit'] or process['name']} (pid {process['pid']})"
        for gpu in alive
        if isinstance(gpu["processes"], list)
        for process in gpu["processes"]
        if process["unit"] not in own
    }
    if users:
        yield Stop(
            finding="engine.gpus-busy",
            seen="; ".join(sorted(users)),
            expected="idle GPUs",
            remedy="Stop what uses them, then start the unit again.",
        )


def _bad(alive: "list[dict[str, Any]]", key: str, what: str) -> list[str]:
    """The GPUs where the value is true or above 0. What could not be read, or the card does not have, is neither."""
    return [f"GPU {gpu['index']} has {what}" for gpu in alive if isinstance(gpu[key], int) and gpu[key] > 0]
