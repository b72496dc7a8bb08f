"""Run a kernel until its times are steady: an idle device clocks low, a busy one comes down."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

BLOCK = 8
"""Samples behind one median: a stall among them does not move it."""

BLOCKS = 3
"""Medians in a row that must agree."""


@dataclass(frozen=True)
class WarmUp:
    """How a warm-up went; ``samples`` counts launches that were timed and thrown away."""

    steady: bool
    seconds: float
    samples: int


def warm_up(
    take: Callable[[int], Sequence[float]],
    *,
    steady: float,
    limit_s: float,
    clock: Callable[[], float],
) -> WarmUp:
    """Take blocks of samples until the medians of the last three agree, or the limit has passed.

    Args:
        take: returns so many samples, or fewer where something went wrong, which ends it.
        steady: greatest relative difference between medians that agree, beyond what their own
            scatter explains.
        limit_s: no block starts after so many seconds.
        clock: seconds, monotonic.
    """
    started, count = clock(), 0
    medians: list[float] = []
    scatters: list[float] = []
    while clock() - started < limit_s or not medians:
        found = take(BLOCK)
        count += len(found)
        if not all(0 < s < math.inf for s in found):
            return WarmUp(False, clock() - started, count)
        if len(found) < BLOCK:  # so slow a kernel that the limit passed: each sample is a block
            agree = len(found) > 1 and max(found) / min(found) - 1.0 <= steady
            return WarmUp(agree, clock() - started, count)
        middle = statistics.median(found)
        medians.append(middle)
        scatters.append(statistics.median(abs(s - middle) for s in found) / middle)
        last = medians[-BLOCKS:]
        # Twice the error of the difference of two medians of a block, from its deviations.
        noise = 2.0 * 1.4826 * statistics.median(scatters[-BLOCKS:]) * 1.2533 * (2.0 / BLOCK) ** 0.5
        if len(last) == BLOCKS and max(last) / min(last) - 1.0 <= max(steady, noise):
            return WarmUp(True, clock() - started, count)
    return WarmUp(False, clock() - started, count)


__all__ = ["WarmUp", "warm_up"]
