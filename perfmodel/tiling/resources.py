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
from perfmodel.problems.gemm_table import GemmTable, Numbers
from perfmodel.tiling.config import ConfigTable

Array = NDArray[np.float64]

CP_ASYNC_BYTES_MIN = 4
"""The narrowest asynchronous copy to shared memory (PTX ISA, cp.async: 4, 8 or 16 bytes)."""


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
    compute = problems.compute_dtype.name
    a_bits, b_bits, out_bits = (
        d.bits for d in (problems.a_dtype, problems.b_dtype, problems.out_dtype)
    )
    a_vector_bytes, b_vector_bytes = problems.a_vector_bytes, problems.b_vector_bytes
    threads = configs.num_warps * gpu.warp_size
    tile_a = configs.block_m * configs.block_k * a_bits / 8
    tile_b = configs.block_k * configs.block_n * b_bits / 8
    tile_c = configs.block_m * configs.block_n
    accumulators = tile_c / threads
    wgmma = _uses_wgmma(configs, compute, gpu)
    tmem = _uses_tmem(configs, compute, gpu)
    smem = _shared_memory(
        configs, threads, tile_a, tile_b, tile_c * out_bits / 8, a_vector_bytes, b_vector_bytes,
        wgmma, tmem, gpu,
    )  # fmt: skip
    wanted = 36 + 1.23 * accumulators + 0.70 * (tile_a + tile_b) / (4 * threads)
    limit = _register_limit(configs, threads, gpu)
    registers = np.minimum(np.maximum(np.ceil(wanted), 24), limit)
    spill = 4 * np.maximum(wanted - limit, 0)
    return Resources(
        smem_bytes=smem,
        threads=threads,
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


def _uses_wgmma(configs: ConfigTable, compute: str, gpu: Gpu) -> NDArray[np.bool_]:
    """Whether a warp group's matrix instruction applies: 64 rows for every 4 warps."""
    if not gpu.can("wgmma") or compute in ("fp32", "fp64"):
        return np.zeros(len(configs), dtype=np.bool_)
    return np.asarray(
        (configs.num_warps % 4 == 0) & (configs.block_m >= 64) & (configs.block_n >= 8)
    )


def _uses_tmem(configs: ConfigTable, compute: str, gpu: Gpu) -> NDArray[np.bool_]:
    """Whether accumulators live in tensor memory."""
    if not gpu.can("tmem") or compute in ("fp32", "fp64", "int8"):
        return np.zeros(len(configs), dtype=np.bool_)
    return np.asarray(
        (configs.num_warps % 4 == 0) & (configs.block_m >= 64) & (configs.block_n >= 8)
    )


def _shared_memory(
    configs: ConfigTable,
    threads: Array,
    tile_a: Array,
    tile_b: Array,
    tile_out: Array,
    a_vector_bytes: Numbers,
    b_vector_bytes: Numbers,
    wgmma: NDArray[np.bool_],
    tmem: NDArray[np.bool_],
    gpu: Gpu,
) -> Array:
    """Bytes of shared memory per CTA.

    A pipelined loop keeps ``stages - 1`` operand tiles in flight where the products read shared
    memory through registers, and ``stages`` where the matrix unit itself reads it while the next
    tile arrives (wgmma, tensor memory). An operand that a thread cannot copy asynchronously, for
    want of 4 contiguous bytes, has one buffer.
    """
    if not gpu.can("cp_async"):
        return np.maximum(tile_a + tile_b, tile_out)
    direct = wgmma | tmem
    stages = configs.num_stages
    buffers = np.where(direct, stages, np.maximum(stages - 1, 1))
    a_copy = np.minimum(a_vector_bytes, tile_a / threads)
    b_copy = np.minimum(b_vector_bytes, tile_b / threads)
    loop = np.where(a_copy >= CP_ASYNC_BYTES_MIN, buffers, 1) * tile_a
    loop = loop + np.where(b_copy >= CP_ASYNC_BYTES_MIN, buffers, 1) * tile_b
    loop = loop + np.where(tmem & (stages > 1), 16.0, 0.0)
    return np.asarray(np.maximum(loop, np.where(direct, tile_out, 0.0)))


def _register_limit(configs: ConfigTable, threads: Array, gpu: Gpu) -> Array:
    """Registers that a thread may have: the device's limit, its share of the file, ``maxnreg``."""
    share = np.floor(gpu.registers_per_sm / threads / 8) * 8
    limit = np.minimum(gpu.registers_per_thread_max, share)
    return np.asarray(np.where(configs.maxnreg > 0, np.minimum(limit, configs.maxnreg), limit))
