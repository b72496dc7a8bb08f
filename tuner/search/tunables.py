"""Every number that a search goes by, with the reason of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tunables:
    """How a search spends samples. Ratios are relative times, 1.5 being half as slow again."""

    first_samples: int = 1
    """Of every configuration before anything else is known of it."""

    samples: int = 5
    """More of each that is not hopeless; 0 where one call is a whole measurement."""

    limit_s: float = 30.0
    """For one call of one configuration, its compilation included."""

    hopeless: float = 1.5
    """Over the best so far, a first sample that no noise explains: clocks ramp by at most 1.4."""

    hopeless_of_model: float = 10.0
    """Over the least time that the model expects of any: so slow, one sample is enough. A spilled
    tile runs 10 times slower, and the model itself is off by less than 2 in all tables."""

    margin: float = 0.15
    """Configurations this near to the best are timed again where nothing tells the noise: five
    times 3 %."""

    near_deviations: float = 6.0
    """Standard errors from the best within which a configuration is timed again."""

    finalists: int = 4
    """Timed again: so many of the fastest, so many of the first in order, and the baseline."""

    final_samples: int = 3
    """Of each finalist, each way of a round."""

    rounds_min: int = 3
    """Of the finals: two agree by chance too often."""

    rounds_max: int = 8
    """Each goes through all finalists there and back, so that a clock that drifts slows every one
    alike."""

    noise_floor: float = 0.005
    """Repeats of one measurement differ by about so much (0.4 to 0.5 % in public tables)."""

    final_floor: float = 0.002
    """The same for the finals, whose medians stand on 6 repeats and more: 0.5 % / sqrt(6)."""

    noise_wanted: float = 0.01
    """Rounds end when the finalists are told apart this finely."""

    deviations: float = 5.0
    """Standard errors between two that count as different: with 10 near ties in 100 searches, none
    is expected to fall beyond, though the deviation is itself estimated from few samples."""


ONE_CALL = Tunables(samples=0, final_samples=1, rounds_max=4)
"""Where each call is a whole benchmark with warm-up, such as ``do_bench``."""


@dataclass(frozen=True)
class Budget:
    """What a search may spend: configurations that are timed, and seconds; ``None`` is no bound.

    Configurations that fail are not counted as timed; their seconds are.
    """

    trials: int | None = None
    seconds: float | None = None
