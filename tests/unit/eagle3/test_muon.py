"""Muon against PyTorch's own, which knows bf16 only."""

import pytest

torch = pytest.importorskip("torch")

from aerie.eagle3.muon import Muon, orthogonal  # noqa: E402

SHAPES = [(16, 48), (48, 16), (32, 32)]


def test_in_bf16_it_is_the_optimiser_of_pytorch_bit_for_bit() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    pair = (
        Muon(ours, lr=0.01, weight_decay=0.05, dtype=torch.bfloat16),
        torch.optim.Muon(theirs, lr=0.01, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        for optimizer in pair:
            optimizer.step()
    assert [one.shape for one, other in zip(ours, theirs, strict=True) if not torch.equal(one, other)] == []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_in_fp32_the_singular_values_come_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    before = matrix.clone()
    result = orthogonal(matrix, torch.float32)
    values = torch.linalg.svdvals(result)
    assert (result.dtype, result.shape) == (torch.float32, shape)
    assert torch.equal(matrix, before)
    assert 0.3 < values.min() <= values.max() < 1.5
