"""A device that misbehaves on purpose: noise, drift, stalls, throttling, hangs, wrong results.

For tests of anything that times configurations, here and elsewhere. Nothing waits: time is a
counter, which `FakeDevice.clock` reads.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError
from tuner.measure.device import DeviceIdentity, Timing, Trial
from tuner.measure.nvml import Reading

FAKE = DeviceIdentity(name="Fake GPU", architecture="sm_90")

FULL_CLOCK_MHZ = 1980.0


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one configuration.

    ``outcome`` fails it; ``hang_s`` keeps it running so long, until the limit cuts it off;
    ``raw_us`` are returned as measured, whatever they are; ``stall`` multiplies every
    ``stall_every``-th sample; ``raises`` is raised, as the user's own error would be. Only the
    first ``times`` calls are hit, all where it is ``None``. ``sticky`` takes the device away with
    it, as a poisoned CUDA context does, until `FakeDevice.restart`. ``wrong`` is what a comparison
    with the reference finds: it runs, and fast.
    """

    outcome: Outcome | None = None
    hang_s: float = 0.0
    raw_us: tuple[float, ...] | None = None
    stall: float = 1.0
    stall_every: int = 1
    raises: Callable[[], BaseException] | None = None
    times: int | None = None
    sticky: bool = False
    wrong: str | None = None


@dataclass(frozen=True)
class Throttle:
    """Between two moments of the device's clock every sample takes ``factor`` times as long.

    ``reason`` is what NVML would say meanwhile; ``None`` where it says nothing.
    """

    start_s: float
    end_s: float
    factor: float = 1.3
    reason: str | None = "hw_thermal"


class FakeDevice:
    """Times configurations by a formula, with the faults that were asked for.

    Args:
        times_us: true time by configuration text; 1 for those not listed.
        seed: of the noise.
        noise: relative standard deviation of a sample.
        drift: relative slowdown with each sample taken, whatever the configuration: a clock that
            sinks.
        warmup: relative slowdown of the first samples of all, halved with each: a clock that rises.
        faults: what goes wrong, by configuration.
        compile_s: seconds that the first call of a configuration takes beside its samples.
        stalls: share of samples, at random, that take ``stall`` times as long.
        throttles: when its clocks are held down.
        sharing: how many processes use it; ``None`` where it does not say.

    It is its own gauges (`tuner.measure.gauges`), and `wait` lets its time pass. ``calls`` lists
    configurations and samples in the order they were asked for.
    """

    def __init__(
        self,
        times_us: Mapping[str, float],
        *,
        seed: int = 0,
        noise: float = 0.0,
        drift: float = 0.0,
        warmup: float = 0.0,
        faults: Mapping[str, Fault] | None = None,
        compile_s: float = 0.0,
        identity: DeviceIdentity = FAKE,
        protocol: str = "fake-1",
        stalls: float = 0.0,
        stall: float = 5.0,
        throttles: Sequence[Throttle] = (),
        sharing: int | None = None,
        locked: bool | None = None,
    ) -> None:
        self._times_us = times_us
        self._random = random.Random(seed)
        self._noise, self._drift, self._warmup = noise, drift, warmup
        self._faults = dict(faults or {})
        self._compile_s = compile_s
        self._identity, self._protocol = identity, protocol
        self._stalls, self._stall = stalls, stall
        self._throttles, self._sharing, self._locked = tuple(throttles), sharing, locked
        self._lost: str | None = None
        self._samples = 0
        self._now_s = 0.0
        self.calls: list[tuple[str, int]] = []

    @property
    def identity(self) -> DeviceIdentity:
        """The device that it pretends to be."""
        return self._identity

    @property
    def protocol(self) -> str:
        """How it times."""
        return self._protocol

    def clock(self) -> float:
        """Return seconds that its calls would have taken."""
        return self._now_s

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds

    def reading(self) -> Reading:
        """Return clocks and throttle reasons as NVML would."""
        now = self._throttle()
        if now is None:
            return Reading(sm_clock_mhz=FULL_CLOCK_MHZ, throttle="")
        return Reading(sm_clock_mhz=FULL_CLOCK_MHZ / now.factor, throttle=now.reason)

    def locked(self) -> bool | None:
        """Return what it was told to say."""
        return self._locked

    def processes(self) -> int | None:
        """Return how many processes use it."""
        return self._sharing

    def verify(self, trial: Trial) -> str | None:
        """Return what a comparison with the reference finds, for `CheckedDevice`."""
        fault = self._faults.get(trial.config)
        return None if fault is None else fault.wrong

    def restart(self) -> None:
        """Begin again with a new context, as a new process would."""
        self._lost = None

    def count(self, config: str) -> int:
        """Return how often a configuration was asked for."""
        return sum(name == config for name, _ in self.calls)

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        """Return samples, or what the faults make of them.

        Raises:
            DeviceLostError: a sticky fault came before.
        """
        if self._lost is not None:
            raise DeviceLostError(f"the CUDA context was lost: {self._lost}")
        first = not self.count(trial.config)
        self.calls.append((trial.config, samples))
        fault = self._faults.get(trial.config)
        if fault is not None and fault.times is not None:
            fault = fault if self.count(trial.config) <= fault.times else None
        started = self._now_s
        self._now_s += self._compile_s if first else 0.0
        if fault is not None:
            if fault.raises is not None:
                raise fault.raises()
            if fault.sticky:
                self._lost = f"fake sticky error of {trial.config}"
                return Timing(Outcome.CRASHED, self._protocol, reason=self._lost)
            if fault.outcome is not None:
                return Timing(fault.outcome, self._protocol, reason=f"fake {fault.outcome}")
            self._now_s += fault.hang_s
        found = self._drawn(trial.config, samples, fault)
        if self._now_s - started > limit_s:
            self._now_s = started + limit_s
            return Timing(Outcome.TIMEOUT, self._protocol, reason=f"cut off after {limit_s:g} s")
        return Timing(Outcome.OK, self._protocol, tuple(found))

    def _drawn(self, config: str, samples: int, fault: Fault | None) -> Sequence[float]:
        if fault is not None and fault.raw_us is not None:
            self._now_s += 1e-6 * sum(s for s in fault.raw_us if 0 < s < math.inf)
            return fault.raw_us
        found = []
        for i in range(samples):
            slow = 1.0 + self._drift * self._samples + self._warmup * 0.5**self._samples
            us = self._times_us.get(config, 1.0) * slow
            us *= max(1.0 + self._noise * self._random.gauss(0.0, 1.0), 0.05)
            if fault is not None and (i + 1) % fault.stall_every == 0:
                us *= fault.stall
            if self._stalls and self._random.random() < self._stalls:
                us *= self._stall
            now = self._throttle()
            us *= 1.0 if now is None else now.factor
            self._samples += 1
            self._now_s += 1e-6 * us
            found.append(us)
        return found

    def _throttle(self) -> Throttle | None:
        for throttle in self._throttles:
            if throttle.start_s <= self._now_s < throttle.end_s:
                return throttle
        return None
