"""What one CTA of tiled attention takes: shared memory, registers, spills, occupancy.

Formulas of Triton's compiler (3.7), checked against compiled metadata in ``tests/tuner``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.tiling.attention_tile import tile_dims
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.registers import register_limit
from perfmodel.tiling.resources import Resources, ctas_per_sm

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

TENSOR_MEMORY_ROWS = 128
TENSOR_MEMORY_COLUMNS_MIN = 32
BARRIER_BYTES = 8

SPILL_BYTES_PER_REGISTER = 2.5
"""Local memory for each register wanted and not there; compiled kernels vary from 1 to 4."""

SPILL_BYTES_STAGED = 45.0
"""The same where tiles pass through registers on their way in (no asynchronous copies): once over
the limit such kernels keep most of their unrolled loop in local memory."""


def multiplies_by_group(p: AttentionTable, c: ConfigTable, gpu: Gpu) -> Mask:
    """Where warp group instructions multiply: 64 rows for every 4 warps, on devices with them."""
    tall = (c.block_m >= 64) & (c.num_warps % 4 == 0)
    plain = p.compute_dtype.name in ("fp32", "fp64")
    return np.asarray(tall & gpu.can("wgmma") & (not plain))


def multiplies_in_tensor_memory(p: AttentionTable, c: ConfigTable, gpu: Gpu) -> Mask:
    """Where products are kept in tensor memory: 64 rows, 4 or 8 warps, on devices with it."""
    tall = (c.block_m >= 64) & ((c.num_warps == 4) | (c.num_warps == 8))
    plain = p.compute_dtype.name in ("fp32", "fp64", "int8")
    return np.asarray(tall & gpu.can("tmem") & (not plain))


def attention_resources(p: AttentionTable, c: ConfigTable, gpu: Gpu) -> Resources:
    """Return what a CTA takes under each configuration, arrays (N,).

    ``smem_loop_bytes`` is what any kernel of this shape takes, the keys and values in flight;
    ``smem_bytes`` is what ours takes, which also keeps queries, and weights where warps trade them.
    """
    threads = c.num_warps * gpu.warp_size
    smem, loop = _shared_memory(p, c, gpu)
    wanted, accumulators = _registers(p, c, gpu, threads)
    limit = register_limit(c, threads, gpu)
    registers = np.minimum(np.ceil(wanted), limit)
    staged = gpu.vendor == "nvidia" and not gpu.can("cp_async")
    spilled = np.maximum(wanted - limit, 0.0)
    spill = spilled * (SPILL_BYTES_STAGED if staged else SPILL_BYTES_PER_REGISTER)
    in_tensor_memory = multiplies_in_tensor_memory(p, c, gpu)
    _, dv = tile_dims(p)
    rows = np.maximum(c.block_m / TENSOR_MEMORY_ROWS, 0.5)
    columns = (dv + np.maximum(c.block_n, TENSOR_MEMORY_COLUMNS_MIN)) * rows
    return Resources(
        smem_bytes=smem,
        smem_loop_bytes=loop,
        threads=threads,
        accumulators_per_thread=np.where(in_tensor_memory, 0.0, accumulators),
        registers_wanted=wanted,
        registers=registers,
        spill_bytes_per_thread=spill,
        ctas_per_sm=ctas_per_sm(smem, registers, c.num_warps, gpu),
        tensor_memory_columns=np.where(in_tensor_memory, columns, 0.0),
    )


def _shared_memory(p: AttentionTable, c: ConfigTable, gpu: Gpu) -> tuple[Array, Array]:
    """Shared memory of our kernel, and that of its loop alone, bytes.

    The loop keeps ``stages - 1`` tiles of K and of V where products read them through registers,
    ``stages`` where the matrix unit reads them in place, and with one stage a tile at a time.
    Queries lie beside them. Weights pass through shared memory where the two products lay their
    warps out differently: along rows if a tile has at least as many rows as columns, else along
    columns. Without asynchronous copies each tile is held once, queries twice. The backward pass
    keeps keys and values, and streams queries and the result's gradient.
    """
    d, dv = tile_dims(p)
    size, compute = p.kv_dtype.bytes, p.compute_dtype.bytes
    if p.backward[0]:
        streamed = c.block_m * (d * p.dtype.bytes + dv * p.out_dtype.bytes)
        kept = c.block_n * (d + dv) * size
        widest = c.block_m * np.maximum(d * p.dtype.bytes, dv * p.out_dtype.bytes)
        weights = c.block_m * c.block_n * compute
    else:
        streamed = c.block_n * (d + dv) * size
        kept = c.block_m * d * compute
        widest = c.block_n * max(d, dv) * size
        weights = np.where(c.block_m >= dv, 0.0, c.block_m * c.block_n * compute)
    if gpu.vendor == "nvidia" and not gpu.can("cp_async"):
        return np.asarray(streamed + 2.0 * kept), np.asarray(streamed)
    in_tensor_memory = multiplies_in_tensor_memory(p, c, gpu)
    in_place = multiplies_by_group(p, c, gpu) | in_tensor_memory
    stages = np.where(in_place, c.num_stages, c.num_stages - 1.0)
    loop = np.where(c.num_stages == 1, widest, stages * streamed)
    barriers = in_tensor_memory * BARRIER_BYTES * np.where(c.num_stages == 1, 1.0, 4.0)
    return np.asarray(loop + kept + np.where(in_place, 0.0, weights) + barriers), np.asarray(loop)


def _registers(p: AttentionTable, c: ConfigTable, gpu: Gpu, threads: Array) -> tuple[Array, Array]:
    """Registers wanted per thread, and accumulators of the running result per thread.

    A base, the result, scores and their weights, and a share of the tiles that come in:
    coefficients by least squares over 119 compiled kernels of six architectures, off by 13 on
    average; of those that spilled, and of those that did not, all but one were told right.
    """
    d, dv = tile_dims(p)
    result = c.block_m * dv / threads
    if p.backward[0]:  # dK and dV of a tile of keys
        result = c.block_n * (d + dv) / threads
    scores = c.block_m * c.block_n / threads
    tiles = c.block_n * (d + dv) * p.kv_dtype.bytes / threads / 4.0
    if gpu.vendor == "nvidia" and not gpu.can("cp_async"):
        return 56.0 + 1.4 * result + 1.9 * scores + 6.0 * tiles, result
    wanted = 56.0 + 1.4 * result + 1.9 * scores + 0.25 * tiles
    by_group = 41.0 + 0.57 * result + 1.96 * scores + 1.14 * tiles
    by_memory = 40.0 + 1.38 * result + 2.0 * scores + 0.1 * tiles
    wanted = np.where(multiplies_by_group(p, c, gpu), by_group, wanted)
    wanted = np.where(multiplies_in_tensor_memory(p, c, gpu), by_memory, wanted)
    return np.asarray(wanted), np.asarray(result)
