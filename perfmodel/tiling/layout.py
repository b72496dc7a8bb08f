"""How Triton spreads a tile over warps and lanes, and what moving between two such layouts takes.

A layout maps bits of (register, lane, warp) to bits of (row, column), so everything here is
counted in powers of two. Vectorised: arrays of one value a configuration. The rules were read off
layouts that Triton 3.6 prints, and hold for every tile of 16 to 256 rows and columns on 1 to 16
warps (``tests/tiling``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.tiling.config import ConfigTable

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

LANES = 32
STORE_BYTES = 16
"""The widest store of one thread: an aligned result is written in pieces of this size."""


def mma_warps(block_m: Array, block_n: Array, num_warps: Array) -> tuple[Array, Array]:
    """Return warps along m and along n for warp-level (16 x 8) matrix instructions.

    Warps are given to the side with more instructions left, m in a tie, until none are left; a
    side of n takes no more warps than it has instructions, and those beyond repeat work along m.
    """
    log_warps = np.log2(num_warps)
    left_n = np.log2(np.maximum(block_n / 8, 1))
    surplus_n = left_n - np.log2(np.maximum(block_m / 16, 1))
    log_n = np.clip(np.floor((log_warps + surplus_n) / 2), 0, np.minimum(log_warps, left_n))
    return 2.0 ** (log_warps - log_n), 2.0**log_n


def per_cta(configs: ConfigTable) -> ConfigTable:
    """Return each CTA's part of the tiles that a cluster of ``num_ctas`` shares.

    Triton gives every CTA 128 rows while there are more, and cuts columns for the rest.
    """
    if configs.num_ctas.max(initial=1) <= 1:
        return configs
    cut_m = np.clip(configs.block_m / 128, 1, configs.num_ctas)
    cut_n = configs.num_ctas / cut_m
    return replace(
        configs,
        block_m=configs.block_m / cut_m,
        block_n=np.maximum(configs.block_n / cut_n, 1),
        source=None,
    )


def wgmma_warps(block_m: Array, num_warps: Array) -> tuple[Array, Array]:
    """Return warps along m and along n for warp group instructions: 16 rows a warp, m first."""
    warps_m = np.minimum(num_warps, block_m / 16)
    return warps_m, num_warps / warps_m


@dataclass(frozen=True)
class MatrixUnits:
    """Which unit makes each configuration's result, and so how it is laid out.

    ``None`` where the device has no such unit.
    ``stores_matrices``: 16-bit results can be written by matrix stores (stmatrix, from sm_90).
    """

    wgmma: Mask | None
    tensor_memory: Mask | None
    fma: bool
    stores_matrices: bool


@dataclass(frozen=True)
class _Store:
    """How a result is stored: a vector a lane, lanes along a row, then warps, the rest down rows.

    ``column`` and ``row`` are log2 of the first column and row that are another register.
    """

    vector: Array
    column: Array
    row: Array

    @classmethod
    def of(cls, block_m: Array, block_n: Array, num_warps: Array, out_bytes: float) -> _Store:
        vector = np.clip(block_m * block_n / (LANES * num_warps), 1, STORE_BYTES / out_bytes)
        lanes_n = np.minimum(LANES, block_n / vector)
        warps_n = np.clip(block_n / (vector * lanes_n), 1, num_warps)
        return cls(
            vector,
            np.log2(vector * lanes_n * warps_n),
            np.log2(LANES / lanes_n * num_warps / warps_n),
        )


def store_scratch_bytes(
    block_m: Array, block_n: Array, num_warps: Array, out_bytes: float, units: MatrixUnits
) -> Array:
    """Shared memory in which a result is turned from the matrix unit's layout to rows for storing.

    The tile passes through in parts: each bit of the tile that is a register in both layouts
    halves a part, but for those that make up one wide access.
    """
    tile = block_m * block_n
    store = _Store.of(block_m, block_n, num_warps, out_bytes)
    if units.fma:
        log_parts = _lane_parts(block_m, block_n, num_warps, store)
    else:
        log_parts = _instruction_parts((block_m, block_n, num_warps), store, out_bytes, units)
    if units.tensor_memory is not None:
        by_rows = _tensor_memory_parts(block_m, tile, num_warps, out_bytes)
        log_parts = np.where(units.tensor_memory, by_rows, log_parts)
    return np.asarray(tile * out_bytes / 2.0**log_parts)


def _instruction_parts(
    tile: tuple[Array, Array, Array], store: _Store, out_bytes: float, units: MatrixUnits
) -> Array:
    """A thread holds a pair of columns, the same 8 rows below, then repeats beyond all warps.

    Accesses of 128 bits take up three of the common bits of a 16-bit result and two of a 32-bit
    one, matrix stores and stores of whole rows only the pair.
    """
    block_m, block_n, num_warps = tile
    rows, cols = np.log2(block_m), np.log2(block_n)
    warps_m, warps_n = mma_warps(block_m, block_n, num_warps)
    first_col = np.maximum(store.column, 3 + np.log2(warps_n))
    if units.wgmma is not None:
        group_m, group_n = wgmma_warps(block_m, num_warps)
        warps_m, warps_n = (
            np.where(units.wgmma, group_m, warps_m),
            np.where(units.wgmma, group_n, warps_n),
        )
        first_col = np.where(units.wgmma, store.column + np.log2(warps_n), first_col)
    common = (
        (store.vector >= 2).astype(np.float64)
        + ((store.row <= 3) & (rows > 3))
        + np.maximum(rows - np.maximum(store.row, 4 + np.log2(warps_m)), 0)
        + np.maximum(cols - first_col, 0)
    )
    if out_bytes >= 4:
        return np.asarray(np.maximum(common - 2, 0))
    whole_rows = ((warps_n == 1) & (block_n >= 32)) | ((block_n >= 256) & (warps_n <= 4))
    return np.asarray(np.maximum(common - np.where(units.stores_matrices | whole_rows, 1, 3), 0))


def _lane_parts(block_m: Array, block_n: Array, num_warps: Array, store: _Store) -> Array:
    """Ordinary lanes hold squares of 4, 2 or 1 results, lanes and warps along n first."""
    results = block_m * block_n / (LANES * num_warps)
    side = np.where(results >= 16, 4.0, np.where(results >= 4, 2.0, 1.0))
    lanes_n = np.minimum(LANES, block_n / side)
    warps_n = np.clip(block_n / (side * lanes_n), 1, num_warps)
    first_row = np.log2(side * LANES / lanes_n * num_warps / warps_n)
    first_col = np.log2(side * lanes_n * warps_n)
    common = (
        np.log2(np.minimum(side, store.vector))
        + np.maximum(np.log2(side) - store.row, 0)
        + np.maximum(np.log2(block_m) - np.maximum(store.row, first_row), 0)
        + np.maximum(np.log2(block_n) - np.maximum(store.column, first_col), 0)
    )
    return np.asarray(np.maximum(common - 2, 0))


def _tensor_memory_parts(block_m: Array, tile: Array, num_warps: Array, out_bytes: float) -> Array:
    """Tensor memory holds 128 rows; a warp group reads its rows, further groups share columns."""
    row_repeats = np.maximum(block_m / 128 / np.maximum(num_warps / 4, 1), 1)
    wide = tile / (LANES * num_warps) / row_repeats * out_bytes >= 64
    return np.asarray(2.0 * wide + np.log2(row_repeats))
