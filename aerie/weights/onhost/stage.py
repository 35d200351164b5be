"""The job: preflight, fetch and verify, warm, receipt. Its folder gets progress.json, events.jsonl and outcome.json."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerie.errors import AerieError
from aerie.runbook.step import write_atomic
from aerie.weights import manifest as manifests
from aerie.weights.onhost import partials, preflight, receipt, warm
from aerie.weights.onhost.fetch import Fetch
from aerie.weights.onhost.ledger import Ledger
from aerie.weights.onhost.spec import Spec
from aerie.weights.onhost.survey import Survey, survey
from aerie.weights.onhost.target import Target, hold, read_stamps, write_stamps

__all__ = ["stage"]


def stage(spec: Spec, folder: Path) -> bool:
    """Make the target hold every file, verified and warm where memory suffices; whether it does.

    Always writes outcome.json; SIGTERM ends it in order: what has arrived is kept.
    """
    ledger = Ledger(folder, total_bytes=spec.manifest.size_bytes, total_files=len(spec.manifest.files))
    return asyncio.run(_job(spec, ledger, folder))


async def _job(spec: Spec, ledger: Ledger, folder: Path) -> bool:
    warmed: dict[str, Any] | None = None
    error: AerieError | None = None
    try:
        warmed = await _run(spec, ledger)
    except AerieError as failed:
        error = failed
    except OSError as failed:
        error = AerieError(
            failed.filename or str(spec.target), seen=failed.strerror or str(failed),
            expected="a file that can be read and written", remedy="Mend it on the host, then stage again.",
        )  # fmt: skip
    except asyncio.CancelledError:
        error = AerieError(
            str(spec.target), seen="asked to stop", expected="to be let finish",
            remedy="Stage again: what has arrived is kept.",
        )  # fmt: skip
    ledger.state = "failed" if error else "done"
    ledger.message = str(error) if error else ""
    ledger.write()
    ledger.event(ledger.state, error=ledger.message)
    outcome = {
        "state": ledger.state,
        "error": None if error is None else error.to_dict(),
        "errors": [] if error is None else [one.to_dict() for one in error.parts],
        "bytes": {"total": spec.manifest.size_bytes, "fetched": sum(ledger.fetched.values()),
                  "by_source": ledger.fetched},
        "files": {"total": len(spec.manifest.files), "verified": len(ledger.verified)},
        "warm": warmed,
        "seconds": round(ledger.seconds, 3),
        "retries": ledger.retries,
    }  # fmt: skip
    write_atomic(folder / "outcome.json", json.dumps(outcome).encode())
    return error is None


async def _run(spec: Spec, ledger: Ledger) -> dict[str, Any]:
    """The work itself; what warming did."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    writer = asyncio.create_task(ledger.write_regularly())
    try:
        seen = _survey(spec, ledger)
        if spec.deep or not (seen.is_verified and receipt.is_current(spec)):
            await _complete(spec, seen, ledger)
        receipt.record(spec)
        return await _warm(spec, ledger)
    finally:
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await writer


async def _complete(spec: Spec, seen: Survey, ledger: Ledger) -> None:
    """Fetch and verify what is not verified, and write the receipt."""
    target = Target(spec.target)
    # Nothing is made in a target that cannot be filled; in one that is there, the lock's holder is told first.
    is_new = not target.own.is_dir()
    tools = await _check(spec, seen, ledger) if is_new else {}
    target.parts.mkdir(parents=True, exist_ok=True)
    lock = hold(target)
    try:
        if spec.deep:  # every stamp is forgotten, so every file is hashed; one that is wrong is fetched again
            write_stamps(target, spec.manifest_sha256, {})
        seen = _survey(spec, ledger)
        tools = tools if is_new else await _check(spec, seen, ledger)
        write_atomic(target.own / "manifest.json", manifests.dump(spec.manifest))
        ledger.state = "fetching" if seen.to_fetch else "verifying"
        stamps = read_stamps(target, spec.manifest_sha256)
        await Fetch(spec, seen, stamps, lock, ledger).run()
        if not _survey(spec, ledger).is_verified:
            raise AerieError(
                str(target.path), seen="a file that changed while others were fetched", expected="files left alone",
                remedy="Find out who writes there, then stage again.",
            )  # fmt: skip
        receipt.write(spec, fetched=ledger.fetched, seconds=ledger.seconds, retries=ledger.retries, tools=tools)
    finally:
        os.close(lock)


async def _check(spec: Spec, seen: Survey, ledger: Ledger) -> dict[str, str]:
    """Raise the preflight's problems; the tools' versions."""
    found = await asyncio.to_thread(preflight.look, spec, seen)
    if spec.sweep_partials and found.partials:
        for one in partials.sweep(found.partials):
            ledger.event("swept", path=str(one.path), bytes=one.bytes, tool=one.tool)
        found = await asyncio.to_thread(preflight.look, spec, seen)
    if problems := preflight.problems(spec, seen, found):
        problems[0].parts = problems
        raise problems[0]
    return {"aria2": found.aria2} if found.aria2 else {}


def _survey(spec: Spec, ledger: Ledger) -> Survey:
    target = Target(spec.target)
    seen = survey(target, spec.manifest, read_stamps(target, spec.manifest_sha256))
    ledger.bytes = {one.file.path: one.bytes for one in seen.files}
    ledger.verified = {one.file.path: one.file.size for one in seen.files if one.state == "verified"}
    return seen


async def _warm(spec: Spec, ledger: Ledger) -> dict[str, Any]:
    ledger.state = "warming"
    sizes = {file.path: file.size for file in spec.manifest.files}

    is_stopped = False

    def progress(resident: int) -> None:
        ledger.resident_bytes = resident
        if is_stopped:
            raise InterruptedError("asked to stop")  # ends the readers, whom cancelling this task does not reach

    try:
        done = await asyncio.to_thread(warm.warm, spec.target, sizes, mode=spec.warm, progress=progress)
    except asyncio.CancelledError:
        is_stopped = True
        raise
    ledger.resident_bytes = done.resident_bytes
    ledger.event("warmed", state=done.state, reason=done.reason, resident=done.resident_bytes, seconds=done.seconds)
    return {
        "state": done.state, "reason": done.reason, "resident_bytes": done.resident_bytes,
        "read_bytes": done.read_bytes, "seconds": round(done.seconds, 3),
    }  # fmt: skip
