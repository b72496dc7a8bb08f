"""Times a configuration by the protocol: warm, steady, tight, watched, gated, and taken again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import RunFailedError
from tuner.measure.device import Device, DeviceIdentity, Timing, Trial
from tuner.measure.drift import DriftTrack
from tuner.measure.gauges import Gauges, NoGauges
from tuner.measure.interval import median_interval
from tuner.measure.judge import Evidence, flags_of
from tuner.measure.measurement import DRIFTED, RETRIED, Measurement, gated, why_impossible
from tuner.measure.protocol import TimingProtocol
from tuner.measure.sampling import Sampled, sample
from tuner.measure.warm_up import WarmUp, warm_up

LIMIT_S = 10.0
"""Seconds for one configuration, unless the caller says otherwise."""

STUCK = 2
"""After so many measurements in a row that no retry has helped, none is taken again until one comes
out undisturbed: the device is as it is, and its time is dear."""


@dataclass
class Harness:
    """A device that measures by the protocol, on top of one that takes samples.

    It is a `Device` itself: `time` returns no more than the samples, `measure` everything.

    Args:
        device: takes samples of a trial, each as ``protocol`` says for one launch.
        protocol: how times are taken.
        gauges: reads clocks and the like.
        reference: a launch that stays the same over the session, timed to see drift; none is
            seen without.
        clock: seconds, monotonic.
        wait: waits so many seconds.
    """

    device: Device
    settings: TimingProtocol = field(default_factory=TimingProtocol)
    gauges: Gauges = field(default_factory=NoGauges)
    reference: Trial | None = None
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._track = DriftTrack()
        self._taken = 0
        self._warm = False
        self._stuck = 0  # measurements in a row that stayed throttled or contended

    @property
    def identity(self) -> DeviceIdentity:
        """The device that it measures on."""
        return self.device.identity

    @property
    def protocol(self) -> str:
        """The name of the protocol, or that under which a recorded table was taken."""
        return self.device.protocol

    @property
    def drift(self) -> DriftTrack:
        """What the reference kernel has shown so far."""
        return self._track

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        """Return at most ``samples`` times; no drift is looked for (see `check_drift`).

        Raises:
            DeviceLostError: nothing more can be timed here.
        """
        return self.measure(trial, limit_s=limit_s, samples=samples, checked=False).timing

    def measure(
        self,
        trial: Trial,
        *,
        floor_us: float = 0.0,
        limit_s: float = LIMIT_S,
        samples: int | None = None,
        checked: bool = True,
    ) -> Measurement:
        """Measure a trial; whatever it does is an outcome, and whatever is doubtful a flag.

        Args:
            trial: what to time.
            floor_us: no time below it can be (`tuner.measure.check.floor_us`).
            limit_s: seconds for all of it, retries included; the last call of the device may go on
                as long again where it cannot be cut off.
            samples: at most so many, if fewer than the protocol's.
            checked: time the reference before, half-way and after. One that measures thousands in
                a row calls `check_drift` now and then instead.

        Raises:
            DeviceLostError: nothing more can be timed here.
        """
        until = self.clock() + limit_s
        settings = self.settings
        if samples is not None and samples < settings.samples_max:
            least = min(settings.samples_min, samples)
            settings = replace(settings, samples_min=least, samples_max=samples)
        attempts = 0
        while True:
            attempts += 1
            checks = len(self._track.checks)
            found = self._attempt(trial, floor_us, until, settings, checked=checked)
            disturbed = bool(RETRIED & set(found.flags))
            again = found.outcome is Outcome.IMPLAUSIBLE or (disturbed and self._stuck < STUCK)
            left_s = until - self.clock()
            if not again or attempts > settings.retries or left_s <= settings.cool_down_s:
                self._stuck = self._stuck + 1 if disturbed else 0
                return replace(found, attempts=attempts)
            self._track.forget(checks)
            if disturbed:
                self.wait(settings.cool_down_s)

    def check_drift(self) -> float | None:
        """Time the reference; return how much slower it is than at the start, ``None`` without one.

        Raises:
            RunFailedError: the reference itself does not run.
            DeviceLostError: nothing more can be timed here.
        """
        if self.reference is None:
            return None
        self._wake()
        first = self._taken
        found = self._take(self.reference, self.settings.reference_samples, LIMIT_S)
        wrong = found.reason if not found.outcome.ran else why_impossible(found.samples_us)
        if wrong is not None:
            raise RunFailedError(f"the reference kernel cannot be timed: {wrong}")
        self._track.add(first, found.samples_us)
        return self._track.between(0)

    def close(self) -> None:
        """Give the device's memory back, where it holds any."""
        close = getattr(self.device, "close", None)
        if close is not None:
            close()

    def _wake(self) -> None:
        """Warm the device up by the reference, once a session."""
        if not self._warm and self.reference is not None:
            self._warm = True
            self._warm_up(self.reference, self.settings.warm_up_s)

    def _attempt(
        self,
        trial: Trial,
        floor_us: float,
        until: float,
        settings: TimingProtocol,
        *,
        checked: bool,
    ) -> Measurement:
        checked = checked and self.reference is not None
        since = len(self._track.checks)
        if checked:
            self.check_drift()
        before, locked = self.gauges.reading(), self.gauges.locked()
        warm = self._first(trial, until, settings)
        if isinstance(warm, Timing):
            return Measurement(warm, settings, before=before, after=self.gauges.reading(),
                               clocks_locked=locked, floor_us=floor_us)  # fmt: skip
        parts = []
        for half in range(2 if checked else 1):
            if half:
                self.check_drift()
            first = self._taken
            limit_s = (until - self.clock()) / (2 - half if checked else 1)
            part = sample(
                lambda n, s: self._take(trial, n, s), settings, limit_s=limit_s, clock=self.clock
            )
            parts.append((first, part))
            if not part.timing.outcome.ran:
                break
        after, processes = self.gauges.reading(), self.gauges.processes()
        if checked:
            self.check_drift()
        timing = gated(_joined([part for _, part in parts]), floor_us)
        corrected = self._corrected(parts) if checked and timing.outcome.ran else ()
        interval = median_interval(corrected or timing.samples_us, settings.confidence)
        evidence = Evidence(before, after, processes, warm.steady, interval)
        flags = flags_of(timing, corrected or timing.samples_us, evidence, settings)
        drift = self._track.between(since) if checked else None
        if drift is not None and abs(drift) > settings.drift_max and corrected:
            flags = (*flags, DRIFTED)
        return Measurement(
            timing, settings, corrected, interval if timing.outcome.ran else None, before, after,
            locked, flags, drift=drift, warm_up_s=warm.seconds, floor_us=floor_us,
        )  # fmt: skip

    def _first(self, trial: Trial, until: float, settings: TimingProtocol) -> WarmUp | Timing:
        """Warm up with the trial; what it does on its first launch ends the attempt.

        A trial that takes long has no use for many launches to warm up with.
        """
        one = self._take(trial, 1, max(until - self.clock(), 1e-3))
        if not one.outcome.ran:
            return one
        left_s = max(until - self.clock(), 0.0)
        return self._warm_up(trial, min(settings.warm_up_s, 0.2 * left_s))

    def _warm_up(self, trial: Trial, limit_s: float) -> WarmUp:
        def take(count: int) -> tuple[float, ...]:
            found = self._take(trial, count, max(limit_s, 1e-3))
            return found.samples_us if found.outcome.ran else ()

        return warm_up(take, steady=self.settings.steady, limit_s=limit_s, clock=self.clock)

    def _take(self, trial: Trial, count: int, limit_s: float) -> Timing:
        found = self.device.time(trial, samples=count, limit_s=limit_s)
        self._taken += len(found.samples_us)
        return found

    def _corrected(self, parts: list[tuple[int, Sampled]]) -> tuple[float, ...]:
        """The samples at the session's first clocks; none where nothing has drifted."""
        if not self._track.is_significant():
            return ()
        return tuple(
            us / self._track.slowdown(first + at)
            for first, part in parts
            for at, us in enumerate(part.timing.samples_us)
        )


def _joined(parts: list[Sampled]) -> Timing:
    """All samples of an attempt; its failure, if any part failed."""
    last = parts[-1].timing
    if not last.outcome.ran:
        return last
    return replace(last, samples_us=tuple(us for part in parts for us in part.timing.samples_us))


__all__ = ["LIMIT_S", "Harness"]
