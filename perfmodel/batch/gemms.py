"""Many matrix products on one device: their tiles chosen from short lists, their times in one go.

One product's best tile is the best of a thousand or so. For many, that choice is made for some of
them that represent the rest; every other product then chooses among what its nearest
representatives found best, by the same model and the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.batch.short_lists import Done, best_tiles, short_lists
from perfmodel.launches import Launches, peak_tflops
from perfmodel.learned.correction import Correction
from perfmodel.learned.coverage import SHARE_FAMILIAR
from perfmodel.learned.ranking import rank_score
from perfmodel.notes import coverage_notes, memory_notes
from perfmodel.prediction import Basis, Prediction
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import NUMBER_FIELDS, GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import legal_mask
from perfmodel.uncertainty import ANALYTIC_LOG_INTERVAL, COVERAGE

if TYPE_CHECKING:
    from perfmodel.hardware.gpu import Gpu
    from perfmodel.predictor import Predictor

Array = NDArray[np.float64]
Index = NDArray[np.intp]
REPRESENTATIVES = 256
"""Products for which all candidates are compared; fewer than that many all get their own."""

FINALISTS = 3
"""Tiles of a product that all trees are asked about."""

LAUNCHES_AT_ONCE = 1 << 13
"""So that the arrays stay small."""


def choose_tiles(
    predictor: Predictor, problems: Sequence[Gemm], table: GemmTable, gpu: Gpu, done: Done
) -> list[TileConfig | None]:
    """Return a tile for each product, ``None`` where no tile of the short list can run.

    ``problems`` share their data types and are those of ``table``.
    """
    chosen: list[TileConfig | None] = [None] * len(problems)

    def best_of(row: int) -> list[TileConfig]:
        return best_tiles(predictor, problems[row], gpu)

    for rows, short in short_lists(_points(table), best_of, REPRESENTATIVES):
        step = max(LAUNCHES_AT_ONCE // len(short), 1)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            for row, found in zip(part, _choose(predictor, table, part, short, gpu), strict=True):
                chosen[row] = None if found < 0 else short[found]
            done(len(part))
    return chosen


def answer_gemms(
    predictor: Predictor,
    problems: Sequence[Gemm],
    table: GemmTable,
    configs: Sequence[TileConfig],
    gpu: Gpu,
) -> list[Prediction | None]:
    """Predict each product under its own tile, ``None`` where that cannot run."""
    answers: list[Prediction | None] = []
    for start in range(0, len(problems), LAUNCHES_AT_ONCE):
        here = slice(start, start + LAUNCHES_AT_ONCE)
        tiles = ConfigTable.of(configs[here])
        part = _take(table, np.arange(len(problems))[here])
        found = predictor.launches(part, tiles, gpu)
        legal = legal_mask(part, tiles, gpu, found.work.resources)
        seconds = np.exp(predictor.log_seconds(found))
        model = predictor.model_for(gpu)
        answers += _answers(problems[here], tiles, found, model, seconds, legal)
    return answers


def _answers(
    problems: Sequence[Gemm],
    tiles: ConfigTable,
    found: Launches,
    model: Correction | None,
    seconds: Array,
    legal: NDArray[np.bool_],
) -> list[Prediction | None]:
    gpu = found.gpu
    learned = found.work.flops > 0
    low, high = (np.full(len(found), end) for end in ANALYTIC_LOG_INTERVAL)
    if model is None or found.features is None:
        learned = within = np.zeros_like(learned)
    else:
        known = model.knows(gpu.name, found.dtype)
        within = learned & model.covers(found.features) & known
        for mask, inside in ((within, True), (learned & ~within, False)):
            if mask.any():
                low[mask], high[mask] = model.log_interval(found.features[mask], inside)
    us = seconds * 1e6
    floor_us = np.minimum(found.floor_s * 1e6, us)
    low_us = np.maximum(us * np.exp(np.minimum(low, 0.0)), floor_us)
    high_us = us * np.exp(np.maximum(high, 0.0))
    occupancy = np.maximum(found.work.resources.occupancy, 1.0)
    occupancies = np.broadcast_to(occupancy, us.shape).astype(int)
    waves = found.work.ctas / (gpu.sm_count * occupancies)
    scale = us / found.estimate.seconds
    parts = {name: value * scale for name, value in found.estimate.by_limiter.items()}
    peak = peak_tflops(gpu, found.work.compute_dtype)
    entry: Any = {}
    coverage: tuple[str, ...] = ()
    if model is not None:
        entry = model.accuracy.get(f"{gpu.name}/{found.dtype}") or model.accuracy.get(gpu.name)
        coverage = coverage_notes(model.accuracy, model.knows(gpu.name, found.dtype), found)
    answers: list[Prediction | None] = []
    for i, problem in enumerate(problems):
        if not legal[i]:
            answers.append(None)
            continue
        basis: Basis = "interpolated" if within[i] else "extrapolated" if learned[i] else "analytic"
        tflops = problem.flops / us[i] * 1e-6
        limiter = found.limiter(i)
        notes = list(coverage) if basis == "extrapolated" else []
        if not found.work.ctas[i]:
            notes = ["no work: the time is the launch overhead alone"]
        elif limiter == "launch":
            notes.append("launch-bound: the overhead of a launch outweighs its work")
        notes += memory_notes(problem.compulsory_bytes, "A, B and C", gpu)
        answers.append(Prediction(
            problem=problem,
            gpu=gpu.name,
            config=tiles.configs[i],
            latency_us=float(us[i]),
            interval_us=(float(low_us[i]), float(high_us[i])),
            coverage=COVERAGE,
            tflops=float(tflops),
            share_of_peak=float(tflops / peak),
            limiter=limiter,
            breakdown_us={name: float(value[i]) for name, value in parts.items()},
            waves=float(waves[i]),
            occupancy=int(occupancies[i]),
            basis=basis,
            model=model.version if model is not None and learned[i] else None,
            expected_error=(entry or {}).get("error_mean") if within[i] else None,
            notes=tuple(notes),
        ))  # fmt: skip
    return answers


def _points(table: GemmTable) -> NDArray[np.float32]:
    """Log sizes and layouts, which a tile depends on, (N, 8)."""
    sizes = [np.log2(np.maximum(np.asarray(v), 0.5)) for v in (table.m, table.n, table.k)]
    others = [np.log2(np.maximum(np.asarray(table.batch), 0.5))]
    others += [4.0 * np.asarray(v) for v in (table.a_row, table.b_row)]
    others += [np.log2(np.asarray(v)) for v in (table.a_vector_bytes, table.b_vector_bytes)]
    return np.stack([*sizes, *others], axis=1).astype(np.float32)


def _choose(
    predictor: Predictor, table: GemmTable, rows: Index, short: list[TileConfig], gpu: Gpu
) -> Index:
    """Return the index of the best of the short list for each row, -1 where none can run."""
    n, k = len(rows), len(short)
    tiles = ConfigTable.of(short).take(np.tile(np.arange(k), n))
    part = _take(table, np.repeat(rows, k))
    found = predictor.launches(part, tiles, gpu)
    legal = legal_mask(part, tiles, gpu, found.work.resources)
    analytic = np.log(found.estimate.seconds)
    model = predictor.model_for(gpu)
    score = np.where(legal, analytic, np.inf)
    if model is not None and found.features is not None:
        worked = found.work.flops > 0
        log_s = analytic + np.where(worked, model.rough_correction(found.features), 0.0)
        rough = np.where(legal, log_s, np.inf).reshape(n, k)
        last = np.argsort(rough, axis=1, kind="stable")[:, :FINALISTS]
        close = (last + k * np.arange(n)[:, None]).ravel()
        close = close[legal[close] & worked[close]]
        log_s[close] += model.remaining_correction(found.features[close])
        preference = np.zeros(n * k)
        if len(close) and model.familiar(found.features[legal]).mean() >= SHARE_FAMILIAR:
            preference[close] = model.preference(found.features[close])
        known = model.knows(gpu.name, found.dtype)
        final = np.full(n * k, np.inf)
        final[close] = rank_score(analytic[close], log_s[close], preference[close], known)
        score = np.where(worked, final, score)
    score = score.reshape(n, k)
    return np.where(np.isfinite(score.min(axis=1)), score.argmin(axis=1), -1)


def _take(table: GemmTable, rows: Index) -> GemmTable:
    return replace(table, **{name: getattr(table, name)[rows] for name in NUMBER_FIELDS})
