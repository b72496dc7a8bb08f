"""How fast the best known launches of a kind run: what a tile can hope for at most.

For each measured problem the best time over its roofline says how close anyone came. A quantile
of that ratio, by what kind of problem it is, is the ceiling; the tile does not enter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.learned.booster import TrainSpec, fit_trees
from perfmodel.learned.feature_table import FeatureTable
from perfmodel.learned.forest import Forest

CEILING_QUANTILE = 0.9
"""A tenth of the known problems of a kind came closer to their roofline than the ceiling."""

ROOFLINE = "roofline_share"
KIND_COLUMNS = (
    "intensity_over_balance", "footprint_over_l2", "a_over_l2", "b_over_l2", "balance", "aspect",
    "a_vector", "b_vector", "a_row", "b_row", "operand_bits", "b_bits", "on_tensor_units",
)  # fmt: skip

SPEC = TrainSpec("ceiling", 60, 0, depth=4, learning_rate=0.15, rows_per_leaf=20)


def fit_ceiling(table: FeatureTable) -> Forest:
    """Learn log(best measured time / roofline) at the ceiling's quantile, one row a problem."""
    order = np.lexsort((table.latency_s, table.problem))
    best = table.take(order[np.unique(table.problem[order], return_index=True)[1]])
    features = best.features.copy()
    kind = np.isin(best.names, KIND_COLUMNS)
    features[:, ~kind] = 0.0  # a constant column is never split, so tiles cannot enter
    target = best.target - log_roofline_share(best.features, best.names)
    weight = np.ones(len(best))
    return fit_trees(features, target, weight, SPEC, SPEC.time_trees, quantile=1 - CEILING_QUANTILE)


def log_roofline_share(
    features: NDArray[np.float32], names: tuple[str, ...]
) -> NDArray[np.float64]:
    """Return log(roofline / analytic time) of each row, (N,)."""
    column: NDArray[np.float64] = features[:, names.index(ROOFLINE)].astype(np.float64)
    return column * float(np.log(2.0))
