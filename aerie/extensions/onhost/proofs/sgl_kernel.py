"""sgl-kernel and sglang-kernel: a norm, an activation, the router's top-k and the FP8 product against plain torch.

They are called as torch's operators: the package's own functions take flashinfer's kernels where that is installed.
"""

from collections.abc import Sequence
from typing import Any

from aerie.extensions.onhost.proofs import Kernel, Pair, Recipe

__all__ = ["RECIPE"]

SEED = 120
BFLOAT16 = 1e-2  # one rounding of the result to 8 bits is 0.4 %


def _library(arch: str) -> str:
    """The package's loader takes sm90 on an H100 or H200 and sm100 on every other card (0.3.21 and 0.4.10)."""
    return f"sgl_kernel/{'sm90' if arch == 'sm_90' else 'sm100'}/common_ops*.so"


def _randn(torch: Any, *shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def _rmsnorm(torch: Any) -> Pair:
    torch.manual_seed(SEED)
    x, weight, eps = _randn(torch, 512, 7168), _randn(torch, 7168), 1e-6

    def launched() -> Sequence[Any]:
        out = torch.empty_like(x)
        torch.ops.sgl_kernel.rmsnorm.default(out, x, weight, eps, False)
        return [out]

    def reference() -> Sequence[Any]:
        wide = x.float()
        return [wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight.float()]

    return Pair(launched, reference)


def _silu_and_mul(torch: Any) -> Pair:
    torch.manual_seed(SEED)
    x = _randn(torch, 512, 2 * 2048)

    def launched() -> Sequence[Any]:
        out = torch.empty(512, 2048, dtype=x.dtype, device=x.device)
        torch.ops.sgl_kernel.silu_and_mul.default(out, x)
        return [out]

    def reference() -> Sequence[Any]:
        gate, up = x.float().chunk(2, dim=-1)
        return [torch.nn.functional.silu(gate) * up]

    return Pair(launched, reference)


def _topk_softmax(torch: Any) -> Pair:
    torch.manual_seed(SEED)
    # Values that no two experts share: which of two equal ones comes first is nobody's promise.
    gates = torch.stack([torch.randperm(256, device="cuda") for _ in range(512)]).float() / 32

    def launched() -> Sequence[Any]:
        weights = torch.empty(512, 8, dtype=torch.float32, device="cuda")
        experts = torch.empty(512, 8, dtype=torch.int32, device="cuda")
        torch.ops.sgl_kernel.topk_softmax.default(weights, experts, gates, True, 0.0, None)
        return [weights, experts]

    def reference() -> Sequence[Any]:
        weights, experts = gates.softmax(dim=-1).topk(8)
        return [weights / weights.sum(dim=-1, keepdim=True), experts.float()]

    return Pair(launched, reference)


def _fp8_scaled_mm(torch: Any) -> Pair:
    torch.manual_seed(SEED)
    a = _randn(torch, 512, 2048).to(torch.float8_e4m3fn)
    b = _randn(torch, 1536, 2048).to(torch.float8_e4m3fn).t()  # by columns, as the kernel wants it
    scale_a, scale_b = (torch.rand(size, device="cuda") + 0.5 for size in (512, 1536))

    def launched() -> Sequence[Any]:
        return [torch.ops.sgl_kernel.fp8_scaled_mm.default(a, b, scale_a, scale_b, torch.bfloat16, None)]

    def reference() -> Sequence[Any]:
        return [(a.float() @ b.float()) * scale_a[:, None] * scale_b[None, :]]

    return Pair(launched, reference)


RECIPE = Recipe(
    imports=("sgl_kernel",),
    library=_library,
    kernels=(
        Kernel(name="rmsnorm, bfloat16, 512 x 7168", tolerance=BFLOAT16, prepare=_rmsnorm),
        Kernel(name="silu_and_mul, bfloat16, 512 x 2048", tolerance=BFLOAT16, prepare=_silu_and_mul),
        Kernel(name="topk_softmax, 8 of 256 experts, 512 tokens", tolerance=1e-5, prepare=_topk_softmax),
        Kernel(name="fp8_scaled_mm, e4m3, 512 x 1536 x 2048", tolerance=BFLOAT16, prepare=_fp8_scaled_mm, least=89),
    ),
)
