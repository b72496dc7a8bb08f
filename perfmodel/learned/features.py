"""Named, versioned columns for the learned correction.

Sizes and hardware enter as ratios (times to the estimate, footprints to the cache, waves to the
device), so that a tree's thresholds mean the same on another device and outside the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.model import LIMITERS, Estimate
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.work import Work, uses_asynchronous_mma, warp_grid

Array = NDArray[np.float64]
Column = NDArray[np.floating[Any]] | float

GEMM_SCHEMA = "gemm-1"
"""Changes with every column added, dropped or redefined; a model of another schema is refused."""

PITCH_ALIGNMENT_MAX = 2**16
TINY = 1e-12

LOGARITHMIC = frozenset(
    [f"{name}_share" for name in LIMITERS]
    + [
        "seconds_over_launch",
        "roofline_share",
        "trip_over_exposed",
        "footprint_over_l2",
        "a_over_l2",
        "b_over_l2",
        "balance",
        "waves",
        "ctas_per_sm",
        "iterations",
        "tiles_m",
        "tiles_n",
        "bands",
        "panel_over_l2",
        "patch_columns",
        "block_m",
        "block_n",
        "block_k",
        "group_m",
        "num_warps",
        "split_k",
        "warps_m",
        "warp_tile_m",
        "warp_tile_n",
        "accumulators",
        "trip_bytes",
        "a_bytes_per_thread",
        "b_bytes_per_thread",
        "bytes_in_flight",
        "smem_bytes",
        "warps_per_sm",
        "a_vector",
        "b_vector",
        "a_run_bytes",
        "b_run_bytes",
        "out_row_bytes",
        "aspect",
        "intensity_over_balance",
        "wave_b_over_l2",
        "a_pitch",
        "b_pitch",
        "out_pitch",
    ]
)
"""Columns that enter as binary logarithms: a factor of two is a step of one."""


def gemm_columns(
    p: GemmTable, c: ConfigTable, gpu: Gpu, work: Work, estimate: Estimate
) -> dict[str, Column]:
    """Return every feature by name; each is one value for all rows or one value a row.

    Those named in ``LOGARITHMIC`` are still to be taken the logarithm of, which `matrix` does for
    all at once.
    """
    cta, res = work.classes[0], work.resources
    seconds = estimate.seconds
    a, b, out = p.a_dtype.bytes, p.b_dtype.bytes, p.out_dtype.bytes
    tiles_m, tiles_n = np.ceil(p.m / c.block_m), np.ceil(p.n / c.block_n)
    padded_k = cta.iterations * c.block_k * c.split_k
    occupancy = np.maximum(res.occupancy, 1.0)
    dtype = work.compute_dtype
    tensor = gpu.tensor_tflops.get(dtype, 0.0)
    peak = tensor or gpu.plain_tflops.get(dtype, 1.0)
    balance = peak * 1e3 / gpu.dram_bandwidth_gb_per_s
    slots = gpu.sm_count * occupancy
    per_sm = work.ctas / gpu.sm_count
    roofline = np.maximum(
        work.flops / (peak * 1e12), work.compulsory_bytes / (gpu.dram_bandwidth_gb_per_s * 1e9)
    )
    shares = estimate.limiter_s / seconds
    launch_s = estimate.limiter_s[LIMITERS.index("launch")]
    columns: dict[str, Column] = {
        f"{name}_share": share for name, share in zip(LIMITERS, shares, strict=True)
    }
    columns |= {
        # scale
        "seconds_over_launch": seconds / np.maximum(launch_s, TINY),
        "roofline_share": roofline / seconds,
        "trip_over_exposed": estimate.trip_seconds / estimate.exposed_s,
        "intensity_over_balance": work.flops / np.maximum(work.compulsory_bytes, 1.0) / balance,
        "footprint_over_l2": work.compulsory_bytes / gpu.l2_bytes,
        "dram_over_compulsory": work.dram_bytes / np.maximum(work.compulsory_bytes, 1.0),
        "a_over_l2": p.m * p.k * a / gpu.l2_bytes,
        "b_over_l2": p.k * p.n * b / gpu.l2_bytes,
        "balance": balance,
        # schedule
        "waves": work.ctas / slots,
        "ctas_per_sm": per_sm,
        "sm_share": estimate.sm_share,
        "busiest_over_mean": np.ceil(per_sm) / np.maximum(per_sm, TINY),
        "rounds": np.minimum(np.ceil(per_sm), 16.0),
        "tail_share": estimate.waves.tail_ctas / slots,
        "tail_occupancy": estimate.waves.tail_occupancy,
        "iterations": cta.iterations,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "last_band": np.mod(tiles_m, c.group_m),
        "bands": np.ceil(tiles_m / c.group_m),
        "trips_per_stage": np.minimum(cta.iterations / c.num_stages, 8.0),
        "wave_hit": _wave_hit(work, c),
        "panel_over_l2": np.minimum(c.group_m * c.block_m, p.m) * p.k * a / gpu.l2_bytes,
        "wave_b_over_l2": np.minimum(work.patch.columns * c.block_n, p.n) * p.k * b / gpu.l2_bytes,
        "patch_rows": work.patch.rows,
        "patch_columns": work.patch.columns,
        # padding and masks
        "m_rest": np.mod(p.m, c.block_m) / c.block_m,
        "n_rest": np.mod(p.n, c.block_n) / c.block_n,
        "k_rest": np.mod(p.k, c.block_k) / c.block_k,
        "pad_m": tiles_m * c.block_m / np.maximum(p.m, 1.0),
        "pad_n": tiles_n * c.block_n / np.maximum(p.n, 1.0),
        "pad_k": padded_k / np.maximum(p.k, 1.0),
        "even_k": (padded_k == p.k).astype(np.float64),
        "m_below_block": (p.m < c.block_m) * 1.0,
        "n_below_block": (p.n < c.block_n) * 1.0,
        # tile and resources
        **_tile_columns(p, c, gpu, work),
        # operands in memory
        "a_vector": p.a_vector_bytes,
        "b_vector": p.b_vector_bytes,
        "a_row": p.a_row,
        "b_row": p.b_row,
        "a_packed": p.a_packed,
        "b_packed": p.b_packed,
        "a_run_bytes": np.where(p.a_row > 0, c.block_k, np.minimum(c.block_m, p.m)) * a,
        "b_run_bytes": np.where(p.b_row > 0, np.minimum(c.block_n, p.n), c.block_k) * b,
        "out_row_bytes": np.minimum(p.n, c.block_n) * out,
        "a_pitch": _alignment(p.a_pitch_bytes),
        "b_pitch": _alignment(p.b_pitch_bytes),
        "out_pitch": _alignment(p.n * out),
        "operand_bits": float(p.a_dtype.bits),
        "b_bits": float(p.b_dtype.bits),
        "on_tensor_units": float(tensor > 0),
        "aspect": np.maximum(p.m, 1.0) / np.maximum(p.n, 1.0),
    }
    return columns


def _tile_columns(
    p: GemmTable, c: ConfigTable, gpu: Gpu, work: Work
) -> Mapping[str, Array | float]:
    """Return the columns that depend on the tile and the kind of problem only, remembered."""
    kind = p.kind
    key = ("tile_columns", kind, id(gpu))
    known = c.memo.get(key) if kind is not None else None
    if known is not None and known[0] is gpu:
        found: Mapping[str, Array | float] = known[1]
        return found
    cta, res = work.classes[0], work.resources
    a, b = p.a_dtype.bytes, p.b_dtype.bytes
    occupancy = np.maximum(res.occupancy, 1.0)
    threads = res.threads
    warps_m, warps_n = warp_grid(p, c, gpu)
    columns: dict[str, Array | float] = {
        "block_m": c.block_m,
        "block_n": c.block_n,
        "block_k": c.block_k,
        "group_m": c.group_m,
        "num_warps": c.num_warps,
        "num_stages": c.num_stages,
        "split_k": c.split_k,
        "warps_m": warps_m,
        "warp_tile_m": c.block_m / warps_m,
        "warp_tile_n": c.block_n / warps_n,
        "accumulators": c.block_m * c.block_n / threads,
        "trip_bytes": cta.load_bytes,
        "a_bytes_per_thread": c.block_m * c.block_k * a / threads,
        "b_bytes_per_thread": c.block_n * c.block_k * b / threads,
        "bytes_in_flight": cta.load_bytes * np.maximum(c.num_stages - 1.0, 1.0) * occupancy,
        "smem_bytes": res.smem_bytes / gpu.smem_per_sm_bytes,
        "occupancy": occupancy,
        "warps_per_sm": occupancy * c.num_warps,
        "registers_wanted": res.registers_wanted,
        "spill_bytes": res.spill_bytes_per_thread,
        "wgmma": uses_asynchronous_mma(p, c, gpu).astype(np.float64),
        "mma_share": work.mma_share,
    }
    if kind is not None:
        c.memo[key] = (gpu, columns)
    return columns


def matrix(columns: dict[str, Column], rows: int) -> NDArray[np.float32]:
    """Stack `gemm_columns` into one (rows, features) float32 array, row-major."""
    out = np.empty((len(columns), rows))
    for i, value in enumerate(columns.values()):
        out[i] = value
    logarithmic = [i for i, name in enumerate(columns) if name in LOGARITHMIC]
    out[logarithmic] = np.log2(np.maximum(out[logarithmic], TINY))
    return out.T.astype(np.float32, order="C")


def _wave_hit(work: Work, c: ConfigTable) -> Array:
    """Share of a wave's operand loads that another CTA of the wave has already brought to L2.

    hit = 1 - (m MT + n NT) / (m n (MT + NT)) for a patch of m x n tiles of MT x NT elements.
    """
    rows, columns = work.patch.rows, work.patch.columns
    fresh = rows * c.block_m + columns * c.block_n
    return 1.0 - fresh / (rows * columns * (c.block_m + c.block_n))


def _alignment(pitch_bytes: Array | float) -> Array:
    """Return the power of two that rows of that pitch are aligned to, at most 64 KiB.

    Sectors (32 B) and lines (128 B) are fetched whole, and pitches of large powers of two crowd
    into few cache sets and memory channels.
    """
    whole = np.asarray(pitch_bytes, dtype=np.float64).astype(np.int64)
    return np.asarray(np.gcd(whole, PITCH_ALIGNMENT_MAX), dtype=np.float64)
