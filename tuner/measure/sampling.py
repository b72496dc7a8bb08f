"""Take samples until the interval of their median is as tight as wanted, or a budget ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from perfmodel.dataset.outcome import Outcome
from tuner.measure.device import Timing
from tuner.measure.interval import half_width
from tuner.measure.protocol import TimingProtocol

GROWTH = 1.5
"""Samples grow by so much between two looks: looking often would stop by luck."""


@dataclass(frozen=True)
class Sampled:
    """What was taken: a failure as it came, or the samples and whether they suffice."""

    timing: Timing
    tight: bool


def sample(
    take: Callable[[int, float], Timing],
    protocol: TimingProtocol,
    *,
    limit_s: float,
    clock: Callable[[], float],
) -> Sampled:
    """Take samples as the protocol wants them.

    Args:
        take: takes so many samples within so many seconds.
        protocol: how many, and how tight.
        limit_s: of all together.
        clock: seconds, monotonic.
    """
    started, found, wanted = clock(), tuple[float, ...](), protocol.samples_min
    last = Timing(Outcome.TIMEOUT, "")
    while True:
        left_s = limit_s - (clock() - started)
        timing = take(wanted - len(found), max(left_s, 1e-3))
        if timing.outcome is Outcome.TIMEOUT and found:
            return Sampled(last, tight=False)  # the budget's end, no fault of the kernel
        if not timing.outcome.ran:
            return Sampled(timing, tight=False)
        found += timing.samples_us
        last = replace(timing, samples_us=found)
        if not all(0 < s < math.inf for s in found):
            return Sampled(last, tight=False)
        # A recorded table has one time of each, however often it is asked.
        short = len(found) < wanted
        if half_width(found, protocol.confidence) <= protocol.interval:
            return Sampled(last, tight=True)
        if short or len(found) >= protocol.samples_max or clock() - started >= limit_s:
            return Sampled(last, tight=False)
        wanted = min(int(GROWTH * len(found)) + 1, protocol.samples_max)


__all__ = ["Sampled", "sample"]
