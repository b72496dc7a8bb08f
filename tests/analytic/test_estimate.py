"""The analytic estimate against physics: bounds, monotony, corners of the roofline, zero work.

What is guaranteed of growth: doubling any of m, n, k and batch never lowers the estimate of a
configuration, nor does one more of n, k or batch. One more row of tiles may by a hair: where it
makes a taller band, a wave covers fewer columns and its operands may newly fit L2. All of this at
equal alignment: 4,096 is faster than 4,095, on devices as here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.analytic.model import LIMITERS, OVERLAP_POWER, Estimate, estimate, soft_maximum
from perfmodel.analytic.rates import device_rates
from perfmodel.errors import UnsupportedDtypeError
from perfmodel.hardware.catalog import gpu_names, load_gpu
from perfmodel.hardware.gpu import Gpu
from perfmodel.launches import peak_tflops
from perfmodel.problems import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import legal_mask
from perfmodel.tiling.work import Work, gemm_work

LAUNCH_S = 4e-6
DTYPES = ("fp16", "bf16", "tf32", "fp32", "fp8_e4m3", "int8")
A100, H100 = load_gpu("a100-sxm4-80gb"), load_gpu("h100-sxm5")
ROUNDING = 1e-9
physics = settings(max_examples=80, deadline=None)

size = st.one_of(
    st.integers(1, 300),
    st.sampled_from([512, 1000, 1024, 4095, 4096, 4097, 16384, 65536]),
)
batch = st.sampled_from([1, 2, 3, 17, 64])
layout = st.sampled_from(["row", "col"])


def has(gpu: Gpu, dtype: str) -> bool:
    return dtype in gpu.tensor_tflops or dtype in gpu.plain_tflops


ON = [(name, dtype) for name in gpu_names() for dtype in DTYPES if has(load_gpu(name), dtype)]


@cache
def configs_of(name: str, dtype: str) -> ConfigTable:
    """Small and large tiles, shallow and deep, that the device can launch."""
    grid = ConfigTable.of(
        TileConfig(m, n, k, group_m=g, num_warps=w, num_stages=s, split_k=split)
        for (m, n, k, w), (g, s, split) in product(
            [(16, 16, 32, 1), (16, 128, 64, 2), (64, 32, 128, 4), (64, 64, 32, 2),
             (128, 64, 64, 4), (128, 128, 32, 4), (128, 256, 64, 8), (256, 128, 32, 16)],
            [(1, 1, 1), (8, 2, 1), (8, 4, 1), (16, 3, 1), (8, 3, 4)],
        )
    )  # fmt: skip
    legal = legal_mask(Gemm(64, 64, 64, a_dtype=dtype), grid, load_gpu(name))
    return grid.take(legal)


@st.composite
def launches(draw: st.DrawFn) -> tuple[Gemm, Gpu, ConfigTable]:
    name, dtype = draw(st.sampled_from(ON))
    problem = Gemm(
        draw(size), draw(size), draw(size), draw(batch), dtype,
        a_layout=draw(layout), b_layout=draw(layout),
    )  # fmt: skip
    return problem, load_gpu(name), configs_of(name, dtype)


def table_of(problem: Gemm, aligned_as: Gemm | None = None) -> GemmTable:
    """Describe ``problem``, its loads as wide as those of another."""
    table = GemmTable.of(problem)
    if aligned_as is None:
        return table
    a, b = float(aligned_as.a_vector_bytes), float(aligned_as.b_vector_bytes)
    return replace(table, a_vector_bytes=a, b_vector_bytes=b)


def run(
    problem: Gemm | GemmTable, configs: ConfigTable, gpu: Gpu, launch_s: float = LAUNCH_S
) -> tuple[Estimate, Work]:
    table = problem if isinstance(problem, GemmTable) else GemmTable.of(problem)
    work = gemm_work(table, configs, gpu)
    return estimate(work, gpu, launch_overhead_s=launch_s), work


def seconds(problem: Gemm | GemmTable, config: TileConfig, gpu: Gpu) -> float:
    return float(run(problem, ConfigTable.of([config]), gpu)[0].seconds[0])


# --- bounds -----------------------------------------------------------------------------------


@given(launches())
@physics
def test_no_estimate_beats_physics(launch: tuple[Gemm, Gpu, ConfigTable]) -> None:
    problem, gpu, configs = launch
    found, work = run(problem, configs, gpu)
    assert found.seconds.shape == (len(configs),)
    assert np.isfinite(found.seconds).all()
    assert (found.seconds >= LAUNCH_S).all()
    peak = peak_tflops(gpu, work.compute_dtype) * 1e12
    assert (found.seconds >= problem.flops / peak).all()
    assert (found.seconds >= problem.compulsory_bytes / (gpu.dram_bandwidth_gb_per_s * 1e9)).all()


@given(launches())
@physics
def test_every_limiter_alone_takes_no_longer_than_all_together(
    launch: tuple[Gemm, Gpu, ConfigTable],
) -> None:
    problem, gpu, configs = launch
    found, _ = run(problem, configs, gpu)
    assert tuple(found.by_limiter) == LIMITERS
    times = np.stack(list(found.by_limiter.values()))
    assert np.isfinite(times).all()
    assert (times >= 0).all()
    assert (times <= found.seconds * (1 + ROUNDING)).all()
    assert (found.breakdown_s <= times).all()
    largest = found.breakdown_s.max(axis=0)
    assert (found.breakdown_s[found.limiter, np.arange(len(configs))] == largest).all()
    assert found.limiter_name(0) == LIMITERS[found.limiter[0]]
    assert ((found.sm_share > 0) & (found.sm_share <= 1)).all()


@pytest.mark.parametrize(("name", "dtype"), ON)
def test_every_device_and_type_answers_with_huge_and_tiny_work(name: str, dtype: str) -> None:
    gpu, configs = load_gpu(name), configs_of(name, dtype)
    assert len(configs) > 3
    with np.errstate(all="raise"):
        for sizes in ((1, 1, 1), (1, 65536, 65536), (65536, 65536, 65536)):
            found, work = run(Gemm(*sizes, a_dtype=dtype), configs, gpu)
            assert np.isfinite(found.seconds).all()
            assert work.flops[0] == 2 * sizes[0] * sizes[1] * sizes[2]


def test_a_type_that_the_device_lacks_is_an_error_that_lists_what_it_has() -> None:
    with pytest.raises(UnsupportedDtypeError, match=r"a100-sxm4-80gb.*fp8_e4m3.*bf16"):
        run(Gemm(64, 64, 64, a_dtype="fp8_e4m3"), ConfigTable.of([TileConfig()]), A100)


def test_facts_that_no_source_gives_are_not_needed() -> None:
    bare = replace(
        A100, l2_bandwidth_gb_per_s=None, sfu_ops_per_clock_per_sm=None, base_clock_mhz=None,
        smem_reserved_per_block_bytes=None, launch_overhead_us=None, max_clock_mhz=None,
    )  # fmt: skip
    assert np.isfinite(seconds(Gemm(512, 512, 512), TileConfig(), bare))


# --- growth -----------------------------------------------------------------------------------


@given(launches(), st.sampled_from(["m", "n", "k", "batch"]), st.sampled_from([2, 3, 8]))
@physics
def test_a_multiple_of_the_work_never_takes_less(
    launch: tuple[Gemm, Gpu, ConfigTable], name: str, factor: int
) -> None:
    problem, gpu, configs = launch
    once, _ = run(table_of(problem), configs, gpu)
    more, _ = run(table_of(grown(problem, name, factor), problem), configs, gpu)
    assert (more.seconds >= once.seconds * (1 - ROUNDING)).all()


@given(launches(), st.sampled_from(["m", "n", "k", "batch"]))
@physics
def test_one_more_never_takes_less(launch: tuple[Gemm, Gpu, ConfigTable], name: str) -> None:
    problem, gpu, configs = launch
    once, _ = run(table_of(problem), configs, gpu)
    larger = replace(
        problem, **{name: getattr(problem, name) + 1}, lda=None, ldb=None
    )  # packed again
    more, _ = run(table_of(larger, problem), configs, gpu)
    slack = 0.01 if name == "m" else ROUNDING  # a band may grow taller
    assert (more.seconds >= once.seconds * (1 - slack)).all()


@given(launches())
@physics
def test_wider_loads_are_never_slower(launch: tuple[Gemm, Gpu, ConfigTable]) -> None:
    problem, gpu, configs = launch
    narrow = replace(GemmTable.of(problem), a_vector_bytes=2.0, b_vector_bytes=2.0)
    wide = replace(narrow, a_vector_bytes=16.0, b_vector_bytes=16.0)
    # Resources depend on alignment as well: only tiles that take the same are compared.
    first, second = run(narrow, configs, gpu), run(wide, configs, gpu)
    same = first[1].resources.occupancy == second[1].resources.occupancy
    same &= second[1].resources.spill_bytes_per_thread == 0
    assert (second[0].seconds <= first[0].seconds * (1 + ROUNDING))[same].all()


def grown(problem: Gemm, name: str, factor: int) -> Gemm:
    return replace(problem, **{name: getattr(problem, name) * factor}, lda=None, ldb=None)


@pytest.mark.parametrize("faster", ["tensor_tflops", "dram_bandwidth_gb_per_s"])
def test_a_better_device_is_never_slower(faster: str) -> None:
    value = getattr(H100, faster)
    doubled = {k: 2 * v for k, v in value.items()} if faster == "tensor_tflops" else 2 * value
    better = replace(H100, **{faster: doubled})
    for sizes in ((4096, 4096, 4096), (16, 16384, 16384), (64, 64, 64)):
        configs = configs_of("h100-sxm5", "bf16")
        before, _ = run(Gemm(*sizes), configs, H100)
        after, _ = run(Gemm(*sizes), configs, better)
        assert (after.seconds <= before.seconds * (1 + ROUNDING)).all()


# --- corners of the roofline ------------------------------------------------------------------

NOTHING = ("tensor_flops", "fma_flops", "sfu_ops", "load_bytes", "load_requests", "smem_bytes",
           "instructions", "epilogue_bytes", "spill_bytes")  # fmt: skip


def only(work: Work, **kept: np.ndarray) -> Work:
    """The same launch with all but the given resources free."""
    (cta,) = work.classes
    free = {name: np.zeros_like(cta.count) for name in NOTHING} | kept
    return replace(work, classes=(replace(cta, **free),), dram_bytes=np.zeros_like(cta.count))


def launch_of(gpu: Gpu, dtype: str = "fp16", k: int = 2**20, rounds: int = 6) -> Work:
    """Whole waves of a tile with no spills, many trips each."""
    config = TileConfig(128, 128, 64, num_warps=8)
    (alone,) = run(Gemm(128, 128, k, a_dtype=dtype), ConfigTable.of([config]), gpu)[1:]
    slots = gpu.sm_count * int(max(alone.resources.occupancy[0], 1))
    problem = Gemm(128, 128, k, slots * rounds, dtype)
    return run(problem, ConfigTable.of([config]), gpu)[1]


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "h100-sxm5", "b200", "rtx-5090", "mi300x"])
def test_products_alone_take_their_operations_at_the_sustained_peak(name: str) -> None:
    gpu = load_gpu(name)
    work = launch_of(gpu)
    products = only(work, tensor_flops=work.classes[0].tensor_flops)
    found = estimate(products, gpu, launch_overhead_s=LAUNCH_S)
    expected = work.flops[0] / (gpu.tensor_tflops["fp16"] * 1e12 * work.mma_share[0])
    # One CTA an SM also waits at the barrier of every trip, which shows as latency.
    waiting = found.by_limiter["latency"][0]
    assert found.seconds[0] == pytest.approx(max(expected, waiting), rel=0.01)
    assert found.seconds[0] < 1.25 * expected


@pytest.mark.parametrize("resource", ["load_bytes", "instructions", "smem_bytes", "fma_flops"])
def test_one_resource_alone_takes_its_amount_at_its_rate(resource: str) -> None:
    work = launch_of(A100, "fp32" if resource == "fma_flops" else "fp16")
    (cta,) = work.classes
    found = estimate(
        only(work, **{resource: getattr(cta, resource)}), A100, launch_overhead_s=LAUNCH_S
    )
    rates = device_rates(A100, work)
    rate = {
        "load_bytes": rates.l2_bytes_per_s_per_sm,
        "instructions": rates.instructions_per_s_per_sm,
        "smem_bytes": rates.smem_bytes_per_s_per_sm,
        "fma_flops": rates.fma_flops_per_s_per_sm,
    }[resource]
    total = (cta.count * cta.iterations * getattr(cta, resource))[0]
    waiting = found.by_limiter["latency"][0]
    assert found.seconds[0] == pytest.approx(max(total / (rate * A100.sm_count), waiting), rel=0.01)


@given(st.floats(1e9, 1e15), st.sampled_from(gpu_names()))
@physics
def test_a_stream_alone_takes_its_bytes_at_the_sustained_bandwidth(
    amount: float, name: str
) -> None:
    gpu = load_gpu(name)
    work = launch_of(gpu, "fp16" if has(gpu, "fp16") else "fp32", k=64, rounds=1)
    stream = replace(only(work), dram_bytes=np.array([amount]))
    stream = replace(stream, classes=(replace(stream.classes[0], iterations=np.zeros(1)),))
    found = estimate(stream, gpu, launch_overhead_s=0.0)
    peak = gpu.dram_bandwidth_gb_per_s * 1e9
    sustained = amount / device_rates(gpu, work).dram_bytes_per_s
    assert amount / peak < sustained
    ramp = found.by_limiter["launch"][0]
    assert found.seconds[0] == pytest.approx(sustained + ramp, rel=1e-9)
    assert ramp < 2e-6


@given(launches())
@physics
def test_where_trips_are_many_resources_overlap_but_for_the_soft_maximum(
    launch: tuple[Gemm, Gpu, ConfigTable],
) -> None:
    """Six resources on the chip, then the chip beside DRAM."""
    problem, gpu, configs = launch
    deep = replace(problem, k=2**20, lda=None, ldb=None)
    found, work = run(deep, configs, gpu)
    spills = work.resources.spill_bytes_per_thread > 0
    largest = np.stack(list(found.by_limiter.values())).max(axis=0)
    bound = found.by_limiter["launch"] + (6 * 2) ** (1 / OVERLAP_POWER) * largest
    assert (found.seconds <= 1.02 * bound)[~spills].all()


@pytest.mark.parametrize("name", ["h100-sxm5", "h200-sxm"])
def test_a_loop_that_products_rule_is_limited_by_the_matrix_units(name: str) -> None:
    """One CTA an SM waits for its own products; more loads in flight would not help it."""
    gpu = load_gpu(name)
    config = TileConfig(256, 128, 64, group_m=8, num_warps=8, num_stages=4)
    found, _ = run(Gemm(8192, 8192, 8192, a_dtype="bf16"), ConfigTable.of([config]), gpu)
    assert found.by_limiter["latency"][0] > found.by_limiter["tensor"][0]
    assert found.limiter_name(0) == "tensor"


def test_a_loop_with_no_load_ahead_is_limited_by_latency() -> None:
    config = TileConfig(16, 16, 16, num_warps=4, num_stages=1)
    problem = Gemm(16, 16, 65536, a_dtype="bf16")
    found, _ = run(problem, ConfigTable.of([config]), load_gpu("a100-sxm4-80gb"))
    assert found.limiter_name(0) == "latency"


def test_a_large_square_product_is_bound_by_the_chip_and_a_thin_one_by_dram() -> None:
    config = TileConfig(128, 128, 32, num_warps=4, num_stages=4)
    large, _ = run(Gemm(8192, 8192, 8192, a_dtype="fp16"), ConfigTable.of([config]), A100)
    assert large.by_limiter["dram"][0] < 0.5 * large.by_limiter["tensor"][0]
    peak = 8192**3 * 2 / 312e12
    assert peak < large.seconds[0] < 2 * peak
    thin, _ = run(
        Gemm(16, 65536, 8192, a_dtype="fp16"),
        ConfigTable.of([TileConfig(16, 128, 128, num_warps=4, num_stages=4)]), A100,
    )  # fmt: skip
    assert thin.limiter_name(0) == "dram"
    stream = 65536 * 8192 * 2 / (A100.dram_bandwidth_gb_per_s * 1e9)
    assert stream < thin.seconds[0] < 1.6 * stream


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e9)), min_size=1, max_size=7),
    st.sampled_from([1.0, 2.0, 4.0, 8.0]),
)
@physics
def test_a_soft_maximum_lies_between_the_largest_and_all_of_them_equal(
    values: list[float], power: float
) -> None:
    found = float(soft_maximum([np.array([v]) for v in values], power)[0])
    largest = max(values)
    assert largest * (1 - ROUNDING) <= found
    assert found <= largest * len(values) ** (1 / power) * (1 + ROUNDING)
    alike = [np.array([largest])] * len(values)
    assert float(soft_maximum(alike, power)[0]) == pytest.approx(
        largest * len(values) ** (1 / power)
    )


# --- zero work --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [(0, 4096, 4096, 1), (4096, 0, 4096, 1), (4096, 4096, 4096, 0), (0, 0, 0, 0)]
)
@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "h100-sxm5", "mi300x", "t4"])
def test_no_work_takes_the_launch_overhead(name: str, sizes: tuple[int, ...]) -> None:
    with np.errstate(all="raise"):
        found, _ = run(Gemm(*sizes, a_dtype="fp16"), configs_of(name, "fp16"), load_gpu(name))
    assert (found.seconds == LAUNCH_S).all()
    assert found.limiter_name(0) == "launch"
    assert (found.sm_share == 0).all()


@given(launches())
@physics
def test_depth_zero_takes_the_time_to_write_zeros(launch: tuple[Gemm, Gpu, ConfigTable]) -> None:
    problem, gpu, configs = launch
    empty = replace(problem, k=0, lda=None, ldb=None)
    found, _ = run(empty, configs, gpu)
    written = empty.compulsory_bytes / (gpu.dram_bandwidth_gb_per_s * 1e9)
    assert (found.seconds >= np.maximum(LAUNCH_S, written)).all()
    whole, _ = run(table_of(problem, empty), configs, gpu)
    assert (found.seconds <= whole.seconds * (1 + ROUNDING)).all()


# --- waves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "h100-sxm5", "rtx-4090"])
def test_at_a_fixed_wave_count_time_is_bilinear_in_grid_and_depth(name: str) -> None:
    gpu = load_gpu(name)
    config = TileConfig(128, 128, 32, num_warps=4, num_stages=3)
    _, one = run(Gemm(128, 128, 64, a_dtype="fp16"), ConfigTable.of([config]), gpu)
    slots = gpu.sm_count * int(one.resources.occupancy[0])
    rows = []
    for grid, depth in product(range(2 * slots + 2, 3 * slots, 41), range(8, 160, 19)):
        problem = Gemm(128, 128, depth * 32, grid, "fp16")
        found, _ = run(problem, ConfigTable.of([config]), gpu)
        assert found.waves.count[0] == 3
        tail = found.waves.tail_occupancy[0]
        rows.append((grid, depth, tail, found.seconds[0]))
    grids, depths, tails, times = np.array(rows).T
    for tail in np.unique(tails):
        at = tails == tail
        terms = np.stack([grids * depths, grids, depths, np.ones_like(grids)])[:, at]
        fit = np.linalg.lstsq(terms.T / times[at, None], np.ones(at.sum()), rcond=None)[0]
        assert np.abs(terms.T @ fit / times[at] - 1).max() < 0.03


def test_one_cta_past_a_whole_wave_costs_another() -> None:
    config, k = TileConfig(128, 128, 64, num_warps=8), 8192
    chip = replace(A100, dram_bandwidth_gb_per_s=1e6)  # nothing but the chip counts
    slots = chip.sm_count * int(occupancy(config, chip))
    full, over = (
        seconds(Gemm(128, 128, k, b, "fp16"), config, chip) - LAUNCH_S for b in (slots, slots + 1)
    )
    assert over > 1.3 * full


@pytest.mark.parametrize("sm_count", [1, 16, 48])
def test_small_devices_take_proportionally_longer(sm_count: int) -> None:
    small = replace(
        A100, name="small", sm_count=sm_count,
        tensor_tflops={k: v * sm_count / A100.sm_count for k, v in A100.tensor_tflops.items()},
    )  # fmt: skip
    config = TileConfig(128, 128, 32, num_warps=4)
    found, _ = run(Gemm(4096, 4096, 4096, a_dtype="fp16"), ConfigTable.of([config]), small)
    assert found.waves.count[0] == -(-1024 // (sm_count * max(1, int(occupancy(config, small)))))
    ratio = found.seconds[0] / seconds(Gemm(4096, 4096, 4096, a_dtype="fp16"), config, A100)
    assert ratio == pytest.approx(A100.sm_count / sm_count, rel=0.35)


def occupancy(config: TileConfig, gpu: Gpu) -> float:
    work = gemm_work(GemmTable.of(Gemm(64, 64, 64, a_dtype="fp16")), ConfigTable.of([config]), gpu)
    return float(work.resources.occupancy[0])


# --- spills -----------------------------------------------------------------------------------

SPILLED = 64  # bytes a thread; less may be what compilers do anyway


@pytest.mark.parametrize("name", gpu_names())
def test_a_tile_that_spills_is_slower_than_on_more_warps(name: str) -> None:
    gpu = load_gpu(name)
    dtype = "fp16" if has(gpu, "fp16") else "fp32"
    problem = Gemm(4096, 4096, 4096, a_dtype=dtype)
    tiles = [(256, 256, 32), (128, 256, 32), (256, 128, 32), (128, 256, 64)]
    for (m, n, k), stages in product(tiles, (2, 3)):
        grid = [TileConfig(m, n, k, num_warps=w, num_stages=stages) for w in (2, 4, 8, 16)]
        configs = ConfigTable.of(grid)
        legal = legal_mask(problem, configs, gpu)
        found, work = run(problem, configs, gpu)
        spilled = work.resources.spill_bytes_per_thread
        for few in range(len(grid) - 1):
            if legal[few : few + 2].all() and spilled[few] > spilled[few + 1] + SPILLED:
                assert found.seconds[few] > found.seconds[few + 1], str(grid[few])


def test_the_largest_tile_on_few_warps_does_not_rank_first() -> None:
    """A model that knows nothing of spills puts 256x256 tiles on 4 warps first."""
    problem = Gemm(4096, 4096, 4096, a_dtype="fp16")
    sides = (64, 128, 256)
    grid = [
        TileConfig(m, n, k, num_warps=w, num_stages=s)
        for m, n, k, w, s in product(sides, sides, (16, 32, 64), (2, 4, 8, 16), (2, 3, 4, 5))
    ]
    configs = ConfigTable.of(grid)
    found, work = run(problem, configs, A100)
    legal = legal_mask(problem, configs, A100)
    order = [i for i in np.argsort(found.seconds, kind="stable") if legal[i]]
    assert not work.resources.spill_bytes_per_thread[order[0]]
    largest = [i for i in order if grid[i].block_m * grid[i].block_n == 256 * 256
               and work.resources.spill_bytes_per_thread[i] > SPILLED]  # fmt: skip
    assert largest
    assert min(found.seconds[largest]) > 2 * found.seconds[order[0]]
