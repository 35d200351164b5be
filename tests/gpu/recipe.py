"""How the project's own extension is proven: as aerie/extensions/onhost/proofs does for those that engines use."""

from collections.abc import Sequence
from typing import Any

from aerie.extensions.onhost.proofs import Kernel, Pair, Recipe

__all__ = ["RECIPE"]


def _rms_norm(torch: Any) -> Pair:
    from aerie_proof import rms_norm

    torch.manual_seed(1)
    x, weight = torch.randn(512, 4096, device="cuda"), torch.randn(4096, device="cuda")

    def reference() -> Sequence[Any]:
        return [x * (x.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt() * weight]

    return Pair(lambda: [rms_norm(x, weight, 1e-6)], reference)


def _matmul(torch: Any) -> Pair:
    from aerie_proof import matmul

    torch.manual_seed(1)
    a, b = torch.randn(512, 1920, device="cuda"), torch.randn(1920, 256, device="cuda")
    return Pair(lambda: [matmul(a, b)], lambda: [a @ b])


RECIPE = Recipe(
    imports=("aerie_proof",),
    library=lambda arch: "aerie_proof/kernels*.so",
    kernels=(
        Kernel(name="rms_norm, float32, 512 x 4096", tolerance=1e-5, prepare=_rms_norm),
        Kernel(name="matmul, float32, 512 x 256 x 1920", tolerance=1e-5, prepare=_matmul),
    ),
)
