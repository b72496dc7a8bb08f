"""From measured rows to a model with calibrated intervals and its held-out accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.learned.booster import Heads, TrainSpec, fit_heads, fit_trees
from perfmodel.learned.ceiling import fit_ceiling
from perfmodel.learned.coverage import Coverage, comparable
from perfmodel.learned.feature_table import FeatureTable
from perfmodel.learned.features import GEMM_SCHEMA
from perfmodel.learned.forest import Forest
from perfmodel.learned.intervals import (
    COVERAGE,
    Calibration,
    conformal_quantile,
    log_error_target,
)
from perfmodel.learned.model import GemmModel, Manifest
from perfmodel.learned.probes import probe_features
from perfmodel.learned.ranking import rank_score

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Tell = Callable[[str, float], None]
"""Called with the step's name and the share of all steps that is done, 0 to 1."""

UNSEEN_OVER_SEEN = 4.0
"""How much wider intervals are on a device out of training: between 3.8 and 4.7, the ratios that
training on H100 and asking for A100, and the reverse, give (`perfmodel evaluate intervals`)."""

SPREAD_SPEC = TrainSpec("spread", 60, 0, depth=6, learning_rate=0.1, rows_per_leaf=50)


@dataclass(frozen=True)
class HeldOut:
    """Predictions of rows by models that saw neither them nor their problems, (N,) each.

    ``rank`` is the score to order a problem's configurations by, log units; rows that no split
    held out are NaN.
    """

    log_correction: Floats
    rank: Floats

    def seconds(self, table: FeatureTable) -> Floats:
        """Return predicted latencies in seconds."""
        return table.analytic_s * np.exp(self.log_correction)

    def log_error(self, table: FeatureTable) -> Floats:
        """Return |log(measured / predicted)|."""
        return np.abs(table.target - self.log_correction)


def cross_fit(
    table: FeatureTable,
    splits: Iterable[tuple[Mask, Mask]],
    spec: TrainSpec,
    tell: Tell | None = None,
) -> HeldOut:
    """Train on each split's first mask and predict the rows of its second."""
    correction, rank = np.full(len(table), np.nan), np.full(len(table), np.nan)
    parts = list(splits)
    for i, (train, test) in enumerate(parts):
        heads = fit_heads(table.take(train), spec, _share(tell, f"fold {i + 1}", i, len(parts)))
        answer = predict_rows(heads, table.take(test))
        correction[test], rank[test] = answer.log_correction, answer.rank
    return HeldOut(log_correction=correction, rank=rank)


def predict_rows(heads: Heads, table: FeatureTable) -> HeldOut:
    """Return what ``heads`` say of every row of ``table``."""
    correction = heads.log_correction(table.features)
    log_analytic = np.log(table.analytic_s)
    preference = heads.rank.predict(table.features)
    if heads.coverage is not None:
        familiar = heads.coverage.familiar(table.features)
        preference = np.where(comparable(familiar, table.problem), preference, 0.0)
    score = rank_score(
        log_analytic, log_analytic + correction, preference, table.is_of(heads.known)
    )
    return HeldOut(correction, score)


def fit_gemm(
    table: FeatureTable,
    folds: Sequence[tuple[Mask, Mask]],
    spec: TrainSpec,
    *,
    sources: tuple[Mapping[str, Any], ...] = (),
    unseen_over_seen: float = UNSEEN_OVER_SEEN,
    tell: Tell | None = None,
) -> tuple[GemmModel, HeldOut]:
    """Train the model of all rows, its intervals and accuracy taken from grouped folds.

    Args:
        table: measured rows with known configurations.
        folds: train and test masks; rows outside every test part are trained on only.
        spec: size of the trees.
        sources: what the rows come from, for the manifest.
        unseen_over_seen: how much wider intervals are on devices out of training.
        tell: told which step runs and how far the whole is.
    """
    steps = len(folds) + 1
    held_out = cross_fit(table, folds, spec, _steps(tell, 0, len(folds), steps))
    heads = fit_heads(table, spec, _share(tell, "all rows", len(folds), steps))
    rows = np.isfinite(held_out.log_correction)
    errors = held_out.log_error(table)
    spread, seen = calibrate(table.features[rows], errors[rows], table.problem[rows])
    coverage = heads.coverage or Coverage.of(table)
    manifest = Manifest(
        family="gemm",
        schema=GEMM_SCHEMA,
        version=f"{GEMM_SCHEMA}-{spec.name}",
        features=table.names,
        sources=tuple(sources),
        known=_known(table),
        calibration=Calibration(COVERAGE, seen, unseen_over_seen * seen),
        ranges=_ranges(coverage),
        tiles=tuple(coverage.tiles.tolist()),
        probes=probe_features(),
        accuracy=_accuracy(table, held_out),
        libraries=library_versions(),
        spec=asdict(spec),
    )
    model = GemmModel(manifest, heads.time, heads.rank, spread, fit_ceiling(table))
    return model, held_out


def calibrate(
    features: NDArray[np.float32], errors: Floats, problem: NDArray[np.int64]
) -> tuple[Forest, float]:
    """Return trees for the log difficulty, and its multiple that covers the nominal share.

    The multiple is taken on problems whose errors the trees did not see: half and half.
    """
    target = log_error_target(errors)
    numbers = np.unique(problem, return_inverse=True)[1]
    half = np.random.default_rng(0).permutation(numbers.max() + 1)[numbers] % 2 == 0
    quantiles = []
    for train in (half, ~half):
        if not train.any() or train.all():
            continue
        forest = _spread(features[train], target[train])
        test = ~train
        quantiles.append(
            conformal_quantile(errors[test], forest.predict(features[test]), problem[test])
        )
    forest = _spread(features, target)
    if not quantiles:
        quantiles = [conformal_quantile(errors, forest.predict(features), problem)]
    return forest, float(np.mean(quantiles))


def _spread(features: NDArray[np.float32], target: Floats) -> Forest:
    return fit_trees(features, target, np.ones(len(target)), SPREAD_SPEC, SPREAD_SPEC.time_trees)


def _known(table: FeatureTable) -> Mapping[str, tuple[str, ...]]:
    kinds = table.kinds()
    return {
        gpu: tuple(sorted(d for g, d in kinds if g == gpu)) for gpu in sorted({g for g, _ in kinds})
    }


def _ranges(coverage: Coverage) -> Mapping[str, tuple[float, float]]:
    pairs = zip(coverage.low.tolist(), coverage.high.tolist(), strict=True)
    return dict(zip(coverage.names, pairs, strict=True))


def _accuracy(table: FeatureTable, held_out: HeldOut) -> Mapping[str, Mapping[str, float]]:
    """Held-out error of each device and type, as fractions of the measured time."""
    error = np.abs(held_out.seconds(table) / table.latency_s - 1.0)
    out: dict[str, dict[str, float]] = {}
    for gpu in sorted(set(table.gpu)):
        for dtype in ["all", *sorted({str(d) for d in table.dtype[table.gpu == gpu]})]:
            rows = (table.gpu == gpu) & np.isfinite(error)
            if dtype != "all":
                rows &= table.dtype == dtype
            if rows.any():
                out[str(gpu) if dtype == "all" else f"{gpu}/{dtype}"] = {
                    "error_mean": round(float(error[rows].mean()), 4),
                    "error_median": round(float(np.median(error[rows])), 4),
                    "rows": int(rows.sum()),
                }
    return out


def library_versions() -> Mapping[str, str]:
    """Return the installed versions of what training depends on, for the manifest."""
    found = {}
    for name in ("perfmodel", "numpy", "xgboost-cpu", "xgboost", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _share(tell: Tell | None, what: str, step: int, steps: int) -> Callable[[float], None] | None:
    if tell is None:
        return None
    return lambda done: tell(what, (step + done) / steps)


def _steps(tell: Tell | None, first: int, count: int, steps: int) -> Tell | None:
    if tell is None:
        return None
    return lambda what, done: tell(what, (first + done * count) / steps)
