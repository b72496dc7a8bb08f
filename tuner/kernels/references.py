"""What every kernel should give, in float64, written for clarity and not for speed."""

# ruff: noqa: ARG001 - every reference takes the problem and its inputs, whichever it needs
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import parse_dtype
from perfmodel.problems.gemm import Gemm
from tuner.kernels.execution import Tensors

if TYPE_CHECKING:
    import torch


SCORES_AT_ONCE = 2**26
"""Scores held at a time, half a gigabyte of them: long sequences are done piece by piece."""


def attention_reference(problem: Attention, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """softmax(Q K^T / sqrt(head_dim)) V; a query that sees no key gives zeros."""
    return {"out": attention_with_lse(problem, inputs)["out"]}


def attention_with_lse(problem: Attention, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """The result, and ``lse`` [tokens, heads]: log2 of the sum of 2 to each score, -inf for none.

    Scores are in units of log 2, as the kernels compute them.
    """
    import torch  # noqa: PLC0415 - optional extra

    q = inputs["q"]
    rows = (q.shape[0], problem.q_heads)
    out = torch.zeros((*rows, problem.v_head_dim or 0), dtype=torch.float64, device=q.device)
    lse = torch.full(rows, -math.inf, dtype=torch.float64, device=q.device)
    for piece, queries, keys, values in _sequences(problem, inputs):
        at_once = max(SCORES_AT_ONCE // max(keys.shape[0] * problem.q_heads, 1), 1)
        for first in range(0, len(queries), at_once):
            scores = _scores(problem, queries, keys, first, at_once)
            part = slice(piece.start + first, piece.start + first + scores.shape[1])
            weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
            out[part] = torch.einsum("hqk,khd->qhd", weights, values)
            lse[part] = torch.logsumexp(scores, dim=-1).T / math.log(2.0)
    return {"out": out, "lse": lse}


def attention_gradients(problem: Attention, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """The gradients of Q, K and V for the gradient ``dout`` of the result, by differentiation."""
    import torch  # noqa: PLC0415 - optional extra

    leaves = {
        name: inputs[name].double().detach().clone().requires_grad_(True)
        for name in ("q", "k", "v")
    }
    dout = inputs["dout"].double()
    for piece, queries, keys, values in _sequences(problem, {**inputs, **leaves}):
        if queries.numel() and keys.numel():
            scores = _scores(problem, queries, keys, 0, len(queries))
            # A query that sees nothing has weights of 0 / 0, and so would have its gradients.
            blind = scores.isneginf().all(dim=-1, keepdim=True)
            weights = torch.softmax(scores.masked_fill(blind, 0.0), dim=-1).masked_fill(blind, 0.0)
            torch.einsum("hqk,khd->qhd", weights, values).backward(  # type: ignore[no-untyped-call]
                dout[piece]
            )
    zeros = torch.zeros_like
    return {
        f"d{name}": zeros(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()
    }


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


def _scores(
    problem: Attention, queries: torch.Tensor, keys: torch.Tensor, first: int, count: int
) -> torch.Tensor:
    """Scores [heads, queries, keys] of ``count`` queries, -inf where a query does not see a key.

    The last query stands at the last key.
    """
    import torch  # noqa: PLC0415 - optional extra

    some = queries[first : first + count]
    scores = torch.einsum("qhd,khd->hqk", some, keys) / math.sqrt(problem.head_dim)
    kv_len = len(keys)
    start = kv_len - len(queries) + first
    position = torch.arange(start, start + len(some), device=scores.device)[:, None]
    key = torch.arange(kv_len, device=scores.device)[None, :]
    seen = torch.ones((len(some), kv_len), dtype=torch.bool, device=scores.device)
    if problem.causal:
        seen &= key <= position
    if problem.window is not None:
        seen &= key > position - problem.window
        if not problem.causal:
            seen &= key < position + problem.window
    return scores.masked_fill(~seen, -math.inf)


def gemm_reference(problem: Gemm, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """A B of every matrix of the batch."""
    return {"c": inputs["a"].double() @ inputs["b"].double()}


def row_scaled_reference(problem: Gemm, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """diag(a_scale) A B diag(b_scale)."""
    product = gemm_reference(problem, inputs)["c"]
    return {"c": product * inputs["a_scale"].double()[:, None] * inputs["b_scale"].double()}


def block_scaled_reference(problem: Gemm, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """A B with every block of 128 multiplied by its scale first."""
    a_scale = _spread(inputs["a_scale"], problem.k, dim=1)
    b_scale = _spread(_spread(inputs["b_scale"], problem.k, dim=0), problem.n, dim=1)
    return {"c": (inputs["a"].double() * a_scale) @ (inputs["b"].double() * b_scale)}


def weight_only_reference(problem: Gemm, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """A times the weights, unpacked where they are 4-bit, times their scales."""
    weights = inputs["b"]
    if parse_dtype(problem.b_dtype or "").bits == 4:
        weights = _unpacked(problem, weights)
    scale = _spread(inputs["b_scale"], problem.k, dim=0)
    return {"c": inputs["a"].double() @ (weights.double() * scale)}


def _spread(scales: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """Repeat each scale over the 128 elements it stands for."""
    return scales.double().repeat_interleave(128, dim=dim).narrow(dim, 0, size)


def _unpacked(problem: Gemm, packed: torch.Tensor) -> torch.Tensor:
    """B [k, n] of bytes that hold two 4-bit rows each, the even one in the low half."""
    import torch  # noqa: PLC0415 - optional extra

    stored = packed if problem.b_layout == "row" else packed.T
    halves = torch.stack((stored & 15, stored >> 4), dim=1).to(torch.int8)
    signed = torch.where(halves > 7, halves - 16, halves)
    return signed.reshape(-1, stored.shape[1])[: problem.k, : problem.n]


__all__ = [
    "attention_gradients", "attention_reference", "attention_with_lse", "block_scaled_reference",
    "gemm_reference", "row_scaled_reference", "weight_only_reference",
]  # fmt: skip
