"""Whether a plan can be run on its host: disks, memory, GPUs, and steps that cannot run with these values. Pure."""

from collections.abc import Iterator, Sequence

from aerie.errors import AerieError
from aerie.runbook.plan import Plan, PlannedStep

__all__ = ["refuse_what_cannot_run"]

_NOTHING = "Nothing was started."


def refuse_what_cannot_run(plan: Plan) -> None:
    """Raise AerieError for a plan that does not fit its host, naming the steps and what would make them fit.

    Also for one with steps that cannot run with the profile's values: every one is named.
    """
    for disk, free in plan.disk_free_bytes.items():
        _refuse_small_disk(plan, disk, free)
    for step in plan.to_run:
        if step.budget.ram_bytes > plan.ram_bytes:
            raise AerieError(
                f"memory of {plan.host}, step {step.id}", seen=f"{_gb(plan.ram_bytes)} in all",
                expected=f"{_gb(step.budget.ram_bytes)}",
                remedy=_ways([(step.id, step.budget.smaller)], "Use a host with more memory."),
            )  # fmt: skip
        _refuse_small_gpus(plan, step)
    if stuck := [step for step in plan.to_run if step.obstacle]:
        raise AerieError(
            f"profile {plan.profile}", seen="; ".join(f"{step.id}: {step.obstacle}" for step in stuck),
            expected="steps that can run with its values",
            remedy=f"Change these values, or run other steps by --until and --only. {_NOTHING}",
        )  # fmt: skip


def _refuse_small_disk(plan: Plan, disk: str, free: int) -> None:
    writing = sorted(plan.writing_to(disk), key=lambda step: -step.budget.disk_bytes)
    needed = sum(step.budget.disk_bytes for step in writing)
    if free >= needed:
        return
    parts = [f"{step.id} {_gb(step.budget.disk_bytes)}" for step in writing]
    otherwise = (
        "Free some space, or set XDG_STATE_HOME and XDG_CACHE_HOME to a larger disk."
        if any(not step.budget.folder for step in writing)
        else "Free some space there."
    )
    raise AerieError(
        "disk", seen=f"{_gb(free)} free in {disk}", expected=f"{_gb(needed)} ({' + '.join(parts)})",
        remedy=_ways(
            [(step.id, step.budget.smaller) for step in writing],
            " ".join([*_fewer(writing, needed - free), otherwise]),
        ),
    )  # fmt: skip


def _fewer(writing: Sequence[PlannedStep], missing: int) -> Iterator[str]:
    """How far each value would have to go down for what is written to fit, if nothing else changes."""
    each: dict[str, float] = {}
    counts: dict[str, int] = {}
    for step in writing:
        if (share := step.budget.share) is not None:
            each[share.value] = each.get(share.value, 0) + share.bytes_each
            counts[share.value] = share.count
    for value, bytes_each in each.items():
        fitting = counts[value] - -int(-missing // bytes_each)  # rounded up
        if fitting >= 1:
            yield f"{value} of {fitting:,} instead of {counts[value]:,} would fit (--set {value}={fitting})."


def _refuse_small_gpus(plan: Plan, step: PlannedStep) -> None:
    wanted = step.budget
    if plan.gpu_bytes is None or not wanted.gpus:
        return
    fit = sum(size >= wanted.gpu_bytes for size in plan.gpu_bytes)
    if fit < wanted.gpus:
        sizes = sorted({_gb(size) for size in plan.gpu_bytes})
        raise AerieError(
            f"GPUs of {plan.host}, step {step.id}",
            seen=f"{len(plan.gpu_bytes)} of {' and '.join(sizes)}" if sizes else "no driver of GPUs",
            expected=f"{wanted.gpus} of at least {_gb(wanted.gpu_bytes)} each",
            remedy=_ways([(step.id, wanted.gpu_smaller)], "Use a host with more or larger GPUs."),
        )  # fmt: skip


def _ways(ways: Sequence[tuple[str, Sequence[str]]], otherwise: str) -> str:
    """What to do, the steps that take most first."""
    said = [f"{step}: {way}." for step, of_step in ways for way in of_step]
    return " ".join([*said, otherwise, _NOTHING])


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
