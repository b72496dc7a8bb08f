"""Tell near-equal configurations apart: timed by turns, forth and back, until noise is beaten."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import UsageError
from tuner.measure.device import Device, Timing, Trial
from tuner.measure.interval import DEVIATION_OVER_MAD, MEDIAN_OVER_MEAN
from tuner.measure.measurement import gated

TURN = 5
"""Samples of each in one turn; their median shrugs off two stalls."""

LAPS_MIN = 4
"""A lap is one turn each, then one each in reverse. Fewer say nothing of their own noise."""

LAPS_MAX = 60

FEW = 3.0
"""A deviation from few degrees of freedom is often far too small: by how much it is raised, over
their number (as `tuner.search.noise.FEW`)."""

DEVIATIONS = 3.0
"""Standard errors of a difference by which one must be behind to be left out."""


@dataclass(frozen=True)
class Standing:
    """Where one configuration came in.

    ``behind`` is how much slower than the best, relative, with its standard error ``error``: both
    from laps in which both were timed. ``laps`` it was timed in. One that failed has neither.
    """

    config: str
    outcome: Outcome
    median_us: float | None = None
    behind: float | None = None
    error: float | None = None
    laps: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class Race:
    """The outcome of a comparison.

    ``standings`` are sorted, the best first, failures last; ``unsure`` counts those that noise
    does not let tell from the best, itself included.
    """

    standings: tuple[Standing, ...]
    unsure: int
    laps: int

    @property
    def best(self) -> str | None:
        """The configuration that came in first, ``None`` if none ran."""
        first = self.standings[0]
        return None if first.behind is None else first.config


def race(
    device: Device,
    trials: Sequence[Trial],
    *,
    floor_us: float = 0.0,
    limit_s: float = 60.0,
    limit_each_s: float = 10.0,
    laps_max: int = LAPS_MAX,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Race:
    """Compare configurations, leaving out those that are behind beyond noise.

    A device that slows down favours whoever is timed first. Here each lap times all in an order of
    its own, then in reverse: what grows steadily adds the same to all. Only times of one lap are
    compared, so what changes between laps does not count.

    Args:
        device: takes the samples.
        trials: what to compare, no configuration twice.
        floor_us: no time below it can be.
        limit_s: no lap starts after so many seconds; ``limit_each_s`` is for one turn.
        laps_max: after which those still in are taken for equal.
        seed: of the orders.
        clock: seconds, monotonic.

    Raises:
        UsageError: nothing to compare, or a configuration twice.
        DeviceLostError: nothing more can be timed.
    """
    names = [trial.config for trial in trials]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"{len(names)} configurations to compare; give at least one, none twice")
    runners = [_Runner(trial) for trial in trials]
    draw, started, laps = random.Random(seed), clock(), 0
    left = list(runners)
    while left and laps < laps_max and (laps == 0 or clock() - started < limit_s):
        order = draw.sample(left, len(left))
        for at in order:
            at.there = at.turn(device, floor_us, limit_each_s)
        for at in reversed(order):
            back = at.turn(device, floor_us, limit_each_s)
            if at.there is not None and back is not None:
                at.laps.append(math.log((at.there + back) / 2.0))
        laps += 1
        left = [at for at in left if at.failure is None]
        if laps >= LAPS_MIN:
            left = _still_in(left)
            if len(left) == 1:
                break
    return Race(_standings(runners, left), len(left), laps)


@dataclass
class _Runner:
    """A configuration, and the log of its time in each lap so far."""

    trial: Trial
    laps: list[float] = field(default_factory=list)
    samples_us: list[float] = field(default_factory=list)
    failure: Timing | None = None
    there: float | None = None

    def turn(self, device: Device, floor_us: float, limit_s: float) -> float | None:
        """Take a few samples; return their median, ``None`` once it has failed."""
        if self.failure is not None:
            return None
        found = gated(device.time(self.trial, samples=TURN, limit_s=limit_s), floor_us)
        if not found.outcome.ran:
            self.failure = found
            return None
        self.samples_us += found.samples_us
        return statistics.median(found.samples_us)


def _still_in(runners: Sequence[_Runner]) -> list[_Runner]:
    """Those that noise does not let tell from the best."""
    levels, error = _levels(runners)
    best = min(levels)
    return [r for r, x in zip(runners, levels, strict=True) if x - best <= DEVIATIONS * error]


def _levels(runners: Sequence[_Runner]) -> tuple[list[float], float]:
    """The level of each relative to all, log units, and the error of a difference of two.

    All of them were timed in every lap; what a lap has in common is taken out.
    """
    if not runners:
        return [], 0.0
    laps = range(len(runners[0].laps))
    common = [statistics.median(r.laps[i] for r in runners) for i in laps]
    rest = [[r.laps[i] - common[i] for i in laps] for r in runners]
    levels = [statistics.median(values) for values in rest]
    away = [
        abs(value - level) for values, level in zip(rest, levels, strict=True) for value in values
    ]
    # Each lap's middle and each level took a degree of freedom.
    free = max((len(laps) - 1) * (len(runners) - 1), 1)
    deviation = DEVIATION_OVER_MAD * statistics.median(away) * (1.0 + FEW / free)
    error = math.sqrt(2.0) * MEDIAN_OVER_MEAN * deviation / math.sqrt(len(laps))
    return levels, error


def _apart(runner: _Runner, best: _Runner) -> tuple[float, float]:
    """How far a runner is behind another in the laps of both, log units, and its error."""
    apart = [a - b for a, b in zip(runner.laps, best.laps, strict=False)]
    middle = statistics.median(apart)
    mad = statistics.median(abs(x - middle) for x in apart)
    deviation = DEVIATION_OVER_MAD * mad * (1.0 + FEW / max(len(apart) - 1, 1))
    return middle, MEDIAN_OVER_MEAN * deviation / math.sqrt(len(apart))


def _standings(runners: Sequence[_Runner], left: Sequence[_Runner]) -> tuple[Standing, ...]:
    ran = [r for r in runners if r.failure is None]
    failed = [r for r in runners if r.failure is not None]
    found = []
    if ran:
        # The best of those that were timed to the end.
        levels, _ = _levels(left)
        best = left[min(range(len(left)), key=levels.__getitem__)]
        for runner in ran:
            behind, error = _apart(runner, best)
            found.append(
                Standing(
                    runner.trial.config, Outcome.OK, statistics.median(runner.samples_us),
                    math.expm1(behind), error, len(runner.laps),
                )
            )  # fmt: skip
        found.sort(key=lambda s: (s.config != best.trial.config, -s.laps, s.behind or 0.0))
    found += [
        Standing(r.trial.config, r.failure.outcome, reason=r.failure.reason, laps=len(r.laps))
        for r in failed
        if r.failure is not None
    ]
    return tuple(found)


__all__ = ["LAPS_MAX", "Race", "Standing", "race"]
