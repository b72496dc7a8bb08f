"""What the predictor asks of a learned model; `perfmodel.learned.artifact` has ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Features = NDArray[np.float32]


class Correction(Protocol):
    """A learned correction of the analytic estimate; all values are natural logarithms.

    ``features`` are finite float32, one launch a row, in the columns of
    `perfmodel.learned.features`; answers have shape (N,).
    """

    @property
    def version(self) -> str:
        """Name of the model, shown with every answer."""

    @property
    def accuracy(self) -> Mapping[str, Mapping[str, float]]:
        """Held-out figures (``error_mean`` ...) by device, and by ``device/dtype``."""

    def for_device(self, gpu_name: str) -> Correction:
        """Return the model as it answers for one device, its own measurements included."""

    def knows(self, gpu_name: str, dtype_name: str) -> bool:
        """Whether measurements on that device and type are behind the model."""

    def covers(self, features: Features) -> NDArray[np.bool_]:
        """Whether each row lies within what was measured."""

    def familiar(self, features: Features) -> NDArray[np.bool_]:
        """Whether each row's tile was seen often enough to be compared with others."""

    def log_correction(self, features: Features) -> Floats:
        """Return log(measured / analytic)."""

    def rough_correction(self, features: Features) -> Floats:
        """Return `log_correction` as far as it can be had cheaply, to drop the hopeless by."""

    def remaining_correction(self, features: Features) -> Floats:
        """Return what is left of `log_correction` beyond `rough_correction`."""

    def preference(self, features: Features) -> Floats:
        """Return how much each configuration is preferred, for `perfmodel.learned.ranking`."""

    def log_interval(self, features: Features, known: bool) -> tuple[Floats, Floats]:
        """Return what to add to the log of the latency for the ends of the interval."""

    def contributions(self, row: NDArray[np.float32]) -> dict[str, float]:
        """Return what each feature of one row (F,) adds to the correction, less the mean."""


@runtime_checkable
class KnowsCeiling(Protocol):
    """A model that also knows how fast the best configurations of a kind run."""

    ceiling_quantile: float

    def log_ceiling(self, features: Features) -> Floats:
        """Return log(time / analytic) that the best known launches of each row's kind reach."""
