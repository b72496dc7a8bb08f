"""What is doubtful about a measurement, by what its samples and the device say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.measure.device import Timing
from tuner.measure.gauges import CAPPED, reasons
from tuner.measure.gauges import THROTTLED as SLOWED
from tuner.measure.interval import DEVIATION_OVER_MAD
from tuner.measure.measurement import (
    CONTENDED,
    LAUNCH_BOUND,
    NOT_STEADY,
    POWER_CAPPED,
    SHARED,
    STALLS,
    THROTTLED,
    WIDE_INTERVAL,
)
from tuner.measure.nvml import Reading
from tuner.measure.protocol import TimingProtocol

STALLED = 1.5
STALLED_DEVIATIONS = 6.0
"""A sample so many times the median, and so many robust deviations above it, has waited for
something: noise alone makes none."""

STALLS_SHARE = 0.02
"""Of all samples, from which stalls are told."""

CONTENDED_SHARE = 0.2
"""From which they are the work of others: a kernel's own accidents are rarer."""

SAMPLES_FEW = 10
"""Among fewer, one stall says nothing."""

EVENT_BOUND_US = 20.0
"""Two events and a launch between them cost a few microseconds, a good part of less than this."""


@dataclass(frozen=True)
class Evidence:
    """What was seen beside the samples."""

    before: Reading
    after: Reading
    processes: int | None
    steady: bool
    interval_us: tuple[float, float] | None


def flags_of(
    timing: Timing, samples_us: Sequence[float], evidence: Evidence, protocol: TimingProtocol
) -> tuple[str, ...]:
    """Return the flags of a measurement that ran or was implausible, in a fixed order."""
    usable = [s for s in samples_us if 0 < s < float("inf")]
    slowed = reasons(evidence.before) | reasons(evidence.after)
    stalled = _stalled(usable)
    found = {
        # A reason that we do not know is not explained away.
        THROTTLED: bool(slowed & SLOWED) or any(r.startswith("unknown") for r in slowed),
        POWER_CAPPED: bool(slowed & CAPPED),
        CONTENDED: stalled >= CONTENDED_SHARE,
        SHARED: evidence.processes is not None and evidence.processes > 1,
        STALLS: STALLS_SHARE <= stalled < CONTENDED_SHARE,
        NOT_STEADY: not evidence.steady,
        WIDE_INTERVAL: not _is_tight(usable, evidence, protocol),
        LAUNCH_BOUND: timing.method == "events"
        and bool(usable)
        and statistics.median(usable) < EVENT_BOUND_US,
    }
    return tuple(name for name, holds in found.items() if holds)


def _stalled(samples_us: Sequence[float]) -> float:
    """The share of samples that stalled."""
    if len(samples_us) < SAMPLES_FEW:
        return 0.0
    middle = statistics.median(samples_us)
    deviation = DEVIATION_OVER_MAD * statistics.median(abs(s - middle) for s in samples_us)
    limit = max(STALLED * middle, middle + STALLED_DEVIATIONS * deviation)
    return sum(s > limit for s in samples_us) / len(samples_us)


def _is_tight(samples_us: Sequence[float], evidence: Evidence, protocol: TimingProtocol) -> bool:
    """Whether the interval of all samples, drift taken out, is as tight as wanted."""
    if evidence.interval_us is None or not samples_us:
        return False
    low, high = evidence.interval_us
    return (high - low) / 2.0 <= protocol.interval * statistics.median(samples_us)


__all__ = ["Evidence", "flags_of"]
