"""Inputs of the reference kernels: random numbers, never zeros, and indices that mean something.

Zeros and constants draw less power than real data and let a GPU clock higher, and random numbers
in the place of offsets make a kernel skip its work: both give times that nobody sees in use.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import DType, parse_dtype
from perfmodel.problems.gemm import Gemm
from tuner.kernels.execution import Tensors, torch_dtype
from tuner.kernels.gemm_scaled import SCALE_BLOCK
from tuner.kernels.gemm_weight_only import SCALE_GROUP
from tuner.kernels.references import attention_with_lse

if TYPE_CHECKING:
    import torch

SPARE_PAGES = 0.25
"""Share of a paged cache that belongs to nobody: a cache in use is neither full nor in order."""


class Source:
    """Random tensors on one device from one seed; the same every time."""

    def __init__(self, seed: int, device: str = "cpu") -> None:
        import torch  # noqa: PLC0415 - optional extra

        self.device = device
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def normal(self, shape: tuple[int, ...], dtype: DType, scale: float = 1.0) -> torch.Tensor:
        """Normal numbers of standard deviation ``scale``, rounded to ``dtype``.

        Integers are spread over their whole range instead, 4-bit ones packed two in a byte.
        """
        import torch  # noqa: PLC0415 - optional extra

        kind = torch_dtype(dtype)
        if not kind.is_floating_point:
            low, high = (0, 256) if kind == torch.uint8 else (-127, 128)
            return torch.randint(low, high, shape, generator=self.generator, device=self.device).to(
                kind
            )
        numbers = torch.randn(shape, generator=self.generator, device=self.device)
        return (scale * numbers).to(kind)

    def positive(self, shape: tuple[int, ...], scale: float) -> torch.Tensor:
        """Scale factors: fp32, between half and one and a half of ``scale``."""
        import torch  # noqa: PLC0415 - optional extra

        return scale * (0.5 + torch.rand(shape, generator=self.generator, device=self.device))

    def permutation(self, count: int) -> torch.Tensor:
        """The numbers below ``count`` in random order, int32."""
        import torch  # noqa: PLC0415 - optional extra

        order = torch.randperm(count, generator=self.generator, device=self.device)
        return order.to(torch.int32)


def starts(lengths: list[int], device: str) -> torch.Tensor:
    """Where each of consecutive pieces starts, and where the last one ends; int32."""
    import torch  # noqa: PLC0415 - optional extra

    counts = torch.tensor([0, *lengths], device=device)
    return counts.cumsum(0).to(torch.int32)


def attention_inputs(problem: Attention, seed: int = 0, device: str = "cpu") -> Tensors:
    """Q, K and V as [tokens, heads, dim], where sequences start, and for a paged cache its table.

    The pages of a sequence are scattered over the cache. Entries past its end are -1.
    """
    source = Source(seed, device)
    kv_dtype, kv_heads = parse_dtype(problem.kv_dtype or ""), problem.kv_heads or 1
    queries, keys = [q for q, _ in problem.items], [kv for _, kv in problem.items]
    tensors = {
        "q": source.normal((sum(queries), problem.q_heads, problem.head_dim), problem.dtype),
        "q_starts": starts(queries, device),
        "kv_starts": starts(keys, device),
    }
    slots = sum(keys)
    if problem.page_size is not None:
        tensors["pages"] = table = page_table(problem, source)
        slots = problem.page_size * (1 + math.floor((1 + SPARE_PAGES) * int((table >= 0).sum())))
    tensors["k"] = source.normal((slots, kv_heads, problem.head_dim), kv_dtype)
    if problem.shared_kv:
        tensors["v"] = tensors["k"][:, :, : problem.v_head_dim]
    else:
        tensors["v"] = source.normal((slots, kv_heads, problem.v_head_dim or 0), kv_dtype)
    return tensors


def gemm_inputs(problem: Gemm, seed: int = 0, device: str = "cpu") -> Tensors:
    """A [batch, m, k] and B [batch, k, n] with the problem's layouts and strides.

    4-bit weights are bytes of two: [k / 2, ldb] or, column by column, [n, ldb / 2].
    """
    source, b_dtype = Source(seed, device), parse_dtype(problem.b_dtype or "")
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    return {
        "a": _matrices(source, batch, m, k, problem.a_layout, problem.lda or 0, problem.a_dtype),
        "b": _matrices(source, batch, k, n, problem.b_layout, problem.ldb or 0, b_dtype),
    }


def _matrices(
    source: Source, batch: int, rows: int, cols: int, layout: str, pitch: int, dtype: DType
) -> torch.Tensor:
    if dtype.bits == 4:
        shape = (-(-rows // 2), pitch) if layout == "row" else (cols, -(-pitch // 2))
        return source.normal(shape, dtype)
    if layout == "row":
        return source.normal((batch, rows, pitch), dtype)[:, :, :cols]
    return source.normal((batch, cols, pitch), dtype)[:, :, :rows].transpose(1, 2)


def row_scaled_inputs(problem: Gemm, seed: int = 0, device: str = "cpu") -> Tensors:
    """8-bit operands and a scale per row of A and column of B."""
    source = Source(seed + 1, device)
    return gemm_inputs(problem, seed, device) | {
        "a_scale": source.positive((problem.m,), 0.1),
        "b_scale": source.positive((problem.n,), 0.1),
    }


def block_scaled_inputs(problem: Gemm, seed: int = 0, device: str = "cpu") -> Tensors:
    """8-bit operands, a scale per row and 128 of K of A, and per 128 x 128 of B."""
    source = Source(seed + 1, device)
    steps, cols = (-(-size // SCALE_BLOCK) for size in (problem.k, problem.n))
    return gemm_inputs(problem, seed, device) | {
        "a_scale": source.positive((problem.m, steps), 0.1),
        "b_scale": source.positive((steps, cols), 0.1),
    }


def weight_only_inputs(problem: Gemm, seed: int = 0, device: str = "cpu") -> Tensors:
    """16-bit activations, integer weights and a scale per 128 of K and column."""
    source, bits = Source(seed + 1, device), parse_dtype(problem.b_dtype or "").bits
    scale = source.positive((-(-problem.k // SCALE_GROUP), problem.n), 2.0 ** (1 - bits))
    return gemm_inputs(problem, seed, device) | {
        "b_scale": scale.to(torch_dtype(problem.a_dtype)),
    }


def gradient_inputs(problem: Attention, seed: int = 0, device: str = "cpu") -> Tensors:
    """Inputs of the forward pass, what it leaves (``out``, ``lse``), and the gradient ``dout``."""
    tensors = attention_inputs(problem, seed, device)
    left = attention_with_lse(problem, tensors)
    dtype = parse_dtype(problem.out_dtype or "")
    return tensors | {
        "out": left["out"].to(torch_dtype(dtype)),
        "lse": left["lse"].float(),
        "dout": Source(seed + 1, device).normal(tuple(left["out"].shape), dtype),
    }


def page_table(problem: Attention, source: Source) -> torch.Tensor:
    """Return the pages of every sequence, [batch, pages of the longest], int32, -1 for none."""
    import torch  # noqa: PLC0415 - optional extra

    assert problem.page_size is not None
    needed = [-(-kv // problem.page_size) for _, kv in problem.items]
    order = source.permutation(1 + math.floor((1 + SPARE_PAGES) * sum(needed)))
    table = torch.full(
        (len(needed), max(needed, default=0)), -1, dtype=torch.int32, device=source.device
    )
    taken = 0
    for row, count in enumerate(needed):
        table[row, :count] = order[taken : taken + count]
        taken += count
    return table


__all__ = [
    "Source", "attention_inputs", "block_scaled_inputs", "gemm_inputs",
    "gradient_inputs", "page_table",
    "row_scaled_inputs", "starts", "weight_only_inputs",
]  # fmt: skip
