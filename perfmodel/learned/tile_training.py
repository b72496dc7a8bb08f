"""From tuned tiles to trees that put the tiles of a problem in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import DataError
from perfmodel.learned.booster import SEED, Progress, TrainSpec, fit_preference
from perfmodel.learned.feature_table import FeatureTable
from perfmodel.learned.forest import Forest
from perfmodel.learned.tile_columns import OVER_BEST, TILE_SCHEMA
from perfmodel.learned.tile_preference import PlaceRule, TileManifest, TilePreference, places
from perfmodel.learned.training import library_versions
from perfmodel.tiling.config import ConfigTable

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

ATTENTION_SPEC = TrainSpec(
    "attention-tiles", 0, 150, depth=4, learning_rate=0.1, rank_learning_rate=0.05,
    rows_per_leaf=5.0,
)  # fmt: skip
"""Seventy problems with one winner each: few and shallow trees."""

MOE_SPEC = TrainSpec(
    "moe-tiles", 0, 300, depth=8, learning_rate=0.1, rank_learning_rate=0.06, rank_pairs=12,
    rows_per_leaf=5.0,
)  # fmt: skip

MOE_PER_TILE = 2
"""Of the first picks, so many may share a tile; inner folds preferred it to one and to any."""

REACH_SHARE = 0.99

LOSERS = 200
"""Of the configurations that lost, at most so many of each problem are trained on."""


@dataclass(frozen=True)
class TileRows:
    """Every legal candidate of problems whose winners are known, N rows.

    Args:
        features: (N, F), in the order of ``names``.
        names: of the columns.
        estimate_s: the analytic time.
        problem, config: numbers of the problem, and of the configuration in ``configs``.
        gpu: canonical name of the device.
        won: whether it is the winner, or one of several as good.
        measured_s: its measured time, NaN where the source gives none.
        configs: what ``config`` counts.
    """

    features: NDArray[np.float32]
    names: tuple[str, ...]
    estimate_s: Floats
    problem: Indices
    config: Indices
    gpu: NDArray[Any]
    won: Mask
    measured_s: Floats
    configs: ConfigTable

    def __len__(self) -> int:
        return len(self.problem)

    @property
    def over_best(self) -> NDArray[np.float32]:
        """Log of the estimate over the least of the problem's, (N,)."""
        return self.features[:, self.names.index(OVER_BEST)]

    def take(self, rows: Mask | Indices) -> TileRows:
        """Return some of the rows."""
        return TileRows(
            self.features[rows], self.names, self.estimate_s[rows], self.problem[rows],
            self.config[rows], self.gpu[rows], self.won[rows], self.measured_s[rows], self.configs,
        )  # fmt: skip

    def problems(self) -> list[Indices]:
        """Return the rows of each problem, by its number."""
        order = np.argsort(self.problem, kind="stable")
        starts = np.flatnonzero(np.diff(self.problem[order], prepend=-1))
        return np.split(order, starts[1:])


def fit_tiles(rows: TileRows, spec: TrainSpec, progress: Progress | None = None) -> Forest:
    """Grow trees that prefer winners to the rest of their problems.

    Raises:
        DataError: no rows.
        NotInstalledError: xgboost is missing.
    """
    if not len(rows):
        raise DataError("there is no winner to learn from; run: perfmodel data pull NAME")
    rows = rows.take(telling(rows))
    blank = np.full(len(rows), "", dtype=object)
    table = FeatureTable(
        features=rows.features, names=rows.names, analytic_s=rows.estimate_s,
        latency_s=np.where(rows.won, 1.0, 2.0), gpu=blank, dtype=blank, problem=rows.problem,
    )  # fmt: skip
    return fit_preference(table, spec, progress=progress)


def reach_of(rows: TileRows) -> float:
    """Return how far above the least estimate the nearest winner lies, but for one in a hundred."""
    over = rows.over_best
    nearest = [over[here[rows.won[here]]].min() for here in rows.problems() if rows.won[here].any()]
    return float(np.quantile(nearest, REACH_SHARE))


def in_places(rows: TileRows, trees: Forest, rule: PlaceRule) -> Floats:
    """Return the place of each row among its problem's, (N,)."""
    disliked, over = -trees.predict(rows.features), rows.over_best
    found = np.empty(len(rows))
    for here in rows.problems():
        configs = rows.configs.take(rows.config[here])
        found[here] = places(disliked[here], over[here], configs, rule)
    return found


def telling(rows: TileRows) -> Indices:
    """Return the rows to train on: all winners, `LOSERS` others of each problem.

    Half of those are the estimate's own favourites, which have to be told apart from the best.
    """
    draw = np.random.default_rng(SEED)
    chosen = []
    for here in rows.problems():
        lost = here[~rows.won[here]]
        if len(lost) > LOSERS:
            hard = lost[np.argsort(rows.estimate_s[lost], kind="stable")[: LOSERS // 2]]
            some = draw.choice(lost, LOSERS // 2, replace=False)
            lost = np.unique(np.concatenate([hard, some]))
        chosen.append(np.concatenate([here[rows.won[here]], lost]))
    return np.sort(np.concatenate(chosen))


def tile_preference(
    family: str,
    rows: TileRows,
    trees: Forest,
    *,
    sources: Sequence[Mapping[str, Any]],
    architectures: Sequence[str],
    dtypes: Sequence[str],
    vendors: Sequence[str],
    rule: PlaceRule,
    accuracy: Mapping[str, Mapping[str, float]],
    spec: TrainSpec,
) -> TilePreference:
    """Put trees and what is known of them together."""
    gpus = tuple(sorted(set(map(str, rows.gpu))))
    manifest = TileManifest(
        family, TILE_SCHEMA, f"{TILE_SCHEMA}-{family}", rows.names, tuple(sources), gpus,
        tuple(sorted(set(architectures))), tuple(dtypes), tuple(vendors), rule, accuracy,
        library_versions(), asdict(spec),
    )  # fmt: skip
    return TilePreference(manifest, trees)
