"""A device that misbehaves on purpose: seeded noise, drift, stalls, hangs, wrong times, failures.

For tests of anything that times configurations, here and elsewhere. Nothing waits: time is a
counter, which `FakeDevice.clock` reads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perfmodel.dataset.outcome import Outcome
from tuner.measure.device import DeviceIdentity, Timing, Trial

FAKE = DeviceIdentity(name="Fake GPU", architecture="sm_90")


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one configuration.

    ``outcome`` fails it; ``hang_s`` keeps it running so long, until the limit cuts it off;
    ``raw_us`` are returned as measured, whatever they are; ``stall`` multiplies every
    ``stall_every``-th sample; ``raises`` is raised, as the user's own error would be. Only the
    first ``times`` calls are hit, all where it is ``None``.
    """

    outcome: Outcome | None = None
    hang_s: float = 0.0
    raw_us: tuple[float, ...] | None = None
    stall: float = 1.0
    stall_every: int = 1
    raises: Callable[[], BaseException] | None = None
    times: int | None = None


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

    ``calls`` lists configurations and samples in the order they were asked for.
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
    ) -> None:
        self._times_us = times_us
        self._random = random.Random(seed)
        self._noise, self._drift, self._warmup = noise, drift, warmup
        self._faults = dict(faults or {})
        self._compile_s = compile_s
        self._identity, self._protocol = identity, protocol
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

    def count(self, config: str) -> int:
        """Return how often a configuration was asked for."""
        return sum(name == config for name, _ in self.calls)

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        """Return samples, or what the faults make of them."""
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
            if fault.outcome is not None:
                return Timing(fault.outcome, self._protocol, reason=f"fake {fault.outcome}")
            self._now_s += fault.hang_s
        found = self._drawn(trial.config, samples, fault)
        self._now_s += 1e-6 * sum(s for s in found if s > 0)  # NaN is not
        if self._now_s - started > limit_s:
            self._now_s = started + limit_s
            return Timing(Outcome.TIMEOUT, self._protocol, reason=f"cut off after {limit_s:g} s")
        return Timing(Outcome.OK, self._protocol, tuple(found))

    def _drawn(self, config: str, samples: int, fault: Fault | None) -> Sequence[float]:
        if fault is not None and fault.raw_us is not None:
            return fault.raw_us
        found = []
        for i in range(samples):
            slow = 1.0 + self._drift * self._samples + self._warmup * 0.5**self._samples
            us = self._times_us.get(config, 1.0) * slow
            us *= max(1.0 + self._noise * self._random.gauss(0.0, 1.0), 0.05)
            if fault is not None and (i + 1) % fault.stall_every == 0:
                us *= fault.stall
            self._samples += 1
            found.append(us)
        return found
