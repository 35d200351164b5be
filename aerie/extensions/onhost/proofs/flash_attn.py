"""flash-attn: forward, backward and split kernels against attention in float32.

Shapes reach what fails on a card at run time and not in the build: head sizes 128 and 256 take the largest tiles, whose
shared memory SM120 has 99 KiB for (A100: 163, H100: 227). Bounds: the probabilities are rounded to 8 (bf16) or 11
(fp16) bits before the second product, the gradients twice; wrong tiles are off by the size of the values.
"""

from collections.abc import Sequence
from typing import Any

from aerie.extensions.onhost.proofs import Kernel, Pair, Recipe

__all__ = ["RECIPE"]

SEED = 120
FORWARD, BACKWARD = {"bfloat16": 1e-2, "float16": 2e-3}, {"bfloat16": 3e-2, "float16": 5e-3}


def _attention(torch: Any, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    """(batch, tokens, heads, head size) each; several heads of q may share one of k and v."""
    groups = q.shape[2] // k.shape[2]
    k, v = (one.repeat_interleave(groups, dim=2) for one in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[3] ** -0.5
    if causal:  # the last query sees every key
        ahead = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(k.shape[1] - q.shape[1] + 1)
        scores = scores.masked_fill(ahead, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)


def _inputs(torch: Any, dtype: str, *shapes: Sequence[int]) -> list[Any]:
    torch.manual_seed(SEED)
    return [torch.randn(*shape, dtype=getattr(torch, dtype), device="cuda") for shape in shapes]


def _trained(dtype: str, head: int, tokens: int, *, causal: bool) -> Any:
    """Forward and backward, 8 heads of q over 2 of k and v."""

    def prepare(torch: Any) -> Pair:
        from flash_attn import flash_attn_func

        shapes = (2, tokens, 8, head), (2, tokens, 2, head), (2, tokens, 2, head), (2, tokens, 8, head)
        *inputs, pull = _inputs(torch, dtype, *shapes)

        def launched() -> Sequence[Any]:
            leaves = [one.clone().requires_grad_() for one in inputs]
            out = flash_attn_func(*leaves, causal=causal)
            return [out, *torch.autograd.grad(out, leaves, pull)]

        def reference() -> Sequence[Any]:
            leaves = [one.float().requires_grad_() for one in inputs]
            out = _attention(torch, *leaves, causal=causal)
            return [out, *torch.autograd.grad(out, leaves, pull.float())]

        return Pair(launched, reference)

    return prepare


def _decoded(dtype: str, head: int, cached: int) -> Any:
    """One new token of each sequence over a cache, in two splits that are combined afterwards."""

    def prepare(torch: Any) -> Pair:
        from flash_attn import flash_attn_with_kvcache

        q, k, v = _inputs(torch, dtype, (2, 1, 8, head), (2, cached, 2, head), (2, cached, 2, head))

        def launched() -> Sequence[Any]:
            return [flash_attn_with_kvcache(q, k, v, cache_seqlens=cached, causal=True, num_splits=2)]

        def reference() -> Sequence[Any]:
            return [_attention(torch, q.float(), k.float(), v.float(), causal=True)]

        return Pair(launched, reference)

    return prepare


def _kernels() -> tuple[Kernel, ...]:
    found = []
    for dtype, head, tokens, causal in (
        ("bfloat16", 128, 1024, True),
        ("float16", 64, 1000, False),
        ("bfloat16", 256, 1024, True),
    ):
        shape = f"{dtype}, head {head}, {tokens} tokens{', causal' if causal else ''}"
        prepare = _trained(dtype, head, tokens, causal=causal)
        name = f"flash_attn_func forward and backward, {shape}"
        found.append(Kernel(name=name, tolerance=BACKWARD[dtype], prepare=prepare))
    name = "flash_attn_with_kvcache, 2 splits, bfloat16, head 128, 1 token over 4096"
    found.append(Kernel(name=name, tolerance=FORWARD["bfloat16"], prepare=_decoded("bfloat16", 128, 4096)))
    return tuple(found)


RECIPE = Recipe(
    imports=("flash_attn_2_cuda", "flash_attn"),
    library=lambda arch: "flash_attn_2_cuda*.so",
    kernels=_kernels(),
)
