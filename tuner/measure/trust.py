"""How far the harness can be trusted: known times in, on a device that misbehaves, and out."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.measure.device import Trial
from tuner.measure.fake import FakeDevice
from tuner.measure.harness import Harness
from tuner.measure.interleave import race
from tuner.measure.measurement import Measurement
from tuner.measure.protocol import TimingProtocol

NOISE = 0.03
STALLS = 0.05
AHEAD = 0.02
CONFIGS = 200

DRIFT = 5e-6
"""Of each sample: 1 % over the 2,000 samples that one measurement takes in all. That is our reading
of a drift of 1 % for a time that must come out within 1 %: had it grown by 1 % with each sample,
the device would be twenty times slower in the end, and what its true time is, nobody could say."""

RAMP = 0.01
"""Of each sample, in comparisons: who is faster must not depend on it."""

TRUE_US = 100.0
REFERENCE = Trial("reference")
TRIAL = Trial("kernel")


@dataclass(frozen=True)
class Trust:
    """What came of many seeds. ``errors`` are those of the median over the truth, sorted."""

    errors: tuple[float, ...]
    found: int
    raced: int

    def within(self, bound: float) -> float:
        """Return the share of medians whose error is within ``bound``."""
        return sum(error <= bound for error in self.errors) / len(self.errors)


def measured(
    seed: int, *, drift: float = DRIFT, protocol: TimingProtocol | None = None
) -> Measurement:
    """Measure a kernel of `TRUE_US` on a noisy, drifting, stalling device."""
    fake = FakeDevice(
        {TRIAL.config: TRUE_US, REFERENCE.config: 0.8 * TRUE_US},
        seed=seed, noise=NOISE, drift=drift, stalls=STALLS,
    )  # fmt: skip
    harness = Harness(
        fake, protocol or TimingProtocol(), fake, REFERENCE, clock=fake.clock, wait=fake.wait
    )
    return harness.measure(TRIAL)


def best_is_found(seed: int, *, drift: float = DRIFT, configs: int = CONFIGS) -> bool:
    """Compare equal configurations, one of which is 2 % ahead; return whether it came in first."""
    best = random.Random(f"best {seed}").randrange(configs)
    names = [f"c{i}" for i in range(configs)]
    true = {name: TRUE_US * (1.0 - AHEAD * (i == best)) for i, name in enumerate(names)}
    fake = FakeDevice(true, seed=seed, noise=NOISE, drift=drift, stalls=STALLS)
    found = race(fake, [Trial(n) for n in names], seed=seed, limit_s=1e9, clock=fake.clock)
    return found.best == names[best]


def trust(
    medians: Iterable[int], races: Iterable[int], *, ramp: float = DRIFT, configs: int = CONFIGS
) -> Trust:
    """Measure with each seed of ``medians``, compare with each of ``races``."""
    errors = [abs((measured(seed).latency_us or 0.0) / TRUE_US - 1.0) for seed in medians]
    found = [best_is_found(seed, drift=ramp, configs=configs) for seed in races]
    return Trust(tuple(sorted(errors)), sum(found), len(found))
