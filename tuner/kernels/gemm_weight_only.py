"""16-bit activations times int8 or int4 weights with a scale per 128 of K and column."""

# A kernel's arguments are Triton values: annotations on them would be read as Triton types, and
# by Triton's custom compile-time ones are in capitals.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - as said above
from __future__ import annotations

from perfmodel.errors import InvalidConfigError
from perfmodel.problems.dtypes import INT4
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels import gemm
from tuner.kernels.gemm import store_tile, tile_at
from tuner.kernels.language import jit, tl
from tuner.kernels.launch import Launch, Plan, ceil_div, launch_options

SCALE_GROUP = 128
"""Weights of a column that share a scale."""


@jit
def weight_only_matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
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
    SCALE_GROUP: tl.constexpr,
    PACKED: tl.constexpr,
    STORED_K: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    """C[m, n] = sum over k of A[m, k] b_scale[k // SCALE_GROUP, n] B[k, n].

    PACKED: a byte holds rows 2k (low half) and 2k + 1 of B as two's complement 4-bit numbers, and
    ``stride_bk`` is from byte to byte. A step takes BLOCK_K weights in STORED_K bytes a column, and
    BLOCK_K divides SCALE_GROUP.
    """
    tile_m, tile_n = tile_at(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    depth = tl.arange(0, BLOCK_K)
    stored = tl.arange(0, STORED_K)
    b_scale_ptrs = b_scale_ptr + cols
    wide_depth = depth
    wide_stored = stored
    step_a = BLOCK_K
    step_b = STORED_K
    if WIDE_OFFSETS:
        step_a = tl.full((), BLOCK_K, tl.int64)
        step_b = tl.full((), STORED_K, tl.int64)
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        wide_depth = depth.to(tl.int64)
        wide_stored = stored.to(tl.int64)
    a_ptrs = a_ptr + (rows[:, None] * stride_am + wide_depth[None, :] * stride_ak)
    b_ptrs = b_ptr + (wide_stored[:, None] * stride_bk + cols[None, :] * stride_bn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            left = K - step * BLOCK_K
            a = tl.load(a_ptrs, mask=depth[None, :] < left, other=0.0)
            b = tl.load(b_ptrs, mask=stored[:, None] * (BLOCK_K // STORED_K) < left, other=0)
        scale = tl.load(b_scale_ptrs + (step * BLOCK_K // SCALE_GROUP) * N)
        if PACKED:
            low = ((b & 15) ^ 8).to(tl.int8) - 8  # extends the sign of 4 bits
            high = ((b >> 4) ^ 8).to(tl.int8) - 8
            pairs = tl.join(low, high).permute(0, 2, 1)
            weights = pairs.reshape(BLOCK_K, BLOCK_N).to(tl.float32)
        else:
            weights = b.to(tl.float32)
        weights = (weights * scale.to(tl.float32)[None, :]).to(a.dtype)
        acc = tl.dot(a, weights, acc)
        a_ptrs += step_a * stride_ak
        b_ptrs += step_b * stride_bk
    store_tile(
        c_ptr, acc, tile_m, tile_n, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N, WIDE_OFFSETS
    )


def refuses(problem: Gemm) -> str | None:
    """Return why this kernel does not compute ``problem``, or ``None`` where it does."""
    if problem.batch != 1:
        return "it computes one matrix"
    if getattr(problem, "backend", None) is not None:
        return "it is a library kernel's"
    a_dtype, b_dtype = gemm.operand_types(problem)
    if a_dtype.name not in ("fp16", "bf16") or b_dtype.name not in ("int8", "int4"):
        return "it takes fp16 or bf16 activations and int8 or int4 weights"
    return None


def plan(problem: Gemm, config: TileConfig) -> Plan:
    """Return the launch with which ``problem`` is computed.

    Raises:
        InvalidConfigError: block_k does not divide `SCALE_GROUP`.
    """
    if SCALE_GROUP % config.block_k:
        raise InvalidConfigError(
            f"block_k is {config.block_k}; {SCALE_GROUP} weights share a scale, so use a block_k "
            f"that divides {SCALE_GROUP}"
        )
    a_dtype, b_dtype = gemm.operand_types(problem)
    packed = b_dtype == INT4
    strides = gemm.strides(problem)
    if packed and problem.b_layout == "col":
        strides["stride_bn"] = ceil_div(strides["stride_bn"], 2)
    constexprs = {
        **gemm.tile_arguments(problem, config), "GROUP_M": config.group_m,
        "SCALE_GROUP": SCALE_GROUP, "PACKED": packed,
        "STORED_K": config.block_k // 2 if packed else config.block_k,
    }  # fmt: skip
    for name in ("CAST_B", "INPUT_PRECISION", "ACC_DTYPE"):
        del constexprs[name]
    launch = Launch(
        weight_only_matmul_kernel,
        grid=gemm.grid_of(problem, config),
        pointers={
            "a_ptr": a_dtype, "b_ptr": b_dtype, "c_ptr": gemm.out_type(problem),
            "b_scale_ptr": a_dtype,
        },
        integers={**gemm.sizes(problem), **strides},
        constexprs=constexprs,
        options=launch_options(config),
    )  # fmt: skip
    return Plan((launch,), {"c": gemm.result_buffer(problem)}, ("c",))


__all__ = ["SCALE_GROUP", "plan", "refuses", "weight_only_matmul_kernel"]
