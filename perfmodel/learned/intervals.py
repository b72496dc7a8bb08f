"""Intervals with stated coverage: conformal quantiles of held-out errors, scaled by difficulty.

Errors are |log(measured / predicted)| on problems held out in groups. Dividing each by a predicted
difficulty before taking the quantile makes the interval narrow where the model is sure and wide
where it is not, and keeps the coverage (normalised split-conformal prediction, Papadopoulos 2008;
Lei et al. 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

COVERAGE = 0.9
SPREAD_MIN = 0.005
"""Repeats of one measurement differ by about this much; no interval is narrower."""


@dataclass(frozen=True)
class Calibration:
    """Multiples of the predicted difficulty that hold ``coverage`` of held-out measurements.

    ``seen`` applies to devices and types in the training data, ``unseen`` to the rest; the latter
    comes from leaving whole devices out.
    """

    coverage: float
    seen: float
    unseen: float

    def bounds(self, log_spread: Floats, *, known: bool) -> tuple[Floats, Floats]:
        """Return lower and upper bounds in log units for predicted log difficulties (N,)."""
        half = (self.seen if known else self.unseen) * difficulty(log_spread)
        return -half, half

    def to_dict(self) -> dict[str, float]:
        """Return plain values."""
        return {"coverage": self.coverage, "seen": self.seen, "unseen": self.unseen}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Build from `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: a value is missing or no non-negative number.
        """
        numbers = [float(values[name]) for name in ("coverage", "seen", "unseen")]
        if not all(0 <= number < np.inf for number in numbers):
            raise ValueError(f"calibration {numbers} has a value that is negative or not finite")
        return cls(*numbers)


def difficulty(log_spread: Floats) -> Floats:
    """Return the predicted size of an error in log units from its predicted logarithm."""
    return np.maximum(np.exp(log_spread), SPREAD_MIN)


def conformal_quantile(
    errors: Floats, log_spread: Floats, problem: NDArray[np.int64], coverage: float = COVERAGE
) -> float:
    """Return the multiple of the difficulty that covers ``coverage`` of held-out rows.

    Rows of one problem err together, so the finite-sample correction counts problems, not rows.

    Args:
        errors: |log(measured / predicted)| of held-out rows (N,).
        log_spread: predicted log difficulty of the same rows (N,).
        problem: number of each row's problem (N,).
        coverage: nominal share inside.
    """
    groups = len(np.unique(problem))
    level = min(1.0, coverage * (1.0 + 1.0 / max(groups, 1)))
    return float(np.quantile(errors / difficulty(log_spread), level))


def log_error_target(errors: Floats) -> Floats:
    """Return what the difficulty trees learn: log errors, floored where noise rules."""
    return np.log(np.maximum(errors, SPREAD_MIN))
