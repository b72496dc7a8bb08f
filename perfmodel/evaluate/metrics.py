"""How good predictions and orders are: pure functions over arrays.

Errors are |predicted / measured - 1|. The quality of a pick is the best time of a problem over the
best time among our first k, 1 for a perfect pick. Rows of equal score are taken in an order drawn
with a fixed seed, never in row order: some sources list their rows from the fastest to the slowest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

SEED = 20_240_814

NEAR_BEST = 0.99
"""A pick within 1 % of the best counts as the best: repeats of one measurement differ as much."""

TOLERANCES = {"trials99": 0.99, "trials98": 0.98}
"""Metrics of trials and the quality they ask for."""


def relative_error(predicted: Floats, measured: Floats) -> Floats:
    """Return |predicted / measured - 1| of each row, a fraction."""
    return np.abs(predicted / measured - 1.0)


def error_metrics(error: Floats) -> dict[str, float]:
    """Return mean, median and 90 % quantile of relative errors, and the share under 10 %."""
    return {
        "error_mean": float(error.mean()),
        "error_median": float(np.median(error)),
        "error_p90": float(np.quantile(error, 0.9)),
        "error_under10": float((error < 0.1).mean()),
    }


@dataclass(frozen=True)
class Order:
    """The rows of every problem in predicted order, problem after problem.

    ``rows`` are indices into the input (N,); ``quality`` is the problem's best time over the time
    at each place, ``so_far`` the best quality up to it (N,); ``start`` and ``count`` locate each
    problem (P,).
    """

    rows: Indices
    quality: Floats
    so_far: Floats
    start: Indices
    count: Indices

    @property
    def problem(self) -> Indices:
        """Number of each place's problem, 0 to P - 1, shape (N,)."""
        return np.repeat(np.arange(len(self.start)), self.count)

    def pick(self, k: int) -> Floats:
        """Return the quality of the best among each problem's first ``k`` rows, (P,) in (0, 1]."""
        return self.so_far[self.start + np.minimum(k, self.count) - 1]

    def trials(self, quality: float = NEAR_BEST) -> Indices:
        """Return how many rows are tried until one reaches ``quality``, (P,), at least 1."""
        reached = np.flatnonzero(self.quality >= quality)
        first = np.unique(self.problem[reached], return_index=True)[1]
        return reached[first] - self.start + 1

    def hit(self, member: Mask, k: int) -> Mask:
        """Return whether a member of a set of rows is among each problem's first ``k``, (P,)."""
        place = np.arange(len(self.rows)) - np.repeat(self.start, self.count)
        found = member[self.rows] & (place < k)
        return np.asarray(np.bincount(self.problem[found], minlength=len(self.start)) > 0)


def in_order(problem: ArrayLike, score: Floats, measured: Floats) -> Order:
    """Sort each problem's rows by ``score``, lower first, and look at what was measured.

    Args:
        problem: number of each row's problem (N,), any integers.
        score: what rows are ordered by (N,), any unit; NaN comes last.
        measured: positive times (N,), any unit.
    """
    number = np.unique(np.asarray(problem), return_inverse=True)[1].reshape(-1)
    drawn = np.random.default_rng(SEED).permutation(len(number))
    rows = np.lexsort((drawn, score, number))
    number = number[rows]
    count = np.bincount(number)
    start = np.cumsum(count) - count
    times = measured[rows]
    best = np.minimum.reduceat(times, start) if len(start) else times
    quality = best[number] / times
    return Order(
        rows=rows, quality=quality, so_far=_so_far(quality, number), start=start, count=count
    )


def pick_metrics(quality: Floats) -> dict[str, float]:
    """Return mean, geometric mean, 5 % quantile, minimum and share of near-best picks."""
    return {
        "pick_mean": float(quality.mean()),
        "pick_geomean": float(np.exp(np.log(quality).mean())),
        "pick_p5": float(np.quantile(quality, 0.05)),
        "pick_min": float(quality.min()),
        "pick_share99": float((quality >= NEAR_BEST).mean()),
    }


def trials_metrics(order: Order) -> dict[str, float]:
    """Return mean and maximum over problems of the trials to within 1 % and 2 % of the best."""
    metrics: dict[str, float] = {}
    for name, quality in TOLERANCES.items():
        trials = order.trials(quality)
        metrics |= {name: float(trials.mean()), f"{name}_max": float(trials.max())}
    return metrics


def random_pick(problem: ArrayLike, measured: Floats, k: int) -> dict[str, float]:
    """Return the expected pick metrics of ``k`` different rows drawn at random.

    Only means and shares have an expectation that says something; quantiles are left out.
    """
    order = in_order(problem, measured, measured)
    size = np.repeat(order.count, order.count).astype(np.float64)
    place = np.arange(len(size)) - np.repeat(order.start, order.count)
    none_better, none_as_good = np.ones_like(size), np.ones_like(size)
    for drawn in range(k):
        # All drawn so far come from the rows at this place or after it.
        left = np.maximum(size - drawn, 1.0)
        none_better *= np.maximum(size - place - drawn, 0.0) / left
        none_as_good *= np.maximum(size - place - 1.0 - drawn, 0.0) / left
    enough = size > k
    chance = np.where(enough, none_better - none_as_good, place == 0)
    problems = len(order.start)
    log_quality = np.log(order.quality)
    return {
        "pick_mean": float((chance * order.quality).sum() / problems),
        "pick_geomean": float(np.exp((chance * log_quality).sum() / problems)),
        "pick_share99": float((chance * (order.quality >= NEAR_BEST)).sum() / problems),
    }


def random_trials(problem: ArrayLike, measured: Floats) -> dict[str, float]:
    """Return the expected trials of a random order: (n + 1) / (g + 1) with g of n rows good."""
    order = in_order(problem, measured, measured)
    metrics = {}
    for name, quality in TOLERANCES.items():
        good = np.bincount(order.problem[order.quality >= quality], minlength=len(order.start))
        metrics[name] = float(((order.count + 1.0) / (good + 1.0)).mean())
    return metrics


def interval_metrics(
    predicted: Floats, low: Floats, high: Floats, measured: Floats
) -> dict[str, float]:
    """Return the share of measured times inside intervals, and their median relative width."""
    return {
        "coverage90": float(((low <= measured) & (measured <= high)).mean()),
        "width90": float(np.median((high - low) / predicted)),
    }


def _so_far(quality: Floats, number: Indices) -> Floats:
    """Return the running maximum of ``quality`` within each problem, numbers ascending."""
    # Ranks lifted by a whole table's worth per problem: one running maximum serves them all.
    values, rank = np.unique(quality, return_inverse=True)
    lift = number * len(values)
    return np.asarray(values[np.maximum.accumulate(rank.reshape(-1) + lift) - lift])
