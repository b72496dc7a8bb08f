"""The interval of a median by order statistics: no shape of the noise is assumed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

MEDIAN_OVER_MEAN = 1.2533
"""Standard error of a median over that of a mean, for normal noise: sqrt(pi / 2)."""

DEVIATION_OVER_MAD = 1.4826
"""Standard deviation over median absolute deviation, for normal noise."""


def median_interval(samples: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Return an interval that holds the true median with at least ``confidence``.

    Its ends are samples: the r-th from either end, where a fair coin shows fewer than r heads in n
    throws with at most half of what confidence leaves. The samples are taken to be independent.

    Returns:
        ``None`` where there are too few samples for any such interval (fewer than 6 at 0.95).
    """
    rank = _rank(len(samples), confidence)
    if rank == 0:
        return None
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[-rank]


def half_width(samples: Sequence[float], confidence: float) -> float:
    """Return half the interval's width over the median; infinite where there is no interval."""
    found = median_interval(samples, confidence)
    middle = statistics.median(samples) if samples else 0.0
    if found is None or not middle > 0:
        return math.inf
    return (found[1] - found[0]) / (2.0 * middle)


def median_error(samples: Sequence[float]) -> float:
    """Return the median's relative standard error, from the samples' robust deviation."""
    middle = statistics.median(samples)
    mad = statistics.median(abs(s - middle) for s in samples)
    return MEDIAN_OVER_MEAN * DEVIATION_OVER_MAD * mad / middle / math.sqrt(len(samples))


@lru_cache(maxsize=4096)
def _rank(count: int, confidence: float) -> int:
    """The largest r with P(Binomial(count, 1/2) < r) at most (1 - confidence) / 2; 0 for none."""
    allowed = (1.0 - confidence) / 2.0
    term = 0.5**count if count < 1000 else 0.0
    if term == 0.0:
        # So many samples are normal: the quantile of the binomial's own approximation.
        z = statistics.NormalDist().inv_cdf(1.0 - allowed)
        return max(math.floor((count - z * math.sqrt(count)) / 2.0), 0)
    below, rank = term, 0
    while below <= allowed and rank < count // 2:
        rank += 1
        term *= (count - rank + 1) / rank
        below += term
    return rank


__all__ = [
    "DEVIATION_OVER_MAD",
    "MEDIAN_OVER_MEAN",
    "half_width",
    "median_error",
    "median_interval",
]
