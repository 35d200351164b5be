"""What may be trained on: the tokens that the target generated, all of them, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from aerie.eagle3 import features, finetune
from aerie.eagle3.curve import Curve
from aerie.eagle3.features import Features
from aerie.eagle3.profile import Finetune
from aerie.eagle3.specforge import Trained
from aerie.errors import AerieError


@pytest.mark.parametrize(
    ("mask", "is_right"),
    [
        ([0, 0, 1, 1], True),
        ([0, 0, 1], False),
        ([1, 1, 1, 1], False),
        ([0, 1, 0, 1], False),
        ([0, 0, 1, 0], False),
    ],
    ids=["right", "too short", "prompt counted", "with a hole", "end not counted"],
)
def test_check_mask(mask: list[int], is_right: bool) -> None:
    row: dict[str, Any] = {"id": "a", "input_ids": [5, 6, 7, 8], "loss_mask": mask}
    if is_right:
        features.check_mask(row)
    else:
        with pytest.raises(AerieError, match="zeros over the prompt, then ones over every generated token"):
            features.check_mask(row)


@pytest.mark.parametrize(("shift", "hits"), [(0, 3), (1, 1)], ids=["own states", "shifted by one"])
def test_agreement_counts_the_generated_tokens_that_the_states_predict(shift: int, hits: int) -> None:
    torch = pytest.importorskip("torch")
    row: dict[str, Any] = {"id": "a", "input_ids": [5, 6, 7, 7, 8], "loss_mask": [0, 0, 1, 1, 1]}
    predicted = [6, 7, 7, 8]  # by the states of the four tokens that were read
    logits = torch.eye(10)[predicted].roll(shift, dims=0)
    assert features.agreement(logits, row) == (hits, 3)


def test_features_that_are_there_are_not_made_again_unless_they_are_cut_short(tmp_path: Path) -> None:
    with Features(tmp_path) as made:
        for number in range(3):
            made.path(number).write_bytes(bytes(10))
            made.add(number, hits=number, tokens=5)
        made.path(3).write_bytes(bytes(10))  # killed before its line
    made.path(1).write_bytes(bytes(9))  # the machine lost its power
    made.path(2).unlink()
    with open(tmp_path / "features.jsonl", "a") as file:
        file.write("[3, 4")  # killed within its line
    with Features(tmp_path) as found:
        assert found.there == {0: (0, 5)}
        found.add(1, hits=1, tokens=5)
    assert Features(tmp_path).there == {0: (0, 5), 1: (1, 5)}


def test_held_out_features_lie_apart(tmp_path: Path) -> None:
    with Features(tmp_path, {1}) as made:
        for number in range(2):
            made.path(number).write_bytes(bytes(10))
            made.add(number, hits=0, tokens=5)
    (trained,), (held,) = made.folder.iterdir(), made.held_out_folder.iterdir()
    assert (trained.name, held.name) == ("000000.ckpt", "000001.ckpt")
    assert Features(tmp_path, {1}).there.keys() == {0, 1}


def test_what_is_held_out_hangs_on_the_ids_alone() -> None:
    ids = [f"p{number}" for number in range(800)]
    held = {ids[number] for number in finetune.held_out(ids, 0.05, at_least=4)}
    ids.reverse()
    assert {ids[number] for number in finetune.held_out(ids, 0.05, at_least=4)} == held
    assert len(held) == 40


def test_all_turns_of_a_conversation_are_held_out_or_none() -> None:
    conversations = [f"c{number // 3}" for number in range(801)]
    held = finetune.held_out(conversations, 0.05, at_least=1)
    assert len(held) == 42  # 41, and what their last conversation has more
    apart = {conversations[number] for number in held}
    assert [number for number, name in enumerate(conversations) if name in apart and number not in held] == []


@pytest.mark.parametrize(("samples", "at_least", "count"), [(801, 1, 41), (100, 1, 16), (100, 64, 64)])
def test_enough_is_held_out(samples: int, at_least: int, count: int) -> None:
    ids = [str(number) for number in range(samples)]
    assert len(finetune.held_out(ids, 0.05, at_least=at_least)) == count


@pytest.mark.parametrize(
    ("steps", "kept", "ended"),
    [
        (100, 4, "all epochs were done"),
        (60, 2, "the last 1 evaluations had no gain of 0.01 or more on the held-out samples"),
    ],
    ids=["to its end", "early"],
)
def test_the_evidence_is_that_of_the_epoch_that_was_kept(steps: int, kept: int, ended: str) -> None:
    values = Finetune(epochs=5, batch=4, learning_rate=1e-3, patience=1, least_gain=0.01)
    curve = Curve(evaluations=[(20 * epoch, [0.1 * epoch]) for epoch in range(1, 6)])
    done = Trained(curve=curve, checkpoint=Path("c"), kept=20 * kept, steps=steps)
    evidence = finetune.training(done, values, per_epoch=20)
    assert evidence["eval_accuracy"] == [0.1 * kept]
    assert (evidence["kept"], evidence["ended"]) == ({"step": 20 * kept, "epoch": kept}, ended)
    assert (evidence["epochs"], evidence["epochs_done"], evidence["steps"]) == (5, steps // 20, steps)
