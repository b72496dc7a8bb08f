"""The software-pipelined main loop: how much memory latency is left exposed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.rates import DeviceRates
from perfmodel.hardware.gpu import Gpu

Array = NDArray[np.float64]


def loop_seconds(iterations: Array, trip_s: Array, exposed_s: Array, latency_s: float) -> Array:
    """Return prologue + (L - 1) max(work, exposed latency) + last trip, arrays (N,) in seconds.

    ``trip_s`` is the work of one trip, ``exposed_s`` the time between two trips that latency alone
    dictates. Without a trip there is nothing to fill and nothing to wait for.
    """
    steady = np.maximum(iterations - 1.0, 0.0) * np.maximum(trip_s, exposed_s)
    return np.where(iterations > 0, latency_s + steady + trip_s, 0.0)


def exposed_latency_s(stages: Array, compute_s: Array, rates: DeviceRates, gpu: Gpu) -> Array:
    """Time from one trip of a CTA to its next that latency dictates, arrays (N,) in seconds.

    A loop of ``stages`` stages keeps stages - 1 buffers where the matrix instruction reads
    registers, so stages - 2 loads run under a trip's products; where it reads shared memory
    (warpgroup instructions) it keeps ``stages`` buffers and stages - 1 loads run. Without a load
    running ahead, a trip waits for its load and then computes.
    """
    asynchronous = gpu.can("wgmma") or gpu.can("tmem")
    pipelined = gpu.can("cp_async")
    ahead = stages - (1.0 if asynchronous else 2.0) if pipelined else np.zeros_like(stages)
    serial = rates.memory_latency_s + compute_s + rates.barrier_s
    overlapped = (rates.memory_latency_s + rates.barrier_s) / np.maximum(ahead, 1.0)
    return np.where(ahead < 1, serial, np.maximum(overlapped, compute_s + rates.barrier_s))
