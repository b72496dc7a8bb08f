"""Whether launches lie within what was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

RANGE_STEP = 1.0
SHARE_COVERED = 0.9


@dataclass(frozen=True)
class Coverage:
    """The trained range of every feature, arrays (F,)."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, features: NDArray[np.float32]) -> Coverage:
        """Return the ranges of rows (N, F)."""
        return cls(features.min(axis=0).astype(float), features.max(axis=0).astype(float))

    def covers(self, features: NDArray[np.float32]) -> Mask:
        """Whether each row lies within the range of every feature, give or take a step.

        Most features are binary logarithms, so a step is a factor of two. Beyond, trees are flat.
        """
        inside = (features >= self.low - RANGE_STEP) & (features <= self.high + RANGE_STEP)
        return np.asarray(inside.all(axis=1))


def mostly(covered: Mask, problem: NDArray[np.int64]) -> Mask:
    """Whether, of each row's problem, nine configurations in ten are covered.

    Trees that compare pairs say nothing of tiles unlike any they saw, and their silence would
    count against those; so where many such tiles compete, preferences are left out for all.
    """
    _, number = np.unique(problem, return_inverse=True)
    share = np.bincount(number, weights=covered) / np.bincount(number)
    return np.asarray(share[number] >= SHARE_COVERED)
