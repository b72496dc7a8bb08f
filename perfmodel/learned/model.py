"""A trained model: trees over named features, what they were trained on, how sure they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.learned.ceiling import CEILING_QUANTILE, log_roofline_share
from perfmodel.learned.coverage import Coverage
from perfmodel.learned.forest import Forest
from perfmodel.learned.intervals import Calibration

Floats = NDArray[np.float64]
Features = NDArray[np.float32]

ROUGH_TREES = 80
"""Boosting corrects ever smaller errors: so many trees tell the hopeless from the rest."""


@dataclass(frozen=True)
class Manifest:
    """What a model is, in words and numbers; every field is written to its JSON file."""

    family: str
    schema: str
    version: str
    features: tuple[str, ...]
    sources: tuple[Mapping[str, Any], ...]  # name, files with sha256, rows
    known: Mapping[str, tuple[str, ...]]  # dtypes measured on each device
    calibration: Calibration
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of each feature
    tiles: tuple[int, ...] = ()  # codes of the familiar ones, see `perfmodel.learned.coverage`
    probes: tuple[tuple[float, ...], ...] = ()  # see `perfmodel.learned.probes`
    accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceDelta:
    """Trees that a few measured problems of one device add to a model's own.

    ``seen`` is the interval multiple there, ``error_mean`` the held-out error.
    """

    time: Forest
    rank: Forest
    dtypes: tuple[str, ...]
    seen: float
    error_mean: float
    problems: int


@dataclass(frozen=True)
class GemmModel:
    """A boosted correction to the analytic estimate of tiled matrix products.

    Every method takes features (N, F) float32 in the order of ``manifest.features`` and answers in
    natural-log units (but for `preference`), shape (N,). ``deltas`` hold what was measured later,
    by device.
    """

    manifest: Manifest
    time: Forest
    rank: Forest
    spread: Forest
    ceiling: Forest
    deltas: Mapping[str, DeviceDelta] = field(default_factory=dict)
    trees_sha256: str | None = None  # of the file the trees came from

    @property
    def version(self) -> str:
        """Name of the model and its training, for output and keys."""
        added = "".join(f"+{name}" for name in sorted(self.deltas))
        return f"{self.manifest.version}{added}"

    @property
    def schema(self) -> str:
        """Feature schema the trees were trained on."""
        return self.manifest.schema

    @property
    def accuracy(self) -> Mapping[str, Mapping[str, float]]:
        """Held-out figures by device, from the manifest."""
        return self.manifest.accuracy

    def for_device(self, gpu_name: str) -> GemmModel:
        """Return the model as it answers for one device: itself, or with that device's trees."""
        return self._adapted.get(gpu_name, self)

    def knows(self, gpu_name: str, dtype_name: str) -> bool:
        """Whether the training data has that data type measured on that device."""
        return dtype_name in self.manifest.known.get(gpu_name, ())

    def covers(self, features: Features) -> NDArray[np.bool_]:
        """Whether each row lies within the trained range of every feature, give or take a step."""
        return self.coverage.covers(features)

    def familiar(self, features: Features) -> NDArray[np.bool_]:
        """Whether each row's tile was seen in many problems."""
        return self.coverage.familiar(features)

    def log_correction(self, features: Features) -> Floats:
        """Return log(measured / analytic)."""
        return self.rough_correction(features) + self.remaining_correction(features)

    def rough_correction(self, features: Features) -> Floats:
        """Return what the first trees make of `log_correction`, at a fraction of its cost."""
        return self._rough.predict(features) * self.coverage.trust(features)

    def remaining_correction(self, features: Features) -> Floats:
        """Return what the other trees add to `rough_correction`."""
        if self._rest is None:
            return np.zeros(len(features))
        return self._rest.predict(features) * self.coverage.trust(features)

    def preference(self, features: Features) -> Floats:
        """Return how much the pairwise trees prefer each configuration of a problem; no unit.

        `perfmodel.learned.ranking.rank_score` combines it with the predicted time.
        """
        return self.rank.predict(features)

    def log_interval(self, features: Features, known: bool) -> tuple[Floats, Floats]:
        """Return lower and upper bounds to add to the log latency, at the nominal coverage."""
        return self.manifest.calibration.bounds(self.spread.predict(features), known=known)

    @property
    def ceiling_quantile(self) -> float:
        """Share of the known problems of a kind that stay below `log_ceiling`'s speed."""
        return CEILING_QUANTILE

    def log_ceiling(self, features: Features) -> Floats:
        """Return log(time / analytic) that the best known launches of each row's kind reach."""
        roofline = log_roofline_share(features, self.manifest.features)
        return self.ceiling.predict(features) + roofline

    def contributions(self, row: NDArray[np.float32]) -> dict[str, float]:
        """Return what each feature of one row (F,) adds to `log_correction`, by name."""
        values = self.time.contributions(row) * self.coverage.trust(row[None])
        return dict(zip(self.manifest.features, values.tolist(), strict=True))

    @cached_property
    def coverage(self) -> Coverage:
        """What the training rows cover."""
        whole = (-np.inf, np.inf)
        ranges = [self.manifest.ranges.get(name, whole) for name in self.manifest.features]
        low, high = np.array(ranges).T
        tiles = np.array(self.manifest.tiles, dtype=np.int64)
        return Coverage(self.manifest.features, low, high, tiles)

    @cached_property
    def _rough(self) -> Forest:
        return self.time.first(ROUGH_TREES)

    @cached_property
    def _rest(self) -> Forest | None:
        return self.time.beyond(self._rough) if len(self.time.roots) > ROUGH_TREES else None

    @cached_property
    def _adapted(self) -> Mapping[str, GemmModel]:
        return {gpu: self._with(gpu, delta) for gpu, delta in self.deltas.items()}

    def _with(self, gpu: str, delta: DeviceDelta) -> GemmModel:
        manifest = self.manifest
        known = {*manifest.known.get(gpu, ()), *delta.dtypes}
        figures = {"error_mean": delta.error_mean, "problems": delta.problems}
        return replace(
            self,
            manifest=replace(
                manifest,
                version=f"{manifest.version}+{gpu}",
                known={**manifest.known, gpu: tuple(sorted(known))},
                calibration=replace(manifest.calibration, seen=delta.seen),
                accuracy={**manifest.accuracy, gpu: figures},
            ),
            time=self.time.plus(delta.time),
            rank=self.rank.plus(delta.rank),
            deltas={},
        )
