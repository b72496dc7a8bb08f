"""8-bit matrix products with scales: one per row and column, or one per block of 128."""

# A kernel's arguments are Triton values: annotations on them would be read as Triton types, and
# by Triton's custom compile-time ones are in capitals.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - as said above
from __future__ import annotations

from typing import Any

from perfmodel.errors import InvalidConfigError
from perfmodel.problems.dtypes import FP32
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels import gemm
from tuner.kernels.gemm import accumulate, store_tile, tile_at
from tuner.kernels.language import jit, tl
from tuner.kernels.launch import Launch, Plan, ceil_div, launch_options

SCALE_BLOCK = 128
"""Elements that share a scale: along K in A, along K and N in B."""


@jit
def row_scaled_matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    a_scale_ptr,
    b_scale_ptr,
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
    """C[m, n] = a_scale[m] b_scale[n] (A @ B)[m, n]."""
    tile_m, tile_n = tile_at(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    acc = accumulate(
        a_ptr, b_ptr, tile_m, tile_n, 0, tl.cdiv(K, BLOCK_K), M, N, K,
        stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, ACC_DTYPE, INPUT_PRECISION, CAST_B, WIDE_OFFSETS,
    )  # fmt: skip
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    scales = tl.load(a_scale_ptr + rows)[:, None] * tl.load(b_scale_ptr + cols)[None, :]
    store_tile(
        c_ptr, acc.to(tl.float32) * scales, tile_m, tile_n, M, N, stride_cm, stride_cn,
        BLOCK_M, BLOCK_N, WIDE_OFFSETS,
    )  # fmt: skip


@jit
def block_scaled_matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    a_scale_ptr,
    b_scale_ptr,
    M,
    N,
    K,
    scale_steps,
    scale_cols,
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
    SCALE_BLOCK: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    """C[m, n] = sum over k of a_scale[m, k'] A[m, k] b_scale[k', n'] B[k, n].

    k' and n' count blocks of SCALE_BLOCK, which BLOCK_K divides: each step has one scale a row and
    column, and its products are scaled before they are added.
    """
    tile_m, tile_n = tile_at(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    depth = tl.arange(0, BLOCK_K)
    a_scale_ptrs = a_scale_ptr + rows * scale_steps
    b_scale_ptrs = b_scale_ptr + cols // SCALE_BLOCK
    wide_depth = depth
    step_k = BLOCK_K
    if WIDE_OFFSETS:
        step_k = tl.full((), BLOCK_K, tl.int64)
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        wide_depth = depth.to(tl.int64)
    a_ptrs = a_ptr + (rows[:, None] * stride_am + wide_depth[None, :] * stride_ak)
    b_ptrs = b_ptr + (wide_depth[:, None] * stride_bk + cols[None, :] * stride_bn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            left = K - step * BLOCK_K
            a = tl.load(a_ptrs, mask=depth[None, :] < left, other=0.0)
            b = tl.load(b_ptrs, mask=depth[:, None] < left, other=0.0)
        block = step * BLOCK_K // SCALE_BLOCK
        a_scale = tl.load(a_scale_ptrs + block)
        b_scale = tl.load(b_scale_ptrs + block * scale_cols)
        products = tl.dot(a, b, out_dtype=ACC_DTYPE).to(tl.float32)
        acc += products * a_scale[:, None] * b_scale[None, :]
        a_ptrs += step_k * stride_ak
        b_ptrs += step_k * stride_bk
    store_tile(
        c_ptr, acc, tile_m, tile_n, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N, WIDE_OFFSETS
    )


def refuses(problem: Gemm) -> str | None:
    """Return why these kernels do not compute ``problem``, or ``None`` where they do."""
    if problem.batch != 1:
        return "it computes one matrix"
    if any(dtype.bits != 8 for dtype in gemm.operand_types(problem)):
        return "scales belong to 8-bit operands"
    if gemm.out_type(problem).name not in ("fp16", "bf16", "fp32"):
        return f"a scaled result is no {gemm.out_type(problem)}; give out_dtype='bf16'"
    return gemm.refuses(problem)


def plan_rows(problem: Gemm, config: TileConfig) -> Plan:
    """Return the launch with a scale per row of A and column of B."""
    constexprs = {**gemm.tile_arguments(problem, config), "GROUP_M": config.group_m}
    return _plan(problem, config, row_scaled_matmul_kernel, {}, constexprs)


def plan_blocks(problem: Gemm, config: TileConfig) -> Plan:
    """Return the launch with a scale per `SCALE_BLOCK` elements.

    Raises:
        InvalidConfigError: block_k does not divide that.
    """
    if SCALE_BLOCK % config.block_k:
        raise InvalidConfigError(
            f"block_k is {config.block_k}; {SCALE_BLOCK} elements share a scale, so use a block_k "
            f"that divides {SCALE_BLOCK}"
        )
    constexprs = {
        **gemm.tile_arguments(problem, config), "GROUP_M": config.group_m,
        "SCALE_BLOCK": SCALE_BLOCK,
    }  # fmt: skip
    del constexprs["CAST_B"], constexprs["INPUT_PRECISION"]
    scales = {
        "scale_steps": ceil_div(problem.k, SCALE_BLOCK),
        "scale_cols": ceil_div(problem.n, SCALE_BLOCK),
    }
    return _plan(problem, config, block_scaled_matmul_kernel, scales, constexprs)


def _plan(
    problem: Gemm,
    config: TileConfig,
    kernel: Any,
    scales: dict[str, int],
    constexprs: dict[str, Any],
) -> Plan:
    a_dtype, b_dtype = gemm.operand_types(problem)
    launch = Launch(
        kernel,
        grid=gemm.grid_of(problem, config),
        pointers={
            "a_ptr": a_dtype, "b_ptr": b_dtype, "c_ptr": gemm.out_type(problem),
            "a_scale_ptr": FP32, "b_scale_ptr": FP32,
        },
        integers={**gemm.sizes(problem), **scales, **gemm.strides(problem)},
        constexprs=constexprs,
        options=launch_options(config),
    )  # fmt: skip
    return Plan((launch,), {"c": gemm.result_buffer(problem)}, ("c",))


__all__ = [
    "SCALE_BLOCK", "block_scaled_matmul_kernel", "plan_blocks", "plan_rows", "refuses",
    "row_scaled_matmul_kernel",
]  # fmt: skip
