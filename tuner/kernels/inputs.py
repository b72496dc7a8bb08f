"""Inputs of the reference kernels: random numbers, never zeros, and indices that mean something.

Zeros and constants draw less power than real data and let a GPU clock higher, and random numbers
in the place of offsets make a kernel skip its work: both give times that nobody sees in use.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import DType, parse_dtype
from tuner.kernels.execution import Tensors, torch_dtype

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


__all__ = ["Source", "attention_inputs", "page_table", "starts"]
