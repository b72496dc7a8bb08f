"""What a mixture-of-experts layer of unknown tile does: two grouped products and what is between.

Launches follow one another: sort tokens by expert, up, activation, down, sum over top_k. Asked
about one projection alone, only its own launch counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.grouped_gemm_table import GroupedGemmTable
from perfmodel.tiling.shape_memory import streaming_work
from perfmodel.tiling.shape_work import PAIRED_TILE_MIN, ShapeWork, Tiling

Array = NDArray[np.float64]

GROUPED_TILES = (
    (128, 128), (128, 256), (64, 128), (64, 256), (32, 128), (16, 128), (16, 64), (8, 128),
)  # fmt: skip
"""Tiles that libraries ship: rows of an expert's tokens x columns (operands may be swapped, so
that few tokens lie along the short side)."""

ACTIVATION_FLOPS, ACTIVATION_SFU_OPS = 3.0, 2.0
"""Per element of silu(gate) times up: an exponential, a reciprocal, three ordinary operations."""


def grouped_gemm_shape_works(p: GroupedGemmTable, gpu: Gpu) -> tuple[ShapeWork, ...]:
    """Describe each launch of mixture-of-experts problems, one problem a row."""
    both = p.with_up * p.with_down
    routed, out, token = p.routed, p.out_dtype.bytes, p.dtype.bytes
    some = (routed > 0).astype(np.float64)
    distinct = np.minimum(routed, p.tokens)
    up = _product(
        p, gpu, mask=p.with_up * some, depth=p.hidden, columns=p.columns, rows_read=distinct,
        launches=1.0 + both,
    )  # fmt: skip
    down = _product(
        p, gpu, mask=p.with_down * some, depth=p.inner, columns=p.hidden, rows_read=routed,
        launches=np.ones_like(both),
    )  # fmt: skip
    between = both * some
    activation = streaming_work(
        reads=between * routed * p.columns * out,
        writes=between * routed * p.inner * token,
        flops=between * routed * p.inner * ACTIVATION_FLOPS,
        sfu_ops=between * routed * p.inner * ACTIVATION_SFU_OPS,
        launches=between,
    )
    summed = between * (routed > distinct)
    reduction = streaming_work(
        reads=summed * routed * p.hidden * out,
        writes=summed * distinct * p.hidden * out,
        flops=summed * routed * p.hidden,
        sfu_ops=np.zeros_like(routed),
        launches=summed,
    )
    return up, activation, down, reduction


def _product(
    p: GroupedGemmTable,
    gpu: Gpu,
    *,
    mask: Array,
    depth: Array,
    columns: Array,
    rows_read: Array,
    launches: Array,
) -> ShapeWork:
    routed, active = p.routed, p.active
    token, weight, out = p.dtype.bytes, p.weight_dtype.bytes, p.out_dtype.bytes
    read = mask * (active * depth * columns * weight + rows_read * depth * token)
    write = mask * routed * columns * out
    zero = np.zeros_like(mask)
    tilings = []
    for block_m, block_n in GROUPED_TILES:
        tiles = p.row_tiles(block_m)
        rows = np.minimum(routed / np.maximum(tiles, 1.0), block_m)  # real ones of a tile
        edge_n = np.minimum(block_n, columns)
        if gpu.can("clusters") and block_m * block_n >= PAIRED_TILE_MIN:
            edge_n = np.where(tiles > active, edge_n / 2.0, edge_n)
        tilings.append(
            Tiling(
                name=f"{block_m}x{block_n}",
                ctas=mask * tiles * np.ceil(columns / block_n),
                mean_flops=2.0 * block_m * block_n * depth,
                mean_sfu_ops=zero,
                mean_fma_flops=zero,
                mean_load_bytes=depth * (rows * token + edge_n * weight),
                longest_share=np.ones_like(zero),
                occupancy=max(1.0, min(4.0, 128.0 * 128.0 / (block_m * block_n))),
                partial_bytes=zero,
                extra_launches=zero,
            )
        )
    return ShapeWork(
        compute_dtype=p.compute_dtype.name,
        flops=mask * 2.0 * routed * depth * columns,
        sfu_ops=zero,
        fma_flops=zero,
        read_bytes=read,
        write_bytes=write,
        footprint_bytes=read + write,
        launches=mask * launches,
        tilings=tuple(tilings),
    )
