"""What one launch of a tiled matrix product does, counted by hand."""

from __future__ import annotations

from dataclasses import Field, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.work import (
    CtaClass,
    Work,
    gemm_work,
    lane_tile,
    mma_share,
    uses_asynchronous_mma,
    warp_grid,
)

A100 = load_gpu("a100-sxm4-80gb")
H100 = load_gpu("h100-sxm5")
POWERS = (16, 32, 64, 128, 256)
quick = settings(max_examples=60, deadline=None)
power = st.sampled_from(POWERS)
warps = st.sampled_from([1, 2, 4, 8, 16])


def by_cta(cta: CtaClass) -> list[Field[Any]]:
    """What a CTA of a product is counted by: all are alike, and no step waits for another."""
    assert cta.longest_iterations is None
    assert not cta.chained
    return [item for item in fields(cta) if item.name not in ("longest_iterations", "chained")]


def work(problem: Gemm, *configs: TileConfig, gpu: str = "a100-sxm4-80gb") -> Work:
    return gemm_work(GemmTable.of(problem), ConfigTable.of(configs), load_gpu(gpu))


def test_the_grid_the_trips_and_the_operations_are_those_of_the_tiles() -> None:
    found = work(Gemm(1000, 500, 300, 3, a_dtype="fp16"), TileConfig(128, 64, 32, split_k=2))
    (cta,) = found.classes
    assert found.ctas[0] == cta.count[0] == 8 * 8 * 3 * 2
    assert cta.iterations[0] == 5  # half of 300 in steps of 32
    assert cta.tensor_flops[0] == 2 * 128 * 64 * 32
    assert cta.load_bytes[0] == (128 + 64) * 32 * 2
    assert found.flops[0] == 2 * 1000 * 500 * 300 * 3


@given(power, power, power, st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000))
@quick
def test_tiles_do_all_useful_work_and_no_more_where_they_divide_the_problem(
    bm: int, bn: int, bk: int, m: int, n: int, k: int
) -> None:
    config = TileConfig(bm, bn, bk)

    def done(found: Work) -> float:
        (cta,) = found.classes
        return float(found.ctas[0] * cta.iterations[0] * (cta.tensor_flops + cta.fma_flops)[0])

    padded = work(Gemm(m, n, k), config)
    assert done(padded) >= padded.flops[0]
    even = work(Gemm(bm * (m % 7 + 1), bn * (n % 7 + 1), bk * (k % 7 + 1)), config)
    assert done(even) == even.flops[0]


@given(
    st.integers(1, 2**15), st.integers(1, 2**15), st.integers(1, 2**15),
    power, power, st.sampled_from([1, 4, 8, 16]), st.sampled_from(["fp32", "bf16", "int8"]),
)  # fmt: skip
@quick
def test_dram_moves_at_least_what_is_compulsory(
    m: int, n: int, k: int, bm: int, bn: int, group: int, dtype: str
) -> None:
    problem = Gemm(m, n, k, a_dtype=dtype)
    found = work(problem, TileConfig(bm, bn, 64, group_m=group))
    assert found.compulsory_bytes[0] == problem.compulsory_bytes
    assert found.dram_bytes[0] >= found.compulsory_bytes[0]


def test_what_fits_in_l2_is_read_from_dram_once() -> None:
    found = work(Gemm(1024, 1024, 1024, a_dtype="fp16"), TileConfig(group_m=1))
    assert found.dram_bytes[0] == found.compulsory_bytes[0]


def test_grouping_rows_of_tiles_saves_dram_traffic_where_operands_exceed_l2() -> None:
    large = Gemm(16384, 16384, 16384, a_dtype="fp16")
    found = work(large, *(TileConfig(128, 128, 32, group_m=g) for g in (1, 8)))
    assert found.dram_bytes[1] < 0.7 * found.dram_bytes[0]


def test_splitting_k_multiplies_ctas_and_pays_for_partial_sums() -> None:
    problem = Gemm(256, 256, 8192, a_dtype="fp16")
    found = work(problem, TileConfig(split_k=1), TileConfig(split_k=4))
    assert found.ctas[1] == 4 * found.ctas[0]
    partial = 2 * 4 * 256 * 256 * 4  # written and read, in fp32
    assert found.dram_bytes[1] - found.dram_bytes[0] == partial


@pytest.mark.parametrize("sizes", [(0, 4096, 4096, 1), (4096, 0, 4096, 1), (64, 64, 64, 0)])
def test_without_a_result_nothing_runs_and_nothing_moves(sizes: tuple[int, ...]) -> None:
    found = work(Gemm(*sizes, a_dtype="fp16"), TileConfig(), TileConfig(split_k=4))
    for name in ("ctas", "compulsory_bytes", "dram_bytes", "flops"):
        assert not getattr(found, name).any(), name


def test_products_of_depth_zero_still_write_zeros() -> None:
    found = work(Gemm(512, 512, 0, a_dtype="fp16"), TileConfig())
    assert found.classes[0].iterations[0] == 0
    assert found.dram_bytes[0] == 512 * 512 * 2


def test_sizes_that_overflow_32_bits_are_counted_exactly() -> None:
    side = 65536
    with np.errstate(all="raise"):
        found = work(Gemm(side, side, side, a_dtype="bf16"), TileConfig(), gpu="h100-sxm5")
    assert found.flops[0] == 2 * side**3
    assert found.compulsory_bytes[0] == 3 * side**2 * 2
    assert found.ctas[0] == (side // 128) ** 2


def test_a_cluster_is_as_many_ctas_as_it_has() -> None:
    """Two CTAs that share a tile of 256 rows do what two CTAs of 128 rows do."""
    problem = Gemm(2048, 2048, 4096, a_dtype="fp16")
    found = work(
        problem, TileConfig(128, 128, 64), TileConfig(256, 128, 64, num_ctas=2), gpu="h100-sxm5"
    )
    assert found.ctas[0] == found.ctas[1]
    (cta,) = found.classes
    for item in by_cta(cta):
        both = getattr(cta, item.name)
        assert both[0] == both[1], item.name


@pytest.mark.parametrize(
    ("gpu", "dtype", "unit"),
    [
        ("a100-sxm4-80gb", "fp16", "tensor"),
        ("a100-sxm4-80gb", "tf32", "tensor"),
        ("a100-sxm4-80gb", "fp32", "fma"),
        ("v100-sxm2-32gb", "fp16", "tensor"),
        ("t4", "fp32", "fma"),
        ("mi300x", "fp32", "tensor"),  # matrix cores of CDNA 3 take fp32
        ("rtx-5090", "fp8_e4m3", "tensor"),
    ],
)
def test_products_run_on_matrix_units_where_the_device_has_them_for_the_type(
    gpu: str, dtype: str, unit: str
) -> None:
    (cta,) = work(Gemm(512, 512, 512, a_dtype=dtype), TileConfig(), gpu=gpu).classes
    other = {"tensor": "fma", "fma": "tensor"}[unit]
    assert getattr(cta, f"{unit}_flops")[0] == 2 * 128 * 128 * 64
    assert not getattr(cta, f"{other}_flops")[0]


def test_weights_of_fewer_bits_are_loaded_as_such_and_multiplied_as_activations() -> None:
    problem = Gemm(512, 512, 512, a_dtype="bf16", b_dtype="int4")
    found = work(problem, TileConfig(128, 128, 64))
    assert found.compute_dtype == "bf16"
    assert found.classes[0].load_bytes[0] == 128 * 64 * 2 + 128 * 64 / 2


def test_narrow_loads_are_more_requests_of_the_same_bytes() -> None:
    config = TileConfig()
    (wide,) = work(Gemm(512, 512, 512, a_dtype="fp16"), config).classes
    (narrow,) = work(Gemm(512, 512, 512, a_dtype="fp16", lda=513, ldb=513), config).classes
    assert narrow.load_bytes[0] == wide.load_bytes[0]
    assert narrow.load_requests[0] == 8 * wide.load_requests[0]
    assert narrow.instructions[0] > wide.instructions[0]


@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "h100-sxm5", "b200", "rtx-5090", "t4", "mi300x"])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_every_count_is_positive_and_finite(gpu: str, dtype: str) -> None:
    configs = [
        TileConfig(bm, bn, bk, num_warps=w, num_stages=s)
        for bm in POWERS for bn in POWERS for bk in (16, 128) for w in (1, 4, 16) for s in (1, 4)
    ]  # fmt: skip
    found = work(Gemm(333, 777, 555, a_dtype=dtype), *configs, gpu=gpu)
    (cta,) = found.classes
    for item in by_cta(cta):
        values = getattr(cta, item.name)
        assert values.shape == (len(configs),), item.name
        assert np.isfinite(values).all(), item.name
        assert (values >= 0).all(), item.name
    for name in ("count", "iterations", "load_bytes", "smem_bytes", "instructions"):
        assert (getattr(cta, name) > 0).all(), name
    assert (found.mma_share > 0).all()
    assert (found.mma_share <= 1).all()


@given(power, power, st.sampled_from([16, 64]), warps, st.sampled_from(["fp16", "int8", "fp32"]))
@quick
def test_warps_of_a_tile_are_the_warps_of_the_launch(
    bm: int, bn: int, bk: int, num_warps: int, dtype: str
) -> None:
    table = GemmTable.of(Gemm(512, 512, 512, a_dtype=dtype))
    configs = ConfigTable.of([TileConfig(bm, bn, bk, num_warps=num_warps)])
    for gpu in (A100, H100):
        rows, columns = warp_grid(table, configs, gpu)
        assert rows[0] * columns[0] == num_warps


@given(power, power, warps, st.sampled_from([32, 64]))
@quick
def test_lanes_cover_the_tile(bm: int, bn: int, num_warps: int, warp_size: int) -> None:
    rows, columns = lane_tile(ConfigTable.of([TileConfig(bm, bn, num_warps=num_warps)]), warp_size)
    assert rows[0] * columns[0] * num_warps * warp_size >= bm * bn


def test_group_instructions_need_the_capability_the_rows_and_the_warps() -> None:
    table = GemmTable.of(Gemm(512, 512, 512, a_dtype="fp16"))
    configs = ConfigTable.of(
        [TileConfig(64, num_warps=4), TileConfig(32, num_warps=4), TileConfig(64, num_warps=2)]
    )
    assert uses_asynchronous_mma(table, configs, H100).tolist() == [True, False, False]
    assert not uses_asynchronous_mma(table, configs, A100).any()
    assert not uses_asynchronous_mma(table, configs, load_gpu("rtx-5090")).any()
    fp32 = GemmTable.of(Gemm(512, 512, 512, a_dtype="fp32"))
    assert not uses_asynchronous_mma(fp32, configs, H100).any()


def test_only_group_instructions_reach_the_peak_of_a_device_that_has_them() -> None:
    table = GemmTable.of(Gemm(512, 512, 512, a_dtype="fp16"))
    configs = ConfigTable.of([TileConfig(64, num_warps=4), TileConfig(32, num_warps=4)])
    on_h100, on_a100 = mma_share(table, configs, H100), mma_share(table, configs, A100)
    assert on_h100[0] == 1.0 > on_h100[1]
    assert (on_a100 == 1.0).all()


def test_operands_that_must_be_turned_round_cost_part_of_the_peak() -> None:
    """Warp group instructions take 8-bit operands only along k."""

    def share(dtype: str, b_layout: str) -> float:
        table = GemmTable.of(Gemm(512, 512, 512, a_dtype=dtype, b_layout=b_layout))  # type: ignore[arg-type]
        return float(mma_share(table, ConfigTable.of([TileConfig()]), H100)[0])

    assert share("fp8_e4m3", "row") < share("fp8_e4m3", "col")
    assert share("fp16", "row") == share("fp16", "col")


def test_rows_of_a_table_and_single_problems_agree() -> None:
    problems = [Gemm(100 * i, 64 + i, 4096 // i, a_dtype="fp16") for i in range(1, 6)]
    configs = ConfigTable.of([TileConfig(16 << i, 64, num_warps=4) for i in range(5)])
    together = gemm_work(GemmTable.of_problems(problems), configs, A100)
    for row, problem in enumerate(problems):
        alone = gemm_work(GemmTable.of(problem), configs.take(np.array([row])), A100)
        for name in ("ctas", "dram_bytes", "compulsory_bytes", "flops", "mma_share"):
            assert getattr(together, name)[row] == getattr(alone, name)[0], name
        for item in by_cta(alone.classes[0]):
            several = getattr(together.classes[0], item.name)
            assert several[row] == getattr(alone.classes[0], item.name)[0], item.name


def test_what_is_remembered_of_configs_is_never_another_problems_or_devices() -> None:
    configs = ConfigTable.of([TileConfig(), TileConfig(64, 64, 32)])
    cases = [
        (Gemm(512, 512, 512, a_dtype=dtype, b_layout=layout), gpu)
        for dtype in ("fp16", "fp32", "int8")
        for layout in ("row", "col")
        for gpu in (A100, H100, replace(A100, sm_count=16), load_gpu("mi300x"))
    ]
    for problem, gpu in cases * 2:
        table = GemmTable.of(problem)
        again = gemm_work(table, configs, gpu)
        fresh = gemm_work(table, ConfigTable.of(configs.configs), gpu)
        for item in by_cta(fresh.classes[0]):
            ours = getattr(again.classes[0], item.name)
            assert (ours == getattr(fresh.classes[0], item.name)).all(), item.name
        assert (again.resources.smem_bytes == fresh.resources.smem_bytes).all()
