"""Configurations worth trying for kernels whose tiles `perfmodel.tiling.space` does not list.

Where it is unsure a rule keeps a configuration and lets the compiler decide.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import parse_dtype
from perfmodel.tiling.config import TileConfig
from perfmodel.tiling.legality import require_dtype
from tuner.kernels.launch import padded_dim

QUERY_TILES = (16, 32, 64, 128, 256)
KEY_TILES = (16, 32, 64, 128, 256)
ATTENTION_WARPS = (2, 4, 8, 16)
STAGES = (1, 2, 3, 4)
STAGES_WITHOUT_ASYNC_COPY = (1, 2)

FRAGMENT_MIN, FRAGMENT_MAX = 16, 288
"""Accumulators and scores that a thread may hold: with fewer than one instruction's worth the loop
is all overhead; with more than its 255 registers they spill."""

SPLITS = (1, 2, 4, 8, 16, 32, 64)


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


__all__ = ["attention_space", "decode_space"]
