"""Kernels whose tile is unknown: the same door, no tile, the basis named."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.errors import InvalidConfigError, UnsupportedDtypeError
from perfmodel.predictor import Predictor
from perfmodel.problems import Attention, Gemm, GroupedGemm, MemoryBound
from perfmodel.tiling.config import TileConfig

LIBRARY = [
    Gemm(4096, 4096, 4096, backend="cublas@12.4"),
    Attention(4, 4096, q_heads=32, kv_heads=8, backend="vllm/fa3@0.12.0"),
    GroupedGemm(256, 8, 2, 4096, 14336, backend="trtllm"),
    MemoryBound("rms_norm", 4096, 4096, backend="vllm"),
]


@pytest.fixture(scope="module")
def analytic() -> Predictor:
    return Predictor(analytic_only=True)


@pytest.mark.parametrize("problem", LIBRARY)
def test_a_library_kernel_is_predicted_without_a_tile_and_says_on_what(
    analytic: Predictor, problem: Any
) -> None:
    found = analytic.predict(problem, "h100-sxm5")
    assert (found.config, found.waves, found.occupancy) == (None, None, None)
    assert found.basis == "analytic"
    assert found.interval_us[0] <= found.latency_us <= found.interval_us[1]
    assert any(str(problem.backend) in note for note in found.notes)
    assert found.to_dict()["config"] is None
    assert analytic.latency_us([problem], "h100-sxm5")[0] == found.latency_us


@pytest.mark.parametrize("problem", LIBRARY)
def test_a_tile_for_a_library_kernel_is_refused(analytic: Predictor, problem: Any) -> None:
    for ask in (analytic.predict, analytic.explain):
        with pytest.raises(InvalidConfigError, match="a library picks its own tile"):
            ask(problem, "h100-sxm5", TileConfig())
    with pytest.raises(InvalidConfigError, match="leave the config out"):
        analytic.rank(problem, "h100-sxm5")
    with pytest.raises(InvalidConfigError, match="leave the config out"):
        analytic.latency_us([problem], "h100-sxm5", TileConfig())


def test_a_memory_bound_kernel_has_no_tile_either(analytic: Predictor) -> None:
    problem = MemoryBound("add", 1 << 14, 1 << 12)
    found = analytic.predict(problem, "h100-sxm5")
    assert found.limiter == "dram"
    with pytest.raises(InvalidConfigError, match="a memory_bound kernel has no tile"):
        analytic.predict(problem, "h100-sxm5", TileConfig())


def test_nothing_takes_less_than_a_launch(analytic: Predictor) -> None:
    for problem in (Gemm(0, 1, 1, backend="cublas"), MemoryBound("add", 0, 1)):
        found = analytic.predict(problem, "h100-sxm5")
        assert found.latency_us == pytest.approx(4.0)
        assert "no work" in found.notes[0]


def test_a_device_without_the_type_is_named(analytic: Predictor) -> None:
    with pytest.raises(UnsupportedDtypeError, match="fp8_e4m3"):
        analytic.predict(Gemm(8, 8, 8, a_dtype="fp8", backend="cublas"), "a100-sxm4-80gb")
