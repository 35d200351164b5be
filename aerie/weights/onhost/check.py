"""The verdict on every file of a staged model: by its stamp in no time, or deep, by its content."""

import asyncio
import os
from typing import Any

from aerie.weights.onhost.spec import Spec
from aerie.weights.onhost.survey import State, survey
from aerie.weights.onhost.target import Stamp, Target, hold, read_stamps, write_stamps
from aerie.weights.onhost.verify import Verifier

__all__ = ["check"]


def check(spec: Spec, *, deep: bool) -> dict[str, Any]:
    """The document aerie.staging-check/1. deep: every file is hashed, and a wrong one loses its stamp.

    A file whose stamp does not hold is "changed", one that never had one "unverified"; deep makes them "verified" or
    "corrupt" by what they hold now, and stamps the good ones. Raises AerieError while a staging holds the target.
    """
    target = Target(spec.target)
    stamps = read_stamps(target, spec.manifest_sha256)
    seen = survey(target, spec.manifest, stamps)
    verdicts = {}
    for one in seen.files:
        is_changed = one.state is State.UNVERIFIED and one.file.path in stamps
        verdicts[one.file.path] = "changed" if is_changed else str(one.state)
    if deep and any(one.is_present for one in seen.files):
        verdicts |= asyncio.run(_hash(spec, target, stamps))
    return {
        "schema": "aerie.staging-check/1",
        "model": spec.model,
        "target": str(spec.target),
        "manifest_sha256": spec.manifest_sha256,
        "deep": deep,
        "ok": all(verdict == State.VERIFIED for verdict in verdicts.values()),
        "files": verdicts,
    }


async def _hash(spec: Spec, target: Target, stamps: dict[str, Stamp]) -> dict[str, str]:
    is_writable = os.access(target.own, os.W_OK)
    lock = hold(target) if is_writable else os.open(target.path, os.O_RDONLY)
    try:
        verifier = Verifier(lock)
        files = [one.file for one in survey(target, spec.manifest, stamps).files if one.is_present]
        hashed = await asyncio.gather(*(verifier.hash(file, target.file(file.path)) for file in files))
        good = {file.path: one.stamp for file, one in zip(files, hashed, strict=True) if one.stamp is not None}
        if is_writable:  # no stage may take a file for good that was just seen to be wrong
            write_stamps(target, spec.manifest_sha256, good)
        return {file.path: "verified" if file.path in good else "corrupt" for file in files}
    finally:
        os.close(lock)
