"""Feature columns: finite, named once, in one order, and ratios rather than sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.analytic.model import EVENT_TIMING_LAUNCH_S, estimate
from perfmodel.hardware.catalog import gpu_names, load_gpu
from perfmodel.hardware.gpu import Gpu
from perfmodel.learned.features import LOGARITHMIC, gemm_columns, matrix
from perfmodel.learned.probes import probe_features, same_features
from perfmodel.problems import Gemm, parse_dtype
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import legal_mask
from perfmodel.tiling.work import gemm_work

A100 = load_gpu("a100-sxm4-80gb")
DTYPES = ("fp16", "bf16", "tf32", "fp32", "fp8_e4m3", "int8")
size = st.one_of(st.integers(0, 300), st.sampled_from([1000, 4096, 65536, 2**30]))
layout = st.sampled_from(["row", "col"])


def has(gpu: Gpu, dtype: str) -> bool:
    return dtype in gpu.tensor_tflops or dtype in gpu.plain_tflops


ON = [(name, dtype) for name in gpu_names() for dtype in DTYPES if has(load_gpu(name), dtype)]


@cache
def legal_configs(name: str, dtype: str) -> ConfigTable:
    """A grid with extreme tiles, warps, stages and splits; whatever the device can launch."""
    grid = ConfigTable.of(
        TileConfig(m, n, k, group_m=g, num_warps=w, num_stages=s, split_k=split)
        for m, n, k, w, s in product(
            (16, 64, 256), (16, 64, 256), (16, 32, 128), (1, 4, 16), (1, 3)
        )
        for g, split in ((8, 1), (1, 4))
    )
    return grid.take(legal_mask(Gemm(64, 64, 64, a_dtype=dtype), grid, load_gpu(name)))


def features(
    problems: GemmTable, configs: ConfigTable, gpu: Gpu
) -> tuple[tuple[str, ...], np.ndarray]:
    work = gemm_work(problems, configs, gpu)
    found = estimate(work, gpu, launch_overhead_s=EVENT_TIMING_LAUNCH_S)
    columns = gemm_columns(problems, configs, gpu, work, found)
    return tuple(columns), matrix(columns, len(configs))


NAMES = features(GemmTable.of(Gemm(8, 8, 8)), ConfigTable.of([TileConfig()]), A100)[0]


@pytest.mark.parametrize(("name", "dtype"), ON)
def test_every_device_and_type_has_the_same_columns_all_finite(name: str, dtype: str) -> None:
    gpu, configs = load_gpu(name), legal_configs(name, dtype)
    assert len(configs) > 20
    for sizes in ((1, 1, 1), (4095, 3, 70001), (0, 128, 128), (128, 128, 0), (65536,) * 3):
        names, rows = features(GemmTable.of(Gemm(*sizes, a_dtype=dtype)), configs, gpu)
        assert names == NAMES
        assert rows.dtype == np.float32
        assert rows.flags.c_contiguous
        bad = [n for n, column in zip(names, rows.T, strict=True) if not np.isfinite(column).all()]
        assert not bad


@given(st.sampled_from(ON), size, size, size, st.integers(0, 64), layout, layout, st.integers(0, 9))
@settings(max_examples=80)
def test_every_problem_has_finite_features(
    on: tuple[str, str], m: int, n: int, k: int, batch: int, a_layout: str, b_layout: str, pad: int
) -> None:
    name, dtype = on
    problem = Gemm(
        m, n, k, batch, dtype, a_layout=a_layout, b_layout=b_layout,  # type: ignore[arg-type]
        lda=(k if a_layout == "row" else m) + pad, ldb=(n if b_layout == "row" else k) + pad,
    )  # fmt: skip
    names, rows = features(GemmTable.of(problem), legal_configs(name, dtype), load_gpu(name))
    assert names == NAMES
    assert np.isfinite(rows).all()


@pytest.mark.parametrize(("a", "b"), [("bf16", "int8"), ("fp16", "int4"), ("fp8_e4m3", "fp8_e5m2")])
def test_operands_of_two_types_have_finite_features(a: str, b: str) -> None:
    problem = Gemm(100, 200, 300, a_dtype=a, b_dtype=b)
    _, rows = features(
        GemmTable.of(problem), legal_configs("h100-sxm5", "bf16"), load_gpu("h100-sxm5")
    )
    assert np.isfinite(rows).all()


def test_names_are_unique_and_those_in_logarithms_exist() -> None:
    assert len(set(NAMES)) == len(NAMES) <= 255
    assert set(NAMES) >= LOGARITHMIC


@given(st.data())
@settings(max_examples=40)
def test_rows_of_a_measurement_table_and_single_questions_have_the_same_features(
    data: st.DataObject,
) -> None:
    """What trees are trained on is what they are asked."""
    problems = [
        Gemm(
            *(data.draw(st.integers(1, 9000)) for _ in range(3)), data.draw(st.integers(1, 9)),
            "fp16", a_layout=data.draw(layout), b_layout=data.draw(layout),
        )
        for _ in range(4)
    ]  # fmt: skip
    configs = legal_configs(A100.name, "fp16")
    configs = configs.take(np.array(data.draw(st.lists(
        st.integers(0, len(configs) - 1), min_size=4, max_size=4))))  # fmt: skip
    table = GemmTable.of_columns(
        **{x: [getattr(p, x) for p in problems] for x in ("m", "n", "k", "batch", "lda", "ldb")},
        a_row=[p.a_layout == "row" for p in problems],
        b_row=[p.b_layout == "row" for p in problems],
        dtypes=(parse_dtype("fp16"),) * 3,
    )
    names, together = features(table, configs, A100)
    assert names == NAMES
    for row, problem in enumerate(problems):
        _, alone = features(GemmTable.of(problem), configs.take(np.array([row])), A100)
        np.testing.assert_array_equal(together[row], alone[0])


def test_a_device_twice_as_large_with_twice_the_work_looks_the_same() -> None:
    """Sizes enter as ratios to the device; only operands against L2 tell the two apart."""
    twice = replace(
        A100, name="twice", sm_count=2 * A100.sm_count, l2_bytes=2 * A100.l2_bytes,
        dram_bandwidth_gb_per_s=2 * A100.dram_bandwidth_gb_per_s,
        l2_bandwidth_gb_per_s=2 * (A100.l2_bandwidth_gb_per_s or 0),
        tensor_tflops={k: 2 * v for k, v in A100.tensor_tflops.items()},
        plain_tflops={k: 2 * v for k, v in A100.plain_tflops.items()},
    )  # fmt: skip
    configs = legal_configs(A100.name, "fp16")
    once = Gemm(1024, 768, 512, 6, "fp16")
    _, small = features(GemmTable.of(once), configs, A100)
    _, large = features(GemmTable.of(replace(once, batch=12)), configs, twice)
    moved = {
        name
        for name, x, y in zip(NAMES, small.T, large.T, strict=True)
        if not np.allclose(x, y, atol=1e-4)
    }
    assert moved <= {"a_over_l2", "b_over_l2", "panel_over_l2", "wave_b_over_l2"} | {
        "patch_rows", "patch_columns", "wave_hit",  # a wave of twice the tiles
    }  # fmt: skip


def test_the_order_of_configs_is_the_order_of_rows() -> None:
    configs = legal_configs(A100.name, "fp16")
    problem = GemmTable.of(Gemm(1000, 1000, 1000, a_dtype="fp16"))
    _, rows = features(problem, configs, A100)
    backwards = np.arange(len(configs))[::-1]
    np.testing.assert_array_equal(features(problem, configs.take(backwards), A100)[1], rows[::-1])


def test_probes_tell_whether_features_still_mean_the_same() -> None:
    probes = probe_features()
    assert same_features(probes, probe_features())
    assert len(probes[0]) == len(NAMES)
    changed = ((probes[0][0] + 0.01, *probes[0][1:]), *probes[1:])
    assert not same_features(changed, probes)
    assert not same_features((), probes)
