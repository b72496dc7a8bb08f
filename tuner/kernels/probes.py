"""Kernels that each press on one resource of a device alone, to see what it gives at most."""

# A kernel's arguments are Triton values: annotations on them would be read as Triton types, and
# by Triton's custom compile-time ones are in capitals.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - as said above
from __future__ import annotations

from tuner.kernels.language import jit, tl


@jit
def empty_kernel(out_ptr, LIVE: tl.constexpr):
    """Nothing, unless LIVE: what a launch alone takes."""
    if LIVE:
        tl.store(out_ptr, 1)


@jit
def read_kernel(x_ptr, out_ptr, blocks, repeats, BLOCK: tl.constexpr):
    """Read all ``blocks`` of x (int32) ``repeats`` times, each program its share of them.

    A program starts a repetition where another was before: what it reads is in the L2, never in the
    L1 of its own SM, which ``.cg`` passes by besides. The sum is kept, so that nothing is left out.
    """
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for repeat in range(repeats):
        first = (pid + repeat * 37) % programs
        for block in range(first, blocks, programs):
            total += tl.load(x_ptr + block * BLOCK + tl.arange(0, BLOCK), cache_modifier=".cg")
    tl.store(out_ptr + pid * BLOCK + tl.arange(0, BLOCK), total)


@jit
def multiply_kernel(
    a_ptr,
    b_ptr,
    out_ptr,
    steps,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACC_DTYPE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """out = steps A B of one tile, which stays on the SM: tensor units with nothing to wait for.

    A is [BLOCK_M, BLOCK_K], B [BLOCK_N, BLOCK_K], both packed.
    """
    rows = tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a = tl.load(a_ptr + rows[:, None] * BLOCK_K + depth[None, :])
    b = tl.load(b_ptr + cols[None, :] * BLOCK_K + depth[:, None])
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_DTYPE)
    for _ in range(steps):
        acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION, out_dtype=ACC_DTYPE)
    out = out_ptr + tl.program_id(0) * BLOCK_M * BLOCK_N
    tl.store(out + rows[:, None] * BLOCK_N + cols[None, :], acc)


__all__ = ["empty_kernel", "multiply_kernel", "read_kernel"]
