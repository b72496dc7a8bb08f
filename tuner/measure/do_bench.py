"""A user's ``do_bench`` as a device: whatever it returns becomes a timing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from perfmodel.dataset.outcome import Outcome
from tuner.measure.device import DeviceIdentity, Timing, Trial
from tuner.measure.failures import failure_of

QUANTILES = (0.5, 0.2, 0.8)
"""What Triton's autotuner asks for; times come back in that order, milliseconds."""


class DoBenchDevice:
    """Times trials with ``do_bench(kernel_call, quantiles=(0.5, 0.2, 0.8))``, as Triton does.

    One call is a whole benchmark, whatever number of samples is asked for: search with
    `tuner.search.tunables.ONE_CALL`. A call cannot be interrupted here; one that took longer than
    its limit is a timeout once it returns.

    Args:
        do_bench: returns milliseconds: median, 20 % and 80 % quantile, or one number.
        identity: the device that it times on.
        protocol: name and version of how it times.
    """

    def __init__(
        self,
        do_bench: Callable[..., Any],
        identity: DeviceIdentity,
        protocol: str = "do_bench-1",
    ) -> None:
        self._do_bench = do_bench
        self._identity = identity
        self._protocol = protocol

    @property
    def identity(self) -> DeviceIdentity:
        """The device that it times on."""
        return self._identity

    @property
    def protocol(self) -> str:
        """How it times."""
        return self._protocol

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:  # noqa: ARG002 - one call is a benchmark
        """Return what one call measured.

        Raises:
            DeviceLostError: the CUDA context is beyond use.
            Exception: the user's own error.
        """
        started = time.monotonic()
        try:
            found = self._do_bench(trial.launch, quantiles=QUANTILES)
        except Exception as error:
            failure = failure_of(error, self._protocol)
            if failure is None:
                raise
            return failure
        if time.monotonic() - started > limit_s:
            reason = f"took longer than {limit_s:g} s"
            return Timing(Outcome.TIMEOUT, self._protocol, reason=reason)
        times_us = samples_of(found)
        if not times_us:
            reason = f"do_bench returned {found!r}, which is no time"
            return Timing(Outcome.IMPLAUSIBLE, self._protocol, reason=reason)
        return Timing(Outcome.OK, self._protocol, times_us)


def samples_of(found: object) -> tuple[float, ...]:
    """Return what a ``do_bench`` returned, in microseconds; empty where it is no time.

    Quantiles that are all equal are one sample: their spread says nothing of the noise. Values
    that are no usable times (NaN, 0) are kept, for whoever judges them.
    """
    several = isinstance(found, Iterable) and not isinstance(found, str)
    values: list[Any] = list(found) if several else [found]  # type: ignore[call-overload]
    try:
        times = [1e3 * float(value) for value in values if value is not None]
    except (TypeError, ValueError):
        return ()
    if len(times) > 1 and all(math.isclose(t, times[0], rel_tol=1e-12) for t in times):
        return (times[0],)
    return tuple(times)
