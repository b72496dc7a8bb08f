"""What one CTA of a tiled matrix product takes: shared memory, registers, spills, occupancy.

Formulas of Triton's compiler (3.6), each checked against compiled metadata in ``tests/tiling``.
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
from perfmodel.tiling.layout import MatrixUnits, store_scratch_bytes

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

CP_ASYNC_BYTES_MIN = 4
"""The narrowest asynchronous copy to shared memory (PTX ISA, cp.async: 4, 8 or 16 bytes)."""


BARRIER_BYTES = 8
"""A memory barrier on which tensor memory's products are awaited."""


@dataclass(frozen=True)
class Resources:
    """What each of ``n`` configurations takes; arrays of shape (n,).

    ``registers_wanted`` is what the compiler would use without a limit, ``registers`` what it is
    given, both per thread; ``spill_bytes_per_thread`` the local memory that the difference needs.
    ``ctas_per_sm`` is 0 where not even one CTA fits.
    """

    smem_bytes: Array
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
    path = _Path.of(problems.compute_dtype.name, configs, gpu)
    a_access = (problems.a_vector_bytes, problems.a_row)
    b_access = (problems.b_vector_bytes, 1.0 - problems.b_row)
    a = _operand(problems.a_dtype.bits, configs.block_m, configs, a_access, path)
    b = _operand(problems.b_dtype.bits, configs.block_n, configs, b_access, path)
    accumulators = configs.block_m * configs.block_n / path.threads
    smem = _shared_memory((a, b), problems.out_dtype.bytes, configs, path, gpu)
    tile_a, tile_b, tmem = a.tile_bytes, b.tile_bytes, path.tensor_memory
    wanted = 36 + 1.23 * accumulators + 0.70 * (tile_a + tile_b) / (4 * path.threads)
    limit = _register_limit(configs, path.threads, gpu)
    registers = np.minimum(np.maximum(np.ceil(wanted), 24), limit)
    spill = 4 * np.maximum(wanted - limit, 0)
    return Resources(
        smem_bytes=smem,
        threads=path.threads,
        accumulators_per_thread=np.where(tmem, 0.0, accumulators),
        registers_wanted=wanted,
        registers=registers,
        spill_bytes_per_thread=spill,
        ctas_per_sm=ctas_per_sm(smem, registers, configs.num_warps, gpu),
        tensor_memory_columns=np.where(tmem, configs.block_n, 0.0),
    )


def ctas_per_sm(smem_bytes: Array, registers: Array, num_warps: Array, gpu: Gpu) -> Array:
    """Return how many CTAs of one kind an SM holds at once, 0 where one does not fit.

    The least of what shared memory, registers, warps and blocks allow. Registers are handed out
    to warps in units of 256, and warps in fours, one to each of the SM's four partitions (CUDA
    occupancy calculator); sm_80 and later keep 1 KiB of shared memory per block for the system.
    """
    reserved = gpu.smem_reserved_per_block_bytes or 0
    by_smem = np.floor(gpu.smem_per_sm_bytes / np.maximum(smem_bytes + reserved, 1.0))
    by_smem = np.where(smem_bytes > gpu.smem_per_block_optin_bytes, 0.0, by_smem)
    per_warp = np.ceil(registers * gpu.warp_size / 256) * 256
    warps = np.floor(gpu.registers_per_sm / np.maximum(per_warp, 1.0) / 4) * 4
    by_registers = np.floor(warps / num_warps)
    by_warps = np.floor(gpu.warps_per_sm / num_warps)
    fits = num_warps * gpu.warp_size <= gpu.threads_per_block_max
    least = np.minimum(np.minimum(by_smem, by_registers), np.minimum(by_warps, gpu.blocks_per_sm))
    return np.where(fits, least, 0.0)


@dataclass(frozen=True)
class _Path:
    """Which unit multiplies each configuration's tile; ``widened``: after fp8 became fp16."""

    threads: Array
    wgmma: Mask
    tensor_memory: Mask
    widened: Mask
    fma: bool

    @classmethod
    def of(cls, compute: str, configs: ConfigTable, gpu: Gpu) -> _Path:
        wgmma = _uses_wgmma(configs, compute, gpu)
        tensor_memory = _uses_tensor_memory(configs, compute, gpu)
        # sm_89 and sm_120 have warp-level fp8 instructions; Hopper and data-centre Blackwell have
        # fp8 in their group-level ones only.
        warp_level_fp8 = gpu.can("fp8") and not (gpu.can("wgmma") or gpu.can("tmem"))
        widens = compute.startswith("fp8") and not warp_level_fp8
        return cls(
            threads=configs.num_warps * gpu.warp_size,
            wgmma=wgmma,
            tensor_memory=tensor_memory,
            widened=~(wgmma | tensor_memory) & widens,
            fma=compute in ("fp32", "fp64") or not gpu.can("tensor_cores"),
        )


@dataclass(frozen=True)
class _Operand:
    """One operand's tile: bytes of a stage, whether a thread has 4 bytes of it to copy at once,
    and whether it can have several buffers."""

    tile_bytes: Array
    copied: Mask
    multi_buffered: Mask


def _operand(
    bits: int, rows: Array, configs: ConfigTable, access: tuple[Numbers, Numbers], path: _Path
) -> _Operand:
    """Describe the tile of ``rows`` (or columns) by ``block_k`` elements.

    ``access``: the widest aligned load in bytes, and 1 where the operand lies along k, else 0.

    A thread copies at least one element and at most one vector; copies of less than 4 bytes are
    not asynchronous. 8-bit operands that do not lie along k pass through registers for wgmma, and
    for the warp-level instruction where a thread's whole share is one row of 16 bytes.
    """
    vector_bytes, k_major = access
    tile = rows * configs.block_k * bits / 8
    copy = np.minimum(vector_bytes, np.maximum(bits / 8, tile / path.threads))
    copied = np.asarray(copy >= CP_ASYNC_BYTES_MIN)
    direct = copied
    if bits == 8:
        one_row = (rows == VECTOR_BYTES_MAX) & (tile == VECTOR_BYTES_MAX * path.threads)
        direct = direct & (np.asarray(k_major > 0) | ~(path.wgmma | one_row))
    return _Operand(tile, copied, direct)


def _uses_wgmma(configs: ConfigTable, compute: str, gpu: Gpu) -> Mask:
    """Whether a warp group's matrix instruction applies: 64 rows for every 4 warps."""
    if not gpu.can("wgmma") or compute in ("fp32", "fp64"):
        return np.zeros(len(configs), dtype=np.bool_)
    return np.asarray((configs.num_warps % 4 == 0) & (configs.block_m >= 64))


def _uses_tensor_memory(configs: ConfigTable, compute: str, gpu: Gpu) -> Mask:
    """Whether accumulators live in tensor memory: one or two warp groups, 64 rows and more."""
    if not gpu.can("tmem") or compute in ("fp32", "fp64", "int8"):
        return np.zeros(len(configs), dtype=np.bool_)
    groups = (configs.num_warps == 4) | (configs.num_warps == 8)
    return np.asarray(groups & (configs.block_m >= 64))


def _shared_memory(
    operands: tuple[_Operand, _Operand],
    out_bytes: float,
    configs: ConfigTable,
    path: _Path,
    gpu: Gpu,
) -> Array:
    """Bytes of shared memory per CTA: the larger of the main loop's and the epilogue's.

    A pipelined loop keeps ``stages - 1`` operand tiles where products read shared memory through
    registers, and ``stages`` where the matrix unit itself reads it while the next tile arrives
    (wgmma, tensor memory). Operands widened on the way pass through shared memory one after the
    other where nothing is pipelined, and take 16 bits an element where only the other one is.
    """
    a, b = operands
    stages = configs.num_stages
    if not gpu.can("cp_async"):
        tile_out = configs.block_m * configs.block_n * out_bytes
        return np.asarray(np.maximum(a.tile_bytes + b.tile_bytes, tile_out))
    buffers = np.where(path.wgmma | path.tensor_memory, stages, np.maximum(stages - 1, 1))
    twice = path.tensor_memory & (stages > 1)  # loaded ahead of the loop, and in it
    a_single = np.where(twice | (path.widened & a.copied), 2.0, 1.0)
    b_single = np.where(twice | (path.widened & b.copied), 2.0, 1.0)
    loop = (
        np.where(a.multi_buffered, buffers, a_single) * a.tile_bytes
        + np.where(b.multi_buffered, buffers, b_single) * b.tile_bytes
        + np.where(path.tensor_memory, BARRIER_BYTES * np.minimum(stages, 2), 0.0)
    )
    in_turn = path.widened & ((stages == 1) | ~(a.multi_buffered | b.multi_buffered))
    loop = np.where(in_turn, np.maximum(a.tile_bytes, b.tile_bytes), loop)
    units = MatrixUnits(
        path.wgmma, path.tensor_memory, path.fma, stores_matrices=gpu.can("tma")
    )  # no flag of its own: stmatrix and TMA both came with sm_90
    scratch = store_scratch_bytes(
        configs.block_m, configs.block_n, configs.num_warps, out_bytes, units
    )
    return np.asarray(np.maximum(loop, scratch))


def _register_limit(configs: ConfigTable, threads: Array, gpu: Gpu) -> Array:
    """Registers that a thread may have: the device's limit, its share of the file, ``maxnreg``."""
    share = np.floor(gpu.registers_per_sm / threads / 8) * 8
    limit = np.minimum(gpu.registers_per_thread_max, share)
    return np.asarray(np.where(configs.maxnreg > 0, np.minimum(limit, configs.maxnreg), limit))
