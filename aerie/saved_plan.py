"""A plan that somebody looked at and kept: `plan --json` in a file; what is applied later must still be that plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import AerieError, UsageError
from .plan import Plan

if TYPE_CHECKING:
    from .schemas import PlanDocument

__all__ = ["require_same"]

# What a plan says of a host, without what changes by itself: since when a service runs.
KEPT = ("lock", "lock_sha256", "findings", "waived", "apply", "reboot", "blocked", "state")


def require_same(plan: Plan, file: Path) -> None:
    """Raises AerieError, naming the host and what is new, when `plan` is not the one in the file.

    UsageError where the file is no plan, or one of other hosts.
    """
    kept = {host["host"]: host for host in _read(file).model_dump(mode="json")["hosts"]}
    now = {host["host"]: host for host in plan.to_dict()["hosts"]}
    if set(kept) != set(now):
        raise UsageError(
            str(file),
            seen=f"a plan of {', '.join(kept)}",
            expected=f"one of {', '.join(now)}",
            remedy=f"./invoke plan --host {','.join(now)} --json > {file}",
        )
    changes = [f"{name}: {_change(kept[name], host)}" for name, host in now.items() if _change(kept[name], host)]
    if changes:
        raise AerieError(
            f"{file} is stale",
            seen="\n".join(changes),
            expected="hosts and locks as they were when the plan was made",
            remedy="Nothing was changed. Look at the new plan, then save it anew.",
        )


def _read(file: Path) -> "PlanDocument":
    from pydantic import ValidationError

    from .schemas import PlanDocument

    try:
        return PlanDocument.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        seen = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
        raise UsageError(
            str(file),
            seen=seen or str(error),
            expected="a plan of this version of aerie",
            remedy="./invoke plan --host … --json prints one.",
        ) from error


def _change(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first thing that differs, in words; "" where nothing does."""
    if after["error"]:
        return f"{after['state']} now: {after['error']}"
    for field in KEPT:
        if before[field] == after[field]:
            continue
        if field == "lock_sha256":
            return f"the lock {after['lock']} has another content"
        if field not in ("findings", "waived"):
            return f"{field} {_words(before[field])}, now {_words(after[field])}"
        old, new = ({one["id"]: one["seen"] for one in side[field]} for side in (before, after))
        parts = [f"{finding} is gone" for finding in old if finding not in new]
        parts += [f"{finding} is new: {seen}" for finding, seen in new.items() if finding not in old]
        both = [finding for finding in new if finding in old and new[finding] != old[finding]]
        parts += [f"{finding}: {new[finding]}, was {old[finding]}" for finding in both]
        return "; ".join(parts) or f"{field} in another order or with other remedies"
    return ""


def _words(value: Any) -> str:
    return " ".join(map(str, value)) or "nothing" if isinstance(value, list) else str(value)
