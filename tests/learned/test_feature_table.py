"""From a label table to features and analytic times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfmodel.analytic.model import CUDA_GRAPH_LAUNCH_S, EVENT_TIMING_LAUNCH_S
from perfmodel.errors import DataError, UnknownGpuError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.launches import gemm_launches
from perfmodel.learned.feature_table import gemm_feature_table, launch_s
from perfmodel.problems import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig

CASES = [
    ("a100-sxm4-80gb", Gemm(512, 768, 1024, a_dtype="fp16"), TileConfig(128, 64, 32)),
    ("h100-sxm5", Gemm(33, 65, 97, a_dtype="bf16", b_layout="col"), TileConfig(16, 32, 64)),
    ("a100-sxm4-80gb", Gemm(64, 64, 4097, a_dtype="bf16", b_dtype="int8"), TileConfig(16, 16)),
    ("h100-sxm5", Gemm(33, 65, 99, a_dtype="bf16", lda=128), TileConfig(64, 64, num_stages=5)),
]


def labels(**changed: Any) -> pd.DataFrame:
    rows = [
        {
            **problem.to_dict(), **config.to_dict(), "gpu": gpu, "latency_us": 10.0 + i,
            "timing_method": "events", "config_known": True,
        }
        for i, (gpu, problem, config) in enumerate(CASES)
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(**changed)


def test_rows_keep_their_order_and_have_the_features_that_a_question_has() -> None:
    table = gemm_feature_table(labels(), np.arange(len(CASES)))
    for row, (gpu, problem, config) in enumerate(CASES):
        found = gemm_launches(
            GemmTable.of(problem), ConfigTable.of([config]), load_gpu(gpu), with_features=True
        )
        assert found.features is not None
        np.testing.assert_array_equal(table.features[row], found.features[0])
        assert table.analytic_s[row] == found.estimate.seconds[0]
    assert table.latency_s.tolist() == pytest.approx([1e-5, 1.1e-5, 1.2e-5, 1.3e-5])
    assert table.dtype.tolist() == ["fp16", "bf16", "bf16xint8", "bf16"]
    assert table.kinds() == {
        ("a100-sxm4-80gb", "fp16"), ("a100-sxm4-80gb", "bf16xint8"), ("h100-sxm5", "bf16"),
    }  # fmt: skip
    np.testing.assert_allclose(np.exp(table.target) * table.analytic_s, table.latency_s)


def test_the_launch_overhead_is_that_of_the_way_of_timing() -> None:
    """A CUDA graph shows less of it than events around a launch."""
    events, graph = (
        gemm_feature_table(labels(timing_method=method), np.arange(len(CASES)))
        for method in ("events", "cuda_graph")
    )
    difference = EVENT_TIMING_LAUNCH_S - CUDA_GRAPH_LAUNCH_S
    assert difference > 0
    np.testing.assert_allclose(events.analytic_s - graph.analytic_s, difference, rtol=1e-6)


def test_rows_timed_in_an_unknown_way_are_refused() -> None:
    with pytest.raises(DataError, match=r"'stopwatch'.*cuda_graph.*events"):
        gemm_feature_table(labels(timing_method="stopwatch"), np.arange(len(CASES)))
    with pytest.raises(DataError):
        launch_s("stopwatch")


def test_rows_whose_configuration_is_unknown_are_refused() -> None:
    with pytest.raises(DataError, match="configuration"):
        gemm_feature_table(labels(config_known=False), np.arange(len(CASES)))


def test_rows_of_a_device_that_nobody_knows_are_refused() -> None:
    with pytest.raises(UnknownGpuError, match="h1000"):
        gemm_feature_table(labels(gpu="h1000"), np.arange(len(CASES)))
    with pytest.raises(DataError, match="no canonical device name"):
        gemm_feature_table(labels(gpu=None), np.arange(len(CASES)))


def test_rows_can_be_picked_by_mask_and_by_number() -> None:
    table = gemm_feature_table(labels(), np.array([5, 5, 7, 7]))
    assert len(table.take(np.array([True, False, True, False]))) == 2
    assert table.take(np.array([3, 0])).latency_s.tolist() == pytest.approx([1.3e-5, 1e-5])
    assert table.best_s().tolist() == pytest.approx([1e-5, 1e-5, 1.2e-5, 1.2e-5])
    assert table.is_of(frozenset({("h100-sxm5", "bf16")})).tolist() == [False, True, False, True]
