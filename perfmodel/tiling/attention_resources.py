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

SPILL_BYTES_PER_REGISTER = 4.0


def multiplies_by_group(p: AttentionTable, c: ConfigTable, gpu: Gpu) -> Mask:
    """Where warp group instructions multiply: 64 rows for every 4 warps, on devices with them."""
    tall = (c.block_m >= 64) & (c.num_warps % 4 == 0)
    plain = p.compute_dtype.name in ("fp32", "fp64")
    return np.asarray(tall & gpu.can("wgmma") & (not plain))


def attention_resources(p: AttentionTable, c: ConfigTable, gpu: Gpu) -> Resources:
    """Return what a CTA takes under each configuration, arrays (N,)."""
    threads = c.num_warps * gpu.warp_size
    smem = _shared_memory(p, c, gpu)
    wanted, accumulators = _registers(p, c, gpu, threads)
    limit = register_limit(c, threads, gpu)
    registers = np.minimum(np.ceil(wanted), limit)
    spill = np.maximum(wanted - limit, 0.0) * SPILL_BYTES_PER_REGISTER
    return Resources(
        smem_bytes=smem,
        smem_loop_bytes=smem,
        threads=threads,
        accumulators_per_thread=accumulators,
        registers_wanted=wanted,
        registers=registers,
        spill_bytes_per_thread=spill,
        ctas_per_sm=ctas_per_sm(smem, registers, c.num_warps, gpu),
        tensor_memory_columns=np.zeros_like(smem),
    )


def _shared_memory(p: AttentionTable, c: ConfigTable, gpu: Gpu) -> Array:
    d, dv = tile_dims(p)
    size = p.kv_dtype.bytes
    key, value = c.block_n * d * size, c.block_n * dv * size
    query = c.block_m * d * p.compute_dtype.bytes
    ahead = np.maximum(c.num_stages - 1, 1)
    return np.asarray(ahead * (key + value) + query)


def _registers(p: AttentionTable, c: ConfigTable, gpu: Gpu, threads: Array) -> tuple[Array, Array]:
    d, dv = tile_dims(p)
    accumulators = (c.block_m * dv + c.block_m * c.block_n) / threads
    wanted = 40.0 + 1.2 * accumulators
    return wanted, accumulators
