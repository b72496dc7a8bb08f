"""Which tile configurations are worth considering for a problem on a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.dtypes import DType, parse_dtype
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import (
    COMPILE_COST_MAX,
    Rejection,
    check,
    compile_cost,
    legal_mask,
    require_dtype,
)
from perfmodel.tiling.resources import gemm_resources

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """The values that a family's tiles are made of; ``block_k_8bit`` goes with 8-bit operands."""

    block_m: tuple[int, ...] = (16, 32, 64, 128, 256)
    block_n: tuple[int, ...] = (16, 32, 64, 128, 256)
    block_k: tuple[int, ...] = (16, 32, 64, 128)
    block_k_8bit: tuple[int, ...] = (32, 64, 128, 256)
    group_m: tuple[int, ...] = (8,)
    warps: tuple[int, ...] = (1, 2, 4, 8, 16)


GEMM_GRID = Grid()
"""Of ``group_m``, every public table of measured tiles has 8; another could only be guessed at."""

MOE_GRID = Grid(
    block_k=(32, 64, 128, 256), block_k_8bit=(32, 64, 128, 256), group_m=(1, 16, 64), warps=(4, 8)
)
"""What tuned tables of fused mixtures of experts hold: depths of 128 and 256 most often, since few
rows an expert leave room; no order of tiles, some, or all rows of an expert together."""

STAGES = (2, 3, 4, 5)
STAGES_WITHOUT_ASYNC_COPY = (1, 2)
"""Copies that pass through registers are prefetched by one stage at most."""

STAGES_MIN = 2
"""Kept however few trips the loop makes; beyond that a stage with no trip only takes memory."""

SPILL_BYTES_MAX = 128
"""Spilled bytes per thread past which a tile is never the best: it runs up to 10 times slower."""

ACCUMULATORS_MIN = 8
"""Fewer results per thread and the loop is all overhead: one 16x8 instruction of a warp holds 4."""


def candidate_configs(problem: Gemm, gpu: Gpu, grid: Grid = GEMM_GRID) -> ConfigTable:
    """Return the tiles of ``grid`` worth ranking: legal on ``gpu``, no larger than needed.

    The order is the same every time; at least one configuration is returned, also for a problem
    with no work.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the problem's type.
    """
    require_dtype(problem.compute_dtype, gpu)
    kind = _kind(problem)
    table = _skeleton(kind, gpu, grid)
    useful = _within(_useful(problem, table, grid, _depths(kind, grid)[0]))
    if not useful.any():  # smaller than any tile worth trying: the smallest of them
        size = table.block_m * table.block_n
        useful = size == size.min()
    return table.take(useful)


def rejected_configs(
    problem: Gemm, gpu: Gpu, grid: Grid = GEMM_GRID
) -> list[tuple[TileConfig, tuple[Rejection, ...]]]:
    """Return what `candidate_configs` leaves out of the grid of tiles, with the reasons of each.

    Those that cannot be launched say only that; the others could, and are never the best.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the problem's type.
    """
    require_dtype(problem.compute_dtype, gpu)
    kind = _kind(problem)
    table = _tiles(kind, gpu, grid)
    illegal = check(problem, table, gpu)
    limits = _worth(_typical(kind), table, gpu)
    limits += _useful(problem, table, grid, _depths(kind, grid)[0])
    chosen = set(candidate_configs(problem, gpu, grid).configs)
    left_out = []
    for row, config in enumerate(table.configs):
        if config in chosen:
            continue
        reasons = illegal[row] or tuple(
            Rejection(limit.name, float(needed[row]), float(available[row]), limit.change)
            for limit in limits
            for needed, available in [np.broadcast_arrays(limit.needed, limit.available)]
            if needed[row] > available[row]
        )
        left_out.append((config, reasons))
    return left_out


@dataclass(frozen=True)
class _Kind:
    """What of a problem decides which tiles are worth trying, its sizes aside."""

    a_dtype: DType
    b_dtype: DType
    out_dtype: DType
    a_vector_bytes: int
    b_vector_bytes: int


@dataclass(frozen=True)
class _Limit:
    """Worth trying where ``needed <= available``; arrays over the configurations, or one value."""

    name: str
    needed: Array | float
    available: Array | float
    change: str


def _kind(problem: Gemm) -> _Kind:
    return _Kind(
        problem.a_dtype,
        parse_dtype(problem.b_dtype or ""),
        parse_dtype(problem.out_dtype or ""),
        problem.a_vector_bytes,
        problem.b_vector_bytes,
    )


def _typical(kind: _Kind) -> GemmTable:
    """A problem of that kind; its sizes do not matter."""
    empty = Gemm(0, 0, 0, a_dtype=kind.a_dtype, b_dtype=kind.b_dtype, out_dtype=kind.out_dtype)
    return replace(
        GemmTable.of(empty),
        a_vector_bytes=float(kind.a_vector_bytes),
        b_vector_bytes=float(kind.b_vector_bytes),
    )


def _depths(kind: _Kind, grid: Grid) -> tuple[int, ...]:
    return grid.block_k_8bit if _typical(kind).compute_dtype.bits <= 8 else grid.block_k


@lru_cache(maxsize=64)
def _tiles(kind: _Kind, gpu: Gpu, grid: Grid) -> ConfigTable:
    """Every tile in question; the smallest blocks first."""
    pipelines = STAGES if gpu.can("cp_async") else STAGES_WITHOUT_ASYNC_COPY
    return ConfigTable.of(
        TileConfig(m, n, k, group, num_warps=warps, num_stages=stages)
        for m, n, k, group, warps, stages in product(
            grid.block_m, grid.block_n, _depths(kind, grid), grid.group_m, grid.warps, pipelines
        )
    )


@lru_cache(maxsize=256)
def _skeleton(kind: _Kind, gpu: Gpu, grid: Grid) -> ConfigTable:
    """All tiles worth trying where the problem's size is no limit."""
    table, problem = _tiles(kind, gpu, grid), _typical(kind)
    return table.take(legal_mask(problem, table, gpu) & _within(_worth(problem, table, gpu)))


def _worth(problem: GemmTable, table: ConfigTable, gpu: Gpu) -> list[_Limit]:
    """Limits past which a tile is legal and yet never the best."""
    resources = gemm_resources(problem, table, gpu)
    return [
        _Limit("CTAs per SM", 1.0, resources.occupancy, "lower the blocks or num_warps"),
        _Limit(
            "spilled bytes per thread",
            resources.spill_bytes_per_thread,
            float(SPILL_BYTES_MAX),
            "raise num_warps, or lower block_m or block_n",
        ),
        _Limit(
            "results per thread",
            float(ACCUMULATORS_MIN),
            table.block_m * table.block_n / resources.threads,
            "lower num_warps, or raise block_m or block_n",
        ),
        _Limit(
            "compile cost",
            compile_cost(problem, table, gpu),
            float(COMPILE_COST_MAX),
            "raise num_warps, or lower the blocks or num_stages",
        ),
    ]


def _useful(problem: Gemm, table: ConfigTable, grid: Grid, depth_min: int) -> list[_Limit]:
    """Limits past which a tile is larger than its problem."""
    trips = np.ceil(problem.k / table.block_k)
    return [
        _Limit(
            f"{name} for this problem", getattr(table, name), float(max(_cover(size), least)),
            f"lower {name}",
        )
        for name, size, least in (
            ("block_m", problem.m, grid.block_m[0]),
            ("block_n", problem.n, grid.block_n[0]),
            ("block_k", problem.k, depth_min),
        )
    ] + [
        _Limit(
            "num_stages for this problem", table.num_stages, np.maximum(trips + 1, STAGES_MIN),
            "lower num_stages",
        )
    ]  # fmt: skip


def _within(limits: list[_Limit]) -> NDArray[np.bool_]:
    masks = [np.asarray(limit.needed) <= np.asarray(limit.available) for limit in limits]
    return np.asarray(np.logical_and.reduce(masks))


def _cover(size: int) -> int:
    """The least power of two that is not under ``size``; 1 for no work."""
    return 1 << max(size - 1, 0).bit_length()
