"""The software-pipelined main loop: how much memory latency is left exposed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.rates import DeviceRates
from perfmodel.hardware.gpu import Gpu

Array = NDArray[np.float64]

BUFFER_IN_USE = 1.5
"""Stages that run no load ahead where products read registers: the tile being multiplied, and for
half a trip the buffer it is still being read from."""


def loop_seconds(iterations: Array, trip_s: Array, exposed_s: Array, latency_s: float) -> Array:
    """Return prologue + (L - 1) max(work, exposed latency) + last trip, arrays (N,) in seconds.

    ``trip_s`` is the work of one trip, ``exposed_s`` the time between two trips that latency alone
    dictates. Without a trip there is nothing to fill and nothing to wait for.
    """
    steady = np.maximum(iterations - 1.0, 0.0) * np.maximum(trip_s, exposed_s)
    return np.where(iterations > 0, latency_s + steady + trip_s, 0.0)


def exposed_latency_s(
    stages: Array, transfer_s: Array, compute_s: Array, rates: DeviceRates, gpu: Gpu
) -> Array:
    """Time from one trip of a CTA to its next that latency dictates, arrays (N,) in seconds.

    A tile arrives after the memory latency and the time its bytes take to come in
    (``transfer_s``). A loop of ``stages`` stages keeps stages - 1 buffers where the matrix
    instruction reads registers, so between stages - 1 and stages - 2 loads run under a trip's
    products; where it reads shared memory (warpgroup instructions) it keeps ``stages`` buffers
    and stages - 1 loads run. On AMD a load runs ahead in registers besides. Without a load
    running ahead, a trip waits for its load and then computes.
    """
    by_registers = gpu.vendor == "amd"
    asynchronous = gpu.can("wgmma") or gpu.can("tmem")
    pipelined = gpu.can("cp_async") or by_registers
    at_once = 1.0 if asynchronous or by_registers else BUFFER_IN_USE
    ahead = stages - at_once if pipelined else np.zeros_like(stages)
    arrival_s = rates.memory_latency_s + transfer_s + rates.barrier_s
    serial = arrival_s + compute_s
    overlapped = arrival_s / np.maximum(ahead, 1.0)
    return np.where(ahead < 1, serial, np.maximum(overlapped, compute_s + rates.barrier_s))
