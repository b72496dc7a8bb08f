"""What attention of unknown tile does: exact masks, softmax, and how libraries cut it up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.tiling.shape_work import SPLIT_PARTIAL_BYTES, ShapeWork, Tiling

Array = NDArray[np.float64]

EXPONENTIALS_PER_PAIR = 1.0

FMA_FLOPS_PER_PAIR = 6.0
"""Forward, in ordinary lanes: scale and shift (one fused operation, two), maximum, sum, two
conversions. The backward pass also forms dS = P (dP - D)."""
FMA_FLOPS_PER_PAIR_BACKWARD = 10.0

HEAD_DIM_STEP = 32.0
"""Libraries round a head dim up to the next size they were built for: 32, 64, 96, 128 ..."""

BLOCK_N = 128.0

FORWARD_TILES = ((128, False), (64, False), (128, True), (64, True), (16, True))
"""Query rows a CTA takes, and whether the query heads of a KV head share it (GQA packing). With
tensor memory for the sums, a CTA takes two tiles of 128 in turn besides: their keys are read once.
"""

SPLIT_KEYS_MIN = 256.0
"""A part of split keys is at least this long."""


def attention_shape_work(p: AttentionTable, gpu: Gpu) -> ShapeWork:
    """Describe attention problems whose tile is unknown, one problem a row."""
    lanes = np.where(p.backward > 0, FMA_FLOPS_PER_PAIR_BACKWARD, FMA_FLOPS_PER_PAIR)
    tiles = FORWARD_TILES if not gpu.can("tmem") else (*FORWARD_TILES, (256, False))
    tilings = [
        _forward(p, gpu, rows, packed=packed, split=split)
        for rows, packed in tiles
        for split in (False, True)
    ]
    if (p.backward > 0).any():
        backward = _backward(p)
        tilings = [_where(p.backward > 0, backward, forward) for forward in tilings]
    some = (p.queries > 0).astype(np.float64)
    return ShapeWork(
        compute_dtype=p.compute_dtype.name,
        flops=p.flops,
        sfu_ops=EXPONENTIALS_PER_PAIR * p.pairs,
        fma_flops=lanes * p.pairs,
        read_bytes=p.read_bytes,
        write_bytes=p.write_bytes,
        footprint_bytes=p.compulsory_bytes,
        launches=some * np.where(p.backward > 0, 2.0, 1.0),  # sums of dO times O come first
        tilings=tuple(tilings),
    )


def padded_head_dims(p: AttentionTable) -> tuple[Array, Array]:
    """Head dims of Q and K, and of V, as a library computes them."""
    return (
        np.ceil(p.head_dim / HEAD_DIM_STEP) * HEAD_DIM_STEP,
        np.ceil(p.v_head_dim / HEAD_DIM_STEP) * HEAD_DIM_STEP,
    )


def _forward(p: AttentionTable, gpu: Gpu, rows: int, *, packed: bool, split: bool) -> Tiling:
    """CTAs take ``rows`` query rows of one head, or of all query heads of a KV head."""
    group = p.q_heads / p.kv_heads
    together = group if packed else np.ones_like(group)
    heads = p.kv_heads if packed else p.q_heads
    row_count = p.q_len * p.per_group(together)
    tiles = np.ceil(row_count / rows)
    # Masked corners of a tile are computed too: half a block of keys a row on average.
    corner = np.where(p.per_group(p.causal) > 0, BLOCK_N / 2.0, 0.0) * (p.q_len > 1)
    reach = p.group_pairs / np.maximum(p.q_len, 1.0)  # keys a row sees on average
    seen = np.minimum(reach + corner, p.kv_len)
    seen = np.ceil(seen / 16.0) * 16.0
    longest = np.minimum(p.group_keys, _window_reach(p, rows, together))
    longest = np.maximum(np.ceil(longest / 16.0) * 16.0, seen)
    ctas = p.total(p.count * tiles) * heads
    keys = p.total(p.count * tiles * seen) * heads  # keys all CTAs walk over
    parts = np.ones_like(ctas)
    if split:
        room = np.floor(2.0 * gpu.sm_count / np.maximum(ctas, 1.0))
        parts = np.clip(np.minimum(room, np.floor(p.largest(longest) / SPLIT_KEYS_MIN)), 1.0, None)
    whole = np.maximum(ctas, 1.0)
    mean_keys = keys / whole / parts
    _, key, value, _ = p.row_bytes
    d, dv = padded_head_dims(p)
    pairs = rows * mean_keys
    q_row = p.head_dim * p.dtype.bytes
    partial_rows = p.queries * p.q_heads * (p.v_head_dim + 1.0)
    return Tiling(
        name=f"{rows}{'packed' if packed else ''}{'split' if split else ''}",
        ctas=ctas * parts,
        mean_flops=2.0 * pairs * (d + dv),
        mean_sfu_ops=EXPONENTIALS_PER_PAIR * pairs,
        mean_fma_flops=FMA_FLOPS_PER_PAIR * pairs,
        mean_load_bytes=mean_keys * (key + value) + np.minimum(rows, p.largest(row_count)) * q_row,
        longest_share=np.where(keys > 0, p.largest(longest) / np.maximum(keys / whole, 1.0), 1.0),
        occupancy=2.0 if rows <= 64 else 1.0,
        partial_bytes=np.where(parts > 1, 2.0 * parts * partial_rows * SPLIT_PARTIAL_BYTES, 0.0),
        extra_launches=(parts > 1).astype(np.float64),
    )


def _window_reach(p: AttentionTable, rows: int, together: Array) -> Array:
    """Keys that the rows of one tile can see between them, (M,)."""
    window, causal = p.per_group(p.window), p.per_group(p.causal)
    own = np.ceil(rows / p.per_group(together))
    return np.where(causal > 0, 1.0, 2.0) * window + own - 1.0


def _backward(p: AttentionTable) -> Tiling:
    """CTAs take 128 keys of one query head and walk over the queries that see them."""
    tiles = np.ceil(p.group_keys / BLOCK_N)
    ctas = p.total(p.count * tiles) * p.q_heads
    whole = np.maximum(ctas, 1.0)
    d, dv = padded_head_dims(p)
    corner = BLOCK_N / 2.0 * p.per_group(p.causal)
    walked = np.minimum(p.group_pairs / np.maximum(p.group_keys, 1.0) + corner, p.q_len)
    rows = p.total(p.count * tiles * walked) * p.q_heads / whole
    longest = p.largest(np.minimum(p.q_len, _window_reach(p, int(BLOCK_N), np.ones(len(p)))))
    pairs = BLOCK_N * rows
    q, _, _, out = p.row_bytes
    return Tiling(
        name="backward",
        ctas=ctas,
        mean_flops=2.0 * pairs * (3.0 * d + 2.0 * dv),
        mean_sfu_ops=EXPONENTIALS_PER_PAIR * pairs,
        mean_fma_flops=FMA_FLOPS_PER_PAIR_BACKWARD * pairs,
        mean_load_bytes=rows * (q + 2.0 * out + p.head_dim * 8.0),  # dQ is added to in fp32
        longest_share=np.where(rows > 0, np.maximum(longest / np.maximum(rows, 1.0), 1.0), 1.0),
        occupancy=1.0,
        partial_bytes=np.zeros_like(ctas),
        extra_launches=np.zeros_like(ctas),
    )


def _where(mask: NDArray[np.bool_], yes: Tiling, no: Tiling) -> Tiling:
    """Return rows of ``yes`` where ``mask`` says so, of ``no`` elsewhere."""
    names = (
        "ctas", "mean_flops", "mean_sfu_ops", "mean_fma_flops", "mean_load_bytes",
        "longest_share", "partial_bytes", "extra_launches",
    )  # fmt: skip
    picked = {n: np.where(mask, getattr(yes, n), getattr(no, n)) for n in names}
    return Tiling(name=no.name, occupancy=no.occupancy, **picked)
