"""The recorded evidence of one run (tests/unit/report/evidence), with the steps that judge it run over it."""

import copy
import json
from pathlib import Path
from typing import Any

import yaml

from aerie.eagle3 import between, cost, decide, diagnose, lossless
from aerie.eagle3.summary import Evidence, Span, summarize
from aerie.runbook.step import Context, Input

RUNBOOK = Path(__file__).parents[2] / "runbooks" / "eagle3"
RECORDED = Path(__file__).parent / "report" / "evidence"
# Wall times by step of the facts (8.2), seconds.
TOOK = {
    "preflight": 0.3, "target": 217, "baseline-drafter": 14.1, "serve-base": 38, "synthesize": 66, "parity": 6,
    "finetune": 28, "export": 5, "control": 172, "cost": 0.2, "lossless": 0.2, "diagnose": 0.2, "decide": 0.2,
}  # fmt: skip


def values() -> dict[str, Any]:
    return yaml.safe_load((RUNBOOK / "profiles" / "tiny.yml").read_text())


def evidence(**changed: Any) -> dict[str, Any]:
    """By step id: recorded where a step measures, computed where a step judges. changed: measured steps' evidence."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(RECORDED.glob("*.json"))}
    found |= changed
    judging = (
        ("cost", cost), ("lossless", lossless), ("diagnose", diagnose), ("engines", between), ("decide", decide),
    )  # fmt: skip
    for step, module in judging:
        found[step] = module.run(context(step, found))
    return found


def second(**changes: float) -> dict[str, Any]:
    """Evidence of a second engine, vllm 0.33.0, that is as the recorded one but for the rates of arms, times a number.

    The first engine's plain server ran beside it as fast as in its own experiment.
    """
    told = json.loads((RECORDED / "control.json").read_text())
    told["arms"]["reference"] = copy.deepcopy(told["arms"]["base"])
    told["engine"]["version"] = "0.33.0"
    for arm, times in changes.items():
        for run in told["arms"][arm]["runs"]:
            for rate in ("tok_s_user", "tok_s"):
                run[rate] = run[rate] and run[rate] * times
    return {"asked": True, "ran": True, "environment": {}, **told}


def context(step: str, given: dict[str, Any], out: Path = Path("/nowhere")) -> Context:
    return Context(
        run="r1", step=step, attempt=1, values=values(), out=out, scratch=out, kept=out, interpreters={},
        progress_file=out / "p",
        inputs={name: Input(path=out.parent / name / "out", evidence=one) for name, one in given.items()},
    )  # fmt: skip


def summary(given: dict[str, Any]) -> dict[str, Any]:
    """Of a run that left this evidence: step after step, from 02:00 on."""
    timeline, second = [], 0.0
    for step in yaml.safe_load((RUNBOOK / "runbook.yml").read_text())["steps"]:
        name, took = step["id"], TOOK.get(step["id"]) if step["id"] in given else None
        timeline.append(
            Span(
                step=name,
                title=step["title"],
                state="done" if took else "reused" if name in given else "pending",
                started_at=f"2026-11-30T02:{int(second) // 60:02}:{int(second) % 60:02}Z" if took else None,
                wall_s=took,
            )
        )
        second += took or 0
    return summarize(
        run="20261130-020000-ab12",
        runbook="eagle3",
        profile="tiny",
        values=values(),
        evidence=given,
        timeline=timeline,
        hashes={
            name: Evidence(path=f"../{name}/1/evidence.json", sha256=f"{number:02x}" * 32)
            for number, name in enumerate(given, 17)
        },
        started_at="2026-11-30T02:00:00Z",
        wall_s=second + 4,
        state="done" if "decide" in given else "stopped",
    )
