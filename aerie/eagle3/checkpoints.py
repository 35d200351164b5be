"""SpecForge's checkpoints on disk: which are whole, which one a training goes on from, which one it holds for the best.

SpecForge 0.2.0 writes a checkpoint's files under other names first. It deletes all but the last ones and the best one.
"""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.eagle3.stopping import Evaluation, best

__all__ = ["RUN_ID", "Checkpoints"]

RUN_ID = "drafter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """folder: the trainer's output; processes: that each leave a file in every checkpoint."""

    folder: Path
    processes: int

    def whole(self) -> dict[int, Path]:
        """Folders by step, rising; none with a file missing."""
        return {step: path for step, path in sorted(self._all().items()) if self._is_whole(path)}

    def best(self) -> int | None:
        """The step that the trainer holds for the best one; None while it has evaluated none."""
        try:
            step: int = json.loads((self.folder / f"{RUN_ID}.best_meta.json").read_bytes())["step"]
        except FileNotFoundError:
            return None
        return step

    def to_go_on_from(self, evaluations: Sequence[Evaluation], interval: int | None) -> int:
        """The step of the newest one by which the log has all evaluations, one each `interval` steps, and the trainer
        has noted which was the best; 0 for none.

        A kill may come between an evaluation, its checkpoint and that note: going on from there, the trainer would
        delete the best one in time.
        """
        there, noted = self.whole(), self.best()
        if noted is not None and noted not in there:
            return 0
        for step in reversed(there):
            known = [one for one in evaluations if one[0] <= step]
            if len(known) == (step // interval if interval else 0) and noted == best(known):
                return step
        return 0

    def forget_after(self, step: int) -> None:
        """Delete later ones: their steps are trained again, and may come out otherwise."""
        for later, path in self._all().items():
            if later > step:
                shutil.rmtree(path)

    def _all(self) -> dict[int, Path]:
        named = (
            (re.fullmatch(rf"{RUN_ID}-step(\d+)", path.name), path) for path in self.folder.glob(f"{RUN_ID}-step*")
        )
        return {int(name[1]): path for name, path in named if name}

    def _is_whole(self, path: Path) -> bool:
        parts = [f"training_state_rank{rank}.pt" for rank in range(self.processes)]
        return all((path / name).is_file() for name in ("training_state.pt", *parts))
