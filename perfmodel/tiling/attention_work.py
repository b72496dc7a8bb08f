"""What one launch of tiled attention does: `Work` of each configuration for one problem."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.tiling.attention_resources import (
    attention_resources,
    multiplies_by_group,
    multiplies_in_tensor_memory,
)
from perfmodel.tiling.attention_tile import CtaLengths, cta_lengths, heads_share_tile, tile_dims
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.resources import Resources
from perfmodel.tiling.waves import Patch
from perfmodel.tiling.work import (
    LOOP_INSTRUCTIONS,
    SPLIT_PARTIAL_BYTES,
    SYNCHRONOUS_MMA_SHARE,
    CtaClass,
    Work,
)

Array = NDArray[np.float64]

SOFTMAX_INSTRUCTIONS = 7.0
"""Per score and lane: scale and shift, maximum, sum, exponential, conversion, and mask or move."""

FADE_INSTRUCTIONS = 3.0
"""Per running sum and lane: scale it, and wait for the matrix unit before and after. With the seven
above, and `NEIGHBOURS_HIDE`, the estimate meets 72 tuned kernels on an H100 (tokamax) within 1 % at
the median and 16 % one deviation; that is where the numbers come from."""

SOFTMAX_FLOPS, SOFTMAX_FLOPS_BACKWARD = 6.0, 10.0
"""The same as operations of ordinary lanes, a fused multiply-add counting as two."""

LSE_BYTES = 4.0


def attention_work(problem: AttentionTable, configs: ConfigTable, gpu: Gpu) -> Work:
    """Describe tiled attention of one problem under each configuration.

    Queries are read once, ahead of the loop; a trip reads one tile of K and V, forms scores on
    the matrix units, turns them into weights on ordinary lanes and exponential units, fades the
    running sums and adds the weighted values to them.
    """
    p, c = problem, configs
    resources = attention_resources(p, c, gpu)
    lengths = cta_lengths(p, c)
    backward = bool(p.backward[0])
    d, dv = tile_dims(p)
    tensor = float(p.compute_dtype.name in gpu.tensor_tflops)
    depth = 4.0 * d + 3.0 * dv if backward else d + dv
    products = 2.0 * c.block_m * c.block_n * depth
    scores = c.block_m * c.block_n
    softmax = scores * (SOFTMAX_FLOPS_BACKWARD if backward else SOFTMAX_FLOPS)
    fade = 0.0 if backward else c.block_m * dv
    load = _trip_bytes(p, c)
    split = c.split_k > 1
    cta = CtaClass(
        count=lengths.ctas,
        iterations=lengths.mean_trips,
        longest_iterations=lengths.longest_trips,
        chained=True,
        tensor_flops=products * tensor,
        fma_flops=products * (1.0 - tensor) + softmax + fade,
        sfu_ops=scores + (0.0 if backward else c.block_m),
        load_bytes=load,
        load_requests=load / 16.0 / gpu.warp_size,
        smem_bytes=_smem_traffic(p, c, gpu),
        instructions=_instructions(p, c, gpu, products * tensor),
        epilogue_bytes=_once_bytes(p, c, split),
        spill_bytes=2.0 * resources.spill_bytes_per_thread * resources.threads,
    )
    one = np.ones_like(c.block_m)
    return Work(
        classes=(cta,),
        ctas=lengths.ctas,
        resources=resources,
        stages=c.num_stages,
        compulsory_bytes=p.compulsory_bytes[0] * one,
        dram_bytes=_dram_bytes(p, c, gpu, lengths, resources),
        flops=p.flops[0] * one,
        compute_dtype=p.compute_dtype.name,
        mma_share=_mma_share(p, c, gpu),
        patch=Patch(rows=one, columns=one),
        extra_launches=np.where(lengths.ctas > 0, split + float(backward), 0.0),
    )


def _trip_bytes(p: AttentionTable, c: ConfigTable) -> Array:
    """Bytes one trip reads, padding of the head dim not: a tile of K and V, or of Q and dO."""
    q, k, v, out = (float(b[0]) for b in p.row_bytes)
    if not p.backward[0]:
        return np.asarray(c.block_n * (k + v))
    # dQ is added to in fp32, read and written.
    return np.asarray(c.block_m * (q + out + 2.0 * LSE_BYTES + 8.0 * float(p.head_dim[0])))


def _once_bytes(p: AttentionTable, c: ConfigTable, split: NDArray[np.bool_]) -> Array:
    """Bytes a CTA moves once: queries in and results out (backward: keys in, gradients out)."""
    q, k, v, out = (float(b[0]) for b in p.row_bytes)
    if p.backward[0]:
        return np.asarray(2.0 * c.block_n * (k + v))
    dv = float(p.v_head_dim[0])
    result = np.where(split, (dv + 2.0) * SPLIT_PARTIAL_BYTES, out)
    rows = np.minimum(c.block_m, _rows_of_tile(p))
    return np.asarray(rows * (q + result))


def _rows_of_tile(p: AttentionTable) -> float:
    """Query rows that there are for one tile at most."""
    if heads_share_tile(p):
        return float(p.q_heads[0] / p.kv_heads[0])
    return float(p.q_len.max(initial=1.0))


def _smem_traffic(p: AttentionTable, c: ConfigTable, gpu: Gpu) -> Array:
    """Bytes one trip moves through shared memory: tiles written once, read by every warp row."""
    d, dv = tile_dims(p)
    size = p.kv_dtype.bytes
    tile = c.block_n * (d + dv) * size
    readers = np.where(
        _reads_in_place(p, c, gpu),
        np.maximum(np.minimum(c.block_m / 64.0, c.num_warps / 4.0), 1.0),
        np.minimum(c.num_warps, np.maximum(c.block_m / 16.0, 1.0)),
    )
    traffic = tile * (1.0 + readers)
    if p.backward[0]:  # scores and their gradients pass through as well, twice each
        traffic = 2.0 * traffic + 4.0 * c.block_m * c.block_n * p.dtype.bytes
    return np.asarray(traffic)


def _instructions(p: AttentionTable, c: ConfigTable, gpu: Gpu, tensor_flops: Array) -> Array:
    """Warp instructions one trip issues: loop, copies, softmax, fading, warp-level products."""
    d, dv = tile_dims(p)
    scores = c.block_m * c.block_n / gpu.warp_size
    fade = FADE_INSTRUCTIONS * c.block_m * dv / gpu.warp_size
    copies = 3.0 * _trip_bytes(p, c) / 16.0 / gpu.warp_size
    softmax = SOFTMAX_INSTRUCTIONS * scores * (1.5 if p.backward[0] else 1.0)
    # A 16 x 8 x 32-byte product an instruction; operands arrive 512 bytes at a time.
    products = tensor_flops / (2.0 * 16.0 * 8.0 * 32.0 / p.compute_dtype.bytes)
    readers = np.minimum(c.num_warps, np.maximum(c.block_m / 16.0, 1.0))
    reads = c.block_n * (d + dv) * p.kv_dtype.bytes * readers / 512.0
    by_warp = np.where(_reads_in_place(p, c, gpu), 0.0, products + reads)
    return np.asarray(LOOP_INSTRUCTIONS * c.num_warps + copies + softmax + fade + by_warp)


def _reads_in_place(p: AttentionTable, c: ConfigTable, gpu: Gpu) -> NDArray[np.bool_]:
    """Where the matrix unit itself reads operands from shared memory."""
    return multiplies_by_group(p, c, gpu) | multiplies_in_tensor_memory(p, c, gpu)


def _mma_share(p: AttentionTable, c: ConfigTable, gpu: Gpu) -> Array:
    """Share of the matrix peak that a tile's instructions can reach."""
    if not (gpu.can("wgmma") or gpu.can("tmem")):
        return np.ones_like(c.block_m)
    return np.where(_reads_in_place(p, c, gpu), 1.0, SYNCHRONOUS_MMA_SHARE)


def _dram_bytes(
    p: AttentionTable, c: ConfigTable, gpu: Gpu, lengths: CtaLengths, resources: Resources
) -> Array:
    """DRAM traffic: compulsory, K and V again for later waves where L2 does not keep them.

    CTAs of one head start together and walk over the same keys, so a wave reads them once.
    """
    slots = gpu.sm_count * np.maximum(resources.occupancy, 1.0)
    _, k, v, _ = (float(b[0]) for b in p.row_bytes)
    keys = float(p.keys[0]) * float(p.kv_heads[0]) * (k + v)
    again = np.maximum(lengths.row_tiles / slots - 1.0, 0.0)
    beyond = np.clip(p.compulsory_bytes[0] / (0.7 * gpu.l2_bytes) - 1.0, 0.0, 1.0)
    rows = float(p.queries[0] * p.q_heads[0])
    partial = 2.0 * c.split_k * rows * (float(p.v_head_dim[0]) + 2.0) * SPLIT_PARTIAL_BYTES
    spilled = np.maximum(np.where(c.split_k > 1, partial, 0.0) - 0.5 * gpu.l2_bytes, 0.0)
    return np.asarray(p.compulsory_bytes[0] + keys * again * beyond + spilled)
