"""A trained model of kernels whose tile is unknown: trees for any device, more for those measured.

The trees of `any_device` know a device by its ratios alone, so that one never measured is answered
too. Each measured device adds small trees of its own, which may tell sizes apart that the others
do not. Intervals come in two widths: sites held out on a measured device, whole devices held out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.learned.forest import Forest
from perfmodel.learned.intervals import Calibration, difficulty

Floats = NDArray[np.float64]
Features = NDArray[np.float32]


@dataclass(frozen=True)
class ShapeManifest:
    """What a shape-level model is, in words and numbers; every field goes to its JSON file.

    ``known`` has the data types measured on each device, ``kernels`` the library kernels, both by
    canonical device name. ``calibration`` multiplies the difficulty on a measured device and on
    another.
    """

    family: str
    schema: str
    version: str
    features: tuple[str, ...]
    sources: tuple[Mapping[str, Any], ...]
    known: Mapping[str, tuple[str, ...]]
    kernels: Mapping[str, tuple[str, ...]]
    calibration: Calibration
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    probes: tuple[tuple[float, ...], ...] = ()  # see `perfmodel.learned.shape_probes`


@dataclass(frozen=True, eq=False)
class ShapeModel:
    """A boosted correction to the estimate of kernels of unknown tile.

    Features are (N, F) float32 in the order of ``manifest.features``; answers are natural
    logarithms, (N,). ``spread`` tells how hard a site of a measured device is, ``unseen_spread``
    a problem on a device left out.
    """

    manifest: ShapeManifest
    any_device: Forest
    devices: Mapping[str, Forest]
    spread: Forest
    unseen_spread: Forest
    device: str | None = None
    trees_sha256: str | None = None

    @property
    def version(self) -> str:
        """Name of the model and its training."""
        return self.manifest.version

    @property
    def schema(self) -> str:
        """Feature schema the trees were trained on."""
        return self.manifest.schema

    @property
    def accuracy(self) -> Mapping[str, Mapping[str, float]]:
        """Held-out figures by device, and ``any`` for devices left out."""
        return self.manifest.accuracy

    def for_device(self, gpu_name: str) -> ShapeModel:
        """Return the model as it answers for one device, its own trees added where it has any."""
        device = gpu_name if gpu_name in self.devices else None
        found = self._by_device.get(device)
        if found is None:
            found = self._by_device[device] = replace(self, device=device)
        return found

    @cached_property
    def _by_device(self) -> dict[str | None, ShapeModel]:
        return {}

    @cached_property
    def _trees(self) -> Forest:
        """All trees that answer for the device, as one forest: calls cost more than few rows."""
        if self.device is None:
            return self.any_device
        return self.any_device.plus(self.devices[self.device])

    @cached_property
    def _range(self) -> tuple[Floats, Floats]:
        whole = (-np.inf, np.inf)
        ranges = [self.manifest.ranges.get(name, whole) for name in self.manifest.features]
        low, high = np.array(ranges, dtype=np.float64).T
        return low, high

    def knows(self, gpu_name: str, dtype_name: str) -> bool:
        """Whether the training data has that data type measured on that device."""
        return dtype_name in self.manifest.known.get(gpu_name, ())

    def known_kernels(self, gpu_name: str) -> Iterable[str]:
        """Return the library kernels measured on that device, or on any if it has none."""
        here = self.manifest.kernels.get(gpu_name)
        if here:
            return here
        return sorted({k for kernels in self.manifest.kernels.values() for k in kernels})

    def covers(self, features: Features) -> NDArray[np.bool_]:
        """Whether each row lies within the trained range of every feature."""
        low, high = self._range
        return np.asarray(((features >= low) & (features <= high)).all(axis=1))

    def log_correction(self, features: Features) -> Floats:
        """Return log(measured / analytic)."""
        return self._trees.predict(features)

    def log_interval(self, features: Features, known: bool) -> tuple[Floats, Floats]:
        """Return lower and upper bounds to add to the log latency, at the nominal coverage."""
        spread = self.spread if known else self.unseen_spread
        return self.manifest.calibration.bounds(spread.predict(features), known=known)

    def contributions(self, row: NDArray[np.float32]) -> dict[str, float]:
        """Return what each feature of one row (F,) adds to `log_correction`, by name."""
        values = self._trees.contributions(row)
        return dict(zip(self.manifest.features, values.tolist(), strict=True))


def half_width(spread: Forest, multiple: float, features: Features) -> Floats:
    """Return half of each interval in log units."""
    return multiple * difficulty(spread.predict(features))
