"""What one CTA of a tiled matrix product takes: shared memory, registers, spills, occupancy.

Formulas of Triton's compiler (3.6 and 3.7), each checked against compiled metadata in
``tests/tuner``. Triton 3.9 sums int8 products of sm_100 in tensor memory, with a stage more in
shared memory, and takes more registers for some tiles on sm_80; all else holds there as well.
All are vectorised: one array in, one array out, so that a whole grid of configurations costs
microseconds. Sizes in bytes are exact in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.gemm import VECTOR_BYTES_MAX
from perfmodel.problems.gemm_table import GemmTable, Numbers
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.layout import MatrixUnits, mma_warps, per_cta, store_scratch_bytes
from perfmodel.tiling.registers import (
    REGISTER_BYTES,
    REGISTERS_GIVEN_UP,
    RegisterDemand,
    register_limit,
    registers_by_group,
    registers_by_lane,
    registers_by_tensor_memory,
    registers_by_warp,
    spill_by_group,
    spill_by_lane,
    spill_by_warp,
)

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

CP_ASYNC_BYTES_MIN = 4
"""The narrowest asynchronous copy to shared memory (PTX ISA, cp.async: 4, 8 or 16 bytes)."""

BARRIER_BYTES = 8
"""A memory barrier on which tensor memory's products are awaited."""

TENSOR_MEMORY_ROWS = 128
TENSOR_MEMORY_COLUMNS_MIN = 32
"""PTX ISA, tcgen05.alloc: columns are handed out from 32 up, each of 128 rows."""


@dataclass(frozen=True)
class Resources:
    """What each of ``n`` configurations takes; arrays of shape (n,).

    ``registers_wanted`` is what the compiler would use without a limit, ``registers`` what it is
    given, both per thread; ``spill_bytes_per_thread`` the local memory that the difference needs.
    ``smem_bytes`` is the larger of what the main loop takes (``smem_loop_bytes``, the same in
    every version of Triton known) and the epilogue. ``ctas_per_sm`` is 0 where not even one CTA
    fits.
    """

    smem_bytes: Array
    smem_loop_bytes: Array
    threads: Array
    accumulators_per_thread: Array
    registers_wanted: Array
    registers: Array
    spill_bytes_per_thread: Array
    ctas_per_sm: Array
    tensor_memory_columns: Array

    @property
    def occupancy(self) -> Array:
        """CTAs per SM; another name of ``ctas_per_sm``."""
        return self.ctas_per_sm


def gemm_resources(problems: GemmTable, configs: ConfigTable, gpu: Gpu) -> Resources:
    """Return what a CTA takes under each configuration.

    ``problems`` and ``configs`` broadcast: one problem with n configurations, or one each a row.
    The device's capability flags and limits decide, never its generation.
    """
    configs = per_cta(configs)
    path = _Path.of(problems.compute_dtype.name, configs, gpu)
    a = _operand(problems.a_dtype.bits, problems.a_vector_bytes, configs.block_m, configs, path)
    b = _operand(problems.b_dtype.bits, problems.b_vector_bytes, configs.block_n, configs, path)
    loop = _loop_bytes(problems, (a, b), configs, path, gpu)
    smem = _shared_memory(problems, loop, configs, path, gpu)
    demand = _demand(problems, (a, b), configs, path)
    accumulators = demand.accumulators
    wanted, registers, spill = _registers(demand, configs, path, gpu)
    columns = np.zeros_like(smem)
    if path.tensor_memory is not None:
        rows = np.maximum(configs.block_m / TENSOR_MEMORY_ROWS, 1)
        columns = np.maximum(configs.block_n * rows, TENSOR_MEMORY_COLUMNS_MIN) * path.tensor_memory
        accumulators = np.where(path.tensor_memory, 0.0, accumulators)
    return Resources(
        smem_bytes=smem,
        smem_loop_bytes=loop,
        threads=path.threads,
        accumulators_per_thread=accumulators,
        registers_wanted=wanted,
        registers=registers,
        spill_bytes_per_thread=spill,
        ctas_per_sm=ctas_per_sm(smem, registers, configs.num_warps, gpu),
        tensor_memory_columns=columns,
    )


def ctas_per_sm(smem_bytes: Array, registers: Array, num_warps: Array, gpu: Gpu) -> Array:
    """Return how many CTAs of one kind an SM holds at once, 0 where one does not fit.

    The least of what shared memory, registers, warps and blocks allow. Registers are handed out
    to warps in units of 256, and warps in fours, one to each of the SM's four partitions (CUDA
    occupancy calculator); sm_80 and later keep 1 KiB of shared memory per block for the system.
    """
    reserved = gpu.smem_reserved_per_block_bytes or 0
    per_warp = np.ceil(registers * gpu.warp_size / 256) * 256
    warps = np.floor(gpu.registers_per_sm / per_warp / 4) * 4
    least = np.floor(np.minimum(warps, gpu.warps_per_sm) / num_warps)
    taken = np.maximum(smem_bytes + reserved, 1.0)
    least = np.minimum(least, np.floor(gpu.smem_per_sm_bytes / taken))
    fits = (smem_bytes <= gpu.smem_per_block_optin_bytes) & (
        num_warps * gpu.warp_size <= gpu.threads_per_block_max
    )
    return np.asarray(np.minimum(least, gpu.blocks_per_sm) * fits)


@dataclass(frozen=True)
class _Path:
    """Which unit multiplies each configuration's tile; ``None`` where the device lacks that unit.

    ``widened``: fp8 operands become fp16 in registers and go to warp-level instructions.
    """

    threads: Array
    wgmma: Mask | None
    tensor_memory: Mask | None
    widened: Mask | None
    fma: bool

    @classmethod
    def of(cls, compute: str, configs: ConfigTable, gpu: Gpu) -> _Path:
        """A warp group instruction takes 64 rows for every 4 warps, tensor memory 4 or 8 warps.

        sm_89 and sm_120 have warp-level fp8 instructions; Hopper and data-centre Blackwell have
        fp8 in their group-level ones only.
        """
        warps, tall = configs.num_warps, configs.block_m >= 64
        fma = compute in ("fp32", "fp64") or not gpu.can("tensor_cores")
        wgmma = tensor_memory = widened = None
        if gpu.can("wgmma") and not fma:
            wgmma = np.asarray((warps % 4 == 0) & tall)
        if gpu.can("tmem") and not fma and compute != "int8":
            tensor_memory = np.asarray(((warps == 4) | (warps == 8)) & tall)
        direct = wgmma if wgmma is not None else tensor_memory
        if compute.startswith("fp8") and not (gpu.can("fp8") and direct is None):
            widened = ~direct if direct is not None else np.ones(len(configs), dtype=np.bool_)
        return cls(warps * gpu.warp_size, wgmma, tensor_memory, widened, fma)

    @property
    def direct(self) -> Mask | None:
        """Where the matrix unit itself reads operands from shared memory."""
        return self.wgmma if self.wgmma is not None else self.tensor_memory


@dataclass(frozen=True)
class _Operand:
    """One operand's tile: its bytes, a thread's share, how much of that it copies at once."""

    tile_bytes: Array
    share_bytes: Array
    copy_bytes: Array
    copied: Mask
    """A thread has the 4 contiguous bytes that an asynchronous copy needs."""


def _operand(
    bits: int, vector_bytes: Numbers, rows: Array, configs: ConfigTable, path: _Path
) -> _Operand:
    """Describe the tile of ``rows`` (or columns) by ``block_k`` elements.

    A thread copies at least one element and at most one vector.
    """
    tile = rows * configs.block_k * (bits / 8)
    share = tile / path.threads
    copy = np.minimum(vector_bytes, np.maximum(bits / 8, share))
    return _Operand(tile, share, copy, copy >= CP_ASYNC_BYTES_MIN)


def _multi_buffered(
    operand: _Operand, bits: int, k_major: Numbers, rows: Array, path: _Path
) -> Mask:
    """Whether an operand can have several buffers: asynchronous copies, and no detour.

    8-bit operands that do not lie along k pass through registers for warp group instructions, and
    for warp-level ones where a thread's whole share is one row of 16 bytes.
    """
    if bits != 8:
        return operand.copied
    detour = (rows == VECTOR_BYTES_MAX) & (operand.share_bytes == VECTOR_BYTES_MAX)
    if path.wgmma is not None:
        detour = detour | path.wgmma
    return np.asarray(operand.copied & (np.asarray(k_major > 0) | ~detour))


def _shared_memory(
    problems: GemmTable, loop: Array, configs: ConfigTable, path: _Path, gpu: Gpu
) -> Array:
    """Bytes of shared memory per CTA: the larger of the main loop's and the epilogue's."""
    out_bytes = problems.out_dtype.bytes
    tile_out = configs.block_m * configs.block_n * out_bytes
    if gpu.vendor != "nvidia":
        return loop  # results are stored as the matrix units leave them
    if not gpu.can("cp_async"):
        return np.maximum(loop, tile_out)
    # The epilogue takes the tile of C at most, so most configurations need not be looked at.
    rows = np.flatnonzero(tile_out > loop)
    if not rows.size:
        return loop
    units = MatrixUnits(
        None if path.wgmma is None else path.wgmma[rows],
        None if path.tensor_memory is None else path.tensor_memory[rows],
        path.fma,
        stores_matrices=gpu.can("tma"),  # no flag of its own: stmatrix also came with sm_90
    )
    scratch = store_scratch_bytes(
        configs.block_m[rows], configs.block_n[rows], configs.num_warps[rows], out_bytes, units
    )
    smem = loop.copy()
    smem[rows] = np.maximum(loop[rows], scratch)
    return smem


def _loop_bytes(
    problems: GemmTable,
    operands: tuple[_Operand, _Operand],
    configs: ConfigTable,
    path: _Path,
    gpu: Gpu,
) -> Array:
    """Bytes of shared memory that the main loop takes.

    A pipelined loop keeps ``stages - 1`` tiles of an operand where products read shared memory
    through registers, and ``stages`` where the matrix unit itself reads it while the next tile
    arrives (wgmma, tensor memory). An operand with a single buffer is held twice for tensor
    memory, once ahead of the loop and once in it. Operands widened on the way pass through one
    after the other where nothing is pipelined, and take 16 bits an element where the other is.
    Without asynchronous copies there is one buffer. Triton's AMD back end, checked for gfx90a,
    gfx942 and gfx950, keeps ``stages - 1`` tiles too, and with one stage an operand at a time.
    """
    a, b = operands
    if gpu.vendor == "amd":
        both = np.maximum(configs.num_stages - 1, 1) * (a.tile_bytes + b.tile_bytes)
        one = np.maximum(a.tile_bytes, b.tile_bytes)
        return np.where(configs.num_stages == 1, one, both)
    if not gpu.can("cp_async"):
        return a.tile_bytes + b.tile_bytes
    a_many = _multi_buffered(a, problems.a_dtype.bits, problems.a_row, configs.block_m, path)
    b_many = _multi_buffered(b, problems.b_dtype.bits, 1.0 - problems.b_row, configs.block_n, path)
    stages = configs.num_stages
    many = np.maximum(stages - 1, 1)
    if path.direct is not None:
        many = np.where(path.direct, stages, many)
    a_single = b_single = np.ones_like(many)
    if path.tensor_memory is not None:
        a_single = b_single = np.where(path.tensor_memory & (stages > 1), 2.0, 1.0)
    if path.widened is not None:
        a_single = np.where(path.widened & a.copied, 2.0, a_single)
        b_single = np.where(path.widened & b.copied, 2.0, b_single)
    loop = np.where(a_many, many, a_single) * a.tile_bytes
    loop = loop + np.where(b_many, many, b_single) * b.tile_bytes
    if path.tensor_memory is not None:
        loop = loop + BARRIER_BYTES * np.minimum(stages, 2) * path.tensor_memory
    if path.widened is not None:
        in_turn = path.widened & ((stages == 1) | ~(a_many | b_many))
        loop = np.where(in_turn, np.maximum(a.tile_bytes, b.tile_bytes), loop)
    return loop


def _demand(
    problems: GemmTable, operands: tuple[_Operand, _Operand], configs: ConfigTable, path: _Path
) -> RegisterDemand:
    """What a thread holds: a part of A's tile goes to every warp along n, and of B's along m."""
    a, b = operands
    warps_m, warps_n = mma_warps(configs.block_m, configs.block_n, configs.num_warps)
    a_fragments = a.share_bytes * warps_n / REGISTER_BYTES
    b_fragments = b.share_bytes * warps_m / REGISTER_BYTES
    unpipelined = configs.num_stages == 1
    reordered = np.zeros_like(a_fragments)
    for bits, row_by_row, operand, fragments in (
        (problems.a_dtype.bits, 1.0 - problems.a_row, a, a_fragments),
        (problems.b_dtype.bits, problems.b_row, b, b_fragments),
    ):
        # Matrix units take 16-bit operands either way, 8-bit ones along k, and so do warp group
        # instructions 32-bit ones.
        if bits == 8:
            by_warp = 1.0 if path.wgmma is None else ~path.wgmma
            reordered = reordered + row_by_row * fragments * by_warp
        elif bits == 32 and path.wgmma is not None:
            reordered = reordered + row_by_row * operand.share_bytes / REGISTER_BYTES * path.wgmma
    return RegisterDemand(
        accumulators=configs.block_m * configs.block_n / path.threads,
        loads=np.maximum(a.share_bytes / a.copy_bytes, 1)
        + np.maximum(b.share_bytes / b.copy_bytes, 1),
        a_staged=a.share_bytes / REGISTER_BYTES * (unpipelined | ~a.copied),
        b_staged=b.share_bytes / REGISTER_BYTES * (unpipelined | ~b.copied),
        fragments=a_fragments + b_fragments,
        reordered=reordered,
    )


def _registers(
    demand: RegisterDemand, configs: ConfigTable, path: _Path, gpu: Gpu
) -> tuple[Array, Array, Array]:
    """Registers wanted, registers given and bytes spilled, per thread."""
    limit = register_limit(configs, path.threads, gpu)
    if path.fma:
        wanted = registers_by_lane(demand)
    else:
        wanted = registers_by_warp(demand)
        if path.wgmma is not None:
            wanted = np.where(path.wgmma, registers_by_group(demand), wanted)
        if path.tensor_memory is not None:
            wanted = np.where(path.tensor_memory, registers_by_tensor_memory(demand), wanted)
    registers = np.minimum(np.ceil(wanted), limit)
    spill = np.zeros_like(wanted)
    rows = np.flatnonzero(wanted > limit)
    if not rows.size:
        return wanted, registers, spill
    few, over = limit[rows], demand.take(rows)
    if path.fma:
        spill[rows] = spill_by_lane(over, few)
        return wanted, registers, spill
    bytes_spilled, gave_up = spill_by_warp(
        over, wanted[rows], few, path.threads[rows], configs.num_stages[rows]
    )
    if path.direct is not None:
        direct = path.direct[rows]
        bytes_spilled = np.where(direct, spill_by_group(over, few), bytes_spilled)
        gave_up &= ~direct
    spill[rows] = bytes_spilled
    registers[rows[gave_up]] = REGISTERS_GIVEN_UP
    return wanted, registers, spill
