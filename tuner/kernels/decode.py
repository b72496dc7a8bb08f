"""Attention of few queries over long caches: the keys split over programs, then put together."""

# A kernel's arguments are Triton values: annotations on them would be read as Triton types, and
# by Triton's custom compile-time ones are in capitals.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803, PLR0912, PLR0915 - as said above; a kernel reads in one piece
from __future__ import annotations

from typing import Any

from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import FP32, INT32, parse_dtype
from perfmodel.tiling.config import TileConfig
from tuner.kernels.attention import (
    dims_of,
    operand_types,
    refused_types,
    result_buffer,
    score_scale,
    strides,
    tile_dims,
)
from tuner.kernels.language import jit, tl
from tuner.kernels.launch import Buffer, Launch, Plan, ceil_div, launch_options, padded_dim

REDUCE_WARPS = 4


@jit
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    peak_ptr,
    q_starts_ptr,
    kv_starts_ptr,
    pages_ptr,
    row_tiles,
    kv_heads,
    q_heads,
    table_width,
    total_q,
    scale,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    GROUP: tl.constexpr,
    SPLITS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SHARED_KV: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    COMPUTE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Attention of one split of the keys, for a tile of queries that share a KV head.

    A row of a tile is a query of a query head: row r is query r // GROUP of head r % GROUP of the
    GROUP heads that the KV head serves. ``out`` is the result where SPLITS is 1; otherwise it is
    [SPLITS, tokens, heads, v_head_dim] and ``peak`` takes log2 of each part's weight. The tokens of
    a paged cache (PAGE_SIZE > 0) are found through ``pages``, [sequences, table_width].
    SHARED_KV: V is the first V_HEAD_DIM columns of K, and BLOCK_REST covers the others (0: none).
    """
    pid = tl.program_id(0)
    split = tl.program_id(1)
    tile = pid % row_tiles
    kv_head = pid // row_tiles % kv_heads
    sequence = pid // row_tiles // kv_heads
    q_start = tl.load(q_starts_ptr + sequence)
    q_len = tl.load(q_starts_ptr + sequence + 1) - q_start
    kv_start = tl.load(kv_starts_ptr + sequence)
    kv_len = tl.load(kv_starts_ptr + sequence + 1) - kv_start

    first_row = tile * BLOCK_M
    if first_row < q_len * GROUP:
        rows = first_row + tl.arange(0, BLOCK_M)
        there = rows < q_len * GROUP
        token = (q_start + rows // GROUP).to(tl.int64)
        head = kv_head * GROUP + rows % GROUP
        positions = kv_len - q_len + rows // GROUP
        dims = tl.arange(0, BLOCK_D)
        v_dims = tl.arange(0, BLOCK_DV)
        q_ptrs = q_ptr + (token * stride_qt + head * stride_qh)[:, None]
        if SHARED_KV:
            q = tl.load(
                q_ptrs + v_dims[None, :],
                mask=there[:, None] & (v_dims[None, :] < V_HEAD_DIM),
                other=0.0,
            ).to(COMPUTE)
        else:
            q = tl.load(
                q_ptrs + dims[None, :], mask=there[:, None] & (dims[None, :] < HEAD_DIM), other=0.0
            ).to(COMPUTE)
        if BLOCK_REST > 0:
            rest = V_HEAD_DIM + tl.arange(0, BLOCK_REST)
            q_rest = tl.load(
                q_ptrs + rest[None, :], mask=there[:, None] & (rest[None, :] < HEAD_DIM), other=0.0
            ).to(COMPUTE)

        first_position = kv_len - q_len + first_row // GROUP
        last_position = kv_len - q_len + min((first_row + BLOCK_M - 1) // GROUP, q_len - 1)
        low = 0
        high = kv_len
        if CAUSAL:
            high = min(kv_len, last_position + 1)
        if WINDOW > 0:
            low = max(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
            if not CAUSAL:
                high = min(kv_len, last_position + WINDOW)
        part = tl.cdiv(tl.cdiv(max(high - low, 0), BLOCK_N), SPLITS) * BLOCK_N
        first = low + split * part
        last = min(first + part, high)

        acc = tl.zeros((BLOCK_M, BLOCK_DV), dtype=tl.float32)
        total = tl.zeros((BLOCK_M,), dtype=tl.float32)
        peak = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
        for start in range(first, last, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            inside = keys < kv_len
            if PAGE_SIZE > 0:
                page = tl.load(
                    pages_ptr + sequence * table_width + keys // PAGE_SIZE, mask=inside, other=0
                )
                slots = page.to(tl.int64) * PAGE_SIZE + keys % PAGE_SIZE
            else:
                slots = (kv_start + keys).to(tl.int64)
            k_ptrs = k_ptr + slots * stride_kt + kv_head * stride_kh
            if SHARED_KV:
                v = tl.load(
                    k_ptrs[:, None] + v_dims[None, :],
                    mask=inside[:, None] & (v_dims[None, :] < V_HEAD_DIM),
                    other=0.0,
                ).to(COMPUTE)
                scores = tl.dot(q, tl.trans(v), input_precision=INPUT_PRECISION)
                if BLOCK_REST > 0:
                    k = tl.load(
                        k_ptrs[None, :] + rest[:, None],
                        mask=inside[None, :] & (rest[:, None] < HEAD_DIM),
                        other=0.0,
                    ).to(COMPUTE)
                    scores = tl.dot(q_rest, k, scores, input_precision=INPUT_PRECISION)
            else:
                k = tl.load(
                    k_ptrs[None, :] + dims[:, None],
                    mask=inside[None, :] & (dims[:, None] < HEAD_DIM),
                    other=0.0,
                ).to(COMPUTE)
                scores = tl.dot(q, k, input_precision=INPUT_PRECISION)
            visible = keys[None, :] < high
            if CAUSAL:
                visible = visible & (keys[None, :] <= positions[:, None])
            if WINDOW > 0:
                visible = visible & (keys[None, :] > positions[:, None] - WINDOW)
                if not CAUSAL:
                    visible = visible & (keys[None, :] < positions[:, None] + WINDOW)
            scores = tl.where(visible, scores * scale, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(scores, 1))
            base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            weights = tl.exp2(scores - base[:, None])
            fade = tl.exp2(peak - base)
            total = total * fade + tl.sum(weights, 1)
            if not SHARED_KV:
                v_ptrs = v_ptr + slots * stride_vt + kv_head * stride_vh
                v = tl.load(
                    v_ptrs[:, None] + v_dims[None, :],
                    mask=inside[:, None] & (v_dims[None, :] < V_HEAD_DIM),
                    other=0.0,
                ).to(COMPUTE)
            acc = tl.dot(
                weights.to(COMPUTE), v, acc * fade[:, None], input_precision=INPUT_PRECISION
            )
            peak = new_peak

        result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        row = (split.to(tl.int64) * total_q + token) * q_heads + head
        tl.store(
            out_ptr + row[:, None] * V_HEAD_DIM + v_dims[None, :],
            result.to(out_ptr.dtype.element_ty),
            mask=there[:, None] & (v_dims[None, :] < V_HEAD_DIM),
        )
        if SPLITS > 1:
            tl.store(peak_ptr + row, peak + tl.log2(total), mask=there)


@jit
def combine_kernel(
    part_ptr,
    peak_ptr,
    out_ptr,
    rows,
    V_HEAD_DIM: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Weigh the parts of one row, a query of a head, by the share of softmax each stands for."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_DV)
    splits = tl.arange(0, SPLITS)
    peaks = tl.load(peak_ptr + splits * rows.to(tl.int64) + row)
    base = tl.max(peaks, 0)
    base = tl.where(base == float("-inf"), 0.0, base)
    weights = tl.exp2(peaks - base)
    total = tl.sum(weights, 0)
    parts = tl.load(
        part_ptr + (splits[:, None] * rows.to(tl.int64) + row) * V_HEAD_DIM + dims[None, :],
        mask=dims[None, :] < V_HEAD_DIM,
        other=0.0,
    )
    result = tl.sum(parts * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(
        out_ptr + row * V_HEAD_DIM + dims,
        result.to(out_ptr.dtype.element_ty),
        mask=dims < V_HEAD_DIM,
    )


def refuses(problem: Attention) -> str | None:
    """Return why `decode_kernel` does not compute ``problem``, or ``None`` where it does."""
    return "gradients are the backward kernels'" if problem.backward else refused_types(problem)


def plan(problem: Attention, config: TileConfig) -> Plan:
    """Return the launches for block_m rows (queries times heads of a group) by block_n keys.

    Keys are cut into ``split_k`` parts, a power of two, which a second launch puts together.
    """
    shape, splits = dims_of(problem), config.split_k
    kv_heads, value_dim = problem.kv_heads or 1, problem.v_head_dim or 0
    row_tiles = ceil_div(shape["max_q"] * problem.group, config.block_m)
    rest = problem.head_dim - value_dim if problem.shared_kv else 0
    pages = 0
    if problem.page_size is not None:
        pages = ceil_div(shape["max_kv"], problem.page_size)
    names = {"out_ptr": "part"} if splits > 1 else {}
    out_type = FP32 if splits > 1 else parse_dtype(problem.out_dtype or "")
    constexprs: dict[str, Any] = {
        **tile_dims(problem, config),
        "GROUP": problem.group, "SPLITS": splits, "PAGE_SIZE": problem.page_size or 0,
        "SHARED_KV": problem.shared_kv,
        "BLOCK_REST": padded_dim(rest, problem.compute_dtype) if rest else 0,
    }  # fmt: skip
    attend = Launch(
        decode_kernel,
        grid=(row_tiles * kv_heads * (problem.batch or 0), splits),
        pointers={
            **operand_types(problem), "out_ptr": out_type, "peak_ptr": FP32,
            "q_starts_ptr": INT32, "kv_starts_ptr": INT32, "pages_ptr": INT32,
        },
        integers={
            "row_tiles": row_tiles, "kv_heads": kv_heads, "q_heads": problem.q_heads,
            "table_width": pages, "total_q": shape["total_q"], **strides(problem, "qkv"),
        },
        floats={"scale": score_scale(problem)},
        constexprs=constexprs,
        options=launch_options(config),
        tensors=names,
    )  # fmt: skip
    rows = shape["total_q"] * problem.q_heads
    buffers = {
        "out": result_buffer(problem),
        # Without splits or pages these are not touched; a pointer must point somewhere.
        "peak": Buffer((splits, rows) if splits > 1 else (1,), FP32),
    }
    if problem.page_size is None:
        buffers["pages"] = Buffer((1,), INT32)
    if splits == 1:
        return Plan((attend,), buffers, ("out",))
    buffers["part"] = Buffer((splits, shape["total_q"], problem.q_heads, value_dim), FP32)
    combine = Launch(
        combine_kernel,
        grid=(rows,),
        pointers={"part_ptr": FP32, "peak_ptr": FP32, "out_ptr": buffers["out"].dtype},
        integers={"rows": rows},
        constexprs={
            "V_HEAD_DIM": value_dim, "BLOCK_DV": constexprs["BLOCK_DV"], "SPLITS": splits,
        },
        options={"num_warps": REDUCE_WARPS},
    )  # fmt: skip
    return Plan((attend, combine), buffers, ("out",))


__all__ = ["combine_kernel", "decode_kernel", "plan", "refuses"]
