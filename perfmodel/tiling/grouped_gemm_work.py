"""What one launch of a grouped product does: every expert's rows cut into tiles of their own.

The kernel is Triton's fused mixture of experts: tokens are sorted by expert and gathered, each
expert's rows padded to whole tiles, its weights [columns, depth] with the depth contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import InvalidProblemError
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.dtypes import INT4, INT8, parse_dtype
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.waves import patch
from perfmodel.tiling.work import SPLIT_PARTIAL_BYTES, CtaClass, Work, tile_work

Array = NDArray[np.float64]
Side = Literal["up", "down"]


@dataclass(frozen=True)
class Product:
    """One of the two products on one rank: its depth and columns, and rows read from memory."""

    depth: int
    columns: int
    rows_read: float


def product_of(problem: GroupedGemm, side: Side) -> Product:
    """Return the sizes of one side; ``up`` reads a token once however many experts it goes to."""
    routed = float(problem.loads.sum())
    inner = problem.intermediate // problem.tp
    if side == "up":
        return Product(problem.hidden, problem.up_columns, min(routed, float(problem.tokens)))
    return Product(inner, problem.hidden, routed)


def expert_gemm(problem: GroupedGemm, side: Side) -> Gemm:
    """Return the product of the busiest expert: what decides which tiles fit and are worth it."""
    product = product_of(problem, side)
    rows = int(problem.loads.max(initial=0.0))
    sizes = (rows, product.columns, product.depth)
    weight = parse_dtype(problem.weight_dtype or problem.dtype)
    try:
        return Gemm(
            *sizes, a_dtype=problem.dtype, b_dtype=weight, out_dtype=problem.out_dtype,
            b_layout="col",
        )  # fmt: skip
    except InvalidProblemError:  # weights of a type that is widened first take the space of these
        stored = INT8 if weight.bits == 8 else INT4 if weight.bits == 4 else problem.compute_dtype
        return Gemm(
            *sizes, a_dtype=problem.compute_dtype, b_dtype=stored, out_dtype=problem.out_dtype,
            b_layout="col",
        )  # fmt: skip


def row_tiles(problem: GroupedGemm, block_m: Array) -> Array:
    """Tiles of rows of all experts together, each padded to ``block_m`` on its own, (N,)."""
    sizes, at = np.unique(block_m, return_inverse=True)
    tiles = np.array([np.ceil(problem.loads / size).sum() for size in sizes])
    return np.asarray(tiles[at.reshape(-1)])


def grouped_gemm_work(problem: GroupedGemm, side: Side, configs: ConfigTable, gpu: Gpu) -> Work:
    """Describe one side of ``problem`` under each configuration."""
    c, product = configs, product_of(problem, side)
    kind = GemmTable.of(expert_gemm(problem, side))
    tile = tile_work(kind, c, gpu)
    tiles_m, tiles_n = row_tiles(problem, c.block_m), np.ceil(product.columns / c.block_n)
    ctas = tiles_m * tiles_n * c.split_k * c.num_ctas
    # Rows that only pad an expert's last tile are masked: computed, but not fetched.
    routed, active = float(problem.loads.sum()), float((problem.loads > 0).sum())
    filled = routed / np.maximum(tiles_m * c.block_m, 1.0)
    a = problem.dtype.bytes
    b = parse_dtype(problem.weight_dtype or problem.dtype).bytes
    out = parse_dtype(problem.out_dtype or problem.dtype).bytes
    padding = c.block_m * c.block_k * a * (1.0 - filled) / c.num_ctas
    cta = CtaClass(
        count=ctas,
        iterations=np.ceil(product.depth / (c.block_k * c.split_k)),
        tensor_flops=tile.tensor_flops,
        fma_flops=tile.fma_flops,
        sfu_ops=np.zeros_like(tile.tensor_flops),
        load_bytes=np.maximum(tile.load_bytes - padding, 0.0),
        load_requests=tile.load_requests,
        smem_bytes=tile.smem_bytes,
        instructions=tile.instructions,
        epilogue_bytes=tile.epilogue_bytes * filled,
        spill_bytes=tile.spill_bytes,
    )
    weights = float(product.columns) * product.depth * b  # of one expert
    compulsory = active * weights + product.rows_read * product.depth * a
    compulsory += routed * product.columns * out
    partial = 2.0 * c.split_k * routed * product.columns * SPLIT_PARTIAL_BYTES
    concurrent = np.minimum(ctas, gpu.sm_count * np.maximum(tile.resources.occupancy, 1.0))
    some = ctas > 0
    return Work(
        classes=(cta,),
        ctas=ctas,
        resources=tile.resources,
        stages=c.num_stages,
        compulsory_bytes=np.where(some, compulsory, 0.0),
        dram_bytes=np.where(some, compulsory, 0.0)
        + _read_again(problem, weights, c, gpu)
        + np.where(c.split_k > 1, partial, 0.0),
        flops=2.0 * routed * product.columns * product.depth + np.zeros_like(ctas),
        compute_dtype=problem.compute_dtype.name,
        mma_share=tile.mma_share,
        patch=patch(
            np.maximum(tiles_m, 1.0), np.maximum(tiles_n, 1.0), c.group_m,
            np.maximum(concurrent, 1.0),
        ),
    )  # fmt: skip


def _read_again(problem: GroupedGemm, weights: float, c: ConfigTable, gpu: Gpu) -> Array:
    """Weights that every band of ``group_m`` row tiles reads again, where L2 does not keep them."""
    beyond = float(np.clip(weights / (0.7 * gpu.l2_bytes) - 1.0, 0.0, 1.0))
    if not beyond:
        return np.zeros_like(c.block_m)
    rows = c.block_m * c.group_m
    sizes, at = np.unique(rows, return_inverse=True)
    bands = [np.maximum(np.ceil(problem.loads / size) - 1.0, 0.0).sum() for size in sizes]
    return np.asarray(beyond * weights * np.array(bands)[at.reshape(-1)])
