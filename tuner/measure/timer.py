"""A plain timer in this process: CUDA events around each launch, the L2 flushed before it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError, NotInstalledError
from tuner.measure.device import DeviceIdentity, Timing, Trial
from tuner.measure.failures import failure_of, is_poisoned

L2_TIMES = 2
"""The flush writes so many times the L2: what a launch left there is gone whatever the policy."""

L2_BYTES_UNKNOWN = 64 << 20


@runtime_checkable
class PartedLaunch(Protocol):
    """A launch whose preparation need not be timed with it; called, it does all three."""

    def __call__(self) -> object:
        """Prepare, launch and finish."""

    def prepare(self) -> None:
        """Put inputs back."""

    def bare(self) -> object:
        """Launch."""

    def finish(self) -> None:
        """Follow a launch that did not raise."""


class Stopwatch(Protocol):
    """Times launches one by one, none of which the caller waits for in between."""

    @property
    def protocol(self) -> str:
        """How it times, with a version."""

    def warm(self, launch: Callable[[], object]) -> None:
        """Launch once and wait: what is compiled or loaded on first use is not timed."""

    def samples_us(self, launch: Callable[[], object], count: int) -> list[float]:
        """Return the times of ``count`` launches, microseconds."""

    def close(self) -> None:
        """Give memory back."""


@runtime_checkable
class Choosing(Protocol):
    """A stopwatch that chooses for each launch how to time it."""

    def how(self, launch: Callable[[], object]) -> tuple[str, int]:
        """Return ``events`` or ``cuda_graph``, and how many launches each sample is the mean of."""


class CudaEvents:
    """Two events around each launch; the flush lies outside them. Waits once, at the end.

    Launch overhead leaks into times under some 20 us: enough to tell configurations apart, not to
    report a kernel's own time.
    """

    protocol = "events-1"

    def __init__(self, device: str = "cuda") -> None:
        try:
            import torch  # noqa: PLC0415 - an extra, and slow to import
        except ImportError as error:
            raise NotInstalledError(
                "timing on a GPU needs torch; install it with: pip install 'perfmodel[triton]'"
            ) from error
        self._torch: Any = torch
        self._device = device
        self._flush: Any = None

    def warm(self, launch: Callable[[], object]) -> None:
        """Launch once and wait."""
        launch()
        self._torch.cuda.synchronize(self._device)

    def samples_us(self, launch: Callable[[], object], count: int) -> list[float]:
        """Return the times of ``count`` launches, each with a cold L2."""
        torch = self._torch
        flush = self._flushing()
        parts = launch if isinstance(launch, PartedLaunch) else None
        bare = launch if parts is None else parts.bare
        pairs = []
        for _ in range(count):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if parts is not None:
                parts.prepare()
            flush.zero_()
            begin.record()
            bare()
            end.record()
            if parts is not None:
                parts.finish()
            pairs.append((begin, end))
        torch.cuda.synchronize(self._device)
        return [1e3 * begin.elapsed_time(end) for begin, end in pairs]

    def close(self) -> None:
        """Free the flushed buffer."""
        self._flush = None

    def _flushing(self) -> Any:
        if self._flush is None:
            found = self._torch.cuda.get_device_properties(self._device)
            size = L2_TIMES * (getattr(found, "L2_cache_size", 0) or L2_BYTES_UNKNOWN)
            self._flush = self._torch.empty(size, dtype=self._torch.int8, device=self._device)
        return self._flush


class WallClock:
    """The host's clock: for code that runs on the CPU, such as Triton's interpreter."""

    protocol = "wall-1"

    def warm(self, launch: Callable[[], object]) -> None:
        """Launch once."""
        launch()

    def samples_us(self, launch: Callable[[], object], count: int) -> list[float]:
        """Return the times of ``count`` calls."""
        found = []
        for _ in range(count):
            begin = time.perf_counter_ns()
            launch()
            found.append((time.perf_counter_ns() - begin) / 1e3)
        return found

    def close(self) -> None:
        """Nothing to give back."""


class TimerDevice:
    """Times trials in this process.

    A launch that hangs cannot be cut off here, and an error that poisons the CUDA context takes the
    device from this process for good: use `tuner.measure.worker_device` where that may happen.

    Args:
        stopwatch: `CudaEvents`, or whatever times launches.
        identity: the device that it times on.
    """

    def __init__(self, stopwatch: Stopwatch, identity: DeviceIdentity) -> None:
        self._stopwatch = stopwatch
        self._identity = identity
        self._warm: set[str] = set()
        self._lost: str | None = None

    @property
    def identity(self) -> DeviceIdentity:
        """The device that it times on."""
        return self._identity

    @property
    def protocol(self) -> str:
        """How it times."""
        return self._stopwatch.protocol

    @property
    def lost(self) -> str | None:
        """Why nothing more can be timed in this process, ``None`` while it can."""
        return self._lost

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        """Return times of a trial, fewer than asked where ``limit_s`` passes in between.

        Raises:
            DeviceLostError: an earlier error left the CUDA context beyond use.
            Exception: the user's own error.
        """
        if self._lost is not None:
            raise DeviceLostError(f"the CUDA context was lost: {self._lost}")
        launch = trial.launch
        if launch is None:
            return Timing(Outcome.CRASHED, self.protocol, reason="the trial has nothing to launch")
        until = time.monotonic() + limit_s
        found: list[float] = []
        try:
            if trial.config not in self._warm:
                self._stopwatch.warm(launch)
                self._warm.add(trial.config)
            # The first alone: one that takes seconds is not launched again beyond the limit.
            found += self._stopwatch.samples_us(launch, 1)
            left_s = until - time.monotonic()
            fit = int(left_s / max(1e-6 * found[0], 1e-9)) if left_s > 0 else 0
            more = min(samples - 1, fit)
            if more > 0:
                found += self._stopwatch.samples_us(launch, more)
        except Exception as error:
            failure = failure_of(error, self.protocol)
            if failure is None:
                raise
            if is_poisoned(error):
                self._lost = failure.reason
            return failure
        if time.monotonic() > until and len(found) < min(samples, 2):
            reason = f"took longer than {limit_s:g} s"
            return Timing(Outcome.TIMEOUT, self.protocol, reason=reason)
        method, launches = None, 1
        if isinstance(self._stopwatch, Choosing):
            method, launches = self._stopwatch.how(launch)
        return Timing(Outcome.OK, self.protocol, tuple(found), method=method, launches=launches)

    def close(self) -> None:
        """Give memory back."""
        self._stopwatch.close()
