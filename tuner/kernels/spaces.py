"""Configurations worth trying for kernels whose tiles `perfmodel.tiling.space` does not list.

Where it is unsure a rule keeps a configuration and lets the compiler decide.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import parse_dtype
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import TileConfig
from perfmodel.tiling.legality import require_dtype
from perfmodel.tiling.resources import gemm_resources
from perfmodel.tiling.space import candidate_configs
from tuner.kernels.gemm import tiles_of
from tuner.kernels.gemm_persistent import PROGRAMS
from tuner.kernels.gemm_scaled import SCALE_BLOCK
from tuner.kernels.launch import padded_dim

QUERY_TILES = (16, 32, 64, 128, 256)
KEY_TILES = (16, 32, 64, 128, 256)
ATTENTION_WARPS = (2, 4, 8, 16)
STAGES = (1, 2, 3, 4)
STAGES_WITHOUT_ASYNC_COPY = (1, 2)

FRAGMENT_MIN, FRAGMENT_MAX = 16, 288
"""Accumulators and scores that a thread may hold: with fewer than one instruction's worth the loop
is all overhead; with more than its 255 registers they spill."""

SPLITS_OF_K = (2, 4, 8, 16)
SPLITS = (1, 2, 4, 8, 16, 32, 64)


def gemm_space(problem: Gemm, gpu: Gpu) -> list[TileConfig]:
    """Tiles of the plain matrix product: `perfmodel.tiling.space.candidate_configs`."""
    return list(candidate_configs(problem, gpu).configs)


def persistent_space(problem: Gemm, gpu: Gpu) -> list[TileConfig]:
    """Tiles with as many programs as fit the device at once, where there are more tiles."""
    table = candidate_configs(problem, gpu)
    resident = gemm_resources(GemmTable.of(problem), table, gpu).occupancy
    found = []
    for config, per_sm in zip(table.configs, resident, strict=True):
        programs = gpu.sm_count * max(int(per_sm), 1)
        if programs < tiles_of(problem, config):
            found.append(replace(config, extras=((PROGRAMS, programs),)))
    return found


def split_k_space(problem: Gemm, gpu: Gpu) -> list[TileConfig]:
    """Tiles and how many parts K is cut into, where tiles alone do not fill the device.

    A part has at least two steps of block_k.
    """
    return [
        replace(config, split_k=splits)
        for config in candidate_configs(problem, gpu).configs
        for splits in SPLITS_OF_K
        if splits * tiles_of(problem, config) <= 4 * gpu.sm_count
        and 2 * splits * config.block_k <= problem.k
    ]


def scaled_space(problem: Gemm, gpu: Gpu) -> list[TileConfig]:
    """Tiles whose block_k divides the 128 elements that share a scale."""
    return [c for c in candidate_configs(problem, gpu).configs if SCALE_BLOCK % c.block_k == 0]


def attention_space(problem: Attention, gpu: Gpu) -> list[TileConfig]:
    """Tiles of queries by keys for the forward kernel.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the problem's type.
    """
    longest = max((q for q, _ in problem.items), default=0)
    return _attention_tiles(problem, gpu, rows=longest, keys_min=KEY_TILES[0])


def decode_space(problem: Attention, gpu: Gpu) -> list[TileConfig]:
    """Tiles of a KV head's queries by keys, and into how many parts the keys are cut.

    Parts that give an SM more than four programs, or parts of less than a tile, are not tried.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the problem's type.
    """
    rows = max((q for q, _ in problem.items), default=0) * problem.group
    longest = max((kv for _, kv in problem.items), default=0)
    programs = (problem.batch or 0) * (problem.kv_heads or 1)
    tiles = _attention_tiles(problem, gpu, rows=rows, keys_min=KEY_TILES[0])
    return [
        replace(tile, split_k=splits)
        for tile in tiles
        for splits in SPLITS
        if splits == 1
        or (
            splits * tile.block_n <= longest
            and splits * programs * -(-rows // tile.block_m) <= 4 * gpu.sm_count
        )
    ]


def _attention_tiles(problem: Attention, gpu: Gpu, *, rows: int, keys_min: int) -> list[TileConfig]:
    require_dtype(problem.compute_dtype, gpu)
    kv_bytes = parse_dtype(problem.kv_dtype or "").bytes
    dim = padded_dim(problem.head_dim, problem.compute_dtype)
    value_dim = padded_dim(problem.v_head_dim or 0, problem.compute_dtype)
    columns = dim if problem.shared_kv else dim + value_dim
    keys_max = _cover(max((kv for _, kv in problem.items), default=0))
    least = 16 if problem.compute_dtype.bits > 8 else 32
    stages = STAGES if gpu.can("cp_async") else STAGES_WITHOUT_ASYNC_COPY
    found = []
    for m, n, warps, depth in product(QUERY_TILES, KEY_TILES, ATTENTION_WARPS, stages):
        fragment = (m * value_dim + m * n) / (32 * warps)
        # Products that read shared memory keep every stage there; others, one less.
        kept = depth if gpu.can("wgmma") or gpu.can("tmem") else max(depth - 1, 1)
        shared = kept * n * columns * kv_bytes
        if (
            m <= max(_cover(rows), QUERY_TILES[0])
            and max(least, keys_min) <= n <= max(keys_max, least, keys_min)
            and FRAGMENT_MIN <= fragment <= FRAGMENT_MAX
            and shared <= gpu.smem_per_block_optin_bytes
        ):
            found.append(TileConfig(m, n, num_warps=warps, num_stages=depth))
    return found or [TileConfig(QUERY_TILES[0], max(least, keys_min), num_warps=4, num_stages=1)]


def _cover(size: int) -> int:
    """The least power of two that is not under ``size``; 1 for no work."""
    return 1 << max(size - 1, 0).bit_length()


__all__ = [
    "attention_space", "decode_space", "gemm_space", "persistent_space", "scaled_space",
    "split_k_space",
]  # fmt: skip
