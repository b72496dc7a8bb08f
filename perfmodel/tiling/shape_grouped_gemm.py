"""What a mixture-of-experts layer of unknown tile does: two grouped products and what is between.

Launches follow one another: sort tokens by expert, up, activation, down, sum over top_k. Asked
about one projection alone, only its own launch counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.grouped_gemm_table import GroupedGemmTable
from perfmodel.tiling.shape_memory import streaming_work
from perfmodel.tiling.shape_work import NOTHING, ONE, PAIRED_TILE_MIN, ShapeWork, Tilings

Array = NDArray[np.float64]

GROUPED_TILES = (
    (128, 128), (128, 256), (64, 128), (64, 256), (32, 128), (16, 128), (16, 64), (8, 128),
)  # fmt: skip
"""Tiles that libraries ship: rows of an expert's tokens x columns (operands may be swapped, so
that few tokens lie along the short side)."""

ACTIVATION_FLOPS, ACTIVATION_SFU_OPS = 3.0, 2.0
"""Per element of silu(gate) times up: an exponential, a reciprocal, three ordinary operations."""


_TILES = np.array(GROUPED_TILES, dtype=np.float64)
_TILE_M, _TILE_N = _TILES[:, :1], _TILES[:, 1:]
_OCCUPANCY = np.clip(128.0 * 128.0 / (_TILE_M * _TILE_N), 1.0, 4.0)
_NAMES = tuple(f"{m}x{n}" for m, n in GROUPED_TILES)


def grouped_gemm_shape_works(p: GroupedGemmTable, gpu: Gpu) -> tuple[ShapeWork, ...]:
    """Describe each launch of mixture-of-experts problems, one problem a row."""
    both = p.with_up * p.with_down
    routed, out, token = p.routed, p.out_dtype.bytes, p.dtype.bytes
    some = (routed > 0).astype(np.float64)
    distinct = np.minimum(routed, p.tokens)
    row_tiles = {edge: p.row_tiles(edge) for edge in {rows for rows, _ in GROUPED_TILES}}
    up = _product(
        p, gpu, row_tiles, mask=p.with_up * some, depth=p.hidden, columns=p.columns,
        rows_read=distinct, launches=1.0 + both,
    )  # fmt: skip
    down = _product(
        p, gpu, row_tiles, mask=p.with_down * some, depth=p.inner, columns=p.hidden,
        rows_read=routed, launches=np.ones_like(both),
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
    row_tiles: Mapping[int, Array],
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
    tiles = np.stack([row_tiles[edge] for edge, _ in GROUPED_TILES])
    rows = np.minimum(routed / np.maximum(tiles, 1.0), _TILE_M)  # real ones of a tile
    edge_n = np.minimum(_TILE_N, columns)
    if gpu.can("clusters"):
        shared = (tiles > active) & (_TILE_M * _TILE_N >= PAIRED_TILE_MIN)
        edge_n = np.where(shared, edge_n / 2.0, edge_n)
    tilings = Tilings(
        names=_NAMES,
        ctas=mask * tiles * np.ceil(columns / _TILE_N),
        mean_flops=2.0 * _TILE_M * _TILE_N * depth,
        mean_sfu_ops=NOTHING,
        mean_fma_flops=NOTHING,
        mean_load_bytes=depth * (rows * token + edge_n * weight),
        longest_share=ONE,
        occupancy=_OCCUPANCY,
        partial_bytes=NOTHING,
        extra_launches=NOTHING,
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
        tilings=tilings,
    )
