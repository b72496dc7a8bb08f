"""The interval of a median, steadiness, drift and the samples that suffice."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.dataset.outcome import Outcome
from tuner.measure.device import Timing
from tuner.measure.drift import DriftTrack
from tuner.measure.interval import half_width, median_interval
from tuner.measure.protocol import TimingProtocol
from tuner.measure.sampling import sample
from tuner.measure.warm_up import warm_up

times = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=60)


def test_the_ranks_are_those_of_the_tables_of_the_sign_test() -> None:
    """Conover, Practical Nonparametric Statistics: n = 10 gives the 2nd and 9th at 97.9 %."""
    assert median_interval(range(1, 11), 0.95) == (2, 9)
    assert median_interval(range(1, 7), 0.95) == (1, 6)
    assert median_interval(range(1, 6), 0.95) is None
    assert median_interval(range(1, 21), 0.95) == (6, 15)


@given(times, st.floats(0.5, 0.99))
def test_an_interval_holds_the_samples_own_median(samples: list[float], confidence: float) -> None:
    found = median_interval(samples, confidence)
    if found is not None:
        assert min(samples) <= found[0] <= statistics.median(samples) <= found[1] <= max(samples)


@pytest.mark.parametrize("count", [8, 30, 200, 2000])
def test_an_interval_holds_the_true_median_as_often_as_it_says(count: int) -> None:
    draw = random.Random(count)
    held = 0
    for _ in range(300):
        found = median_interval([draw.expovariate(1.0) for _ in range(count)], 0.95)
        assert found is not None
        held += found[0] <= math.log(2.0) <= found[1]
    assert held >= 0.92 * 300


def test_without_an_interval_nothing_is_tight() -> None:
    assert half_width([1.0] * 5, 0.95) == math.inf
    assert half_width([], 0.95) == math.inf
    assert half_width([1.0] * 6, 0.95) == 0.0
    assert half_width([math.nan] * 9, 0.95) == math.inf


class Source:
    """Samples of a seeded noise, on a clock of their own."""

    def __init__(self, noise: float, us: float = 100.0) -> None:
        self.draw, self.noise, self.us, self.now_s = random.Random(0), noise, us, 0.0

    def take(self, count: int, limit_s: float = 1e9) -> Timing:
        found = tuple(
            self.us * max(1 + self.noise * self.draw.gauss(0, 1), 0.05) for _ in range(count)
        )
        self.now_s += 1e-6 * sum(found)
        return Timing(Outcome.OK, "p-1", found)

    def clock(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("noise", "least", "most"), [(0.0, 10, 10), (0.005, 10, 40), (0.03, 200, 900)]
)
def test_noisier_times_take_more_samples_until_the_interval_is_tight(
    noise: float, least: int, most: int
) -> None:
    source = Source(noise)
    found = sample(source.take, TimingProtocol(), limit_s=9.0, clock=source.clock)
    assert found.tight
    assert least <= len(found.timing.samples_us) <= most


def test_samples_and_time_both_end_it() -> None:
    source = Source(0.5)
    few = sample(source.take, TimingProtocol(samples_max=50), limit_s=9.0, clock=source.clock)
    assert (few.tight, len(few.timing.samples_us)) == (False, 50)
    slow = Source(0.5, us=1e5)
    brief = sample(slow.take, TimingProtocol(), limit_s=2.0, clock=slow.clock)
    assert not brief.tight
    assert len(brief.timing.samples_us) < 60


def test_a_cut_off_at_the_end_of_the_budget_keeps_what_there_is() -> None:
    source = Source(0.5)

    def take(count: int, limit_s: float) -> Timing:
        if source.now_s > 0:
            return Timing(Outcome.TIMEOUT, "p-1", reason="cut off")
        return source.take(count)

    found = sample(take, TimingProtocol(), limit_s=9.0, clock=source.clock)
    assert found.timing.outcome is Outcome.OK
    assert len(found.timing.samples_us) == 10


def test_a_warm_up_ends_when_times_are_steady_and_at_its_limit() -> None:
    rising = iter([2.0, 1.6, 1.3, 1.1, *[1.0] * 1000])
    source = Source(0.0)

    def block(count: int) -> tuple[float, ...]:
        factor = next(rising)
        return tuple(factor * us for us in source.take(count).samples_us)

    found = warm_up(block, steady=0.02, limit_s=9.0, clock=source.clock)
    assert (found.steady, found.samples) == (True, 7 * 8)
    sinking = warm_up(
        lambda n: tuple((1 + 10 * source.now_s) * us for us in source.take(n).samples_us),
        steady=1e-4, limit_s=0.05, clock=source.clock,
    )  # fmt: skip
    assert not sinking.steady
    assert sinking.seconds == pytest.approx(0.05, rel=0.05)


def test_what_has_no_time_to_warm_up_with_is_not_steady() -> None:
    clock = iter(range(1000))
    for found in ((), (math.nan,) * 8, (0.0,) * 8, (1.0,), (1.0, 2.0)):
        assert not warm_up(
            lambda _n, found=found: found, steady=0.02, limit_s=9, clock=lambda: next(clock)
        ).steady
    two = warm_up(lambda _n: (1.0, 1.01), steady=0.02, limit_s=9, clock=lambda: next(clock))
    assert two.steady


def test_drift_is_linear_between_checks_and_nothing_before_the_first() -> None:
    track = DriftTrack()
    for first, us in ((0, 100.0), (100, 110.0), (200, 110.0)):
        track.add(first, [us] * 11)
    assert [track.slowdown(at) for at in (0, 5, 55, 105, 160, 900)] == pytest.approx(
        [1.0, 1.0, 1.05, 1.1, 1.1, 1.1]
    )
    assert track.between(0) == pytest.approx(0.1)
    assert track.is_significant()
    track.forget(1)
    assert len(track.checks) == 1
    assert track.slowdown(500) == 1.0


def test_noise_is_no_drift() -> None:
    told = 0
    for seed in range(100):
        draw, track = random.Random(seed), DriftTrack()
        for first in (0, 300):
            track.add(first, [100 * (1 + 0.03 * draw.gauss(0, 1)) for _ in range(200)])
        told += track.is_significant()
    assert told < 12
