"""The persistent matrix product: as many programs as fit the device, each taking tiles in turn."""

# A kernel's arguments are Triton values: annotations on them would be read as Triton types, and
# by Triton's custom compile-time ones are in capitals.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - as said above
from __future__ import annotations

from perfmodel.errors import InvalidConfigError
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels import gemm
from tuner.kernels.gemm import accumulate, store_tile, tile_at
from tuner.kernels.language import jit, tl
from tuner.kernels.launch import Launch, Plan, launch_options

PROGRAMS = "programs"
"""The name under which a configuration says how many programs there are, in its ``extras``."""


@jit
def persistent_matmul_kernel(
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
    """C[M, N] = A[M, K] @ B[K, N]: program p takes tiles p, p + programs, p + 2 programs ..."""
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        tile_m, tile_n = tile_at(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        acc = accumulate(
            a_ptr, b_ptr, tile_m, tile_n, 0, tl.cdiv(K, BLOCK_K), M, N, K,
            stride_am, stride_ak, stride_bk, stride_bn,
            BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, ACC_DTYPE, INPUT_PRECISION, CAST_B, WIDE_OFFSETS,
        )  # fmt: skip
        store_tile(
            c_ptr, acc, tile_m, tile_n, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N, WIDE_OFFSETS
        )


def refuses(problem: Gemm) -> str | None:
    """Return why this kernel does not compute ``problem``, or ``None`` where it does."""
    return "it computes one matrix" if problem.batch != 1 else gemm.refuses(problem)


def plan(problem: Gemm, config: TileConfig) -> Plan:
    """Return the launch of ``programs`` (one of the configuration's extras) programs.

    Raises:
        InvalidConfigError: the configuration does not say how many.
    """
    programs = dict(config.extras).get(PROGRAMS)
    if not isinstance(programs, int) or programs < 1:
        raise InvalidConfigError(
            f"{PROGRAMS} is {programs!r}; a persistent kernel needs a whole number of at least 1, "
            f"such as the device's SMs: TileConfig(..., extras=(({PROGRAMS!r}, 132),))"
        )
    a_dtype, b_dtype = gemm.operand_types(problem)
    launch = Launch(
        persistent_matmul_kernel,
        grid=(min(programs, gemm.tiles_of(problem, config)),),
        pointers={"a_ptr": a_dtype, "b_ptr": b_dtype, "c_ptr": gemm.out_type(problem)},
        integers={**gemm.sizes(problem), **gemm.strides(problem)},
        constexprs={**gemm.tile_arguments(problem, config), "GROUP_M": config.group_m},
        options=launch_options(config),
    )
    return Plan((launch,), {"c": gemm.result_buffer(problem)}, ("c",))


__all__ = ["PROGRAMS", "persistent_matmul_kernel", "plan", "refuses"]
