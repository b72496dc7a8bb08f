"""Registers per thread of a tiled matrix product, and what happens where there are too few.

Formulas of Triton 3.6 and its ptxas, fitted to compiled kernels; ``tests/tuner`` compares them
with fresh ones. Vectorised: arrays of one value a configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.tiling.config import ConfigTable

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

REGISTER_BYTES = 4

REGISTERS_GIVEN_UP = 32
"""What ptxas assigns where it abandons the allocation of a kernel's registers."""

GIVEN_UP_BYTES = 8
"""Local memory such a kernel takes per live value; compiled ones vary from 5 to 13."""


@dataclass(frozen=True)
class RegisterDemand:
    """What one thread holds at once.

    ``accumulators``: results; ``loads``: load instructions for the tiles of one trip, each with
    an address; ``a_staged``, ``b_staged``: registers that an operand's tile passes through on its
    way to shared memory; ``fragments``: registers in which the operands of one trip are handed to
    warp-level products. ``reordered``: registers of operands that do not lie along k and whose
    width the matrix unit only takes along k, so that they are put in order one by one.
    """

    accumulators: Array
    loads: Array
    a_staged: Array
    b_staged: Array
    fragments: Array
    reordered: Array

    def take(self, rows: NDArray[np.intp]) -> RegisterDemand:
        """Return the configurations at ``rows``."""
        return RegisterDemand(*(getattr(self, item.name)[rows] for item in fields(self)))


def register_limit(configs: ConfigTable, threads: Array, gpu: Gpu) -> Array:
    """Registers that a thread may have: the device's limit, its share of the file, ``maxnreg``.

    A file of 65,536 leaves a thread 128 of them in a block of 512 threads and 64 in one of 1,024.
    """
    share = np.floor(gpu.registers_per_sm / threads / 8) * 8
    limit = np.minimum(gpu.registers_per_thread_max, share)
    return np.asarray(np.where(configs.maxnreg > 0, np.minimum(limit, configs.maxnreg), limit))


def registers_by_lane(demand: RegisterDemand) -> Array:
    """Registers wanted where ordinary lanes multiply: operands of a square of results in each.

    This and the following: a base for indices and loop control; accumulators and copies of them;
    two registers of address for each load; operands that pass through registers, or part of them.
    Coefficients by least squares over 1,900 compiled kernels of six architectures: off by 8
    registers on average, and right about spilling for 98 in 100.
    """
    return 29 + 2.2 * demand.accumulators + 1.9 * demand.loads


def registers_by_warp(demand: RegisterDemand) -> Array:
    """Registers wanted with warp-level matrix instructions."""
    operands = demand.a_staged + demand.b_staged + demand.fragments
    wanted = 26 + 1.27 * demand.accumulators + 2.4 * demand.loads + 0.1 * operands
    return wanted + 0.8 * demand.reordered


def registers_by_group(demand: RegisterDemand) -> Array:
    """Registers wanted with warp group instructions, which read operands from shared memory."""
    staged = demand.a_staged + demand.b_staged
    wanted = 18 + 1.07 * demand.accumulators + 2.3 * demand.loads + 0.45 * staged
    return wanted + 2.6 * demand.reordered


def registers_by_tensor_memory(demand: RegisterDemand) -> Array:
    """Registers wanted where results come from tensor memory, for the store only."""
    staged = demand.a_staged + demand.b_staged
    return 31 + 0.6 * demand.accumulators + 1.7 * demand.loads + 0.4 * staged


def spill_by_lane(demand: RegisterDemand, limit: Array) -> Array:
    """Spilled bytes per thread where ordinary lanes multiply and registers do not suffice."""
    need = 1.6 * demand.accumulators + 0.8 * demand.fragments + 10
    return _bytes_over(need, limit)


def spill_by_group(demand: RegisterDemand, limit: Array) -> Array:
    """Spilled bytes per thread of warp group instructions: whole accumulators come and go."""
    return _bytes_over(2 * demand.accumulators - 90, limit)


def spill_by_warp(
    demand: RegisterDemand, wanted: Array, limit: Array, threads: Array, stages: Array
) -> tuple[Array, Mask]:
    """Spilled bytes per thread of warp-level instructions, and where ptxas gave up.

    Where the accumulators alone fill the registers, the operands of a trip do not wait their turn
    either: they are spilled and read back as well, twice what they take. Some such kernels are
    abandoned: 32 registers and everything else in local memory. In the A100's full grid the first
    kind runs 5 to 15 times slower than the best, and all 81 of the second kind 30 to 100 times.
    It has two ways in: operands staged in registers beside full accumulators, and blocks of 512
    threads, with 128 registers each.
    """
    fragments, accumulators = demand.fragments, demand.accumulators
    full = accumulators >= limit - 8
    spilled = _bytes_over(np.where(full, accumulators + 2 * fragments + 20, wanted), limit)
    staged = (stages == 1) & (
        (fragments >= 192) | ((fragments >= 72) & (demand.a_staged >= demand.b_staged))
    )
    squeezed = (threads == 512) & (
        (accumulators > limit) | (fragments >= 128) | ((fragments >= 64) & (stages > 1))
    )
    gave_up = full & np.where(threads >= 512, squeezed, staged)
    return (
        np.where(gave_up, GIVEN_UP_BYTES * (accumulators + 2 * fragments), spilled),
        gave_up,
    )


def _bytes_over(need: Array, limit: Array) -> Array:
    return REGISTER_BYTES * np.maximum(need - limit, 2)
