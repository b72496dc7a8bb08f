"""Answers from numbers: what a launch's description and a model say becomes a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.model import LIMITERS
from perfmodel.families import TileProblem, family_of
from perfmodel.families.tile_model import TileOrder
from perfmodel.launches import Launches, peak_tflops
from perfmodel.learned.correction import Correction
from perfmodel.notes import coverage_notes
from perfmodel.prediction import Basis, Candidate, Prediction, Ranking, Rejected
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import Rejection
from perfmodel.uncertainty import COVERAGE, expected_error, log_interval, typical_error

Array = NDArray[np.float64]


def basis_of(model: Correction | None, found: Launches) -> Basis:
    """Return on what the answer to a single launch rests, measured tables aside."""
    if model is None or found.features is None or not found.work.flops[0]:
        return "analytic"
    known = model.knows(found.gpu.name, found.dtype)
    return "interpolated" if known and model.covers(found.features)[0] else "extrapolated"


def answer(
    problem: TileProblem,
    config: TileConfig,
    found: Launches,
    model: Correction | None,
    *,
    predicted_us: float,
    measured_us: float | None,
) -> Prediction:
    """Fill in the answer for the single launch of ``found``; a measured time overrules."""
    gpu = found.gpu
    latency_us = predicted_us if measured_us is None else float(measured_us)
    basis: Basis = basis_of(model, found) if measured_us is None else "measured"
    low, high = log_interval(model, found, basis)
    floor_us = min(float(found.floor_s[0]) * 1e6, latency_us)
    learned = model if basis in ("interpolated", "extrapolated") else None
    tflops = problem.flops / latency_us * 1e-6
    occupancy = max(int(found.work.resources.occupancy[0]), 1)
    scale = latency_us / float(found.estimate.seconds[0])
    notes = family_of(problem).notes(problem, config, found)
    if learned is not None and basis == "extrapolated":
        known = learned.knows(gpu.name, found.dtype)
        notes = (*coverage_notes(learned.accuracy, known, found), *notes)
    return Prediction(
        problem=problem,
        gpu=gpu.name,
        config=config,
        latency_us=latency_us,
        interval_us=(
            max(latency_us * float(np.exp(min(low, 0.0))), floor_us),
            latency_us * float(np.exp(max(high, 0.0))),
        ),
        coverage=COVERAGE,
        tflops=tflops,
        share_of_peak=tflops / peak_tflops(gpu, found.work.compute_dtype),
        limiter=found.limiter(0),
        breakdown_us={
            name: float(seconds[0]) * scale
            for name, seconds in zip(LIMITERS, found.estimate.breakdown_s, strict=True)
        },
        waves=float(found.work.ctas[0]) / (gpu.sm_count * occupancy),
        occupancy=occupancy,
        basis=basis,
        model=None if learned is None else learned.version,
        expected_error=expected_error(learned, found) if basis == "interpolated" else None,
        notes=notes,
    )


def ranking(
    configs: ConfigTable,
    found: Launches,
    log_s: Array,
    by_time: NDArray[np.intp],
    first: Prediction,
    *,
    basis: NDArray[Any],
    refused: Sequence[tuple[TileConfig, tuple[Rejection, ...]]],
    top: int | None,
    order: TileOrder | None = None,
) -> Ranking:
    """Put configurations in order.

    Args:
        configs, found, log_s: what was asked, a row each; ``inf`` for what cannot run.
        by_time: the rows in order.
        first: the answer for the fastest.
        basis: of each row's time, as words.
        refused: configurations with what is wrong with them; no reasons for those that can run.
        top: keep only that many.
        order: trees that know winners and no times, where they made the order.
    """
    by_time = by_time[: int(np.isfinite(log_s).sum())]
    latency_us = np.exp(log_s) * 1e6
    slowdown = latency_us / latency_us[by_time[0]]
    unsure = int((slowdown[by_time] <= 1 + typical_error(first)).sum())
    candidates = tuple(
        Candidate(
            rank=place,
            config=configs.configs[row],
            latency_us=float(latency_us[row]),
            slowdown=float(slowdown[row]),
            limiter=found.limiter(row),
            basis=str(basis[row]),  # type: ignore[arg-type]  # words of `Basis`
            position=int(row),
        )
        for place, row in enumerate(by_time[:top], start=1)
    )
    return Ranking(
        problem=first.problem,
        gpu=found.gpu.name,
        candidates=candidates,
        rejected=tuple(
            Rejected(config, reasons, position)
            for position, (config, reasons) in enumerate(refused)
            if reasons
        ),
        considered=len(by_time),
        unsure=unsure if order is None else min(order.leaders, len(by_time)),
        basis=first.basis,
        model=first.model,
        expected_error=first.expected_error,
        notes=first.notes if order is None else (*first.notes, order.note),
        ordered_by=None if order is None else order.model.version,
    )
