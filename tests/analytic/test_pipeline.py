"""What the software pipeline hides of memory latency, and what it leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.analytic.model import estimate
from perfmodel.analytic.pipeline import loop_seconds
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.work import gemm_work

quick = settings(max_examples=60, deadline=None)
trips = st.integers(1, 10**7)
time_s = st.floats(1e-9, 1e-3)


def one(value: float) -> np.ndarray:
    return np.array([float(value)])


def exposed_s(name: str) -> list[float]:
    """Latency left exposed by 1 to 8 stages of the same small tile."""
    gpu = load_gpu(name)
    configs = ConfigTable.of([TileConfig(64, 64, 32, num_stages=stages) for stages in range(1, 9)])
    work = gemm_work(GemmTable.of(Gemm(64, 64, 4096, a_dtype="fp16")), configs, gpu)
    return estimate(work, gpu, launch_overhead_s=4e-6).exposed_s.tolist()


@given(trips, time_s, time_s, time_s)
@quick
def test_a_loop_fills_the_pipeline_then_takes_the_slower_of_work_and_latency(
    iterations: int, trip: float, gap: float, latency: float
) -> None:
    found = loop_seconds(one(iterations), one(trip), one(gap), latency)[0]
    assert found == pytest.approx(latency + (iterations - 1) * max(trip, gap) + trip)


def test_no_trip_takes_no_time() -> None:
    assert loop_seconds(one(0), one(1e-6), one(1e-6), 1e-6)[0] == 0


@given(trips, time_s, time_s, time_s)
@quick
def test_work_grows_linearly_with_trips(
    iterations: int, trip: float, gap: float, latency: float
) -> None:
    def at(n: int) -> float:
        return float(loop_seconds(one(n), one(trip), one(gap), latency)[0])

    step = at(iterations + 1) - at(iterations)
    assert step == pytest.approx(max(trip, gap), rel=1e-3, abs=1e-12 * iterations)


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "h100-sxm5", "b200", "rtx-5090", "mi300x"])
def test_more_stages_never_expose_more_latency(name: str) -> None:
    times = exposed_s(name)
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]  # one stage waits for every load


@pytest.mark.parametrize("name", ["t4", "v100-sxm2-32gb"])
def test_without_asynchronous_copies_stages_change_nothing(name: str) -> None:
    assert len(set(exposed_s(name))) == 1


@pytest.mark.parametrize("name", ["h100-sxm5", "mi300x"])
def test_two_stages_overlap_where_the_next_tile_has_a_place(name: str) -> None:
    """A second buffer that the matrix unit reads from, or AMD's prefetch into registers."""
    times = exposed_s(name)
    assert times[1] < times[0]
