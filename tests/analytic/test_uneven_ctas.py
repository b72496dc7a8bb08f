"""CTAs of different length: the busiest SM rules, and equal ones come in whole waves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.analytic.model import FURTHER_LAUNCH_S, estimate
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Attention, Gemm
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.attention_work import attention_work
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.work import Work, gemm_work

H100 = load_gpu("h100-sxm5")


def seconds(work: Work) -> float:
    return float(estimate(work, H100, launch_overhead_s=0.0).seconds[0])


def product(m: int) -> Work:
    return gemm_work(GemmTable.of(Gemm(m, 2048, 4096)), ConfigTable.of([TileConfig()]), H100)


def with_longest(work: Work, share: float) -> Work:
    (cta,) = work.classes
    return replace(work, classes=(replace(cta, longest_iterations=cta.iterations * share),))


@given(st.integers(1, 20000))
def test_ctas_of_one_length_are_scheduled_as_ever(m: int) -> None:
    work = product(m)
    assert seconds(with_longest(work, 1.0)) == pytest.approx(seconds(work), rel=1e-12)


@given(st.integers(1, 20000), st.floats(1, 20))
def test_a_launch_takes_no_less_than_its_longest_cta(m: int, share: float) -> None:
    work = product(m)
    (cta,) = work.classes
    longest = replace(cta, iterations=cta.iterations * share)
    alone = replace(work, ctas=np.ones(1), dram_bytes=np.zeros(1), classes=(longest,))
    assert seconds(with_longest(work, share)) >= seconds(alone) * (1 - 1e-9)


@given(st.integers(1, 20000), st.floats(1, 20))
def test_no_resource_alone_takes_longer_than_all(m: int, share: float) -> None:
    found = estimate(with_longest(product(m), share), H100, launch_overhead_s=1e-6)
    assert (np.stack(list(found.by_limiter.values())) <= found.seconds * (1 + 1e-9)).all()


def test_causal_tiles_fill_the_last_wave_better_than_equal_ones() -> None:
    """Just over one wave: equal CTAs take two, unequal ones spread."""
    config = ConfigTable.of([TileConfig(128, 64, num_warps=8, num_stages=2)])
    ratios = {}
    for causal in (True, False):
        problem = AttentionTable.of(Attention(1, 128 * 9, q_heads=32, causal=causal))
        work = attention_work(problem, config, H100)
        (cta,) = work.classes
        slots = H100.sm_count * work.resources.occupancy
        even = work.ctas / slots * cta.iterations
        ratios[causal] = seconds(work) / float(even[0])
    assert ratios[True] < ratios[False]


def test_a_launch_that_follows_costs_its_start() -> None:
    work = product(512)
    later = replace(work, extra_launches=np.ones(1))
    assert seconds(later) - seconds(work) == pytest.approx(FURTHER_LAUNCH_S)


def test_splitting_keys_pays_where_few_sequences_leave_the_device_idle() -> None:
    configs = ConfigTable.of([TileConfig(16, 64, num_warps=4, split_k=s) for s in (1, 16)])
    few, many = (
        estimate(
            attention_work(AttentionTable.of(Attention(b, 1, 16384, q_heads=32, kv_heads=8)),
                           configs, H100),
            H100, launch_overhead_s=4e-6,
        ).seconds
        for b in (1, 256)
    )  # fmt: skip
    assert few[1] < 0.5 * few[0]
    assert many[1] > many[0]
