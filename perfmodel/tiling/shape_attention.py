"""What attention of unknown tile does: exact masks, softmax, and how libraries cut it up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.tiling.shape_work import SPLIT_PARTIAL_BYTES, ShapeWork, Tilings, in_pairs

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
    tilings = _forward(p, gpu, tiles)
    if (p.backward > 0).any():
        tilings = _where(p.backward > 0, _backward(p), tilings)
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
        tilings=tilings,
    )


def padded_head_dims(p: AttentionTable) -> tuple[Array, Array]:
    """Head dims of Q and K, and of V, as a library computes them."""
    return (
        np.ceil(p.head_dim / HEAD_DIM_STEP) * HEAD_DIM_STEP,
        np.ceil(p.v_head_dim / HEAD_DIM_STEP) * HEAD_DIM_STEP,
    )


def _forward(p: AttentionTable, gpu: Gpu, tiles: Sequence[tuple[int, bool]]) -> Tilings:
    """CTAs take so many query rows of one head, or of all query heads of a KV head.

    Each of the T tiles comes twice: keys whole, and split.
    """
    rows = np.array([[float(edge)] for edge, _ in tiles])
    packed = np.array([[share] for _, share in tiles])
    group = p.q_heads / p.kv_heads
    together = np.where(packed, group, 1.0)
    heads = np.where(packed, p.kv_heads, p.q_heads)
    row_count = p.q_len * p.per_group(together)
    cuts = np.ceil(row_count / rows)
    # Masked corners of a tile are computed too: half a block of keys a row on average.
    corner = np.where(p.per_group(p.causal) > 0, BLOCK_N / 2.0, 0.0) * (p.q_len > 1)
    reach = p.group_pairs / np.maximum(p.q_len, 1.0)  # keys a row sees on average
    seen = np.minimum(reach + corner, p.kv_len)
    seen = np.ceil(seen / 16.0) * 16.0
    longest = np.minimum(p.group_keys, _window_reach(p, rows, together))
    longest = p.largest(np.maximum(np.ceil(longest / 16.0) * 16.0, seen))
    ctas = p.total(p.count * cuts) * heads
    keys = p.total(p.count * cuts * seen) * heads  # keys all CTAs walk over
    room = np.floor(2.0 * gpu.sm_count / np.maximum(ctas, 1.0))
    # Not rounded: one more key must not make room for a part and so take less time.
    parts = np.maximum(np.minimum(room, longest / SPLIT_KEYS_MIN), 1.0)
    mean_keys = keys / np.maximum(ctas, 1.0)
    share = np.where(keys > 0, longest / np.maximum(mean_keys, 1.0), 1.0)
    mean_keys = in_pairs(mean_keys, mean_keys / parts)
    _, key, value, _ = p.row_bytes
    d, dv = padded_head_dims(p)
    pairs = in_pairs(rows, rows) * mean_keys
    own_rows = np.minimum(rows, p.largest(row_count)) * (p.head_dim * p.dtype.bytes)
    partial_rows = p.queries * p.q_heads * (p.v_head_dim + 1.0)
    is_split = (parts > 1).astype(np.float64)
    whole = np.zeros_like(parts)
    return Tilings(
        names=tuple(
            f"{edge}{'packed' if share else ''}{split}"
            for edge, share in tiles
            for split in ("", "split")
        ),
        ctas=in_pairs(ctas, ctas * parts),
        mean_flops=2.0 * pairs * (d + dv),
        mean_sfu_ops=EXPONENTIALS_PER_PAIR * pairs,
        mean_fma_flops=FMA_FLOPS_PER_PAIR * pairs,
        mean_load_bytes=mean_keys * (key + value) + in_pairs(own_rows, own_rows),
        longest_share=in_pairs(share, share),
        occupancy=np.where(in_pairs(rows, rows) <= 64, 2.0, 1.0),
        partial_bytes=in_pairs(
            whole, is_split * parts * (2.0 * SPLIT_PARTIAL_BYTES * partial_rows)
        ),
        extra_launches=in_pairs(whole, is_split),
    )


def _window_reach(p: AttentionTable, rows: Array, together: Array) -> Array:
    """Keys that the rows of one tile can see between them, (T, M)."""
    window, causal = p.per_group(p.window), p.per_group(p.causal)
    own = np.ceil(rows / p.per_group(together))
    return np.where(causal > 0, 1.0, 2.0) * window + own - 1.0


def _backward(p: AttentionTable) -> Tilings:
    """CTAs take 128 keys of one query head and walk over the queries that see them."""
    tiles = np.ceil(p.group_keys / BLOCK_N)
    ctas = p.total(p.count * tiles) * p.q_heads
    whole = np.maximum(ctas, 1.0)
    d, dv = padded_head_dims(p)
    corner = BLOCK_N / 2.0 * p.per_group(p.causal)
    walked = np.minimum(p.group_pairs / np.maximum(p.group_keys, 1.0) + corner, p.q_len)
    rows = p.total(p.count * tiles * walked) * p.q_heads / whole
    longest = p.largest(np.minimum(p.q_len, _window_reach(p, np.full(1, BLOCK_N), np.ones(len(p)))))
    pairs = BLOCK_N * rows
    q, _, _, out = p.row_bytes
    nothing = np.zeros((1, 1))
    return Tilings(
        names=("backward",),
        ctas=ctas[None],
        mean_flops=(2.0 * pairs * (3.0 * d + 2.0 * dv))[None],
        mean_sfu_ops=(EXPONENTIALS_PER_PAIR * pairs)[None],
        mean_fma_flops=(FMA_FLOPS_PER_PAIR_BACKWARD * pairs)[None],
        # dQ is added to in fp32
        mean_load_bytes=(rows * (q + 2.0 * out + p.head_dim * 8.0))[None],
        longest_share=np.where(rows > 0, np.maximum(longest / np.maximum(rows, 1.0), 1.0), 1.0)[
            None
        ],
        occupancy=np.ones((1, 1)),
        partial_bytes=nothing,
        extra_launches=nothing,
    )


def _where(mask: NDArray[np.bool_], yes: Tilings, no: Tilings) -> Tilings:
    """Return rows of ``yes`` where ``mask`` says so, of ``no`` elsewhere."""
    names = (
        "ctas", "mean_flops", "mean_sfu_ops", "mean_fma_flops", "mean_load_bytes",
        "longest_share", "partial_bytes", "extra_launches",
    )  # fmt: skip
    picked = {n: np.where(mask, getattr(yes, n), getattr(no, n)) for n in names}
    return Tilings(names=no.names, occupancy=no.occupancy, **picked)
