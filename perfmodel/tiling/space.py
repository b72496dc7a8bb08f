"""Which tile configurations are worth considering for a problem on a device."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.dtypes import DType, parse_dtype
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import legal_mask, require_dtype, slow_to_compile_mask
from perfmodel.tiling.resources import gemm_resources

BLOCK_M = BLOCK_N = (16, 32, 64, 128, 256)
BLOCK_K = (16, 32, 64, 128)
BLOCK_K_8BIT = (32, 64, 128, 256)
WARPS = (1, 2, 4, 8, 16)

STAGES = (2, 3, 4, 5)
STAGES_WITHOUT_ASYNC_COPY = (1, 2)
"""Copies that pass through registers are prefetched by one stage at most."""

STAGES_MIN = 2
"""Kept however few trips the loop makes; beyond that a stage with no trip only takes memory."""

GROUP_M = 8
"""Every public table of measured tiles has it; another value could only be guessed at."""

SPILL_BYTES_MAX = 128
"""Spilled bytes per thread past which a tile is never the best: it runs up to 10 times slower."""

ACCUMULATORS_MIN = 8
"""Fewer results per thread and the loop is all overhead: one 16x8 instruction of a warp holds 4."""


def candidate_configs(problem: Gemm, gpu: Gpu) -> ConfigTable:
    """Return the tiles worth ranking for ``problem``: legal on ``gpu``, no larger than it needs.

    The order is the same every time; at least one configuration is returned, also for a problem
    with no work.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the problem's type.
    """
    require_dtype(problem.compute_dtype, gpu)
    dtypes = (problem.a_dtype, *map(parse_dtype, (problem.b_dtype or "", problem.out_dtype or "")))
    skeleton = _skeleton(dtypes, (problem.a_vector_bytes, problem.b_vector_bytes), gpu)
    trips = np.ceil(problem.k / skeleton.block_k)
    useful = (
        (skeleton.block_m <= max(_cover(problem.m), BLOCK_M[0]))
        & (skeleton.block_n <= max(_cover(problem.n), BLOCK_N[0]))
        & (skeleton.block_k <= max(_cover(problem.k), skeleton.block_k[0]))
        & (skeleton.num_stages <= np.maximum(trips + 1, STAGES_MIN))
    )
    return skeleton.take(useful)


@lru_cache(maxsize=256)
def _skeleton(dtypes: tuple[DType, ...], vector_bytes: tuple[int, int], gpu: Gpu) -> ConfigTable:
    """All tiles worth trying where the problem's size is no limit; the smallest blocks first."""
    a_dtype, b_dtype, out_dtype = dtypes
    kind = Gemm(0, 0, 0, a_dtype=a_dtype, b_dtype=b_dtype, out_dtype=out_dtype)
    a_vector, b_vector = map(float, vector_bytes)
    problem = replace(GemmTable.of(kind), a_vector_bytes=a_vector, b_vector_bytes=b_vector)
    depths = BLOCK_K_8BIT if problem.compute_dtype.bits <= 8 else BLOCK_K
    pipelines = STAGES if gpu.can("cp_async") else STAGES_WITHOUT_ASYNC_COPY
    table = ConfigTable.of(
        TileConfig(m, n, k, GROUP_M, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in product(BLOCK_M, BLOCK_N, depths, WARPS, pipelines)
    )
    resources = gemm_resources(problem, table, gpu)
    per_thread = table.block_m * table.block_n / resources.threads
    worth = (
        legal_mask(problem, table, gpu, resources)
        & ~slow_to_compile_mask(problem, table, gpu)
        & (resources.occupancy >= 1)
        & (resources.spill_bytes_per_thread <= SPILL_BYTES_MAX)
        & (per_thread >= ACCUMULATORS_MIN)
    )
    return table.take(worth)


def _cover(size: int) -> int:
    """The least power of two that is not under ``size``; 1 for no work."""
    return 1 << max(size - 1, 0).bit_length()
