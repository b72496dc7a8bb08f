"""A few measured problems of a new device correct a trained model, for that device alone.

Small trees learn what the model still gets wrong there. They are added to the model's own trees
when, and only when, that device is asked about, so that nothing else is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import DataError
from perfmodel.learned.booster import (
    Heads,
    TrainSpec,
    fit_preference,
    fit_trees,
    near_best_weight,
)
from perfmodel.learned.feature_table import FeatureTable
from perfmodel.learned.intervals import conformal_quantile
from perfmodel.learned.model import DeviceDelta, GemmModel
from perfmodel.learned.training import predict_rows

Floats = NDArray[np.float64]

ADAPT = TrainSpec(
    "adapt",
    300,
    300,
    depth=6,
    learning_rate=0.05,
    columns_per_tree=0.5,
    rows_per_leaf=5.0,
    l2=5.0,
)
FOLDS = 5
PROBLEMS_MIN = 2
"""With one problem, nothing could be held out to say how good the correction is."""


@dataclass(frozen=True)
class Gain:
    """What adapting did to the device's problems, each held out in turn."""

    problems: int
    rows: int
    error_before: float
    error_after: float
    pick_before: float
    pick_after: float


def adapt(model: GemmModel, table: FeatureTable) -> tuple[GemmModel, Mapping[str, Gain]]:
    """Return the model corrected for every device of ``table``, and what that gained by device.

    Args:
        model: a trained model; its answers for other devices stay as they are.
        table: measured rows of a few problems, best with several configurations each.

    Raises:
        DataError: a device has fewer than two problems.
        NotInstalledError: xgboost is missing.
    """
    deltas, gains = dict(model.deltas), {}
    for gpu in sorted({str(g) for g in table.gpu}):
        rows = table.take(table.gpu == gpu)
        base = model.for_device(gpu)
        heads = Heads(base.time, base.rank, table.kinds(), base.coverage)
        deltas[gpu], gains[gpu] = _device(model, heads, gpu, rows)
    return replace(model, deltas=deltas), gains


def adapt_heads(heads: Heads, table: FeatureTable, spec: TrainSpec = ADAPT) -> Heads:
    """Return ``heads`` with trees added that learn their errors on ``table``."""
    weight = near_best_weight(table, spec.weight_floor)
    target = table.target / heads.trust(table.features) - heads.time.predict(table.features)
    time = fit_trees(table.features, target, weight, spec, spec.time_trees)
    rank = fit_preference(table, spec, start=heads.rank.predict(table.features))
    return replace(
        heads,
        time=heads.time.plus(time),
        rank=heads.rank.plus(rank),
        known=heads.known | table.kinds(),
    )


def _device(
    model: GemmModel, heads: Heads, gpu: str, rows: FeatureTable
) -> tuple[DeviceDelta, Gain]:
    numbers = np.unique(rows.problem, return_inverse=True)[1]
    problems = int(numbers.max(initial=-1)) + 1
    if problems < PROBLEMS_MIN:
        raise DataError(
            f"{problems} measured problem of {gpu} is too few to adapt to; measure at least "
            f"{PROBLEMS_MIN}, better 20 or more"
        )
    held = np.empty(len(rows))
    score = np.empty(len(rows))
    folds = np.random.default_rng(0).permutation(problems)[numbers] % min(FOLDS, problems)
    for fold in range(min(FOLDS, problems)):
        test = folds == fold
        adapted = adapt_heads(heads, rows.take(~test))
        answer = predict_rows(adapted, rows.take(test))
        held[test], score[test] = answer.log_correction, answer.rank
    full = adapt_heads(heads, rows)
    spread = model.spread.predict(rows.features)
    before = predict_rows(heads, rows)
    gain = Gain(
        problems=problems,
        rows=len(rows),
        error_before=_error(rows, before.log_correction),
        error_after=_error(rows, held),
        pick_before=_pick(rows, before.rank),
        pick_after=_pick(rows, score),
    )
    delta = DeviceDelta(
        time=full.time.beyond(model.time),
        rank=full.rank.beyond(model.rank),
        dtypes=tuple(sorted({str(d) for d in rows.dtype})),
        seen=conformal_quantile(np.abs(rows.target - held), spread, rows.problem),
        error_mean=gain.error_after,
        problems=problems,
    )
    return delta, gain


def _error(rows: FeatureTable, correction: Floats) -> float:
    return float(np.mean(np.abs(rows.analytic_s * np.exp(correction) / rows.latency_s - 1.0)))


def _pick(rows: FeatureTable, score: Floats) -> float:
    """Mean over problems of best time over the time of the configuration picked."""
    order = np.lexsort((score, rows.problem))
    first = np.unique(rows.problem[order], return_index=True)[1]
    return float(np.mean(rows.best_s()[order][first] / rows.latency_s[order][first]))
