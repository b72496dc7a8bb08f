"""Flash attention, forward: one tile of queries per program, a loop over the keys it can see."""

# A kernel's arguments are Triton values: annotations on them would be read as Triton types, and
# by Triton's custom compile-time ones are in capitals.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - as said above; compile-time branches cost nothing
from __future__ import annotations

import math
from typing import Any

from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import FP32, INT32, TF32, DType, parse_dtype
from perfmodel.tiling.config import TileConfig
from tuner.kernels.language import jit, tl, triton_dtype
from tuner.kernels.launch import Buffer, Launch, Plan, ceil_div, launch_options, padded_dim

LOG2_E = math.log2(math.e)
"""Kernels raise 2, not e, to a power: that is what the hardware has."""


@jit
def span_of(starts_ptr, sequence, length, UNEQUAL: tl.constexpr):  # fmt: skip
    """Return a sequence's first token and how many it has: looked up where they are UNEQUAL."""
    if UNEQUAL:
        start = tl.load(starts_ptr + sequence)
        tokens = tl.load(starts_ptr + sequence + 1) - start
    else:
        start = sequence * length
        tokens = length
    return start, tokens


@jit
def fold_keys(
    acc,
    total,
    peak,
    q,
    k_ptr,
    v_ptr,
    first,
    last,
    positions,
    kv_len,
    scale,
    stride_kt,
    stride_vt,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    COMPUTE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Fold keys ``first`` to ``last`` into the running result of a tile of queries.

    ``acc`` holds the weighted sum of values, ``total`` that of weights, ``peak`` the largest
    score so far, in units of log 2. Unless MASKED, every query sees every one of these keys.
    """
    cols = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    v_dims = tl.arange(0, BLOCK_DV)
    for start in range(first, last, BLOCK_N):
        keys = start + cols
        k_ptrs = k_ptr + keys[None, :] * stride_kt + dims[:, None]
        v_ptrs = v_ptr + keys[:, None] * stride_vt + v_dims[None, :]
        if MASKED:
            k = tl.load(
                k_ptrs, mask=(keys[None, :] < kv_len) & (dims[:, None] < HEAD_DIM), other=0.0
            )
        elif HEAD_DIM < BLOCK_D:
            k = tl.load(k_ptrs, mask=dims[:, None] < HEAD_DIM, other=0.0)
        else:
            k = tl.load(k_ptrs)
        scores = scale * tl.dot(q, k.to(COMPUTE), input_precision=INPUT_PRECISION)
        if MASKED:
            visible = keys[None, :] < kv_len
            if CAUSAL:
                visible = visible & (keys[None, :] <= positions[:, None])
            if WINDOW > 0:
                visible = visible & (keys[None, :] > positions[:, None] - WINDOW)
                if not CAUSAL:
                    visible = visible & (keys[None, :] < positions[:, None] + WINDOW)
            scores = tl.where(visible, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        base = new_peak
        if MASKED:  # a query that has seen no key yet: -inf - -inf is not a number
            base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(peak - base)
        total = total * fade + tl.sum(weights, 1)
        acc = acc * fade[:, None]
        if MASKED:
            v = tl.load(
                v_ptrs, mask=(keys[:, None] < kv_len) & (v_dims[None, :] < V_HEAD_DIM), other=0.0
            )
        elif V_HEAD_DIM < BLOCK_DV:
            v = tl.load(v_ptrs, mask=v_dims[None, :] < V_HEAD_DIM, other=0.0)
        else:
            v = tl.load(v_ptrs)
        acc = tl.dot(weights.to(COMPUTE), v.to(COMPUTE), acc, input_precision=INPUT_PRECISION)
        peak = new_peak
    return acc, total, peak


@jit
def visible_keys(
    first_position,
    last_position,
    kv_len,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return the bounds of the keys that queries at these positions see.

    ``low`` to ``full_low``: some of the queries see them; to ``full_high``: all; to ``high``: some.
    All but ``high`` are multiples of BLOCK_N.
    """
    low = 0
    full_low = 0
    high = kv_len
    full_high = kv_len
    if CAUSAL:
        high = min(kv_len, last_position + 1)
        full_high = min(kv_len, first_position + 1)
    if WINDOW > 0:
        low = max(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        full_low = tl.cdiv(max(last_position - WINDOW + 1, 0), BLOCK_N) * BLOCK_N
        if not CAUSAL:
            high = min(kv_len, last_position + WINDOW)
            full_high = min(kv_len, first_position + WINDOW)
    full_high = max(full_high // BLOCK_N * BLOCK_N, full_low)
    return low, full_low, full_high, high


@jit
def attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    q_starts_ptr,
    kv_starts_ptr,
    Q_LEN,
    KV_LEN,
    q_tiles,
    q_heads,
    group,
    scale,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_oh,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    UNEQUAL: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    COMPUTE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """softmax(scale Q K^T) V of every sequence and head.

    Tensors are [tokens, heads, dim], the sequences one after another. ``scale`` includes log2(e).
    UNEQUAL reads where each sequence starts; otherwise all have Q_LEN queries and KV_LEN keys.
    The last tiles of causal queries see the most keys and are started first. WINDOW 0 is none.
    EVEN_KEYS says that BLOCK_N divides KV_LEN, so that without a mask no edge is left.
    """
    pid = tl.program_id(0)
    tile = pid % q_tiles
    if CAUSAL:
        tile = q_tiles - 1 - tile
    item = pid // q_tiles
    head = item % q_heads
    sequence = item // q_heads
    q_start, q_len = span_of(q_starts_ptr, sequence, Q_LEN, UNEQUAL)
    kv_start, kv_len = span_of(kv_starts_ptr, sequence, KV_LEN, UNEQUAL)

    first_row = tile * BLOCK_M
    if first_row < q_len:
        q_ptr += q_start.to(tl.int64) * stride_qt + head * stride_qh
        out_ptr += q_start.to(tl.int64) * stride_ot + head * stride_oh
        k_ptr += kv_start.to(tl.int64) * stride_kt + (head // group) * stride_kh
        v_ptr += kv_start.to(tl.int64) * stride_vt + (head // group) * stride_vh
        rows = first_row + tl.arange(0, BLOCK_M)
        dims = tl.arange(0, BLOCK_D)
        v_dims = tl.arange(0, BLOCK_DV)
        q = tl.load(
            q_ptr + rows[:, None] * stride_qt + dims[None, :],
            mask=(rows[:, None] < q_len) & (dims[None, :] < HEAD_DIM),
            other=0.0,
        ).to(COMPUTE)
        prefix = kv_len - q_len
        positions = prefix + rows
        low, full_low, full_high, high = visible_keys(
            prefix + first_row,
            prefix + min(first_row + BLOCK_M, q_len) - 1,
            kv_len,
            CAUSAL,
            WINDOW,
            BLOCK_N,
        )
        acc = tl.zeros((BLOCK_M, BLOCK_DV), dtype=tl.float32)
        total = tl.zeros((BLOCK_M,), dtype=tl.float32)
        peak = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
        if WINDOW > 0:
            acc, total, peak = fold_keys(
                acc, total, peak, q, k_ptr, v_ptr, low, full_low, positions, kv_len, scale,
                stride_kt, stride_vt, HEAD_DIM, V_HEAD_DIM, BLOCK_N, BLOCK_D, BLOCK_DV,
                CAUSAL, WINDOW, True, COMPUTE, INPUT_PRECISION,
            )  # fmt: skip
        acc, total, peak = fold_keys(
            acc, total, peak, q, k_ptr, v_ptr, full_low, full_high, positions, kv_len, scale,
            stride_kt, stride_vt, HEAD_DIM, V_HEAD_DIM, BLOCK_N, BLOCK_D, BLOCK_DV,
            CAUSAL, WINDOW, False, COMPUTE, INPUT_PRECISION,
        )  # fmt: skip
        if CAUSAL or WINDOW > 0 or not EVEN_KEYS:
            acc, total, peak = fold_keys(
                acc, total, peak, q, k_ptr, v_ptr, full_high, high, positions, kv_len, scale,
                stride_kt, stride_vt, HEAD_DIM, V_HEAD_DIM, BLOCK_N, BLOCK_D, BLOCK_DV,
                CAUSAL, WINDOW, True, COMPUTE, INPUT_PRECISION,
            )  # fmt: skip
        out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(
            out_ptr + rows[:, None] * stride_ot + v_dims[None, :],
            out.to(out_ptr.dtype.element_ty),
            mask=(rows[:, None] < q_len) & (v_dims[None, :] < V_HEAD_DIM),
        )


def refuses(problem: Attention) -> str | None:
    """Return why `attention_kernel` does not compute ``problem``, or ``None`` where it does."""
    if problem.backward:
        return "gradients are the backward kernels'"
    if problem.page_size is not None or problem.shared_kv:
        return "paged caches and shared K and V are the decode kernel's"
    return refused_types(problem)


def refused_types(problem: Attention) -> str | None:
    """Return why no kernel here takes the types of ``problem``, or ``None``."""
    if problem.backend is not None:
        return f"the problem is the library kernel {problem.backend}'s"
    for dtype in (problem.dtype, parse_dtype(problem.kv_dtype or "")):
        if dtype.name not in ("fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2"):
            return f"{dtype} is not a type of these kernels"
    return None


def plan(problem: Attention, config: TileConfig) -> Plan:
    """Return the launch with which ``problem`` is computed: block_m queries by block_n keys."""
    shape = dims_of(problem)
    q_tiles = ceil_div(shape["max_q"], config.block_m)
    launch = Launch(
        attention_kernel,
        grid=(q_tiles * (problem.batch or 0) * problem.q_heads,),
        pointers={**operand_types(problem), "out_ptr": parse_dtype(problem.out_dtype or ""),
                  "q_starts_ptr": INT32, "kv_starts_ptr": INT32},
        integers={
            "Q_LEN": shape["max_q"], "KV_LEN": shape["max_kv"], "q_tiles": q_tiles,
            "q_heads": problem.q_heads, "group": problem.group, **strides(problem, "qkvo"),
        },
        floats={"scale": score_scale(problem)},
        constexprs={
            **tile_dims(problem, config),
            "UNEQUAL": is_unequal(problem),
            "EVEN_KEYS": not is_unequal(problem) and shape["max_kv"] % config.block_n == 0,
        },
        options=launch_options(config),
    )  # fmt: skip
    return Plan((launch,), {"out": result_buffer(problem)}, ("out",))


def dims_of(problem: Attention) -> dict[str, int]:
    """Return the totals and maxima over the sequences."""
    queries = [q for q, _ in problem.items]
    keys = [kv for _, kv in problem.items]
    return {
        "total_q": sum(queries), "total_kv": sum(keys),
        "max_q": max(queries, default=0), "max_kv": max(keys, default=0),
    }  # fmt: skip


def is_unequal(problem: Attention) -> bool:
    """Return whether the sequences differ in length."""
    return len(set(problem.items)) > 1


def score_scale(problem: Attention) -> float:
    """Return log2(e) / sqrt(head_dim), the factor of a score in units of log 2."""
    return LOG2_E / math.sqrt(problem.head_dim)


def operand_types(problem: Attention) -> dict[str, DType]:
    """Return the types of Q, K and V."""
    kv = parse_dtype(problem.kv_dtype or "")
    return {"q_ptr": problem.dtype, "k_ptr": kv, "v_ptr": kv}


def strides(problem: Attention, names: str) -> dict[str, int]:
    """Return token and head strides, in elements, of packed [tokens, heads, dim] tensors."""
    kv_heads, value_dim = problem.kv_heads or 1, problem.v_head_dim or 0
    rows = {
        "q": (problem.q_heads, problem.head_dim), "k": (kv_heads, problem.head_dim),
        "v": (kv_heads, value_dim), "o": (problem.q_heads, value_dim),
    }  # fmt: skip
    found: dict[str, int] = {}
    for name in names:
        heads, dim = rows[name]
        found |= {f"stride_{name}t": heads * dim, f"stride_{name}h": dim}
    return found


def tile_dims(problem: Attention, config: TileConfig) -> dict[str, Any]:
    """Return the compile-time arguments that all attention kernels share."""
    value_dim = problem.v_head_dim or 0
    return {
        "HEAD_DIM": problem.head_dim, "V_HEAD_DIM": value_dim,
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n,
        "BLOCK_D": padded_dim(problem.head_dim, problem.compute_dtype),
        "BLOCK_DV": padded_dim(value_dim, problem.compute_dtype),
        "CAUSAL": problem.causal, "WINDOW": problem.window or 0,
        "COMPUTE": triton_dtype(problem.compute_dtype),
        "INPUT_PRECISION": "tf32" if problem.compute_dtype == TF32 else "ieee",
    }  # fmt: skip


def result_buffer(problem: Attention) -> Buffer:
    """Return the memory of the result, [tokens, heads, v_head_dim]."""
    total = dims_of(problem)["total_q"]
    shape = (total, problem.q_heads, problem.v_head_dim or 0)
    return Buffer(shape, parse_dtype(problem.out_dtype or FP32))


__all__ = ["attention_kernel", "plan", "refuses"]
