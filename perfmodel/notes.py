"""Warnings in words: what a user should know before trusting or using a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfmodel.hardware.gpu import Gpu
from perfmodel.launches import Launches
from perfmodel.problems.dtypes import parse_dtype
from perfmodel.problems.gemm import VECTOR_BYTES_MAX, Gemm
from perfmodel.tiling.config import PARAMETERS, ConfigTable, TileConfig
from perfmodel.tiling.legality import slow_to_compile_mask

OFFSETS_32_BIT = 2**31
"""A signed 32-bit offset reaches this many elements; Triton's pointer arithmetic is 32-bit."""

SPILL_BYTES_NOTED = 16
"""Fewer spilled bytes per thread stay within what compilers do anyway."""


def launch_notes(problem: Gemm, config: TileConfig, found: Launches) -> tuple[str, ...]:
    """Return the notes on the single launch of ``found``."""
    if not found.work.ctas[0]:
        return ("no work: the time is the launch overhead alone",)
    notes = []
    if not problem.k:
        notes.append("k is 0: the kernel only writes zeros")
    elif found.limiter(0) == "launch":
        notes.append("launch-bound: the overhead of a launch outweighs its work")
    notes += _memory_notes(problem, found)
    notes += _alignment_notes(problem)
    notes += _k_major_notes(problem, found)
    notes += _spill_notes(config, found)
    if slow_to_compile_mask(problem, ConfigTable.of([config]), found.gpu)[0]:
        notes.append("slow to compile: every load of this tile is unrolled; raise num_warps")
    if config.extras:
        notes.append(f"not modelled: {', '.join(name for name, _ in config.extras)}")
    return tuple(notes)


def tile_notes(
    config: TileConfig, found: Launches, parameters: Sequence[str] = PARAMETERS
) -> tuple[str, ...]:
    """Return what any tile has to say: launch-bound, does not fit, spills, not modelled.

    ``parameters`` are those that the family's kernels read.
    """
    notes = []
    resources, gpu = found.work.resources, found.gpu
    if found.limiter(0) == "launch":
        notes.append("launch-bound: the overhead of a launch outweighs its work")
    needed, most = float(resources.smem_bytes[0]), gpu.smem_per_block_optin_bytes
    if needed > most:
        notes.append(
            f"may not fit: our kernel takes {needed:,.0f} bytes of shared memory per block, "
            f"{gpu.name} has {most:,}; lower block_m, block_n or num_stages"
        )
    notes += _spill_notes(config, found)
    if config.extras:
        notes.append(f"not modelled: {', '.join(name for name, _ in config.extras)}")
    plain = TileConfig()
    unread = [
        f"{name}={value}"
        for name in PARAMETERS
        if name not in parameters and (value := getattr(config, name)) != getattr(plain, name)
    ]
    if unread:
        notes.append(
            f"left out: {', '.join(unread)}; kernels of this family have no such parameter"
        )
    return tuple(notes)


def memory_notes(total_bytes: float, what: str, gpu: Gpu) -> list[str]:
    """Say so where a problem does not fit in the device's memory."""
    if total_bytes <= gpu.memory_bytes:
        return []
    return [
        f"{what} take {total_bytes / 2**30:,.1f} GiB, more than the "
        f"{gpu.memory_bytes / 2**30:,.0f} GiB of {gpu.name}"
    ]


def coverage_notes(
    accuracy: Mapping[str, Mapping[str, float]], known: bool, found: Launches
) -> tuple[str, ...]:
    """Say why an answer is an extrapolation; ``known`` tells whether device and type are."""
    name, dtype = found.gpu.name, found.dtype
    if known:
        return ("outside what was measured: the learned part extrapolates",)
    if name in accuracy:
        return (f"{dtype} was never measured on {name}: the learned part extrapolates",)
    return (f"{name} was never measured: the learned part extrapolates from other GPUs",)


def _spill_notes(config: TileConfig, found: Launches) -> list[str]:
    spill = float(found.work.resources.spill_bytes_per_thread[0])
    if spill < SPILL_BYTES_NOTED:
        return []
    return [
        f"registers spill, about {spill:.0f} bytes per thread: raise num_warps (now "
        f"{config.num_warps}), or lower block_m or block_n"
    ]


def _memory_notes(problem: Gemm, found: Launches) -> list[str]:
    large = [
        name
        for name, count in zip("ABC", _elements(problem), strict=True)
        if count > OFFSETS_32_BIT
    ]
    notes = []
    if large:
        *others, last = large
        names = f"{', '.join(others)} and {last} have" if others else f"{last} has"
        notes.append(f"{names} more than 2^31 elements: offsets into them need 64 bits")
    notes += memory_notes(problem.compulsory_bytes, "A, B and C", found.gpu)
    return notes


def _elements(problem: Gemm) -> tuple[float, float, float]:
    """Elements from the first to the last of A, B and C, gaps of the strides included."""
    rows_a = problem.m if problem.a_layout == "row" else problem.k
    rows_b = problem.k if problem.b_layout == "row" else problem.n
    return (
        float(problem.batch) * rows_a * (problem.lda or 0),
        float(problem.batch) * rows_b * (problem.ldb or 0),
        float(problem.batch) * problem.m * problem.n,
    )


def _alignment_notes(problem: Gemm) -> list[str]:
    b_dtype = parse_dtype(problem.b_dtype or problem.a_dtype)
    a_run = problem.k if problem.a_layout == "row" else problem.m
    b_run = problem.n if problem.b_layout == "row" else problem.k
    notes = []
    for name, run, width, dtype in (
        ("A", a_run, problem.a_vector_bytes, problem.a_dtype),
        ("B", b_run, problem.b_vector_bytes, b_dtype),
    ):
        whole = int(VECTOR_BYTES_MAX / dtype.bytes)
        if width < VECTOR_BYTES_MAX and run > whole:
            notes.append(
                f"{name} is read {width} bytes at a time, not {VECTOR_BYTES_MAX}: make its row "
                f"length and stride multiples of {whole} elements"
            )
    return notes


def _k_major_notes(problem: Gemm, found: Launches) -> list[str]:
    """Hopper's wgmma takes 8-bit operands only with k contiguous; else Triton uses slower mma."""
    b_dtype = parse_dtype(problem.b_dtype or problem.a_dtype)
    if not found.gpu.capabilities["wgmma"] or (problem.a_dtype.bits, b_dtype.bits) != (8, 8):
        return []
    change = []
    if problem.a_layout == "col":
        change.append("a_layout=row")
    if problem.b_layout == "row":
        change.append("b_layout=col")
    if not change:
        return []
    return [f"8-bit operands reach full speed only with k contiguous: {' and '.join(change)}"]
