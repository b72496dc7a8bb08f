"""A time and everything that says what it is worth: a number is never bare."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.dataset.outcome import Outcome
from tuner.measure.device import Timing
from tuner.measure.interval import median_interval
from tuner.measure.nvml import Reading
from tuner.measure.protocol import PROTOCOL_VERSION, TimingProtocol

THROTTLED = "throttled"
POWER_CAPPED = "power_capped"
CONTENDED = "contended"
SHARED = "shared"
STALLS = "stalls"
DRIFTED = "drifted"
NOT_STEADY = "not_steady"
WIDE_INTERVAL = "wide_interval"
LAUNCH_BOUND = "launch_bound"

FLAGS: dict[str, str] = {
    THROTTLED: "the device slowed its clocks for heat or by its board's limits",
    POWER_CAPPED: "the device held its clocks down to its power limit, or to clocks set for it",
    CONTENDED: "so many samples took far longer than the others that other work must have run",
    SHARED: "another process has the device open, at work or not",
    STALLS: "some samples took far longer than the others",
    DRIFTED: "a reference kernel's time moved meanwhile; the times are corrected by it",
    NOT_STEADY: "times still moved when the longest warm-up ended",
    WIDE_INTERVAL: "samples or time ended before the median's interval was as tight as wanted",
    LAUNCH_BOUND: "a launch is so short that the events around it are a good part of its time",
}
"""What each flag of a measurement says."""

RETRIED = frozenset({THROTTLED, CONTENDED})
"""Flags with which a measurement is taken again, a bounded number of times."""


@dataclass(frozen=True)
class Measurement:
    """One configuration's time under a protocol.

    Args:
        timing: its outcome and samples, as taken.
        protocol: how it was taken; ``None`` where a table was read, which says it in its name only.
        corrected_us: the samples with the drift of a reference kernel taken out; as taken if none.
        interval_us: of the median, at ``protocol.confidence``; ``None`` for too few samples.
        before, after: what the device said of itself.
        clocks_locked: whether an application clock was set; ``None`` if the device does not say.
        flags: of `FLAGS`, what is doubtful about it.
        attempts: how often it was taken, retries included.
        drift: how much slower the reference kernel was at the end than at the start, relative;
            ``None`` without a reference.
        warm_up_s: how long the warm-up took.
        floor_us: the shortest time that the device allows, 0 where unknown.
    """

    timing: Timing
    protocol: TimingProtocol | None = None
    corrected_us: tuple[float, ...] = ()
    interval_us: tuple[float, float] | None = None
    before: Reading = field(default_factory=Reading)
    after: Reading = field(default_factory=Reading)
    clocks_locked: bool | None = None
    flags: tuple[str, ...] = ()
    attempts: int = 1
    drift: float | None = None
    warm_up_s: float = 0.0
    floor_us: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return self.timing.outcome

    @property
    def latency_us(self) -> float | None:
        """The median, drift taken out; ``None`` unless it ran."""
        if not self.outcome.ran or not self.timing.samples_us:
            return None
        return statistics.median(self.corrected_us or self.timing.samples_us)

    @property
    def clocks(self) -> dict[str, Any]:
        """What the device said of itself, by column of the measurement table."""
        return {**self.before.columns("before"), **self.after.columns("after")}

    def columns(self) -> dict[str, Any]:
        """Return how it was taken, by column of the measurement table."""
        protocol = self.protocol
        return {
            "samples": len(self.timing.samples_us) or None,
            "timing_method": self.timing.method,
            "protocol_version": None if protocol is None else PROTOCOL_VERSION,
            "l2_state": None if protocol is None else protocol.l2,
            **self.clocks,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values; null for what nobody said."""
        return {
            "outcome": self.outcome.value,
            "reason": self.timing.reason,
            "latency_us": self.latency_us,
            "interval_us": None if self.interval_us is None else list(self.interval_us),
            "confidence": None if self.protocol is None else self.protocol.confidence,
            "samples": len(self.timing.samples_us),
            "launches_per_sample": self.timing.launches,
            "least_us": min(self.timing.samples_us, default=None),
            "greatest_us": max(self.timing.samples_us, default=None),
            "timing_method": self.timing.method,
            "protocol": {"name": self.timing.protocol} if self.protocol is None
            else self.protocol.to_dict(),
            "clocks": {
                "locked": self.clocks_locked,
                **{when: _plain(r) for when, r in (("before", self.before), ("after", self.after))},
            },
            "flags": list(self.flags),
            "attempts": self.attempts,
            "drift": self.drift,
            "warm_up_s": self.warm_up_s,
            "floor_us": self.floor_us or None,
        }  # fmt: skip


def bare(timing: Timing, floor_us: float = 0.0, confidence: float = 0.95) -> Measurement:
    """Return a timing of which no more is known, as a recorded table gives it."""
    return Measurement(
        gated(timing, floor_us),
        interval_us=median_interval(timing.samples_us, confidence),
        floor_us=floor_us,
    )


def gated(timing: Timing, floor_us: float = 0.0) -> Timing:
    """Return the timing, or an implausible one where a sample cannot be: it is kept, and named."""
    if timing.outcome is not Outcome.OK:
        return timing
    wrong = why_impossible(timing.samples_us, floor_us)
    if wrong is None:
        return timing
    return replace(timing, outcome=Outcome.IMPLAUSIBLE, reason=wrong)


def why_impossible(samples_us: Sequence[float], floor_us: float = 0.0) -> str | None:
    """Return what is impossible about times, ``None`` where nothing is."""
    if not samples_us:
        return "no sample was taken"
    bad = next((s for s in samples_us if not 0 < s < float("inf")), None)
    if bad is not None:
        return f"a sample is {bad:g} us, which is no time"
    middle = statistics.median(samples_us)
    if middle < floor_us:
        return (
            f"the median is {middle:.4g} us, and the device allows {floor_us:.4g} us at least "
            "(operations at peak, compulsory bytes)"
        )
    return None


def _plain(reading: Reading) -> dict[str, Any]:
    return {
        "sm_clock_mhz": reading.sm_clock_mhz,
        "memory_clock_mhz": reading.memory_clock_mhz,
        "temperature_c": reading.temperature_c,
        "power_w": reading.power_w,
        "throttle": reading.throttle,
    }


__all__ = [
    "CONTENDED", "DRIFTED", "FLAGS", "LAUNCH_BOUND", "NOT_STEADY", "POWER_CAPPED", "RETRIED",
    "SHARED", "STALLS", "THROTTLED", "WIDE_INTERVAL", "Measurement", "bare", "gated",
    "why_impossible",
]  # fmt: skip
