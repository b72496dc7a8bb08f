"""The reference matrix product in Triton: one output tile per program, a pipelined loop over K.

Its pieces (which tile, the loop, the store) also make the persistent and the split-K kernel.
"""

# A kernel's arguments are Triton values: annotations on them would be read as Triton types, and
# by Triton's custom compile-time ones are in capitals.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - as said above
from __future__ import annotations

from typing import Any

from perfmodel.problems.dtypes import FP32, INT8, INT32, TF32, DType, parse_dtype
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels.language import jit, tl, triton_dtype
from tuner.kernels.launch import Buffer, Launch, Plan, ceil_div, launch_options

INT32_MAX = 2**31 - 1

OPERANDS = ("fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")


@jit
def tile_at(
    pid, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr
):  # fmt: skip
    """Return which tile is number ``pid``: columns of GROUP_M row tiles, one after another.

    A wave of programs then shares operand tiles in L2.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    band = pid // (GROUP_M * tiles_n)
    first_m = band * GROUP_M
    band_rows = min(tiles_m - first_m, GROUP_M)
    in_band = pid % (GROUP_M * tiles_n)
    return first_m + in_band % band_rows, in_band // band_rows


@jit
def accumulate(
    a_ptr,
    b_ptr,
    tile_m,
    tile_n,
    first,
    last,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    ACC_DTYPE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    CAST_B: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    """Return the sum of products of one tile over steps ``first`` to ``last`` of BLOCK_K.

    Rows and columns past the edge wrap round instead of being masked: they are loaded again from
    valid memory and never stored. EVEN_K says that BLOCK_K divides K, so no load needs a mask.
    CAST_B converts narrow weights to A's type after loading them.
    WIDE_OFFSETS computes offsets in 64 bits, for operands of 2**31 elements and more.
    """
    depth = tl.arange(0, BLOCK_K)
    a_rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    b_cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    wide_depth = first * BLOCK_K + depth
    step_k = BLOCK_K
    if WIDE_OFFSETS:
        step_k = tl.full((), BLOCK_K, tl.int64)
        a_rows = a_rows.to(tl.int64)
        b_cols = b_cols.to(tl.int64)
        wide_depth = wide_depth.to(tl.int64)
    a_ptrs = a_ptr + (a_rows[:, None] * stride_am + wide_depth[None, :] * stride_ak)
    b_ptrs = b_ptr + (wide_depth[:, None] * stride_bk + b_cols[None, :] * stride_bn)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_DTYPE)
    for step in range(first, last):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            left = K - step * BLOCK_K
            a = tl.load(a_ptrs, mask=depth[None, :] < left, other=0.0)
            b = tl.load(b_ptrs, mask=depth[:, None] < left, other=0.0)
        if CAST_B:
            b = b.to(a.dtype)
        acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION, out_dtype=ACC_DTYPE)
        a_ptrs += step_k * stride_ak
        b_ptrs += step_k * stride_bk
    return acc


@jit
def store_tile(
    c_ptr,
    values,
    tile_m,
    tile_n,
    M,
    N,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    """Store what of a tile lies inside the matrix."""
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    if WIDE_OFFSETS:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
    c_ptrs = c_ptr + (rows[:, None] * stride_cm + cols[None, :] * stride_cn)
    tl.store(c_ptrs, values.to(c_ptr.dtype.element_ty), mask=inside)


@jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    stride_az,
    stride_bz,
    stride_cz,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
    ACC_DTYPE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    CAST_B: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    BATCHED: tl.constexpr,
):
    """C[M, N] = A[M, K] @ B[K, N], strides in elements; BATCHED: of each matrix along axis 1."""
    tile_m, tile_n = tile_at(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    if BATCHED:
        matrix = tl.program_id(1).to(tl.int64)
        a_ptr += matrix * stride_az
        b_ptr += matrix * stride_bz
        c_ptr += matrix * stride_cz
    acc = accumulate(
        a_ptr, b_ptr, tile_m, tile_n, 0, tl.cdiv(K, BLOCK_K), M, N, K,
        stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, ACC_DTYPE, INPUT_PRECISION, CAST_B, WIDE_OFFSETS,
    )  # fmt: skip
    store_tile(
        c_ptr, acc, tile_m, tile_n, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N, WIDE_OFFSETS
    )


def refuses(problem: Gemm) -> str | None:
    """Return why `matmul_kernel` does not compute ``problem``, or ``None`` where it does."""
    if getattr(problem, "backend", None) is not None:
        return "it is a library kernel's"
    for dtype in operand_types(problem):
        if dtype.name not in OPERANDS:
            return f"{dtype} is not a type of this kernel"
    return None


def plan(problem: Gemm, config: TileConfig) -> Plan:
    """Return the launch with which ``problem`` is computed."""
    return Plan((launch_of(problem, config),), {"c": result_buffer(problem)}, ("c",))


def launch_of(problem: Gemm, config: TileConfig) -> Launch:
    """Return the arguments with which :data:`matmul_kernel` computes ``problem`` under ``config``.

    C is row-major and packed.
    """
    a_dtype, b_dtype = operand_types(problem)
    return Launch(
        matmul_kernel,
        grid=grid_of(problem, config),
        pointers={"a_ptr": a_dtype, "b_ptr": b_dtype, "c_ptr": out_type(problem)},
        integers={**sizes(problem), **strides(problem), **batch_strides(problem)},
        constexprs={
            **tile_arguments(problem, config), "GROUP_M": config.group_m,
            "BATCHED": problem.batch != 1,
        },
        options=launch_options(config),
    )  # fmt: skip


def operand_types(problem: Gemm) -> tuple[DType, DType]:
    """Return the types of A and B."""
    return problem.a_dtype, parse_dtype(problem.b_dtype or problem.a_dtype)


def out_type(problem: Gemm) -> DType:
    """Return the type of C."""
    return parse_dtype(problem.out_dtype or problem.a_dtype)


def accumulator(problem: Gemm) -> DType:
    """Return the type in which sums are kept."""
    return INT32 if problem.compute_dtype == INT8 else FP32


def result_buffer(problem: Gemm) -> Buffer:
    """Return the memory of C, [batch, m, n]."""
    return Buffer((problem.batch, problem.m, problem.n), out_type(problem))


def tiles_of(problem: Gemm, config: TileConfig) -> int:
    """Return the tiles of one matrix of the result."""
    return ceil_div(problem.m, config.block_m) * ceil_div(problem.n, config.block_n)


def grid_of(problem: Gemm, config: TileConfig) -> tuple[int, ...]:
    """Return the programs: a tile each, of one matrix or of every matrix of the batch."""
    tiles = tiles_of(problem, config)
    return (tiles,) if problem.batch == 1 else (tiles, problem.batch)


def sizes(problem: Gemm) -> dict[str, int]:
    """Return the run-time sizes."""
    return {"M": problem.m, "N": problem.n, "K": problem.k}


def strides(problem: Gemm) -> dict[str, int]:
    """Return the strides of A, B and packed row-major C, in elements."""
    lda, ldb = problem.lda or 0, problem.ldb or 0
    stride_am, stride_ak = (lda, 1) if problem.a_layout == "row" else (1, lda)
    stride_bk, stride_bn = (ldb, 1) if problem.b_layout == "row" else (1, ldb)
    return {
        "stride_am": stride_am, "stride_ak": stride_ak,
        "stride_bk": stride_bk, "stride_bn": stride_bn,
        "stride_cm": problem.n, "stride_cn": 1,
    }  # fmt: skip


def batch_strides(problem: Gemm) -> dict[str, int]:
    """Return how far the matrices of a batch lie apart, in elements."""
    m, n, k = problem.m, problem.n, problem.k
    return {
        "stride_az": (problem.lda or 0) * (m if problem.a_layout == "row" else k),
        "stride_bz": (problem.ldb or 0) * (k if problem.b_layout == "row" else n),
        "stride_cz": m * n,
    }


def tile_arguments(problem: Gemm, config: TileConfig) -> dict[str, Any]:
    """Return the compile-time arguments of `accumulate`."""
    a_dtype, b_dtype = operand_types(problem)
    apart = batch_strides(problem)
    lda, ldb = problem.lda or 0, problem.ldb or 0
    # Pointers run on by one row or column and the last step beyond an operand's end.
    elements = max(
        apart["stride_az"] + (lda if problem.a_layout == "col" else 1) * config.block_k,
        apart["stride_bz"] + (ldb if problem.b_layout == "row" else 1) * config.block_k,
        apart["stride_cz"],
    )
    return {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k,
        "EVEN_K": problem.k % config.block_k == 0,
        "ACC_DTYPE": triton_dtype(accumulator(problem)),
        "INPUT_PRECISION": "tf32" if problem.compute_dtype == TF32 else "ieee",
        "CAST_B": b_dtype.bits < a_dtype.bits,
        "WIDE_OFFSETS": elements > INT32_MAX,
    }  # fmt: skip


__all__ = ["launch_of", "matmul_kernel", "plan", "refuses"]
