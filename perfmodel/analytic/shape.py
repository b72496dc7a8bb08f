"""How long a kernel of unknown tile takes: exact work, plausible tilings, every term laid open.

For each tiling a library may have picked, CTAs run on S servers (SMs), each with matrix units,
exponential units, ordinary lanes and its share of L2; DRAM serves the launch as a whole. The
fastest tiling answers. A learned correction reads the terms as ratios, so sizes and devices that
it never saw still mean something.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.model import CUDA_GRAPH_LAUNCH_S, FURTHER_LAUNCH_S, soft_maximum
from perfmodel.analytic.rates import DeviceRates, rates_for
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.problems.grouped_gemm_table import GroupedGemmTable
from perfmodel.problems.memory_bound import MemoryBoundTable
from perfmodel.tiling.shape_attention import attention_shape_work
from perfmodel.tiling.shape_grouped_gemm import grouped_gemm_shape_works
from perfmodel.tiling.shape_memory import memory_bound_shape_work
from perfmodel.tiling.shape_work import ShapeWork, gemm_shape_work, joined_works

Array = NDArray[np.float64]

SHAPE_LIMITERS = ("tensor", "fma", "sfu", "dram", "l2", "latency", "launch")

SERIAL_SOFTMAX_POWER = 2.0
"""Products and softmax of one CTA overlap in part: equally long they take 1.4 times one."""

MEMORY_POWER = 4.0
"""On-chip work and DRAM traffic of a launch overlap well: equally long, 1.19 times."""

CHUNK = 1 << 12
"""Rows worked on at once, so that their arrays, a row a tiling, stay in a CPU's cache."""


@dataclass(frozen=True)
class ShapeEstimate:
    """The analytic answer for N problems on one device, arrays (N,).

    Attributes:
        seconds: the fastest tiling's time, launch included.
        flops, bytes_moved, footprint_bytes, sfu_ops: the exact work, no padding.
        tensor_s, sfu_s, fma_s, dram_s, l2_s, launch_s: each resource alone at its rate and the
            exact work, all SMs evenly busy; no tiling enters, so these are roofline terms. ``l2_s``
            is the compulsory traffic at L2's rate.
        by_limiter: the same for the fastest tiling: waves, padding, operands read again.
            Keys are `SHAPE_LIMITERS`.
        resident: share of the footprint that repeated launches find in L2, 0 to 1.
        ctas, waves, sm_share: CTAs, rounds of them over the SMs, and how evenly they fill those.
        padding: computed over useful operations, at least 1 (1 without work).
        longest_share: the longest CTA's work over the mean's.
        tiling: index into `tiling_names` of the fastest.
        one_tile_s: what the first tiling listed takes, the commonest large tile.
        split: 1.0 where the reduction is split.
    """

    seconds: Array
    flops: Array
    bytes_moved: Array
    footprint_bytes: Array
    sfu_ops: Array
    tensor_s: Array
    sfu_s: Array
    fma_s: Array
    dram_s: Array
    l2_s: Array
    launch_s: Array
    by_limiter: dict[str, Array]
    resident: Array
    ctas: Array
    waves: Array
    sm_share: Array
    padding: Array
    longest_share: Array
    tiling: NDArray[np.intp]
    one_tile_s: Array
    split: Array
    tiling_names: tuple[str, ...]

    @property
    def roofline_s(self) -> Array:
        """The largest of the roofline terms with DRAM traffic at its compulsory least, (N,)."""
        return np.asarray(np.maximum.reduce([self.tensor_s, self.dram_s, self.launch_s]))

    def limiter_name(self, row: int) -> str:
        """Name of the resource that alone takes longest in the tiling of one row."""
        return max(SHAPE_LIMITERS, key=lambda name: float(self.by_limiter[name][row]))

    def __len__(self) -> int:
        return len(self.seconds)


ShapeTable = GemmTable | AttentionTable | GroupedGemmTable | MemoryBoundTable


def shape_works(table: ShapeTable, gpu: Gpu) -> tuple[ShapeWork, ...]:
    """Describe the problems of ``table``, one launch after the other where they take several."""
    if isinstance(table, AttentionTable):
        return (attention_shape_work(table, gpu),)
    if isinstance(table, GroupedGemmTable):
        return grouped_gemm_shape_works(table, gpu)
    if isinstance(table, MemoryBoundTable):
        return (memory_bound_shape_work(table),)
    return (gemm_shape_work(table, gpu),)


def shape_estimate(
    table: ShapeTable,
    gpu: Gpu,
    *,
    launch_overhead_s: float = CUDA_GRAPH_LAUNCH_S,
    warm_l2: bool = True,
) -> ShapeEstimate:
    """Estimate problems whose kernel's tile is unknown.

    Args:
        table: problems of one set of data types, one a row.
        gpu: the device.
        launch_overhead_s: floor of the timing protocol the answer is to be compared with.
        warm_l2: what fits in L2 is still there from the launch before, as where a benchmark
            repeats a launch on the same data.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the compute type.
    """
    count = _row_count(table)
    if count <= CHUNK or getattr(table, "owner", None) is not None:
        return _in_turn(shape_works(table, gpu), gpu, launch_overhead_s, warm_l2=warm_l2)
    parts = [table.rows(slice(at, at + CHUNK)) for at in range(0, count, CHUNK)]
    return _joined(
        [_in_turn(shape_works(p, gpu), gpu, launch_overhead_s, warm_l2=warm_l2) for p in parts]
    )


def _in_turn(
    works: tuple[ShapeWork, ...], gpu: Gpu, launch_s: float, *, warm_l2: bool
) -> ShapeEstimate:
    """Estimate launches that follow one another: times add up, the first pays for its launch."""
    if len(works) == 1:
        return work_estimate(works[0], gpu, launch_s, warm_l2=warm_l2)
    footprint = sum((w.footprint_bytes for w in works), np.zeros_like(works[0].flops))
    started = np.zeros(len(footprint), dtype=np.bool_)
    alike: dict[tuple[str, ...], list[tuple[ShapeWork, Array]]] = {}
    for work in works:
        runs = work.launches > 0
        overhead = np.where(runs, np.where(started, FURTHER_LAUNCH_S, launch_s), 0.0)
        whole = replace(work, footprint_bytes=footprint)
        alike.setdefault((work.compute_dtype, *work.tilings.names), []).append((whole, overhead))
        started |= runs
    parts = []
    for group in alike.values():
        joined = joined_works([work for work, _ in group])
        overheads = np.concatenate([overhead for _, overhead in group])
        found = work_estimate(joined, gpu, overheads, warm_l2=warm_l2)
        count = len(footprint)
        parts += [_rows(found, slice(i * count, (i + 1) * count)) for i in range(len(group))]
    idle = np.where(started, 0.0, launch_s)  # nothing to do takes a launch too
    return _summed(parts, idle)


def _row_count(table: ShapeTable) -> int:
    if isinstance(table, GemmTable):
        return max(np.size(v) for v in (table.m, table.n, table.k, table.batch))
    return len(table)


def resident_share(footprint_bytes: Array, gpu: Gpu) -> Array:
    """Share of a footprint that stays in L2 between launches: all up to half of L2, none past it.

    The other half goes to lines on their way out and to conflicts.
    """
    return np.clip(2.0 - 2.0 * footprint_bytes / gpu.l2_bytes, 0.0, 1.0)


def work_estimate(
    work: ShapeWork, gpu: Gpu, launch_s: float | Array, *, warm_l2: bool = True
) -> ShapeEstimate:
    """Estimate ``work`` on ``gpu``; see `shape_estimate`."""
    rates = rates_for(gpu, work.compute_dtype, np.ones(1))
    resident = resident_share(work.footprint_bytes, gpu)
    if not warm_l2:
        resident = np.zeros_like(resident)
    tilings = work.tilings
    times = _tilings_seconds(work, resident, gpu, rates)
    best = times.seconds.argmin(axis=0)
    rows = np.arange(len(best))
    first = np.zeros_like(best)

    def pick(values: Array) -> Array:
        ways, count = values.shape
        return np.asarray(values[best if ways > 1 else first, rows if count > 1 else first])

    launch = launch_s + FURTHER_LAUNCH_S * np.maximum(work.launches - 1.0, 0.0)
    launch = launch + rates.memory_latency_s * (work.launches > 0)
    split = pick(tilings.extra_launches)
    by_limiter = {name: pick(value) for name, value in times.alone.items()}
    by_limiter["launch"] = launch + FURTHER_LAUNCH_S * split
    sms = float(gpu.sm_count)
    product_rate = _product_rate(work, gpu, rates)
    ctas = pick(tilings.ctas)
    padding = ctas * pick(tilings.mean_flops) / np.maximum(work.flops, 1.0)
    return ShapeEstimate(
        seconds=launch + pick(times.seconds),
        flops=work.flops,
        bytes_moved=work.compulsory_bytes,
        footprint_bytes=work.footprint_bytes + np.zeros_like(work.flops),
        sfu_ops=work.sfu_ops,
        tensor_s=work.flops / (product_rate * sms),
        sfu_s=work.sfu_ops / (rates.sfu_ops_per_s_per_sm * sms),
        fma_s=work.fma_flops / (_lane_rate(gpu) * sms),
        dram_s=work.compulsory_bytes / rates.dram_bytes_per_s,
        l2_s=work.compulsory_bytes / (rates.l2_bytes_per_s_per_sm * sms),
        launch_s=launch,
        by_limiter=by_limiter,
        resident=resident,
        ctas=ctas,
        waves=ctas / sms,
        sm_share=pick(times.sm_share),
        padding=np.where(work.flops > 0, np.maximum(padding, 1.0), 1.0),
        longest_share=pick(tilings.longest_share),
        tiling=best,
        one_tile_s=launch + times.seconds[0],
        split=split,
        tiling_names=tilings.names,
    )


@dataclass(frozen=True)
class _TilingTimes:
    """Arrays (T, N), or of one row or column where nothing varies."""

    seconds: Array  # without launches at the start
    alone: dict[str, Array]
    sm_share: Array


def _tilings_seconds(
    work: ShapeWork, resident: Array, gpu: Gpu, rates: DeviceRates
) -> _TilingTimes:
    """Time of every tiling: rounds of its CTAs, or DRAM, or what a split reduction adds."""
    tiling = work.tilings
    sms = float(gpu.sm_count)
    product_rate = _product_rate(work, gpu, rates)
    per_cta = {
        "tensor": tiling.mean_flops / product_rate,
        "sfu": tiling.mean_sfu_ops / rates.sfu_ops_per_s_per_sm,
        "fma": tiling.mean_fma_flops / _lane_rate(gpu),
        "l2": tiling.mean_load_bytes / rates.l2_bytes_per_s_per_sm,
    }
    even = tiling.ctas / sms
    # Equal CTAs come in whole rounds; unequal ones are dealt out until the longest decides.
    mixed = np.clip(tiling.longest_share - 1.0, 0.0, 1.0)
    rounds = (1.0 - mixed) * np.ceil(even) + mixed * even
    rounds = np.where(tiling.ctas > 0, np.maximum(rounds, tiling.longest_share), 0.0)
    softmax = per_cta["sfu"] + per_cta["fma"]
    compute = soft_maximum([per_cta["tensor"], softmax], SERIAL_SOFTMAX_POWER)
    busiest = soft_maximum([compute, per_cta["l2"]], MEMORY_POWER)
    # A CTA fills its pipeline before it computes; others on the same SM work meanwhile.
    latency = np.ceil(even / tiling.occupancy) * rates.memory_latency_s
    partial = tiling.partial_bytes / (rates.l2_bytes_per_s_per_sm * sms)
    dram = work.compulsory_bytes * (1.0 - resident) / rates.dram_bytes_per_s
    on_chip = rounds * busiest + latency
    seconds = soft_maximum([on_chip, dram], MEMORY_POWER) + partial
    alone = {name: rounds * value for name, value in per_cta.items()}
    alone["l2"] = alone["l2"] + partial
    alone["dram"], alone["latency"] = dram[None], latency
    return _TilingTimes(
        seconds=seconds + FURTHER_LAUNCH_S * tiling.extra_launches,
        alone=alone,
        sm_share=np.where(rounds > 0, even / np.maximum(rounds, 1e-12), 0.0),
    )


def _product_rate(work: ShapeWork, gpu: Gpu, rates: DeviceRates) -> Array:
    """Products per SM and second: of the matrix units, else of the ordinary lanes."""
    if work.compute_dtype in gpu.tensor_tflops:
        return rates.tensor_flops_per_s_per_sm
    return np.full(1, rates.fma_flops_per_s_per_sm)


def _lane_rate(gpu: Gpu) -> float:
    """Operations of ordinary fp32 lanes per SM and second."""
    return gpu.plain_tflops["fp32"] * 1e12 / gpu.sm_count


def _summed(parts: list[ShapeEstimate], idle_s: Array) -> ShapeEstimate:
    """Add launches up; shares are weighted by the time of the launch they belong to."""
    first = parts[0]
    added = np.array(
        [
            [*(getattr(p, n) for n in _ADDED), *(p.by_limiter[n] for n in SHAPE_LIMITERS)]
            for p in parts
        ]
    )
    totals = added.sum(axis=0)
    seconds = added[:, _ADDED.index("seconds")]
    weights = seconds / np.maximum(seconds.sum(axis=0), 1e-30)
    shares = np.array([[getattr(p, n) for n in _WEIGHTED] for p in parts])
    values: dict[str, Any] = dict(zip(_ADDED, totals, strict=False))
    values |= zip(_WEIGHTED, (shares * weights[:, None]).sum(axis=0), strict=True)
    values["by_limiter"] = dict(zip(SHAPE_LIMITERS, totals[len(_ADDED) :], strict=True))
    values["by_limiter"]["launch"] = values["by_limiter"]["launch"] + idle_s
    for name in ("seconds", "launch_s", "one_tile_s"):
        values[name] = values[name] + idle_s
    return replace(first, **values)


_ADDED = (
    "seconds", "flops", "bytes_moved", "sfu_ops", "tensor_s", "sfu_s", "fma_s", "dram_s", "l2_s",
    "launch_s", "ctas", "waves", "one_tile_s",
)  # fmt: skip
_WEIGHTED = ("sm_share", "padding", "longest_share", "split")


def _rows(found: ShapeEstimate, rows: slice) -> ShapeEstimate:
    values = {
        name: value[rows] for name, value in vars(found).items() if isinstance(value, np.ndarray)
    }
    by_limiter = {name: value[rows] for name, value in found.by_limiter.items()}
    return ShapeEstimate(**values, by_limiter=by_limiter, tiling_names=found.tiling_names)


def _joined(parts: list[ShapeEstimate]) -> ShapeEstimate:
    values: dict[str, Any] = {}
    for field in fields(ShapeEstimate):
        name = field.name
        if name == "tiling_names":
            values[name] = parts[0].tiling_names
        elif name == "by_limiter":
            values[name] = {
                key: np.concatenate([p.by_limiter[key] for p in parts]) for key in SHAPE_LIMITERS
            }
        else:
            values[name] = np.concatenate([getattr(p, name) for p in parts])
    return ShapeEstimate(**values)
