"""When two times differ by more than noise: robust spreads and paired comparisons."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from tuner.measure.interval import DEVIATION_OVER_MAD, MEDIAN_OVER_MEAN

FEW = 3.0
"""A deviation from few degrees of freedom is often far too small: by how much it is raised, over
their number. With it, Student's quantile at 2 degrees is about the normal one."""

REPEATS_MIN = 3
"""Fewer samples of one configuration say nothing of their spread."""


def pooled_deviation(groups: Iterable[Sequence[float]]) -> float | None:
    """Return the relative standard deviation of single samples within groups of repeats.

    Args:
        groups: positive times, those of one configuration together; any unit.

    Returns:
        The median over groups of each one's robust deviation; ``None`` where no group has repeats.
    """
    found = []
    for samples in groups:
        if len(samples) >= REPEATS_MIN:
            middle = statistics.median(samples)
            mad = statistics.median(abs(s - middle) for s in samples)
            # A median absolute deviation of n samples is low by about 1 + 1/n.
            found.append(DEVIATION_OVER_MAD * mad / middle * (1.0 + 1.0 / len(samples)))
    return statistics.median(found) if found else None


def difference_error(deviation: float, samples: int) -> float:
    """Return the standard error of the difference of two medians of so many samples each."""
    return math.sqrt(2.0) * MEDIAN_OVER_MEAN * deviation / math.sqrt(max(samples, 1))


def paired_levels(rounds: Sequence[Mapping[int, float]]) -> tuple[dict[int, float], float]:
    """Return each finalist's level and the deviation of one round, both in log units.

    A level is the median over rounds of log(time / geometric mean of the round): what slows a
    whole round down cancels.

    Args:
        rounds: times by finalist, the same finalists in every round.
    """
    relative: dict[int, list[float]] = {}
    for times in rounds:
        mean = statistics.fmean(math.log(t) for t in times.values())
        for finalist, t in times.items():
            relative.setdefault(finalist, []).append(math.log(t) - mean)
    levels = {finalist: statistics.median(values) for finalist, values in relative.items()}
    squares = [
        (value - levels[finalist]) ** 2 for finalist, values in relative.items() for value in values
    ]
    # Each round's mean and each finalist's level took a degree of freedom.
    free = max((len(rounds) - 1) * (len(levels) - 1), 1)
    return levels, math.sqrt(sum(squares) / free) * (1.0 + FEW / free)
