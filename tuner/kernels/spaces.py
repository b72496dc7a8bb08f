"""Configurations worth trying for each kernel on a device, from what `perfmodel.tiling` lists.

All raise `perfmodel.errors.UnsupportedDtypeError` where the device has no arithmetic for a type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention import Attention
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.problems.dtypes import FP8_E4M3, DType, parse_dtype
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.attention_space import attention_candidates
from perfmodel.tiling.attention_tile import heads_share_tile
from perfmodel.tiling.config import TileConfig
from perfmodel.tiling.grouped_gemm_work import expert_gemm
from perfmodel.tiling.legality import require_dtype
from perfmodel.tiling.resources import gemm_resources
from perfmodel.tiling.space import MOE_GRID, candidate_configs
from tuner.kernels.gemm import tiles_of
from tuner.kernels.gemm_persistent import PROGRAMS
from tuner.kernels.gemm_scaled import SCALE_BLOCK

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


def _require_stored(dtype: DType, gpu: Gpu) -> None:
    """Raise where Triton cannot even widen a type: e4m3 on devices without 8-bit products.

    Its compiler says "type fp8e4nv not supported in this architecture".
    """
    if dtype == FP8_E4M3:
        require_dtype(dtype, gpu)


def attention_space(problem: Attention, gpu: Gpu) -> list[TileConfig]:
    """Tiles of queries by keys, each with all its keys: forward, and backward."""
    _require_stored(parse_dtype(problem.kv_dtype or ""), gpu)
    return [c for c in attention_candidates(problem, gpu).configs if c.split_k == 1]


def decode_space(problem: Attention, gpu: Gpu) -> list[TileConfig]:
    """Tiles of a KV head's queries by keys, and into how many parts the keys are cut.

    For single queries they are `perfmodel.tiling.attention_space.attention_candidates`. For a few
    queries a sequence the same tiles, without parts of less than a tile or so many that an SM gets
    more than four programs.
    """
    _require_stored(parse_dtype(problem.kv_dtype or ""), gpu)
    found = attention_candidates(problem, gpu).configs
    if heads_share_tile(AttentionTable.of(problem)):
        return list(found)
    rows = max((q for q, _ in problem.items), default=0) * problem.group
    longest = max((kv for _, kv in problem.items), default=0)
    sequences = (problem.batch or 0) * (problem.kv_heads or 1)
    return [
        replace(tile, split_k=splits)
        for tile in found
        for splits in SPLITS
        if splits == 1
        or (
            splits * tile.block_n <= longest
            and splits * sequences * -(-rows // tile.block_m) <= 4 * gpu.sm_count
        )
    ]


def moe_space(problem: GroupedGemm, gpu: Gpu) -> list[TileConfig]:
    """Tiles of the busiest expert's product; one tile serves both projections."""
    _require_stored(parse_dtype(problem.weight_dtype or ""), gpu)
    side: Literal["up", "down"] = "down" if problem.projection == "down" else "up"
    return list(candidate_configs(expert_gemm(problem, side), gpu, MOE_GRID).configs)


__all__ = [
    "attention_space", "decode_space", "gemm_space", "moe_space", "persistent_space",
    "scaled_space", "split_k_space",
]  # fmt: skip
