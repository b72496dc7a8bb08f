"""What one launch does: the common currency between kernel families and the analytic model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.layout import mma_warps, per_cta, wgmma_warps
from perfmodel.tiling.resources import Resources, gemm_resources
from perfmodel.tiling.waves import Patch, patch

Array = NDArray[np.float64]

SYNCHRONOUS_MMA_SHARE = 0.62
"""Share of the peak that warp-level instructions reach where warpgroup ones exist (sm_90)."""

TURN_COST = 2.0
"""Products' time that turning one operand round adds, measured: 3 and 5 times for one and two."""

BANK_CONFLICT = 3.5
VECTOR_READ = 0.5
"""Cost of a lane's operand read against one bank row a warp: k-contiguous tiles make neighbouring
lanes hit the same banks; contiguous ones are read several at a time."""

LOOP_INSTRUCTIONS = 40.0
"""Per warp and trip: the loop's counter, pointer steps, masks, commit, wait and barrier."""

SPLIT_PARTIAL_BYTES = 4
"""Partial sums of a split reduction are kept in fp32."""


@dataclass(frozen=True)
class CtaClass:
    """CTAs that do the same work a trip, arrays (N,) with one launch a row.

    ``iterations`` are trips of the main loop, on average where CTAs differ in length.

    Per trip of the main loop unless the name says otherwise; bytes are those one CTA moves.
    """

    count: Array
    iterations: Array
    tensor_flops: Array
    fma_flops: Array
    sfu_ops: Array
    load_bytes: Array
    load_requests: Array  # warp-wide load instructions, 32 lanes each
    smem_bytes: Array  # written by the loads and read by the matrix units or lanes
    instructions: Array  # warp instructions issued by all warps of the CTA
    epilogue_bytes: Array  # stored once per CTA
    spill_bytes: Array  # local memory written and read back
    longest_iterations: Array | None = None  # of the longest CTA, where they differ in length
    chained: bool = False  # within a trip products wait for ordinary lanes, and those for products


@dataclass(frozen=True)
class Work:
    """One launch a row: classes of CTAs, their resources, and what memory has to move."""

    classes: tuple[CtaClass, ...]
    ctas: Array
    resources: Resources
    stages: Array
    compulsory_bytes: Array
    dram_bytes: Array
    flops: Array  # useful operations, without padding
    compute_dtype: str
    mma_share: Array  # of the matrix peak that this tile's instructions can reach
    patch: Patch
    extra_launches: Array | None = None  # that follow in the same stream, such as a reduction


@dataclass(frozen=True)
class TileWork:
    """What one CTA takes and one trip of it does, arrays (N,); no size of a problem enters."""

    gpu: Gpu
    resources: Resources
    tensor_flops: Array
    fma_flops: Array
    load_bytes: Array
    load_requests: Array
    smem_bytes: Array
    instructions: Array
    epilogue_bytes: Array
    spill_bytes: Array
    mma_share: Array


def gemm_work(problems: GemmTable, configs: ConfigTable, gpu: Gpu) -> Work:
    """Describe the tiled matrix product of each row on ``gpu``.

    ``problems`` and ``configs`` broadcast against each other: one problem with many
    configurations, or one of each a row. A launch with no work has zero CTAs.
    """
    p, c = problems, configs
    tile = tile_work(p, c, gpu)
    tiles_m, tiles_n = np.ceil(p.m / c.block_m), np.ceil(p.n / c.block_n)
    ctas = tiles_m * tiles_n * p.batch * c.split_k * c.num_ctas
    cta = CtaClass(
        count=ctas,
        iterations=np.ceil(p.k / (c.block_k * c.split_k)),
        tensor_flops=tile.tensor_flops,
        fma_flops=tile.fma_flops,
        sfu_ops=np.zeros_like(tile.tensor_flops),
        load_bytes=tile.load_bytes,
        load_requests=tile.load_requests,
        smem_bytes=tile.smem_bytes,
        instructions=tile.instructions,
        epilogue_bytes=tile.epilogue_bytes,
        spill_bytes=tile.spill_bytes,
    )
    a, b, out = p.a_dtype.bytes, p.b_dtype.bytes, p.out_dtype.bytes
    compulsory = p.batch * (p.m * p.k * a + p.k * p.n * b + p.m * p.n * out)
    launched = ctas > 0  # without a result nothing is read either
    concurrent = np.minimum(ctas, gpu.sm_count * np.maximum(tile.resources.occupancy, 1.0))
    wave_patch = patch(
        np.maximum(tiles_m, 1.0),
        np.maximum(tiles_n, 1.0),
        c.group_m,
        np.maximum(np.ceil(concurrent / c.num_ctas), 1.0),
    )
    split = c.split_k > 1
    partial = np.where(split, 2.0 * c.split_k * p.m * p.n * p.batch * SPLIT_PARTIAL_BYTES, 0.0)
    return Work(
        classes=(cta,),
        ctas=ctas,
        resources=tile.resources,
        stages=c.num_stages,
        compulsory_bytes=np.asarray(compulsory * launched),
        dram_bytes=_gemm_dram_bytes(p, c, gpu, tiles_m, tiles_n, wave_patch) * launched + partial,
        flops=2.0 * p.m * p.n * p.k * p.batch + np.zeros_like(ctas),
        compute_dtype=p.compute_dtype.name,
        mma_share=tile.mma_share,
        patch=wave_patch,
    )


def tile_work(problems: GemmTable, configs: ConfigTable, gpu: Gpu) -> TileWork:
    """Return what each configuration's CTA does for problems of that kind, remembered by kind."""
    kind = problems.kind
    if kind is None:
        return _tile_work(problems, configs, gpu)
    key = ("tile_work", kind, id(gpu))  # comparing whole devices costs more than all else here
    known: TileWork | None = configs.memo.get(key)
    if known is None or known.gpu is not gpu:
        known = configs.memo[key] = _tile_work(problems.without_sizes(), configs, gpu)
    return known


def _tile_work(p: GemmTable, c: ConfigTable, gpu: Gpu) -> TileWork:
    resources = gemm_resources(p, c, gpu)
    c = per_cta(c)
    a, b, out = p.a_dtype.bytes, p.b_dtype.bytes, p.out_dtype.bytes
    tile_a, tile_b = c.block_m * c.block_k, c.block_n * c.block_k
    tensor = p.compute_dtype.name in gpu.tensor_tflops
    flops_per_trip = 2.0 * tile_a * c.block_n
    requests = tile_a * a / p.a_vector_bytes + tile_b * b / p.b_vector_bytes
    out_bytes = np.where(c.split_k > 1, SPLIT_PARTIAL_BYTES, out)
    return TileWork(
        gpu=gpu,
        resources=resources,
        tensor_flops=flops_per_trip * float(tensor),
        fma_flops=flops_per_trip * float(not tensor),
        load_bytes=tile_a * a + tile_b * b,
        load_requests=requests / gpu.warp_size,
        smem_bytes=_smem_traffic(p, c, gpu) if tensor else _fma_smem_traffic(p, c, gpu),
        instructions=_instructions(p, c, gpu, tensor=tensor),
        epilogue_bytes=c.block_m * c.block_n * out_bytes,
        spill_bytes=2.0 * resources.spill_bytes_per_thread * resources.threads,
        mma_share=mma_share(p, c, gpu),
    )


def warp_grid(p: GemmTable, c: ConfigTable, gpu: Gpu) -> tuple[Array, Array]:
    """Warps along m and n of a CTA's tile, by the instructions it runs on."""
    warps_m, warps_n = mma_warps(c.block_m, c.block_n, c.num_warps)
    asynchronous = uses_asynchronous_mma(p, c, gpu)
    if not asynchronous.any():
        return warps_m, warps_n
    group_m, group_n = wgmma_warps(c.block_m, c.num_warps)
    return np.where(asynchronous, group_m, warps_m), np.where(asynchronous, group_n, warps_n)


def uses_asynchronous_mma(p: GemmTable, c: ConfigTable, gpu: Gpu) -> NDArray[np.bool_]:
    """Whether a tile runs on warp group or tensor memory instructions: from 64 rows, 4 warps."""
    compute = p.compute_dtype.name
    if compute in ("fp32", "fp64"):
        return np.zeros(len(c), dtype=np.bool_)
    tall = c.block_m >= 64
    if gpu.can("wgmma"):
        return np.asarray(tall & (c.num_warps % 4 == 0))
    if gpu.can("tmem") and compute != "int8":
        return np.asarray(tall & ((c.num_warps == 4) | (c.num_warps == 8)))
    return np.zeros(len(c), dtype=np.bool_)


def mma_share(problems: GemmTable, configs: ConfigTable, gpu: Gpu) -> Array:
    """Share of the matrix peak that a tile's instructions can reach, arrays (N,).

    Warp-level instructions reach part of the peak where warpgroup ones exist. Warpgroup ones take
    16-bit operands in either order, but others only with k contiguous: an operand stored the
    other way is turned round through registers on every trip.
    """
    p = problems
    async_mma = uses_asynchronous_mma(p, configs, gpu)
    has_async = gpu.can("wgmma") or gpu.can("tmem")
    synchronous = SYNCHRONOUS_MMA_SHARE if has_async else 1.0
    share = np.where(async_mma, 1.0, synchronous)
    if gpu.can("wgmma") and p.compute_dtype.bits != 16:
        turned = (1.0 - p.a_row) + p.b_row
        share = np.where(async_mma, share / (1.0 + TURN_COST * turned), share)
    return share


def _smem_traffic(p: GemmTable, c: ConfigTable, gpu: Gpu) -> Array:
    """Bytes one trip moves through shared memory: operands written once, read once per warp row."""
    a, b = p.a_dtype.bytes, p.b_dtype.bytes
    written = c.block_k * (c.block_m * a + c.block_n * b)
    warps_m, warps_n = warp_grid(p, c, gpu)
    by_warps = c.block_k * (c.block_m * a * warps_n + c.block_n * b * warps_m)
    # A warpgroup reads its own rows of A and all of B once for 64 rows.
    groups = np.maximum(np.minimum(c.block_m / 64.0, c.num_warps / 4.0), 1.0)
    by_groups = c.block_k * (c.block_m * a + c.block_n * b * groups)
    return written + np.where(uses_asynchronous_mma(p, c, gpu), by_groups, by_warps)


def lane_tile(configs: ConfigTable, warp_size: int) -> tuple[Array, Array]:
    """Rows and columns of the output that one lane owns when products run on ordinary lanes.

    Triton gives a lane 4x4, 2x2 or 1x1 neighbouring elements, whichever still leaves work for
    every lane, spreads lanes and then warps along n first, and repeats that over the tile.
    """
    c = configs
    per_lane = c.block_m * c.block_n / (c.num_warps * warp_size)
    size = np.where(per_lane >= 16, 4.0, np.where(per_lane >= 4, 2.0, 1.0))
    lanes_n = np.minimum(warp_size, np.maximum(c.block_n / size, 1.0))
    lanes_m = warp_size / lanes_n
    warps_n = np.minimum(c.num_warps, np.maximum(c.block_n / (size * lanes_n), 1.0))
    warps_m = c.num_warps / warps_n
    rows = np.maximum(c.block_m / (lanes_m * warps_m), size)
    columns = np.maximum(c.block_n / (lanes_n * warps_n), size)
    return rows, columns


def _fma_smem_traffic(p: GemmTable, c: ConfigTable, gpu: Gpu) -> Array:
    """Bytes one trip moves through shared memory when every lane reads its own operands."""
    a, b = p.a_dtype.bytes, p.b_dtype.bytes
    rows, columns = lane_tile(c, gpu.warp_size)
    written = c.block_k * (c.block_m * a + c.block_n * b)
    # One bank row of 128 bytes serves 32 lanes one 4-byte word each.
    lanes = c.num_warps * gpu.warp_size
    column_read = np.where(p.b_row > 0, VECTOR_READ, BANK_CONFLICT)
    return written + c.block_k * lanes * 4.0 * (VECTOR_READ * rows + column_read * columns)


def _instructions(p: GemmTable, c: ConfigTable, gpu: Gpu, *, tensor: bool) -> Array:
    """Warp instructions one trip issues: loop and barrier, copies, operand reads, products."""
    a, b = p.a_dtype.bytes, p.b_dtype.bytes
    tile_a, tile_b = c.block_m * c.block_k * a, c.block_n * c.block_k * b
    copies = (tile_a / p.a_vector_bytes + tile_b / p.b_vector_bytes) / gpu.warp_size
    overhead = LOOP_INSTRUCTIONS * c.num_warps
    if not tensor:
        rows, columns = lane_tile(c, gpu.warp_size)
        products = c.num_warps * c.block_k * (rows * columns + (rows + columns) / 4.0)
        return np.asarray(overhead + 3.0 * copies + products)
    warps_m, warps_n = warp_grid(p, c, gpu)
    # A 16 x 8 x 32-byte product per instruction; ldmatrix reads 512 bytes for a warp.
    depth = c.block_k * max(a, b) / 32.0
    products = (c.block_m / 16.0) * (c.block_n / 8.0) * depth
    reads = (tile_a * warps_n + tile_b * warps_m) / 512.0
    by_warps = (
        products * np.maximum(warps_m * warps_n * 128.0 / (c.block_m * c.block_n), 1.0) + reads
    )
    return np.asarray(
        overhead + 3.0 * copies + np.where(uses_asynchronous_mma(p, c, gpu), 0.0, by_warps)
    )


def _gemm_dram_bytes(
    p: GemmTable, c: ConfigTable, gpu: Gpu, tiles_m: Array, tiles_n: Array, wave: Patch
) -> Array:
    """DRAM traffic with L2 reuse: compulsory, plus what bands of group_m rows read again.

    A band's rows of A stay in L2 while the band sweeps the columns of B; B is read again by
    every band, unless all of it stays. What does not fit is read as often as waves need it.
    """
    a, b, out = p.a_dtype.bytes, p.b_dtype.bytes, p.out_dtype.bytes
    size_a, size_b, size_out = p.m * p.k * a, p.k * p.n * b, p.m * p.n * out
    bands = np.ceil(tiles_m / np.minimum(c.group_m, np.maximum(tiles_m, 1.0)))
    panel_a = np.minimum(c.group_m * c.block_m, p.m) * p.k * a
    wave_b = np.minimum(wave.columns * c.block_n, p.n) * p.k * b
    l2 = 0.7 * gpu.l2_bytes  # the rest is taken by the output and by lines on their way out
    a_sweeps = np.maximum(tiles_n / np.maximum(wave.columns, 1.0), 1.0)
    a_again = np.clip((panel_a + wave_b) / l2 - 1.0, 0.0, 1.0) * (a_sweeps - 1.0)
    b_again = np.clip((size_b + panel_a) / l2 - 1.0, 0.0, 1.0) * (bands - 1.0)
    return np.asarray(p.batch * (size_a * (1.0 + a_again) + size_b * (1.0 + b_again) + size_out))
