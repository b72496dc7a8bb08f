"""The matrix product with K split over programs: partial sums, then their sum, in a fixed order.

Nothing is added to memory by several programs at once, so results are the same every time and no
output needs zeroing.
"""

# A kernel's arguments are Triton values: annotations on them would be read as Triton types, and
# by Triton's custom compile-time ones are in capitals.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - as said above
from __future__ import annotations

from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels import gemm
from tuner.kernels.gemm import accumulate, store_tile, tile_at
from tuner.kernels.language import jit, tl
from tuner.kernels.launch import Buffer, Launch, Plan, ceil_div, launch_options

SUM_BLOCK = 1024
SUM_WARPS = 4


@jit
def split_k_kernel(
    a_ptr,
    b_ptr,
    part_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    ACC_DTYPE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    CAST_B: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    """part[s, M, N] = A[M, Ks] @ B[Ks, N] for the s-th of SPLIT_K runs of K, s along axis 1."""
    tile_m, tile_n = tile_at(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    split = tl.program_id(1)
    steps = tl.cdiv(K, BLOCK_K)
    run = tl.cdiv(steps, SPLIT_K)
    first = min(split * run, steps)
    acc = accumulate(
        a_ptr, b_ptr, tile_m, tile_n, first, min(first + run, steps), M, N, K,
        stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, ACC_DTYPE, INPUT_PRECISION, CAST_B, WIDE_OFFSETS,
    )  # fmt: skip
    part_ptr += split.to(tl.int64) * M * N
    store_tile(
        part_ptr, acc, tile_m, tile_n, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N, WIDE_OFFSETS
    )


@jit
def sum_parts_kernel(part_ptr, c_ptr, elements, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr):
    """c[i] = sum over s of part[s, i]."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < elements
    total = tl.load(part_ptr + offsets, mask=inside)
    for _ in tl.static_range(1, SPLIT_K):
        part_ptr += elements.to(tl.int64)
        total += tl.load(part_ptr + offsets, mask=inside)
    tl.store(c_ptr + offsets, total.to(c_ptr.dtype.element_ty), mask=inside)


def refuses(problem: Gemm) -> str | None:
    """Return why this kernel does not compute ``problem``, or ``None`` where it does."""
    return "it computes one matrix" if problem.batch != 1 else gemm.refuses(problem)


def plan(problem: Gemm, config: TileConfig) -> Plan:
    """Return the launches: ``split_k`` programs a tile, then the sum."""
    a_dtype, b_dtype = gemm.operand_types(problem)
    part_type, elements = gemm.accumulator(problem), problem.m * problem.n
    multiply = Launch(
        split_k_kernel,
        grid=(gemm.tiles_of(problem, config), config.split_k),
        pointers={"a_ptr": a_dtype, "b_ptr": b_dtype, "part_ptr": part_type},
        integers={**gemm.sizes(problem), **gemm.strides(problem)},
        constexprs={
            **gemm.tile_arguments(problem, config), "GROUP_M": config.group_m,
            "SPLIT_K": config.split_k,
        },
        options=launch_options(config),
    )  # fmt: skip
    add = Launch(
        sum_parts_kernel,
        grid=(ceil_div(elements, SUM_BLOCK),),
        pointers={"part_ptr": part_type, "c_ptr": gemm.out_type(problem)},
        integers={"elements": elements},
        constexprs={"SPLIT_K": config.split_k, "BLOCK": SUM_BLOCK},
        options={"num_warps": SUM_WARPS},
    )
    buffers = {
        "c": gemm.result_buffer(problem),
        "part": Buffer((config.split_k, problem.m, problem.n), part_type),
    }
    return Plan((multiply, add), buffers, ("c",))


__all__ = ["plan", "refuses", "split_k_kernel", "sum_parts_kernel"]
