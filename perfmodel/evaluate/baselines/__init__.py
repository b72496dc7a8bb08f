"""Peers and simple rules, one a file, each with its source; run beside our models."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.evaluate.answers import Baseline


def gemm_baselines() -> tuple[Baseline, ...]:
    """Return every baseline for matrix products, in the order of the tables."""
    from perfmodel.evaluate.answers import AnalyticAlone
    from perfmodel.evaluate.baselines.autoheuristic import AutoHeuristic
    from perfmodel.evaluate.baselines.best_single import BestSingle
    from perfmodel.evaluate.baselines.neusight import NeuSight
    from perfmodel.evaluate.baselines.nv_matmul_heuristics import (
        NvMatmulHeuristics,
    )
    from perfmodel.evaluate.baselines.random_order import RandomOrder
    from perfmodel.evaluate.baselines.roofline import Roofline
    from perfmodel.evaluate.baselines.triton_perf_model import TritonPerfModel
    from perfmodel.evaluate.baselines.wave_and_tile import WaveAndTile
    from perfmodel.evaluate.baselines.wavetune import WaveTune

    return (
        AnalyticAlone(), BestSingle(), RandomOrder(), Roofline(), WaveAndTile(), TritonPerfModel(),
        NeuSight(), WaveTune(), AutoHeuristic(), NvMatmulHeuristics(),
    )  # fmt: skip
