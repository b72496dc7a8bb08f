"""Growing the trees: log(measured / analytic), with xgboost from the ``train`` extra."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import DataError, NotInstalledError
from perfmodel.learned.coverage import Coverage
from perfmodel.learned.feature_table import FeatureTable
from perfmodel.learned.forest import Forest

Floats = NDArray[np.float64]
Progress = Callable[[float], None]
"""Called with the share that is done, 0 to 1."""

SEED = 20_240_814
BAG_SEED = 1_000
"""Apart from each other more than the seeds that a protocol counts up."""


@dataclass(frozen=True)
class TrainSpec:
    """Size and strength of the trees.

    ``time_trees`` learn the time; their rows weigh (best / time), at least ``weight_floor``, since
    what matters most is the order near the best. ``rank_trees`` learn which of two configurations
    of a problem is faster, from pairs with one of the ``rank_pairs`` that are best so far.

    With ``bags`` the time trees are that many forests, each grown with its own draws of rows and
    columns, and their mean answers: what one forest makes up where data is thin, another does not.

    They minimise the squared error; with ``huber`` only up to so many log units, and past them the
    absolute one, which a few wild timings move less.
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
    rank_learning_rate: float = 0.08
    rank_columns_per_tree: float = 0.4
    rank_pairs: int = 6
    bags: int = 1
    seed: int = SEED
    huber: float | None = None


SHIPPED = TrainSpec(
    "shipped",
    600,
    300,
    depth=8,
    learning_rate=0.12,
    columns_per_tree=0.5,
    rows_per_leaf=1.0,
    bags=2,
)
LARGE = TrainSpec(
    "large",
    2500,
    1000,
    depth=9,
    learning_rate=0.025,
    columns_per_tree=0.4,
    rows_per_leaf=1.0,
    rank_learning_rate=0.03,
)

GRADES = 30
SLOWEST_GRADED = 0.6
"""Configurations slower than best / 0.6 are all the same to the ranking; the rest get 30 grades."""


@dataclass(frozen=True)
class Heads:
    """Two forests over the same features: log(measured / analytic), and preference (no unit)."""

    time: Forest
    rank: Forest
    known: frozenset[tuple[str, str]] = frozenset()
    """Devices and data types that the training rows have."""
    coverage: Coverage | None = None
    """What the training rows cover; without it every tile counts as familiar."""

    def log_correction(self, features: NDArray[np.float32]) -> Floats:
        """Return log(measured / analytic), shape (N,)."""
        return self.time.predict(features) * self.trust(features)

    def trust(self, features: NDArray[np.float32]) -> Floats:
        """Return how much of what the time trees say counts, see `Coverage.trust`."""
        return np.ones(len(features)) if self.coverage is None else self.coverage.trust(features)


def fit_heads(table: FeatureTable, spec: TrainSpec, progress: Progress | None = None) -> Heads:
    """Train both forests on all rows of ``table``.

    Raises:
        DataError: no rows.
        NotInstalledError: xgboost is missing.
    """
    if not len(table):
        raise DataError("there is no measured row to train on; run: perfmodel data pull NAME")
    tell = progress or (lambda _share: None)
    trees = spec.time_trees + spec.rank_trees
    time = _time_trees(table, spec, lambda done: tell(done * spec.time_trees / trees))
    rank = fit_preference(
        table, spec, progress=lambda done: tell((spec.time_trees + done * spec.rank_trees) / trees)
    )
    return Heads(time, rank, table.kinds(), Coverage.of(table))


def _time_trees(table: FeatureTable, spec: TrainSpec, tell: Progress) -> Forest:
    weight = near_best_weight(table, spec.weight_floor)
    each = max(1, spec.time_trees // spec.bags)

    def bag(number: int) -> Forest:
        drawn = replace(spec, seed=spec.seed + BAG_SEED * number)
        return fit_trees(
            table.features, table.target, weight, drawn, each,
            lambda done: tell((number + done) / spec.bags),
        )  # fmt: skip

    return Forest.mean_of([bag(number) for number in range(spec.bags)])


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

    They minimise the error that ``spec`` says, or estimate that ``quantile`` of the target.
    """
    xgboost = _xgboost()
    parameters = _parameters(spec) | {
        "base_score": float(
            np.average(target, weights=weight)
            if quantile is None
            else np.quantile(target, quantile)
        )
    }
    if quantile is not None:
        parameters |= {"objective": "reg:quantileerror", "quantile_alpha": quantile}
    data = xgboost.DMatrix(features, target, weight=weight, nthread=parameters["nthread"] or None)
    loss = None if quantile is not None or spec.huber is None else _huber(spec.huber)
    return _grow(parameters, data, trees, progress, loss)


def _huber(slope: float) -> Callable[[Floats, Any], tuple[Floats, Floats]]:
    """Return the gradient of Huber's loss and the curvature of the parabola that bounds it.

    Steps by that curvature never raise the loss (Huber and Ronchetti, Robust Statistics, 7.8);
    those of xgboost's own pseudo-Huber error overshoot where errors are several slopes wide.
    """

    def loss(predicted: Floats, data: Any) -> tuple[Floats, Floats]:
        error = predicted - data.get_label()
        weight = data.get_weight() if data.get_weight().size else 1.0
        bend = np.minimum(1.0, slope / np.maximum(np.abs(error), 1e-12))
        return error * bend * weight, bend * weight

    return loss


def fit_preference(
    table: FeatureTable,
    spec: TrainSpec,
    *,
    start: Floats | None = None,
    progress: Progress | None = None,
) -> Forest:
    """Grow trees that prefer the faster of two configurations of one problem (LambdaMART).

    Args:
        table: measured rows.
        spec: number and size of the trees.
        start: preferences (N,) of another model that these trees correct.
        progress: told the share that is done.

    Returns:
        Trees whose sum is higher for the faster configuration; differences between problems
        mean nothing.
    """
    xgboost = _xgboost()
    order = np.argsort(table.problem, kind="stable")  # xgboost wants groups in one piece
    nearness = (table.best_s() / table.latency_s - SLOWEST_GRADED) / (1.0 - SLOWEST_GRADED)
    grade = np.round(GRADES * np.clip(nearness, 0.0, 1.0)).astype(np.int64)
    parameters = _parameters(spec) | {
        "objective": "rank:pairwise",
        "lambdarank_pair_method": "topk",
        "lambdarank_num_pair_per_sample": spec.rank_pairs,
        "ndcg_exp_gain": False,
        "eta": spec.rank_learning_rate,
        "colsample_bytree": spec.rank_columns_per_tree,
        "min_child_weight": 0.1,  # of pairs' curvatures, at most a quarter each
        "base_score": 0.0,
    }
    data = xgboost.DMatrix(
        table.features[order],
        grade[order],
        qid=np.unique(table.problem[order], return_inverse=True)[1],
        base_margin=None if start is None else start[order],
        nthread=parameters["nthread"] or None,
    )
    data.set_weight(_equal_say(table.take(order)))
    return _grow(parameters, data, spec.rank_trees, progress)


def _equal_say(table: FeatureTable) -> Floats:
    """Return a weight a problem, in order, that gives every device the same weight in all.

    Which of two near-equal tiles wins is a device's own; the one with most problems would decide.
    """
    first = np.unique(table.problem, return_index=True)[1]
    _, device, count = np.unique(
        table.gpu[first].astype(str), return_inverse=True, return_counts=True
    )
    return np.asarray(len(first) / len(count) / count[device])


def _parameters(spec: TrainSpec) -> dict[str, Any]:
    return {
        "tree_method": "hist",
        "max_depth": spec.depth,
        "eta": spec.learning_rate,
        "subsample": spec.subsample,
        "colsample_bytree": spec.columns_per_tree,
        "min_child_weight": spec.rows_per_leaf,
        "reg_lambda": spec.l2,
        "nthread": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "seed": spec.seed,
    }


def _grow(
    parameters: dict[str, Any],
    data: Any,
    trees: int,
    progress: Progress | None,
    loss: Callable[[Floats, Any], tuple[Floats, Floats]] | None = None,
) -> Forest:
    xgboost = _xgboost()
    callbacks = [_tree_counter(xgboost, trees, progress)] if progress else None
    booster = xgboost.train(parameters, data, trees, obj=loss, callbacks=callbacks)
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
