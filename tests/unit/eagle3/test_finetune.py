"""What may be trained on: the tokens that the target generated, all of them, and nothing else."""

from typing import Any

import pytest

from aerie.eagle3 import features
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
