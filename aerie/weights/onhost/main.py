"""The verbs: plan, stage, check, residency, warm. Each prints one JSON document, but stage, which writes its folder.

Exit codes: 0 done and good, 1 failed or not good, 2 a wrong document or argument.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aerie.errors import AerieError
from aerie.weights.onhost import spec as specs
from aerie.weights.onhost.spec import Spec
from aerie.weights.onhost.target import Target, read_stamps

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run one verb; its exit code."""
    parser = argparse.ArgumentParser(prog="onhost", description="Stages one model on this host.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("plan", "stage", "check", "residency", "warm"):
        own = verbs.add_parser(verb)
        own.add_argument("spec", type=Path)
        if verb == "stage":
            own.add_argument("folder", type=Path)
        if verb == "check":
            own.add_argument("--deep", action="store_true")
    given = parser.parse_args(arguments)
    try:
        spec = specs.read(given.spec)
        if given.verb == "stage":
            from aerie.weights.onhost.stage import stage

            return 0 if stage(spec, given.folder) else 1
        document, is_good = _answer(given, spec)
    except AerieError as error:
        document = {"error": error.to_dict()}
        sys.stdout.write(json.dumps(document) + "\n")
        return error.exit_code
    sys.stdout.write(json.dumps(document) + "\n")
    return 0 if is_good else 1


def _answer(given: argparse.Namespace, spec: Spec) -> tuple[dict[str, Any], bool]:
    if given.verb == "plan":
        return _plan(spec), True
    if given.verb == "check":
        from aerie.weights.onhost.check import check

        document = check(spec, deep=given.deep)
        return document, document["ok"]
    sizes = {file.path: file.size for file in spec.manifest.files}
    if given.verb == "residency":
        from aerie.weights.onhost import residency

        found = residency.measure(spec.target, sizes)
        return {"schema": "aerie.residency/1", "bytes": sum(found.values()), "files": found}, True
    from aerie.weights.onhost import warm

    done = warm.warm(spec.target, sizes, mode=spec.warm)
    return {"schema": "aerie.warmed/1", **asdict(done)}, done.state == "warm"


def _plan(spec: Spec) -> dict[str, Any]:
    """The document aerie.staging-plan/1: what a staging would do, and what forbids it. Changes nothing."""
    from aerie.weights.onhost import preflight
    from aerie.weights.onhost.survey import State, survey

    seen = survey(Target(spec.target), spec.manifest, read_stamps(Target(spec.target), spec.manifest_sha256))
    found = preflight.look(spec, seen)
    counts = {str(state): seen.of(state) for state in State}
    return {
        "schema": "aerie.staging-plan/1",
        "model": spec.model,
        "target": str(spec.target),
        "manifest_sha256": spec.manifest_sha256,
        "files": {"total": len(seen.files), **{name: len(files) for name, files in counts.items()}},
        "bytes": {
            "total": spec.manifest.size_bytes,
            "present": sum(one.bytes for one in seen.files if one.is_present),
            "verified": sum(one.bytes for one in seen.of(State.VERIFIED)),
            "partial": sum(one.bytes for one in seen.of(State.PARTIAL)),
            "to_fetch": sum(one.file.size - one.bytes for one in seen.to_fetch),
        },
        **preflight.to_dict(found),
        "problems": [one.to_dict() for one in preflight.problems(spec, seen, found)],
    }
