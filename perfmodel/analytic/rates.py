"""Sustained rates of a device for one piece of work, per SM and second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import UnsupportedDtypeError
from perfmodel.hardware.gpu import Gpu
from perfmodel.tiling.work import Work

Array = NDArray[np.float64]

SMEM_BYTES_PER_CLOCK = 128.0
"""One bank row: 32 banks of 4 bytes (CUDA C++ Programming Guide, shared memory)."""

L2_BYTES_PER_CLOCK_PER_SM = 64.0
"""Read width of one SM towards L2 (A100 whitepaper: 5,120 B per clock for the whole L2)."""

LOAD_REQUESTS_PER_CLOCK = 0.25
"""Warp-wide global loads that an SM's load-store units take a clock: a quarter warp each clock."""

INSTRUCTIONS_PER_CLOCK = 2.8
"""Four schedulers issue one warp instruction a clock each; about 70 % of that is sustained."""

DRAM_SUSTAINED = 0.92
"""Share of the pin bandwidth that streaming reads sustain."""

MEMORY_LATENCY_CLOCKS = 900.0
"""A load that misses L2, order of magnitude on sm_70 to sm_90 (published microbenchmarks)."""

BARRIER_CLOCKS = 150.0
"""A block-wide barrier and the loop's address arithmetic."""


@dataclass(frozen=True)
class DeviceRates:
    """Rates per SM and second; arrays (N,) where they depend on the tile."""

    tensor_flops_per_s_per_sm: Array
    fma_flops_per_s_per_sm: float
    sfu_ops_per_s_per_sm: float
    l2_bytes_per_s_per_sm: float
    smem_bytes_per_s_per_sm: float
    load_requests_per_s_per_sm: float
    instructions_per_s_per_sm: float
    dram_bytes_per_s: float
    memory_latency_s: float
    barrier_s: float


def device_rates(gpu: Gpu, work: Work) -> DeviceRates:
    """Return the rates of ``gpu`` for ``work``.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the compute type.
    """
    return rates_for(gpu, work.compute_dtype, work.mma_share)


def rates_for(gpu: Gpu, dtype: str, mma_share: Array) -> DeviceRates:
    """Return the rates of ``gpu`` for products of ``dtype`` at ``mma_share`` of the matrix peak.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the compute type.
    """
    clock_hz = gpu.boost_clock_mhz * 1e6
    plain = gpu.plain_tflops.get(dtype, 0.0)
    tensor = gpu.tensor_tflops.get(dtype, 0.0)
    if not plain and not tensor:
        have = ", ".join(sorted({*gpu.tensor_tflops, *gpu.plain_tflops}))
        raise UnsupportedDtypeError(f"{gpu.name} has no arithmetic for {dtype}; it has: {have}")
    # Beside products on the matrix units, ordinary lanes compute in fp32 (softmax, scaling).
    lanes = gpu.plain_tflops.get("fp32", 0.0) if tensor else plain
    per_sm = 1e12 / gpu.sm_count
    l2 = gpu.l2_bandwidth_gb_per_s
    l2_per_sm = L2_BYTES_PER_CLOCK_PER_SM * clock_hz if l2 is None else l2 * 1e9 / gpu.sm_count
    return DeviceRates(
        tensor_flops_per_s_per_sm=max(tensor, 1e-30) * per_sm * mma_share,
        fma_flops_per_s_per_sm=max(lanes, 1e-30) * per_sm,
        sfu_ops_per_s_per_sm=(gpu.sfu_ops_per_clock_per_sm or 16.0) * clock_hz,
        l2_bytes_per_s_per_sm=l2_per_sm,
        smem_bytes_per_s_per_sm=SMEM_BYTES_PER_CLOCK * clock_hz,
        load_requests_per_s_per_sm=LOAD_REQUESTS_PER_CLOCK * clock_hz,
        instructions_per_s_per_sm=INSTRUCTIONS_PER_CLOCK * clock_hz,
        dram_bytes_per_s=DRAM_SUSTAINED * gpu.dram_bandwidth_gb_per_s * 1e9,
        memory_latency_s=MEMORY_LATENCY_CLOCKS / clock_hz,
        barrier_s=BARRIER_CLOCKS / clock_hz,
    )
