"""What every kernel should give, in float64, written for clarity and not for speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from perfmodel.problems.attention import Attention
from tuner.kernels.execution import Tensors

if TYPE_CHECKING:
    import torch


def attention_reference(problem: Attention, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """softmax(Q K^T / sqrt(head_dim)) V; a query that sees no key gives zeros."""
    import torch  # noqa: PLC0415 - optional extra

    q = inputs["q"]
    shape = (q.shape[0], problem.q_heads, problem.v_head_dim or 0)
    out = torch.zeros(shape, dtype=torch.float64, device=q.device)
    for piece, queries, keys, values in _sequences(problem, inputs):
        weights = _weights(problem, queries, keys)
        out[piece] = torch.einsum("hqk,khd->qhd", weights, values)
    return {"out": out}


def _sequences(
    problem: Attention, inputs: Mapping[str, torch.Tensor]
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield which rows of the result a sequence has, its Q, and K and V for every query head."""
    q_start = kv_start = 0
    for row, (q_len, kv_len) in enumerate(problem.items):
        piece = slice(q_start, q_start + q_len)
        if problem.page_size is None:
            slots: slice | torch.Tensor = slice(kv_start, kv_start + kv_len)
        else:
            slots = _slots(inputs["pages"][row], kv_len, problem.page_size)
        keys, values = (
            inputs[name][slots].double().repeat_interleave(problem.group, dim=1) for name in "kv"
        )
        yield piece, inputs["q"][piece].double(), keys, values
        q_start, kv_start = q_start + q_len, kv_start + kv_len


def _slots(pages: torch.Tensor, count: int, page_size: int) -> torch.Tensor:
    import torch  # noqa: PLC0415 - optional extra

    tokens = torch.arange(count, device=pages.device)
    return pages[tokens // page_size].long() * page_size + tokens % page_size


def _weights(problem: Attention, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Softmax weights [heads, queries, keys]."""
    import torch  # noqa: PLC0415 - optional extra

    scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(problem.head_dim)
    scores = scores.masked_fill(~_visible(problem, scores), -math.inf)
    return torch.softmax(scores, dim=-1).nan_to_num(0.0)


def _visible(problem: Attention, scores: torch.Tensor) -> torch.Tensor:
    """Which keys a query sees: the last query stands at the last key."""
    import torch  # noqa: PLC0415 - optional extra

    q_len, kv_len = scores.shape[-2:]
    position = torch.arange(kv_len - q_len, kv_len, device=scores.device)[:, None]
    key = torch.arange(kv_len, device=scores.device)[None, :]
    seen = torch.ones((q_len, kv_len), dtype=torch.bool, device=scores.device)
    if problem.causal:
        seen &= key <= position
    if problem.window is not None:
        seen &= key > position - problem.window
        if not problem.causal:
            seen &= key < position + problem.window
    return seen


__all__ = ["attention_reference"]
