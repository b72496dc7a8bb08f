"""From measured shapes to trees, and from what they get wrong on held-out rows to intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import DataError
from perfmodel.learned.booster import SEED, Progress, TrainSpec, fit_trees
from perfmodel.learned.forest import Forest
from perfmodel.learned.intervals import (
    COVERAGE,
    Calibration,
    conformal_quantile,
    difficulty,
    log_error_target,
)
from perfmodel.learned.shape_features import SHAPE_SCHEMA
from perfmodel.learned.shape_model import ShapeManifest, ShapeModel
from perfmodel.learned.shape_probes import shape_probes
from perfmodel.learned.shape_table import ShapeRows
from perfmodel.learned.training import library_versions

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

FP8_SPEC = TrainSpec("fp8", 600, 0, depth=8, learning_rate=0.05, columns_per_tree=0.8)
"""PipeWeave's two GPUs: few rows, which trees of most columns interpolate best."""

ANY_SPEC = TrainSpec(
    "any-device", 400, 0, depth=8, learning_rate=0.07, columns_per_tree=0.4, rows_per_leaf=5.0
)
"""Trees that answer for every device: slow steps, since what they learn is asked elsewhere."""

DEVICE_SPEC = TrainSpec(
    "device", 200, 0, depth=8, learning_rate=0.1, columns_per_tree=0.5, rows_per_leaf=5.0
)

FP8_DEVICE_SPEC = replace(DEVICE_SPEC, name="fp8-device", huber=0.05)

ATTENTION_DEVICE_SPEC = replace(
    DEVICE_SPEC, name="attention-device", time_trees=250, depth=10, learning_rate=0.09,
    columns_per_tree=0.8, huber=0.03,
)  # fmt: skip
"""Attention depends on many sizes at once, and deep trees tell more of them apart."""

GEMM_DEVICE_SPEC = replace(
    DEVICE_SPEC, name="gemm-device", time_trees=400, learning_rate=0.08, columns_per_tree=0.6,
    huber=0.05,
)  # fmt: skip
"""A library changes its kernel from size to size, which takes more trees to tell. What frameworks
measured of one product lies 3 % apart in the middle and 20 % in the worst tenth: errors that are
squared would follow the latter."""

GEMM_ANY_SPEC = replace(ANY_SPEC, name="gemm-any-device", huber=0.05)
ATTENTION_ANY_SPEC = replace(ANY_SPEC, name="attention-any-device", huber=0.1)

MOE_ANY_SPEC = replace(ANY_SPEC, name="moe-any-device", time_trees=300, subsample=0.4)
MOE_DEVICE_SPEC = replace(DEVICE_SPEC, name="moe-device", time_trees=80)
"""Fewer than others have: what the size of all shipped models leaves."""

SPREAD_SPEC = TrainSpec("shape-spread", 60, 0, depth=5, learning_rate=0.1, rows_per_leaf=200.0)

ANY_ROWS = 200_000
"""So many rows, drawn at random, are plenty for the trees of every device."""

DEVICE_ROWS = 120_000
"""The same for the trees of one device."""

SPREAD_ROWS = 150_000

DEVICE_QUANTILES = np.linspace(0.0025, 0.9975, 200)
"""So many of each device's errors speak for it, however many rows it has."""

INNER_SPREAD_ROWS = 40_000
"""The same where one forest a device only tells how wide the others' intervals must be."""


@dataclass(frozen=True)
class ShapeHeads:
    """Trees for any device and what each measured device adds."""

    any_device: Forest
    devices: Mapping[str, Forest]

    def log_correction(self, rows: ShapeRows) -> Floats:
        """Return log(measured / analytic) of rows, each by its device, (N,)."""
        found = self.any_device.predict(rows.features)
        for gpu, forest in self.devices.items():
            here = rows.gpu == gpu
            found[here] += forest.predict(rows.features[here])
        return found


def any_spec(family: str) -> TrainSpec:
    """Return the trees for every device of ``family`` (gemm, prefill, decode, moe, moe-up)."""
    if family == "gemm":
        return GEMM_ANY_SPEC
    if family in ("prefill", "decode"):
        return ATTENTION_ANY_SPEC
    return MOE_ANY_SPEC if family.startswith("moe") else ANY_SPEC


def device_spec(family: str, dtype: str) -> TrainSpec:
    """Return the trees that each device adds for ``family``, as in `any_spec`."""
    if family.startswith("moe"):
        return MOE_DEVICE_SPEC
    if family in ("prefill", "decode"):
        return ATTENTION_DEVICE_SPEC
    return GEMM_DEVICE_SPEC if dtype == "bf16" else FP8_DEVICE_SPEC


def fit_shape(
    rows: ShapeRows, spec: TrainSpec, progress: Progress | None = None, target: Floats | None = None
) -> Forest:
    """Grow trees over all columns that answer ``target``, by default log(measured / analytic).

    Raises:
        DataError: no rows.
        NotInstalledError: xgboost is missing.
    """
    if not len(rows):
        raise DataError("there is no measured row to train on; run: perfmodel data pull NAME")
    wanted = rows.target if target is None else target
    weights = np.ones(len(rows))
    forest = fit_trees(rows.features, wanted, weights, spec, spec.time_trees, progress)
    return forest.with_short_leaves()  # so that what is evaluated is what is stored


def fit_any_device(
    rows: ShapeRows, spec: TrainSpec = ANY_SPEC, progress: Progress | None = None
) -> Forest:
    """Grow the trees that answer for every device, from at most `ANY_ROWS` rows."""
    return fit_shape(rows.take(drawn(len(rows), ANY_ROWS)), spec, progress)


def fit_device(rows: ShapeRows, any_device: Forest, spec: TrainSpec = DEVICE_SPEC) -> Forest:
    """Grow what one device adds to ``any_device``; ``rows`` are all of that device."""
    rows = rows.take(drawn(len(rows), DEVICE_ROWS))
    remaining = rows.target - any_device.predict(rows.features)
    return fit_shape(rows, spec, target=remaining)


def fit_shape_heads(
    rows: ShapeRows,
    any_spec: TrainSpec = ANY_SPEC,
    device_spec: TrainSpec = DEVICE_SPEC,
    progress: Progress | None = None,
) -> ShapeHeads:
    """Train on all rows: trees for any device, then each device's own."""
    tell = progress or (lambda _share: None)
    any_device = fit_any_device(rows, any_spec, lambda share: tell(0.6 * share))
    devices = {}
    names = sorted(set(rows.gpu))
    for i, gpu in enumerate(names):
        devices[gpu] = fit_device(rows.take(rows.gpu == gpu), any_device, device_spec)
        tell(0.6 + 0.4 * (i + 1) / len(names))
    return ShapeHeads(any_device, devices)


def drawn(count: int, most: int) -> NDArray[np.intp]:
    """Return at most ``most`` of ``count`` row numbers, ascending, drawn with a fixed seed."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(SEED).choice(count, most, replace=False))


def fit_spread(
    rows: ShapeRows, error: Floats, groups: NDArray[np.int64], spec: TrainSpec = SPREAD_SPEC
) -> tuple[Forest, float]:
    """Return trees for the log difficulty of held-out rows, and its multiple for 90 %.

    Args:
        rows: rows that some model did not see.
        error: |log(measured / predicted)| of them (N,).
        groups: rows of equal number are held out together (a site, a device): the multiple is
            taken on groups whose errors the trees did not see.
        spec: of the trees.
    """
    pick = drawn(len(rows), SPREAD_ROWS)
    features, error, groups, site = rows.features[pick], error[pick], groups[pick], rows.site[pick]
    target = log_error_target(error)
    numbers = np.unique(groups, return_inverse=True)[1]
    half = np.random.default_rng(0).permutation(numbers.max() + 1)[numbers] % 2 == 0
    quantiles = []
    for train in (half, ~half):
        if train.any() and not train.all():
            forest = _spread(features[train], target[train], spec)
            test = ~train
            guess = forest.predict(features[test])
            quantiles.append(conformal_quantile(error[test], guess, site[test]))
    forest = _spread(features, target, spec)
    if not quantiles:
        quantiles = [conformal_quantile(error, forest.predict(features), site)]
    return forest, float(np.mean(quantiles))


def fit_unseen_spread(
    rows: ShapeRows, error: Floats, spec: TrainSpec = SPREAD_SPEC
) -> tuple[Forest, float]:
    """Return trees for the log difficulty of rows on a device left out, and its multiple for 90 %.

    Each device is asked by trees that saw the others alone; the multiple holds 90 % of what all of
    them got wrong, each device counting the same. Taken over halves of the devices instead, it
    pays for trees that saw half of them, and intervals held 95 % where 90 % were stated.

    Args:
        rows: rows of devices that some model did not see.
        error: |log(measured / predicted)| of them (N,).
        spec: of the trees.
    """
    pick = drawn(len(rows), SPREAD_ROWS)
    rows, error = rows.take(pick), error[pick]
    target, ratios = log_error_target(error), []
    for gpu in sorted(set(map(str, rows.gpu))):
        here = np.asarray(rows.gpu == gpu, dtype=np.bool_)
        others = np.flatnonzero(~here)
        others = others[drawn(len(others), INNER_SPREAD_ROWS)]
        if len(others):
            forest = _spread(rows.features[others], target[others], spec)
            guess = forest.predict(rows.features[here])
            ratios.append(np.quantile(error[here] / difficulty(guess), DEVICE_QUANTILES))
    forest = _spread(rows.features, target, spec)
    if not ratios:
        ratios = [error / difficulty(forest.predict(rows.features))]
    return forest, float(np.quantile(np.concatenate(ratios), COVERAGE))


def _spread(features: NDArray[np.float32], target: Floats, spec: TrainSpec) -> Forest:
    forest = fit_trees(features, target, np.ones(len(target)), spec, spec.time_trees)
    return forest.with_short_leaves()


def shape_model(
    family: str,
    rows: ShapeRows,
    heads: ShapeHeads,
    seen: tuple[ShapeRows, Floats],
    unseen: tuple[ShapeRows, Floats],
    *,
    sources: Sequence[Mapping[str, Any]] = (),
    accuracy: Mapping[str, Mapping[str, float]] | None = None,
    specs: Sequence[TrainSpec] = (ANY_SPEC, DEVICE_SPEC),
) -> ShapeModel:
    """Put a model together from trained heads and what earlier folds got wrong.

    Args:
        family: ``gemm``, ``gemm-fp8``, ``prefill``, ``decode``, ``moe``, ``moe-fp8``.
        rows: what the heads were trained on.
        heads: the trees.
        seen: rows of held-out sites and |log(measured / predicted)| of each.
        unseen: rows of devices left out and the same.
        sources: what the rows come from.
        accuracy: held-out figures by device.
        specs: of the trees for any device and of each device's own.
    """
    spread, multiple = fit_spread(*seen, seen[0].site)
    unseen_spread, unseen_multiple = fit_unseen_spread(*unseen)
    low, high = rows.features.min(axis=0), rows.features.max(axis=0)
    manifest = ShapeManifest(
        family=family,
        schema=SHAPE_SCHEMA,
        version=f"{SHAPE_SCHEMA}-{family}",
        features=rows.names,
        sources=tuple(sources),
        known=_by_gpu(rows, rows.dtype),
        kernels=_by_gpu(rows, rows.kernel),
        calibration=Calibration(COVERAGE, multiple, unseen_multiple),
        ranges={
            name: (float(a), float(b)) for name, a, b in zip(rows.names, low, high, strict=True)
        },
        accuracy=accuracy or {},
        libraries=library_versions(),
        spec=dict(zip(("any_device", "device"), map(asdict, specs), strict=True)),
        probes=shape_probes(family),
    )
    return ShapeModel(manifest, heads.any_device, heads.devices, spread, unseen_spread)


def _by_gpu(rows: ShapeRows, names: NDArray[np.object_]) -> Mapping[str, tuple[str, ...]]:
    return {
        gpu: tuple(sorted(set(map(str, names[rows.gpu == gpu])))) for gpu in sorted(set(rows.gpu))
    }
