"""Growing the trees: log(measured / analytic), with xgboost from the ``train`` extra."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import DataError, NotInstalledError
from perfmodel.learned.feature_table import FeatureTable
from perfmodel.learned.forest import Forest

Floats = NDArray[np.float64]
Progress = Callable[[float], None]
"""Called with the share that is done, 0 to 1."""

SEED = 20_240_814


@dataclass(frozen=True)
class TrainSpec:
    """Size and strength of the trees.

    ``time_trees`` learn the time, ``rank_trees`` the time relative to the problem's best. Rows
    weigh (best / time), at least ``weight_floor``: what matters most is the order near the best.
    """

    name: str
    time_trees: int
    rank_trees: int
    depth: int
    learning_rate: float
    weight_floor: float = 0.2
    subsample: float = 0.8
    columns_per_tree: float = 0.6
    rows_per_leaf: float = 3.0
    l2: float = 1.0
    seed: int = SEED


SHIPPED = TrainSpec("shipped", 300, 200, depth=8, learning_rate=0.12)
LARGE = TrainSpec("large", 2500, 1500, depth=9, learning_rate=0.03)


@dataclass(frozen=True)
class Heads:
    """Two forests over the same features, both in natural-log units beside the analytic time."""

    time: Forest
    rank: Forest
    known: frozenset[tuple[str, str]] = frozenset()
    """Devices and data types that the training rows have."""

    def log_correction(self, features: NDArray[np.float32]) -> Floats:
        """Return log(measured / analytic), shape (N,)."""
        return self.time.predict(features)


def fit_heads(table: FeatureTable, spec: TrainSpec, progress: Progress | None = None) -> Heads:
    """Train both forests on all rows of ``table``.

    Raises:
        DataError: no rows.
        NotInstalledError: xgboost is missing.
    """
    if not len(table):
        raise DataError("there is no measured row to train on; run: perfmodel data pull NAME")
    tell = progress or (lambda _share: None)
    weight = near_best_weight(table, spec.weight_floor)
    trees = spec.time_trees + spec.rank_trees
    time = fit_trees(
        table.features, table.target, weight, spec, spec.time_trees,
        lambda done: tell(done * spec.time_trees / trees),
    )  # fmt: skip
    relative = np.log(table.latency_s / table.best_s())
    rank = fit_trees(
        table.features, relative, weight, spec, spec.rank_trees,
        lambda done: tell((spec.time_trees + done * spec.rank_trees) / trees),
    )  # fmt: skip
    return Heads(time=time, rank=rank, known=table.kinds())


def near_best_weight(table: FeatureTable, floor: float) -> Floats:
    """Return each row's weight: the problem's best time over the row's, at least ``floor``."""
    return np.maximum(table.best_s() / table.latency_s, floor)


def fit_trees(
    features: NDArray[np.float32],
    target: Floats,
    weight: Floats,
    spec: TrainSpec,
    trees: int,
    progress: Progress | None = None,
    *,
    quantile: float | None = None,
) -> Forest:
    """Grow ``trees`` regression trees; the same rows give the same trees.

    They minimise squared error, or with ``quantile`` estimate that quantile of the target.
    """
    xgboost = _xgboost()
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    parameters = {
        "tree_method": "hist",
        "max_depth": spec.depth,
        "eta": spec.learning_rate,
        "subsample": spec.subsample,
        "colsample_bytree": spec.columns_per_tree,
        "min_child_weight": spec.rows_per_leaf,
        "reg_lambda": spec.l2,
        "base_score": float(
            np.average(target, weights=weight)
            if quantile is None
            else np.quantile(target, quantile)
        ),
        "nthread": threads,
        "seed": spec.seed,
    }
    if quantile is not None:
        parameters |= {"objective": "reg:quantileerror", "quantile_alpha": quantile}
    data = xgboost.DMatrix(features, target, weight=weight, nthread=threads or None)
    callbacks = [_tree_counter(xgboost, trees, progress)] if progress else None
    booster = xgboost.train(parameters, data, trees, callbacks=callbacks)
    return Forest.from_xgboost(bytes(booster.save_raw("json")))


def scaled(spec: TrainSpec, share: float) -> TrainSpec:
    """Return ``spec`` with that share of its trees, at least one of each kind; for quick looks."""
    return replace(
        spec,
        time_trees=max(1, round(spec.time_trees * share)),
        rank_trees=max(1, round(spec.rank_trees * share)),
    )


def _xgboost() -> Any:
    try:
        import xgboost  # noqa: PLC0415 - an extra, and 1.4 s to import
    except ImportError as error:
        raise NotInstalledError(
            "training needs xgboost; install it with: pip install 'perfmodel[train]'"
        ) from error
    return xgboost


def _tree_counter(xgboost: Any, trees: int, progress: Progress) -> Any:
    class Counter(xgboost.callback.TrainingCallback):  # type: ignore[misc] # xgboost is untyped
        def after_iteration(self, _model: Any, epoch: int, _log: Any) -> bool:
            progress((epoch + 1) / trees)
            return False

    return Counter()
