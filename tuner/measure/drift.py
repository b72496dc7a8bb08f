"""Drift of a device over a session, by a reference kernel that is timed again and again."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.measure.interval import median_error

SIGNIFICANT = 2.0
"""Standard errors beyond which two checks differ by more than their noise."""


@dataclass(frozen=True)
class Check:
    """One look at the reference: the middle of its samples in the session's count, and a time.

    ``error`` is the relative standard error of the time.
    """

    position: float
    median_us: float
    error: float


class DriftTrack:
    """How much slower the device has become since the first check, when it was warm.

    Time is counted in samples taken. Between checks the slow-down is linear; after the last it
    stays.
    """

    def __init__(self) -> None:
        self._checks: list[Check] = []

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks so far."""
        return tuple(self._checks)

    def add(self, first: int, samples_us: Sequence[float]) -> None:
        """Record samples of the reference; ``first`` is the position of the first of them.

        The median of a ramp lies at its middle. Its rise counts as noise: errors lean to the
        large side.
        """
        middle = first + (len(samples_us) - 1) / 2.0
        error = median_error(samples_us)
        self._checks.append(Check(middle, statistics.median(samples_us), error))

    def forget(self, since: int) -> None:
        """Leave out the checks from number ``since`` on: the device was not itself."""
        del self._checks[since:]

    def between(self, start: int, end: int = -1) -> float:
        """Return how much slower check ``end`` was than check ``start``, relative."""
        return self._checks[end].median_us / self._checks[start].median_us - 1.0

    def is_significant(self) -> bool:
        """Whether any two checks differ by more than their noise."""
        return any(
            abs(a.median_us / b.median_us - 1.0) > SIGNIFICANT * (a.error**2 + b.error**2) ** 0.5
            for i, a in enumerate(self._checks)
            for b in self._checks[:i]
        )

    def slowdown(self, position: float) -> float:
        """Return the time of the reference at a position over that at the first check."""
        return self._level(position) / self._checks[0].median_us

    def _level(self, position: float) -> float:
        checks = self._checks
        at = bisect_right([c.position for c in checks], position)
        if at in (0, len(checks)):
            return checks[0 if at == 0 else -1].median_us
        a, b = checks[at - 1], checks[at]
        slope = (b.median_us - a.median_us) / (b.position - a.position)
        return a.median_us + slope * (position - a.position)


__all__ = ["Check", "DriftTrack"]
