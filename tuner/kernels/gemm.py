"""The reference matrix product in Triton: one output tile per program, a pipelined loop over K."""

# A kernel's arguments are Triton values: annotations on them would be read as Triton types, and
# by Triton's custom compile-time ones are in capitals.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - as said above
from __future__ import annotations

from typing import Any

from perfmodel.problems.dtypes import INT8, TF32, parse_dtype
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels.language import jit, tl
from tuner.kernels.launch import Launch, ceil_div, launch_options

INT32_MAX = 2**31 - 1


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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
    ACC_DTYPE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    CAST_B: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    """C[M, N] = A[M, K] @ B[K, N], strides in elements.

    Programs walk columns of GROUP_M row tiles, so that a wave of them shares operand tiles in L2.
    Rows and columns past the edge wrap round instead of being masked: they are loaded again from
    valid memory and never stored. EVEN_K says that BLOCK_K divides K, so no load needs a mask.
    CAST_B converts narrow weights to A's type after loading them.
    WIDE_OFFSETS computes offsets in 64 bits, for operands of 2**31 elements and more.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    band = pid // (GROUP_M * tiles_n)
    first_m = band * GROUP_M
    band_rows = min(tiles_m - first_m, GROUP_M)
    in_band = pid % (GROUP_M * tiles_n)
    tile_m = first_m + in_band % band_rows
    tile_n = in_band // band_rows

    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_rows = rows % M
    b_cols = cols % N
    wide_depth = depth
    step_k = BLOCK_K
    if WIDE_OFFSETS:
        step_k = tl.full((), BLOCK_K, tl.int64)
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        a_rows = a_rows.to(tl.int64)
        b_cols = b_cols.to(tl.int64)
        wide_depth = depth.to(tl.int64)
    a_ptrs = a_ptr + (a_rows[:, None] * stride_am + wide_depth[None, :] * stride_ak)
    b_ptrs = b_ptr + (wide_depth[:, None] * stride_bk + b_cols[None, :] * stride_bn)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_DTYPE)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            left = K - step * BLOCK_K
            a = tl.load(a_ptrs, mask=depth[None, :] < left, other=0)
            b = tl.load(b_ptrs, mask=depth[:, None] < left, other=0)
        if CAST_B:
            b = b.to(a.dtype)
        acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION, out_dtype=ACC_DTYPE)
        a_ptrs += step_k * stride_ak
        b_ptrs += step_k * stride_bk

    c_ptrs = c_ptr + (rows[:, None] * stride_cm + cols[None, :] * stride_cn)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=inside)


def launch_of(problem: Gemm, config: TileConfig) -> Launch:
    """Return the arguments with which :data:`matmul_kernel` computes ``problem`` under ``config``.

    C is row-major and packed. ``batch`` is not this kernel's: it computes one product.
    """
    a_dtype = problem.a_dtype
    b_dtype = parse_dtype(problem.b_dtype or a_dtype)
    out_dtype = parse_dtype(problem.out_dtype or a_dtype)
    m, n, k = problem.m, problem.n, problem.k
    lda, ldb = problem.lda or 0, problem.ldb or 0
    stride_am, stride_ak = (lda, 1) if problem.a_layout == "row" else (1, lda)
    stride_bk, stride_bn = (ldb, 1) if problem.b_layout == "row" else (1, ldb)
    elements = max(
        m * (lda if problem.a_layout == "row" else 1)
        + k * (lda if problem.a_layout == "col" else 1),
        k * (ldb if problem.b_layout == "row" else 1)
        + n * (ldb if problem.b_layout == "col" else 1),
        m * n,
    )
    return Launch(
        matmul_kernel,
        pointers={"a_ptr": a_dtype, "b_ptr": b_dtype, "c_ptr": out_dtype},
        integers={
            "M": m, "N": n, "K": k,
            "stride_am": stride_am, "stride_ak": stride_ak,
            "stride_bk": stride_bk, "stride_bn": stride_bn,
            "stride_cm": n, "stride_cn": 1,
        },
        constexprs={
            "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k,
            "GROUP_M": config.group_m,
            "EVEN_K": k % config.block_k == 0,
            "ACC_DTYPE": _accumulator(problem),
            "INPUT_PRECISION": "tf32" if problem.compute_dtype == TF32 else "ieee",
            "CAST_B": b_dtype.bits < a_dtype.bits,
            "WIDE_OFFSETS": elements > INT32_MAX,
        },
        options=launch_options(config),
        grid=(ceil_div(m, config.block_m) * ceil_div(n, config.block_n),),
    )  # fmt: skip


def _accumulator(problem: Gemm) -> Any:
    if tl is None:
        matmul_kernel.fail()
    return tl.int32 if problem.compute_dtype == INT8 else tl.float32


__all__ = ["launch_of", "matmul_kernel"]
