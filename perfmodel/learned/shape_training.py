"""From measured shapes to trees: log(measured / analytic) of kernels whose tile is unknown."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import DataError
from perfmodel.learned.booster import Progress, TrainSpec, fit_trees
from perfmodel.learned.forest import Forest
from perfmodel.learned.shape_table import ShapeRows

Floats = NDArray[np.float64]

FP8_SPEC = TrainSpec("fp8", 600, 0, depth=8, learning_rate=0.05, columns_per_tree=0.8)


def fit_shape(
    rows: ShapeRows, spec: TrainSpec, progress: Progress | None = None, weight: Floats | None = None
) -> Forest:
    """Grow trees over all columns that answer log(measured / analytic) on any device.

    Raises:
        DataError: no rows.
        NotInstalledError: xgboost is missing.
    """
    if not len(rows):
        raise DataError("there is no measured row to train on; run: perfmodel data pull NAME")
    weights = np.ones(len(rows)) if weight is None else weight
    return fit_trees(rows.features, rows.target, weights, spec, spec.time_trees, progress)
