"""A training that was cut short goes on from its last checkpoint, and none that is another one's is taken."""

import shutil
from pathlib import Path

import pytest

from aerie.eagle3 import specforge
from aerie.eagle3.compute import Launcher
from aerie.eagle3.head import Head
from aerie.eagle3.specforge import Plan, Trained
from aerie.eagle3.stopping import Patience
from aerie.errors import AerieError

OVER_FITTED = "0.4 0.6 0.5 0.55 0.2"  # at steps 8, 16, 24, 32 and 40


def launcher(processes: int = 1, dies_after: str = "", evaluated: str = "0.5") -> Launcher:
    """processes: as the configuration says; one of them runs, which shows what several would."""
    here = {"PYTHONPATH": str(Path(__file__).parent), "DIES_AFTER": dies_after, "EVALUATED": evaluated}
    return Launcher(module="trainer_stand_in", environment=here, options={"accumulation_steps": processes})


def train(
    folder: Path, how: Launcher, *, epochs: int = 1, patience: int = 0, held_out: bool = True
) -> tuple[Trained, list[int]]:
    """(training, steps that were reported) of 40 steps with a checkpoint every 2."""
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
        held_out=folder / "held-out" if held_out else None,
        start=folder / "drafter",
        samples=80 // epochs,
        epochs=epochs,
        max_steps=None,
        batch=2,
        learning_rate=1e-3,
        ttt_length=3,
        max_length=128,
        dtype="bfloat16",
        patience=Patience(evaluations=patience) if patience else None,
    )
    reported: list[int] = []
    done = specforge.train(plan, folder, how, lambda step, steps, curve: reported.append(step))
    return done, reported


def began_with(folder: Path) -> list[str]:
    """What each start of the trainer was given beside its configuration."""
    return [line.split()[-1] for line in (folder / "train.log").read_text().splitlines() if line.startswith("$ ")]


def weights(done: Trained) -> str:
    return (done.checkpoint / "training_state.pt").read_text()


def test_it_goes_on_from_the_last_checkpoint_to_the_same_curve(tmp_path: Path) -> None:
    (whole := tmp_path / "whole").mkdir()
    (cut := tmp_path / "cut").mkdir()
    uncut, _ = train(whole, launcher())
    assert (len(uncut.curve.loss), uncut.kept, uncut.steps) == (40, 40, 40)
    with pytest.raises(AerieError, match="specforge train: 'exit status -9'"):
        train(cut, launcher(dies_after="11"))
    done, reported = train(cut, launcher())
    assert (done.curve.loss, done.checkpoint.name) == (uncut.curve.loss, "drafter-step40")
    assert reported == list(range(11, 41)), "step 10 had a checkpoint, step 11 none"
    assert began_with(cut) == [
        f"model.draft_checkpoint_path={cut}/drafter",
        f"training.resume_from={cut}/output/drafter-step10",
    ]
    evaluated = {"eval_accuracy": [0.5], "eval_tau": [(40, 1.5)]}
    assert done.curve.evaluated(40) == uncut.curve.evaluated(40) == evaluated
    assert train(cut, launcher())[1] == [], "it is finished"


def test_a_training_of_another_kind_begins_anew(tmp_path: Path) -> None:
    with pytest.raises(AerieError):
        train(tmp_path, launcher(dies_after="11"))
    _, reported = train(tmp_path, launcher(processes=2))
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


@pytest.mark.parametrize(
    ("patience", "steps", "kept"), [(0, 40, 16), (1, 24, 16), (2, 32, 16), (3, 40, 16)], ids="patience {}".format
)
def test_the_best_checkpoint_goes_on_however_the_training_ended(
    patience: int, steps: int, kept: int, tmp_path: Path
) -> None:
    done, reported = train(tmp_path, launcher(evaluated=OVER_FITTED), epochs=5, patience=patience)
    assert (done.steps, done.kept, reported[-1]) == (steps, kept, steps)
    assert weights(done) == f"weights of step {kept}"
    assert done.curve.evaluated(done.kept)["eval_accuracy"] == [0.6]


def test_a_training_without_held_out_samples_keeps_its_last_checkpoint(tmp_path: Path) -> None:
    done, _ = train(tmp_path, launcher(), held_out=False)
    assert (done.steps, done.kept, weights(done)) == (40, 40, "weights of step 40")
    assert done.curve.evaluated(40) == {"eval_accuracy": [], "eval_tau": []}


@pytest.mark.parametrize(
    "killed", [f"{step} {place}" for step in (8, 16, 24, 32) for place in ("evaluated", "saved", "noted")]
)
def test_a_kill_changes_neither_the_end_nor_the_checkpoint(killed: str, tmp_path: Path) -> None:
    how = {"epochs": 5, "patience": 2}
    try:
        train(tmp_path, launcher(evaluated=OVER_FITTED, dies_after=killed), **how)
    except AerieError:
        pass  # or it had ended before: the kill after the last evaluation comes too late
    done, _ = train(tmp_path, launcher(evaluated=OVER_FITTED), **how)
    assert (done.steps, done.kept, weights(done)) == (32, 16, "weights of step 16")
    assert done.curve.evaluations == [(8, [0.4]), (16, [0.6]), (24, [0.5]), (32, [0.55])]
    assert [step for step, _ in done.curve.loss] == list(range(1, 33))


def test_a_training_that_was_ended_is_not_taken_up_again(tmp_path: Path) -> None:
    done, _ = train(tmp_path, launcher(evaluated=OVER_FITTED), epochs=5, patience=2)
    # Another trainer would evaluate otherwise, as GPUs do: it is not asked.
    again, reported = train(tmp_path, launcher(evaluated="0.9"), epochs=5, patience=2)
    assert (again.curve.evaluations, again.kept, again.steps) == (done.curve.evaluations, 16, 32)
    assert reported == []


def test_an_evaluation_of_an_attempt_that_was_given_up_does_not_count(tmp_path: Path) -> None:
    # After the evaluation of step 24, which is in the log; the last checkpoint is one of step 22.
    with pytest.raises(AerieError):
        train(tmp_path, launcher(evaluated=OVER_FITTED, dies_after="24 evaluated"), epochs=5)
    done, reported = train(tmp_path, launcher(evaluated="0.4 0.6 0.7"), epochs=5)
    assert (reported[0], done.kept) == (23, 24)
    again, _ = train(tmp_path, launcher(), epochs=5)
    assert again.curve.evaluations == done.curve.evaluations
    assert done.curve.evaluations[2] == (24, [0.7])


def test_an_evaluation_that_the_log_lost_is_made_again(tmp_path: Path) -> None:
    train(tmp_path, launcher(evaluated=OVER_FITTED), epochs=5)
    log = tmp_path / "train.log"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]))  # the evaluation of step 40, which was not the best one
    done, reported = train(tmp_path, launcher(evaluated=OVER_FITTED), epochs=5)
    assert reported == [39, 40]
    assert (done.kept, len(done.curve.evaluations)) == (16, 5)


def test_a_checkpoint_with_a_part_missing_is_not_gone_on_from(tmp_path: Path) -> None:
    with pytest.raises(AerieError):
        train(tmp_path, launcher(dies_after="11"))
    (tmp_path / "output" / "drafter-step10" / "training_state_rank0.pt").unlink()
    _, reported = train(tmp_path, launcher())
    assert reported[0] == 9


def test_a_best_checkpoint_that_is_gone_is_trained_again(tmp_path: Path) -> None:
    train(tmp_path, launcher(evaluated=OVER_FITTED), epochs=5, patience=2)
    shutil.rmtree(tmp_path / "output" / "drafter-step16")
    done, reported = train(tmp_path, launcher(evaluated=OVER_FITTED), epochs=5, patience=2)
    assert (reported[0], done.kept, weights(done)) == (1, 16, "weights of step 16")
