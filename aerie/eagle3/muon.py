"""Muon, the optimiser for matrices, in the number format that this processor multiplies fast.

PyTorch's own (torch 2.13, `torch/optim/_muon.py`) orthogonalises in bf16 whatever it is given. On a processor without
bf16 instructions such a product takes 8 to 58 times as long as in fp32 (AMD EPYC with AVX2): 11.5 s for a step of the
tiny target that takes 0.9 s with this. Delete it when torch.optim.Muon takes a dtype.
"""

from collections.abc import Iterable

import torch

__all__ = ["Muon"]

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Keller Jordan's quintic; the three numbers below are torch's defaults too
_ITERATIONS = 5
_MOMENTUM = 0.95
_EPS = 1e-7


class Muon(torch.optim.Optimizer):  # type: ignore[misc]  # torch is not in this environment
    """torch.optim.Muon with adjust_lr_fn="match_rms_adamw", orthogonalising in `dtype`; the same numbers in bf16."""

    def __init__(
        self, matrices: Iterable[torch.nn.Parameter], *, lr: float, weight_decay: float, dtype: torch.dtype
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
                update = orthogonal(matrix.grad.lerp(momentum, _MOMENTUM), self._dtype)
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-0.2 * group["lr"] * max(matrix.shape) ** 0.5)


def orthogonal(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """About the orthogonal matrix nearest to `matrix`, in `dtype`: singular values of 0.5 to 1.5 (Newton-Schulz)."""
    a, b, c = _COEFFICIENTS
    wide = matrix.to(dtype, copy=True)
    if is_tall := matrix.shape[0] > matrix.shape[1]:
        wide = wide.T
    wide.div_(wide.norm().clamp(min=_EPS))
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if is_tall else wide
