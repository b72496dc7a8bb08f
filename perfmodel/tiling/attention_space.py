"""Which tiles of attention a device can run, and which are worth considering."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention import Attention
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.tiling.attention_resources import attention_resources
from perfmodel.tiling.attention_tile import cta_lengths, heads_share_tile, tile_dims
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import (
    ACCUMULATORS_PER_THREAD_MAX,
    DOT_DEPTH_MIN,
    TENSOR_MEMORY_COLUMNS,
    Rejection,
    require_dtype,
)
from perfmodel.tiling.limits import Limit, launch_limits, rejections, within
from perfmodel.tiling.resources import Resources

Array = NDArray[np.float64]

BLOCK_M = BLOCK_N = (16, 32, 64, 128, 256)
WARPS = (2, 4, 8, 16)
STAGES = (1, 2, 3, 4, 5)
STAGES_WITHOUT_ASYNC_COPY = (1, 2)
SPLITS = (1, 2, 4, 8, 16, 32, 64)

SPILL_BYTES_MAX = 128
"""Spilled bytes per thread past which a tile is never the best."""

ACCUMULATORS_MIN = 2
"""Fewer results per thread and the loop is all overhead; decode tiles are short on purpose."""


def attention_limits(
    problem: AttentionTable, configs: ConfigTable, gpu: Gpu, resources: Resources | None = None
) -> list[Limit]:
    """Limits past which a configuration cannot be launched.

    Shared memory counts the keys and values in flight alone: where a kernel keeps its queries, in
    registers or in shared memory, is its own affair, and the compiler decides.
    """
    c = configs
    found = resources or attention_resources(problem, c, gpu)
    d, dv = tile_dims(problem)
    least = DOT_DEPTH_MIN * (2 if problem.compute_dtype.bits <= 8 else 1)
    widest = max(d, dv)
    largest = np.maximum(np.maximum(c.block_m, c.block_n) * widest, c.block_m * c.block_n)
    return [
        *launch_limits(
            c, gpu, names=("block_m", "block_n", "num_warps", "num_ctas"), largest_tile=largest,
            grid=cta_lengths(problem, c).ctas,
        ),
        Limit(
            "shared memory per block in bytes", found.smem_loop_bytes,
            float(gpu.smem_per_block_optin_bytes), "lower num_stages or block_n",
        ),
        Limit(
            "accumulators per thread", found.accumulators_per_thread,
            float(ACCUMULATORS_PER_THREAD_MAX), "raise num_warps, or lower block_m",
        ),
        Limit(
            "tensor memory columns", found.tensor_memory_columns, float(TENSOR_MEMORY_COLUMNS),
            "lower block_m or block_n",
        ),
        Limit(
            "depth of one product (block_n)",
            float(least if gpu.vendor == "nvidia" else 1), c.block_n, "raise block_n",
        ),
    ]  # fmt: skip


def attention_candidates(problem: Attention, gpu: Gpu) -> ConfigTable:
    """Return the tiles worth ranking: legal on ``gpu``, that fit there, no larger than needed.

    Where every tile that fits spills, those that spill least are left. The order is the same every
    time; at least one configuration is returned, also for a problem with no work.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the problem's type.
    """
    require_dtype(problem.compute_dtype, gpu)
    table = AttentionTable.of(problem)
    grid = _grid(table, gpu)
    resources = attention_resources(table, grid, gpu)
    legal = within(attention_limits(table, grid, gpu, resources), len(grid))
    useful = legal & within(_useful(table, grid, gpu), len(grid))
    worth = useful & within(_worth(grid, resources), len(grid))
    if worth.any():
        return grid.take(worth)
    fits = useful & (resources.occupancy >= 1)
    rest = fits if fits.any() else useful if useful.any() else legal
    spill = np.where(rest, resources.spill_bytes_per_thread, np.inf)
    return grid.take(spill == spill.min())


def attention_rejected(
    problem: Attention, gpu: Gpu
) -> list[tuple[TileConfig, tuple[Rejection, ...]]]:
    """Return what `attention_candidates` leaves out of the grid of tiles, with the reasons."""
    chosen = set(attention_candidates(problem, gpu).configs)
    table = AttentionTable.of(problem)
    grid = _grid(table, gpu)
    resources = attention_resources(table, grid, gpu)
    illegal = rejections(attention_limits(table, grid, gpu, resources), len(grid))
    not_worth = rejections(_worth(grid, resources) + _useful(table, grid, gpu), len(grid))
    return [
        (config, illegal[row] or not_worth[row])
        for row, config in enumerate(grid.configs)
        if config not in chosen
    ]


def _grid(problem: AttentionTable, gpu: Gpu) -> ConfigTable:
    """Every tile in question for such problems."""
    stages = STAGES if gpu.can("cp_async") or gpu.vendor == "amd" else STAGES_WITHOUT_ASYNC_COPY
    splits = SPLITS if heads_share_tile(problem) else (1,)
    return _tiles(stages, splits)


@lru_cache(maxsize=8)
def _tiles(stages: tuple[int, ...], splits: tuple[int, ...]) -> ConfigTable:
    """Every combination; the smallest blocks first."""
    return ConfigTable.of(
        TileConfig(m, n, num_warps=warps, num_stages=depth, split_k=split)
        for m, n, warps, depth, split in product(BLOCK_M, BLOCK_N, WARPS, stages, splits)
    )


def _worth(configs: ConfigTable, resources: Resources) -> list[Limit]:
    """Limits past which a tile is legal and yet never the best."""
    results = configs.block_m * configs.block_n / resources.threads
    return [
        Limit("CTAs per SM", 1.0, resources.occupancy, "lower the blocks, num_stages or num_warps"),
        Limit(
            "spilled bytes per thread", resources.spill_bytes_per_thread, float(SPILL_BYTES_MAX),
            "raise num_warps, or lower block_m or block_n",
        ),
        Limit(
            "results per thread", float(ACCUMULATORS_MIN), results,
            "lower num_warps, or raise block_m or block_n",
        ),
    ]  # fmt: skip


def _useful(problem: AttentionTable, configs: ConfigTable, gpu: Gpu) -> list[Limit]:
    """Limits past which a tile is larger than its problem."""
    group = float(problem.q_heads[0] / problem.kv_heads[0])
    rows = group if heads_share_tile(problem) else float(problem.q_len.max(initial=0.0))
    keys = float(problem.kv_len.max(initial=0.0))
    least = 2 * BLOCK_N[0] if problem.compute_dtype.bits <= 8 else BLOCK_N[0]
    trips = np.maximum(np.ceil(keys / configs.block_n), 1.0)
    # More parts than fill the device twice over only add to the reduction.
    whole = cta_lengths(problem, configs).ctas / configs.split_k
    room = np.maximum(np.ceil(4.0 * gpu.sm_count / np.maximum(whole, 1.0)), 1.0)
    return [
        Limit(
            "block_m for this problem", configs.block_m, float(max(_cover(rows), BLOCK_M[0])),
            "lower block_m",
        ),
        Limit(
            "block_n for this problem", configs.block_n, float(max(_cover(keys), least)),
            "lower block_n",
        ),
        Limit(
            "num_stages for this problem", configs.num_stages, np.maximum(trips + 1.0, 2.0),
            "lower num_stages",
        ),
        Limit(
            "split_k for this problem", configs.split_k, np.minimum(trips, room), "lower split_k"
        ),
    ]  # fmt: skip


def _cover(size: float) -> int:
    """The least power of two that is not under ``size``; 1 for no work."""
    return 1 << max(int(size) - 1, 0).bit_length()
