"""SpecForge learns a few samples by heart: the training is ended, and the drafter is that of its best epoch."""

from dataclasses import replace
from pathlib import Path

import pytest

from aerie.eagle3 import compute, specforge
from aerie.eagle3.specforge import Trained
from aerie.eagle3.stopping import Patience


def at_work(folder: Path) -> list[int]:
    """The processes whose command line names the folder."""
    import psutil

    found = psutil.process_iter(["cmdline"])
    return [one.pid for one in found if any(str(folder) in word for word in one.info["cmdline"] or ())]


def test_an_over_fitted_training_ends_and_its_best_epoch_is_kept(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("specforge")
    import small_training

    patience = Patience(evaluations=2)
    plan = small_training.plan(
        tmp_path, samples=24, held_out=32, epochs=16, learning_rate=5e-3, patience=patience
    )  # 12 steps an epoch
    launcher = replace(compute.CPU, processes=2, environment={**compute.CPU.environment, "OMP_NUM_THREADS": "1"})

    def train() -> tuple[Trained, list[int]]:
        steps: list[int] = []
        return specforge.train(plan, tmp_path, launcher, lambda step, of, curve: steps.append(step)), steps

    others = at_work(tmp_path)
    done, _ = train()
    taus = dict(done.curve.evaluated(done.kept)["eval_tau"])
    assert done.steps == done.kept + 2 * 12 < 16 * 12
    assert done.kept == max(taus, key=lambda step: taus[step])
    assert done.steps == max(taus)
    assert done.curve.accuracy[0] > done.curve.evaluated(done.kept)["eval_accuracy"][0] + 0.1, "it is over-fitted"
    assert at_work(tmp_path) == others
    for name in ("training_state.pt", "training_state_rank0.pt", "training_state_rank1.pt"):
        state = torch.load(done.checkpoint / name, weights_only=False)
        assert state.get("global_step", done.kept) == done.kept

    again, steps = train()  # killed before the checkpoint was copied, say
    assert (again.checkpoint, again.steps, again.curve, steps) == (done.checkpoint, done.steps, done.curve, [])
