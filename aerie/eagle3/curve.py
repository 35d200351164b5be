"""What SpecForge says of a training while it trains: its losses and its evaluations, read from its log."""

import ast
import math
import re
from dataclasses import dataclass, field

from aerie.engines.acceptance import tau_of
from aerie.errors import AerieError
from aerie.runbook.step import Json

__all__ = ["Curve"]


@dataclass(slots=True)
class Curve:
    """What the trainer logged. loss: [step, loss] of every logged step; accuracy: per drafted position, of one training
    batch, the last; evaluations: [step, accuracy per position over all held-out samples].

    An accuracy is teacher-forced: a position's right drafts among all places of the answers, each drafted after the
    answer's own tokens and the drafter's own states (SpecForge 0.2.0, eagle3/model.py, read). Serving has the same
    inputs where the drafts before were accepted, so it compares with acceptance given that, not with by_position.
    """

    loss: list[tuple[int, float]] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, list[float]]] = field(default_factory=list)

    def read(self, line: str) -> int | None:
        """Take in one line of the log; the step that it reports, if it is a new one: every process reports it.

        Raises AerieError on a loss that is not finite.
        """
        if start := re.search(r"\btraining\.resume_from=.*-step(\d+)", line):  # the command of another attempt
            self.cut(int(start[1]))
            return None
        # Several processes write into one pipe, and the end of a line may come after another one's whole line.
        reports = re.finditer(r"step (\d+): (\{[^{}]*\})", line)
        new = [step for report in reports if (step := self._take(int(report[1]), report[2])) is not None]
        return new[-1] if new else None

    def _take(self, step: int, metrics_text: str) -> int | None:
        # The trainer prints a dict's repr, in which a broken loss is the bare name nan or inf.
        metrics = ast.literal_eval(re.sub(r"\b(nan|inf)\b", "'\\1'", metrics_text))
        if evaluated := metrics.get("eval/per_position_acc"):
            if not self.evaluations or step > self.evaluations[-1][0]:
                self.evaluations.append((step, evaluated))
            return None
        if self.loss and step <= self.loss[-1][0]:
            return None
        loss = float(metrics["loss"])
        if not math.isfinite(loss):
            raise AerieError(
                f"trainer, step {step}",
                seen=loss,
                expected="a finite loss",
                remedy="Lower the learning rate, and look for states that are not finite.",
            )
        self.loss.append((step, loss))
        positions = sorted(
            (int(key.removeprefix("acc_")), value) for key, value in metrics.items() if _is_accuracy(key)
        )
        self.accuracy = [float(value) for _, value in positions]
        return step

    def cut(self, step: int) -> None:
        """Forget what was logged after `step`: it is trained again."""
        self.loss = [logged for logged in self.loss if logged[0] <= step]
        self.evaluations = [logged for logged in self.evaluations if logged[0] <= step]

    def evaluated(self, step: int) -> dict[str, Json]:
        """{eval_accuracy: by position after step `step`, empty where that was not logged; eval_tau: [step, τ]}."""
        there = [accuracy for logged, accuracy in self.evaluations if logged == step]
        return {
            "eval_accuracy": there[0] if there else [],
            "eval_tau": [(logged, tau_of(accuracy)) for logged, accuracy in self.evaluations],
        }


def _is_accuracy(key: str) -> bool:
    return re.fullmatch(r"acc_\d+", key) is not None
