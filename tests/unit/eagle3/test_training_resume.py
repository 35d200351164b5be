"""A training that was cut short goes on from its last checkpoint, and none that is another one's is taken."""

from pathlib import Path

import pytest

from aerie.eagle3 import specforge
from aerie.eagle3.compute import Launcher
from aerie.eagle3.head import Head
from aerie.eagle3.specforge import Curve, Plan
from aerie.errors import AerieError


def launcher(processes: int = 1, dies_after: int = 0) -> Launcher:
    """processes: as the configuration says; one of them runs, which shows what several would."""
    here = {"PYTHONPATH": str(Path(__file__).parent), "DIES_AFTER": str(dies_after)}
    return Launcher(module="trainer_stand_in", environment=here, options={"accumulation_steps": processes})


def train(folder: Path, how: Launcher) -> tuple[Curve, Path, list[int]]:
    """(curve, checkpoint, steps that were reported) of 40 steps with a checkpoint every 2."""
    target = Head(
        lm_head="lm_head.weight",
        embedding="model.embed_tokens.weight",
        norm="model.norm.weight",
        files=dict.fromkeys(("lm_head.weight", "model.embed_tokens.weight"), folder / "model.safetensors"),
        config={"hidden_size": 8, "vocab_size": 16},
    )
    plan = Plan(
        target=target,
        drafter_config=folder / "drafter.json",
        vocab_map=folder / "vocab_map.pt",
        features=folder / "features",
        held_out=folder / "held-out",
        start=folder / "drafter",
        samples=80,
        epochs=1,
        max_steps=None,
        batch=2,
        learning_rate=1e-3,
        ttt_length=3,
        max_length=128,
        dtype="bfloat16",
    )
    reported: list[int] = []
    curve, checkpoint = specforge.train(plan, folder, how, lambda done, steps, curve: reported.append(done))
    return curve, checkpoint, reported


def began_with(folder: Path) -> list[str]:
    """What each start of the trainer was given beside its configuration."""
    return [line.split()[-1] for line in (folder / "train.log").read_text().splitlines() if line.startswith("$ ")]


def test_it_goes_on_from_the_last_checkpoint_to_the_same_curve(tmp_path: Path) -> None:
    (whole := tmp_path / "whole").mkdir()
    (cut := tmp_path / "cut").mkdir()
    uncut, checkpoint, _ = train(whole, launcher())
    assert (len(uncut.loss), checkpoint.name) == (40, "drafter-step40")
    with pytest.raises(AerieError, match="specforge train: 'exit status -9'"):
        train(cut, launcher(dies_after=11))
    curve, checkpoint, reported = train(cut, launcher())
    assert (curve.loss, checkpoint.name) == (uncut.loss, "drafter-step40")
    assert reported == list(range(11, 41)), "step 10 had a checkpoint, step 11 none"
    assert began_with(cut) == [
        f"model.draft_checkpoint_path={cut}/drafter",
        f"training.resume_from={cut}/output/drafter-step10",
    ]
    assert curve.evaluated(40) == uncut.evaluated(40) == {"eval_accuracy": [0.5], "eval_tau": [(40, 1.5)]}
    assert train(cut, launcher())[2] == [], "it is finished"


def test_a_training_of_another_kind_begins_anew(tmp_path: Path) -> None:
    with pytest.raises(AerieError):
        train(tmp_path, launcher(dies_after=11))
    _, _, reported = train(tmp_path, launcher(processes=2))
    assert reported == list(range(1, 41))
    assert began_with(tmp_path) == [f"model.draft_checkpoint_path={tmp_path}/drafter"]


def test_the_trainer_sees_the_targets_head_alone(tmp_path: Path) -> None:
    train(tmp_path, launcher())
    seen = tmp_path / "target"
    assert sorted(path.name for path in seen.iterdir()) == [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
    ]
    assert (seen / "model.safetensors").readlink() == tmp_path / "model.safetensors"
