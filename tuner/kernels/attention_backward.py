"""Flash attention, backward: dK and dV by tiles of keys, dQ by tiles of queries, scores computed
anew from the log-sum-exp that the forward pass left.
"""

# A kernel's arguments are Triton values: annotations on them would be read as Triton types, and
# by Triton's custom compile-time ones are in capitals.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803, PLR0915 - as said above; a kernel reads in one piece
from __future__ import annotations

import math

from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import FP32, INT32, DType, parse_dtype
from perfmodel.tiling.config import TileConfig
from tuner.kernels.attention import (
    dims_of,
    is_unequal,
    operand_types,
    refused_types,
    score_scale,
    span_of,
    strides,
    tile_dims,
)
from tuner.kernels.language import jit, tl
from tuner.kernels.launch import Buffer, Launch, Plan, ceil_div, launch_options, padded_dim

DELTA_ROWS = 16
SUM_WARPS = 4


@jit
def delta_kernel(
    dout_ptr,
    out_ptr,
    delta_ptr,
    rows,
    V_HEAD_DIM: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    ROWS: tl.constexpr,
):
    """delta[r] = sum of dO[r] O[r] of each query of a head: what softmax's gradient subtracts."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_DV)
    inside = (row[:, None] < rows) & (dims[None, :] < V_HEAD_DIM)
    offsets = row[:, None] * V_HEAD_DIM + dims[None, :]
    dout = tl.load(dout_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    out = tl.load(out_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta_ptr + row, tl.sum(dout * out, 1), mask=row < rows)


@jit
def sees(
    positions,
    keys,
    q_end,
    kv_len,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Whether the query at each position sees each key; ``q_end`` is the position past the last."""
    visible = (positions < q_end) & (keys < kv_len)
    if CAUSAL:
        visible = visible & (keys <= positions)
    if WINDOW > 0:
        visible = visible & (keys > positions - WINDOW)
        if not CAUSAL:
            visible = visible & (keys < positions + WINDOW)
    return visible


@jit
def key_gradient_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    q_starts_ptr,
    kv_starts_ptr,
    Q_LEN,
    KV_LEN,
    kv_tiles,
    q_heads,
    group,
    scale,
    gradient_scale,
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
    MASKED: tl.constexpr,
    COMPUTE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """dK and dV of a tile of keys, from one query head: dk and dv are [tokens, q_heads, dim]."""
    pid = tl.program_id(0)
    tile = pid % kv_tiles
    head = pid // kv_tiles % q_heads
    sequence = pid // kv_tiles // q_heads
    q_start, q_len = span_of(q_starts_ptr, sequence, Q_LEN, UNEQUAL)
    kv_start, kv_len = span_of(kv_starts_ptr, sequence, KV_LEN, UNEQUAL)

    first_key = tile * BLOCK_N
    if first_key < kv_len:
        q_ptr += q_start.to(tl.int64) * stride_qt + head * stride_qh
        dout_ptr += q_start.to(tl.int64) * stride_ot + head * stride_oh
        k_ptr += kv_start.to(tl.int64) * stride_kt + (head // group) * stride_kh
        v_ptr += kv_start.to(tl.int64) * stride_vt + (head // group) * stride_vh
        lse_ptr += q_start.to(tl.int64) * q_heads + head
        delta_ptr += q_start.to(tl.int64) * q_heads + head
        keys = first_key + tl.arange(0, BLOCK_N)
        dims = tl.arange(0, BLOCK_D)
        v_dims = tl.arange(0, BLOCK_DV)
        k_inside = (keys[:, None] < kv_len) & (dims[None, :] < HEAD_DIM)
        v_inside = (keys[:, None] < kv_len) & (v_dims[None, :] < V_HEAD_DIM)
        k = tl.load(k_ptr + keys[:, None] * stride_kt + dims[None, :], mask=k_inside, other=0.0).to(
            COMPUTE
        )
        v = tl.load(
            v_ptr + keys[:, None] * stride_vt + v_dims[None, :], mask=v_inside, other=0.0
        ).to(COMPUTE)
        prefix = kv_len - q_len
        low = 0
        high = q_len
        if CAUSAL:
            low = max(first_key - prefix, 0)
        if WINDOW > 0:
            high = min(high, first_key + BLOCK_N - 1 + WINDOW - prefix)
            if not CAUSAL:
                low = max(first_key - WINDOW + 1 - prefix, 0)
        low = low // BLOCK_M * BLOCK_M

        dk = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
        dv = tl.zeros((BLOCK_N, BLOCK_DV), dtype=tl.float32)
        for start in range(low, high, BLOCK_M):
            rows = start + tl.arange(0, BLOCK_M)
            q_ptrs = q_ptr + rows[:, None] * stride_qt + dims[None, :]
            dout_ptrs = dout_ptr + rows[:, None] * stride_ot + v_dims[None, :]
            if MASKED or HEAD_DIM < BLOCK_D or V_HEAD_DIM < BLOCK_DV:
                there = rows[:, None] < q_len
                q = tl.load(q_ptrs, mask=there & (dims[None, :] < HEAD_DIM), other=0.0)
                dout = tl.load(dout_ptrs, mask=there & (v_dims[None, :] < V_HEAD_DIM), other=0.0)
                lse = tl.load(lse_ptr + rows * q_heads, mask=rows < q_len, other=0.0)
                delta = tl.load(delta_ptr + rows * q_heads, mask=rows < q_len, other=0.0)
            else:
                q = tl.load(q_ptrs)
                dout = tl.load(dout_ptrs)
                lse = tl.load(lse_ptr + rows * q_heads)
                delta = tl.load(delta_ptr + rows * q_heads)
            q = q.to(COMPUTE)
            dout = dout.to(COMPUTE)
            scores = scale * tl.dot(k, tl.trans(q), input_precision=INPUT_PRECISION)
            weights = tl.exp2(scores - lse[None, :])
            if MASKED:
                visible = sees(
                    (prefix + rows)[None, :], keys[:, None], prefix + q_len, kv_len, CAUSAL, WINDOW
                )
                weights = tl.where(visible, weights, 0.0)
            dv = tl.dot(weights.to(COMPUTE), dout, dv, input_precision=INPUT_PRECISION)
            dweights = tl.dot(v, tl.trans(dout), input_precision=INPUT_PRECISION)
            dscores = weights * (dweights - delta[None, :])
            dk = tl.dot(dscores.to(COMPUTE), q, dk, input_precision=INPUT_PRECISION)

        dk_ptr += (kv_start.to(tl.int64) * q_heads + head) * HEAD_DIM
        dv_ptr += (kv_start.to(tl.int64) * q_heads + head) * V_HEAD_DIM
        tl.store(
            dk_ptr + keys[:, None] * (q_heads * HEAD_DIM) + dims[None, :],
            (dk * gradient_scale).to(dk_ptr.dtype.element_ty),
            mask=k_inside,
        )
        tl.store(
            dv_ptr + keys[:, None] * (q_heads * V_HEAD_DIM) + v_dims[None, :],
            dv.to(dv_ptr.dtype.element_ty),
            mask=v_inside,
        )


@jit
def query_gradient_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    q_starts_ptr,
    kv_starts_ptr,
    Q_LEN,
    KV_LEN,
    q_tiles,
    q_heads,
    group,
    scale,
    gradient_scale,
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
    MASKED: tl.constexpr,
    COMPUTE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """dQ of a tile of queries of one head, [tokens, q_heads, dim]."""
    pid = tl.program_id(0)
    tile = pid % q_tiles
    if CAUSAL:
        tile = q_tiles - 1 - tile
    head = pid // q_tiles % q_heads
    sequence = pid // q_tiles // q_heads
    q_start, q_len = span_of(q_starts_ptr, sequence, Q_LEN, UNEQUAL)
    kv_start, kv_len = span_of(kv_starts_ptr, sequence, KV_LEN, UNEQUAL)

    first_row = tile * BLOCK_M
    if first_row < q_len:
        q_ptr += q_start.to(tl.int64) * stride_qt + head * stride_qh
        dout_ptr += q_start.to(tl.int64) * stride_ot + head * stride_oh
        k_ptr += kv_start.to(tl.int64) * stride_kt + (head // group) * stride_kh
        v_ptr += kv_start.to(tl.int64) * stride_vt + (head // group) * stride_vh
        rows = first_row + tl.arange(0, BLOCK_M)
        dims = tl.arange(0, BLOCK_D)
        v_dims = tl.arange(0, BLOCK_DV)
        q_inside = (rows[:, None] < q_len) & (dims[None, :] < HEAD_DIM)
        q = tl.load(q_ptr + rows[:, None] * stride_qt + dims[None, :], mask=q_inside, other=0.0).to(
            COMPUTE
        )
        dout = tl.load(
            dout_ptr + rows[:, None] * stride_ot + v_dims[None, :],
            mask=(rows[:, None] < q_len) & (v_dims[None, :] < V_HEAD_DIM),
            other=0.0,
        ).to(COMPUTE)
        of_row = (q_start + rows).to(tl.int64) * q_heads + head
        lse = tl.load(lse_ptr + of_row, mask=rows < q_len, other=0.0)
        delta = tl.load(delta_ptr + of_row, mask=rows < q_len, other=0.0)
        prefix = kv_len - q_len
        first_position = prefix + first_row
        last_position = prefix + min(first_row + BLOCK_M, q_len) - 1
        low = 0
        high = kv_len
        if CAUSAL:
            high = min(kv_len, last_position + 1)
        if WINDOW > 0:
            low = max(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
            if not CAUSAL:
                high = min(kv_len, last_position + WINDOW)

        dq = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
        for start in range(low, high, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            k_ptrs = k_ptr + keys[:, None] * stride_kt + dims[None, :]
            v_ptrs = v_ptr + keys[:, None] * stride_vt + v_dims[None, :]
            if MASKED or HEAD_DIM < BLOCK_D or V_HEAD_DIM < BLOCK_DV:
                there = keys[:, None] < kv_len
                k = tl.load(k_ptrs, mask=there & (dims[None, :] < HEAD_DIM), other=0.0)
                v = tl.load(v_ptrs, mask=there & (v_dims[None, :] < V_HEAD_DIM), other=0.0)
            else:
                k = tl.load(k_ptrs)
                v = tl.load(v_ptrs)
            k = k.to(COMPUTE)
            v = v.to(COMPUTE)
            scores = scale * tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION)
            weights = tl.exp2(scores - lse[:, None])
            if MASKED:
                visible = sees(
                    (prefix + rows)[:, None], keys[None, :], prefix + q_len, kv_len, CAUSAL, WINDOW
                )
                weights = tl.where(visible, weights, 0.0)
            dweights = tl.dot(dout, tl.trans(v), input_precision=INPUT_PRECISION)
            dscores = weights * (dweights - delta[:, None])
            dq = tl.dot(dscores.to(COMPUTE), k, dq, input_precision=INPUT_PRECISION)

        dq_ptr += (q_start.to(tl.int64) * q_heads + head) * HEAD_DIM
        tl.store(
            dq_ptr + rows[:, None] * (q_heads * HEAD_DIM) + dims[None, :],
            (dq * gradient_scale).to(dq_ptr.dtype.element_ty),
            mask=q_inside,
        )


@jit
def sum_heads_kernel(
    part_ptr, out_ptr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, GROUP: tl.constexpr
):
    """Sum the gradients of one token's KV head over the GROUP query heads that it serves."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    total = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for head in range(GROUP):
        total += tl.load(part_ptr + (row * GROUP + head) * DIM + dims, mask=dims < DIM, other=0.0)
    tl.store(out_ptr + row * DIM + dims, total.to(out_ptr.dtype.element_ty), mask=dims < DIM)


def refuses(problem: Attention) -> str | None:
    """Return why these kernels do not compute ``problem``, or ``None`` where they do."""
    if not problem.backward:
        return "the result itself is the forward kernels'"
    if problem.shared_kv:
        return "gradients are taken of K and V apart"
    out_type = parse_dtype(problem.out_dtype or "")
    if min(dtype.bits for dtype in (*operand_types(problem).values(), out_type)) < 16:
        return "gradients need types of at least 16 bits"
    return refused_types(problem)


def plan(problem: Attention, config: TileConfig) -> Plan:
    """Return the launches: what softmax subtracts, dK and dV, their sum over heads, dQ.

    Both loops go over tiles of block_m queries by block_n keys.
    """
    shape, kv = dims_of(problem), parse_dtype(problem.kv_dtype or "")
    total_q, total_kv = shape["total_q"], shape["total_kv"]
    q_heads, kv_heads, value_dim = problem.q_heads, problem.kv_heads or 1, problem.v_head_dim or 0
    out_type = parse_dtype(problem.out_dtype or "")
    sizes = {"dk": problem.head_dim, "dv": value_dim}
    buffers = {
        "delta": Buffer((total_q, q_heads), FP32),
        "dq": Buffer((total_q, q_heads, problem.head_dim), problem.dtype),
        **{name: Buffer((total_kv, kv_heads, dim), kv) for name, dim in sizes.items()},
    }
    names: dict[str, str] = {}
    sums: list[Launch] = []
    if problem.group > 1:
        for name, dim in sizes.items():
            names[f"{name}_ptr"] = part = f"{name}_part"
            buffers[part] = Buffer((total_kv, q_heads, dim), FP32)
            sums.append(_sum_heads(problem, part, name, dim))
    grads = FP32 if names else kv
    delta = Launch(
        delta_kernel,
        grid=(ceil_div(total_q * q_heads, DELTA_ROWS),),
        pointers={"dout_ptr": out_type, "out_ptr": out_type, "delta_ptr": FP32},
        integers={"rows": total_q * q_heads},
        constexprs={
            "V_HEAD_DIM": value_dim, "BLOCK_DV": padded_dim(value_dim, FP32), "ROWS": DELTA_ROWS,
        },
        options={"num_warps": SUM_WARPS},
    )  # fmt: skip
    by_keys = _gradient(problem, config, "kv_tiles", {"dk_ptr": grads, "dv_ptr": grads}, names)
    by_queries = _gradient(problem, config, "q_tiles", {"dq_ptr": problem.dtype}, {})
    return Plan((delta, by_keys, *sums, by_queries), buffers, ("dq", "dk", "dv"))


def _gradient(
    problem: Attention,
    config: TileConfig,
    tiles: str,
    results: dict[str, DType],
    names: dict[str, str],
) -> Launch:
    shape = dims_of(problem)
    by_keys = tiles == "kv_tiles"
    count = (
        ceil_div(shape["max_kv"], config.block_n) if by_keys
        else ceil_div(shape["max_q"], config.block_m)
    )  # fmt: skip
    uneven = shape["max_q"] % config.block_m or shape["max_kv"] % config.block_n
    out_type = parse_dtype(problem.out_dtype or "")
    return Launch(
        key_gradient_kernel if by_keys else query_gradient_kernel,
        grid=(count * (problem.batch or 0) * problem.q_heads,),
        pointers={
            **operand_types(problem), "dout_ptr": out_type, "lse_ptr": FP32, "delta_ptr": FP32,
            **results, "q_starts_ptr": INT32, "kv_starts_ptr": INT32,
        },
        integers={
            "Q_LEN": shape["max_q"], "KV_LEN": shape["max_kv"], tiles: count,
            "q_heads": problem.q_heads, "group": problem.group, **strides(problem, "qkvo"),
        },
        floats={
            "scale": score_scale(problem), "gradient_scale": 1.0 / math.sqrt(problem.head_dim),
        },
        constexprs={
            **tile_dims(problem, config),
            "UNEQUAL": is_unequal(problem),
            "MASKED": bool(
                uneven or problem.causal or problem.window or is_unequal(problem)
            ),
        },
        options=launch_options(config),
        tensors=names,
    )  # fmt: skip


def _sum_heads(problem: Attention, part: str, name: str, dim: int) -> Launch:
    return Launch(
        sum_heads_kernel,
        grid=(dims_of(problem)["total_kv"] * (problem.kv_heads or 1),),
        pointers={"part_ptr": FP32, "out_ptr": parse_dtype(problem.kv_dtype or "")},
        constexprs={"DIM": dim, "BLOCK_D": padded_dim(dim, FP32), "GROUP": problem.group},
        options={"num_warps": 1},
        tensors={"part_ptr": part, "out_ptr": name},
    )


__all__ = ["key_gradient_kernel", "plan", "query_gradient_kernel", "refuses"]
