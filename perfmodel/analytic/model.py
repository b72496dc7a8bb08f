"""``Work`` on a ``Gpu`` becomes an ``Estimate``: pure functions, one launch a row.

Each SM is a server of several resources (matrix units, ordinary lanes, shared memory, load
issue, its share of L2). A trip of the main loop takes the busiest of them, or the memory latency
that too few loads in flight leave exposed. CTAs run in waves; DRAM serves the launch as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.pipeline import exposed_latency_s, loop_seconds
from perfmodel.analytic.rates import DeviceRates, device_rates
from perfmodel.hardware.gpu import Gpu
from perfmodel.tiling.waves import Waves, schedule
from perfmodel.tiling.work import CtaClass, Work

Array = NDArray[np.float64]

SCHEDULERS_PER_SM = 4.0

OVERLAP_POWER = 4.0
"""Two resources equally busy take 19 % longer than one of them alone."""

NEIGHBOURS_HIDE = 0.1
"""Power of the occupancy by which other CTAs of an SM shorten a chain of dependent steps: little,
by the times of 72 tuned flash attention kernels on an H100 (tokamax)."""

SPILL_SHARE = 1.0
"""Share of the spilled registers that one trip of the main loop touches."""

L1_BYTES_MIN = 16 * 1024
TINY_S = 1e-15

EVENT_TIMING_LAUNCH_S = 4e-6
CUDA_GRAPH_LAUNCH_S = 2e-6
"""Launch floors belong to the timing protocol: events around a launch, or launches in a graph."""

FURTHER_LAUNCH_S = 1.5e-6
"""A dependent kernel in the same stream starts this much after its predecessor's end."""

LIMITERS = ("tensor", "fma", "sfu", "issue", "dram", "l2", "smem", "latency", "launch")
_PER_TRIP = ("tensor", "fma", "sfu", "issue", "l2", "smem")
_ON_CHIP = [LIMITERS.index(name) for name in (*_PER_TRIP, "latency")]


@dataclass(frozen=True)
class Estimate:
    """The analytic answer, arrays (N,) in seconds.

    ``limiter_s``, one row each of ``LIMITERS`` (L, N), holds what the launch would take if only
    that resource were finite; their largest is never more than ``seconds``. Its latency is that of
    the chain from one trip to the next, products and transfers that loads wait for included;
    ``memory_wait_s`` is what memory alone would make it.
    """

    seconds: Array
    limiter_s: Array
    memory_wait_s: Array
    waves: Waves
    trip_seconds: Array  # one trip of the main loop at full occupancy
    exposed_s: Array  # memory latency a trip leaves uncovered
    sm_share: Array  # CTAs over the slots of the waves they start, 0 to 1

    @property
    def by_limiter(self) -> dict[str, Array]:
        """``limiter_s`` by name."""
        return dict(zip(LIMITERS, self.limiter_s, strict=True))

    @cached_property
    def breakdown_s(self) -> Array:
        """What each resource alone would take (L, N), latency without what other rows count.

        In a loop that its products rule, loads wait for the products: no more of them in flight
        would help, so that the matrix units limit it.
        """
        found = self.limiter_s.copy()
        found[LIMITERS.index("latency")] = self.memory_wait_s
        return found

    @cached_property
    def limiter(self) -> NDArray[np.intp]:
        """Index into ``LIMITERS`` of each row's largest of `breakdown_s`."""
        return np.asarray(np.argmax(self.breakdown_s, axis=0))

    def limiter_name(self, row: int) -> str:
        """Name of the limiter of one row."""
        return LIMITERS[int(self.limiter[row])]


def estimate(work: Work, gpu: Gpu, *, launch_overhead_s: float) -> Estimate:
    """Estimate every launch of ``work`` on ``gpu``.

    Args:
        work: launches, one a row.
        gpu: the device; unknown L2 bandwidth is taken as 64 bytes per clock and SM.
        launch_overhead_s: floor of the timing protocol the answer is to be compared with.
    """
    rates = device_rates(gpu, work)
    occupancy = np.maximum(work.resources.occupancy, 1.0)
    waves = schedule(work.ctas, gpu.sm_count, occupancy)
    parts = [_class_seconds(c, work, gpu, rates, occupancy, waves) for c in work.classes]
    on_chip = _total([p.seconds for p in parts])
    dram = work.dram_bytes / rates.dram_bytes_per_s + _spilled_to_dram(work, gpu, rates)
    busy = soft_maximum([on_chip, dram], OVERLAP_POWER)
    # The first loads and the last stores of a launch overlap with nothing.
    ramp = np.where(work.ctas > 0, rates.memory_latency_s, 0.0)
    launch = launch_overhead_s + ramp
    if work.extra_launches is not None:
        launch = launch + FURTHER_LAUNCH_S * work.extra_launches
    seconds = launch + busy
    limiter_s = np.empty((len(LIMITERS), *np.shape(dram)))
    limiter_s[_ON_CHIP] = _total([p.alone for p in parts])
    limiter_s[LIMITERS.index("dram")] = dram
    limiter_s[LIMITERS.index("launch")] = launch
    started = np.maximum(waves.count * gpu.sm_count * occupancy, 1.0)
    return Estimate(
        seconds=seconds,
        limiter_s=limiter_s,
        memory_wait_s=_total([p.memory_wait for p in parts]),
        waves=waves,
        trip_seconds=parts[0].trip,
        exposed_s=parts[0].exposed,
        sm_share=work.ctas / started,
    )


@dataclass(frozen=True)
class _ClassTime:
    seconds: Array
    alone: Array  # as Estimate.limiter_s, for what is on chip
    memory_wait: Array
    trip: Array
    exposed: Array


def _class_seconds(
    cta: CtaClass, work: Work, gpu: Gpu, rates: DeviceRates, occupancy: Array, waves: Waves
) -> _ClassTime:
    per_trip = np.empty((len(_PER_TRIP), *np.shape(occupancy)))
    tensor, fma, sfu, issue, l2, smem = per_trip
    tensor[...] = cta.tensor_flops / rates.tensor_flops_per_s_per_sm
    fma[...] = cta.fma_flops / rates.fma_flops_per_s_per_sm
    sfu[...] = cta.sfu_ops / rates.sfu_ops_per_s_per_sm
    issue[...] = cta.instructions / rates.instructions_per_s_per_sm
    l2[...] = cta.load_bytes / rates.l2_bytes_per_s_per_sm
    smem[...] = np.maximum(
        cta.smem_bytes / rates.smem_bytes_per_s_per_sm,
        cta.load_requests / rates.load_requests_per_s_per_sm,
    )
    busiest = _soft_maximum(per_trip, OVERLAP_POWER)
    compute = np.maximum(tensor, fma) + sfu
    spill = _spill_seconds(cta, work, gpu, rates, occupancy)
    epilogue = cta.epilogue_bytes / rates.l2_bytes_per_s_per_sm
    # Four schedulers share an SM's matrix units: a CTA of two warps reaches half of them alone.
    compute = compute / np.minimum(work.resources.threads / gpu.warp_size / SCHEDULERS_PER_SM, 1.0)
    has_tail = waves.tail_ctas > 0
    tail = np.where(has_tail, np.maximum(waves.tail_occupancy, 1.0), 0.0)
    full_cta = tail_cta = busiest + spill
    if cta.chained:
        chain = tensor + sfu + np.maximum(fma, issue)
        full_cta = np.maximum(busiest, chain * occupancy**-NEIGHBOURS_HIDE) + spill
        tail_cta = np.maximum(busiest, chain * np.maximum(tail, 1.0) ** -NEIGHBOURS_HIDE) + spill
    full_trip = occupancy * full_cta
    exposed = exposed_latency_s(work.stages, l2, compute, rates, gpu)
    nothing = np.zeros_like(exposed)
    memory = exposed_latency_s(work.stages, nothing, nothing, rates, gpu)
    # A full wave's loop, the last wave's, and those that do nothing but wait: for whatever a trip
    # waits for, and for memory alone.
    work_s = np.stack([full_trip, tail * tail_cta, nothing, nothing])
    waits = np.stack([exposed, exposed, exposed, memory])
    full, last, *waiting = loop_seconds(cta.iterations, work_s, waits, rates.memory_latency_s)
    seconds = waves.full * (full + occupancy * epilogue) + np.where(
        has_tail, last + tail * epilogue, 0.0
    )
    # What the resource alone costs: the busiest SM's rounds of CTAs, one at a time.
    rounds = waves.full * occupancy + tail
    wait, memory_wait = (waves.count * each for each in waiting)
    if cta.longest_iterations is not None:
        deal = _Deal.of(cta, cta.longest_iterations, work.ctas, gpu, occupancy)
        share = np.where(waves.full > 0, occupancy, tail)
        alone_cta = np.where(waves.full > 0, full_cta, tail_cta)
        alone_s = np.stack([share * alone_cta, nothing, nothing])
        longest, *longest_waits = loop_seconds(
            cta.longest_iterations, alone_s, waits[1:], rates.memory_latency_s
        )
        seconds = deal.rule(seconds, full + occupancy * epilogue, longest + share * epilogue)
        wait, memory_wait = (
            deal.rule(*each)
            for each in zip((wait, memory_wait), waiting, longest_waits, strict=True)
        )
        rounds = deal.rule(rounds, occupancy, deal.longest_share)
    trips = rounds * cta.iterations
    alone = np.empty((len(_ON_CHIP), *np.shape(exposed)))
    alone[:-1] = trips * per_trip
    alone[_PER_TRIP.index("l2")] += rounds * epilogue + trips * spill
    # Latency alone: every wave fills its pipeline and then waits between trips.
    alone[-1] = wait
    return _ClassTime(
        seconds=seconds, alone=alone, memory_wait=memory_wait, trip=full_trip, exposed=exposed
    )


@dataclass(frozen=True)
class _Deal:
    """How CTAs of different length share a device, arrays (N,).

    ``even`` is the number of waves if they were dealt out to the last SM evenly, ``mixed`` from 0
    (all CTAs alike) to 1 (the longest twice the mean).
    """

    even: Array
    longest_share: Array
    mixed: Array

    @classmethod
    def of(
        cls, cta: CtaClass, longest_iterations: Array, ctas: Array, gpu: Gpu, occupancy: Array
    ) -> _Deal:
        share = np.maximum(longest_iterations / np.maximum(cta.iterations, TINY_S), 1.0)
        share = np.where(cta.iterations > 0, share, 1.0)
        return cls(
            even=ctas / (gpu.sm_count * occupancy),
            longest_share=share,
            mixed=np.clip(share - 1.0, 0.0, 1.0),
        )

    def rule(self, in_waves: Array, one: Array, longest: Array) -> Array:
        """Return the busiest SM's cost: in whole waves, or as dealt out until the longest decides.

        A free slot takes the next CTA, so that unequal ones spread until none is left; equal ones
        all end together and leave the last wave's slots idle.
        """
        dealt = (1.0 - self.mixed) * in_waves + self.mixed * self.even * one
        return np.where(self.even > 0, np.maximum(dealt, longest), 0.0)


def _total(parts: Sequence[Array]) -> Array:
    """Add up what the classes of CTAs take; most launches have one class."""
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)


def soft_maximum(values: Sequence[Array], power: float) -> Array:
    """Return (sum of v ** power) ** (1 / power): the largest where it rules, more where close.

    Resources that are equally busy never overlap perfectly: each waits for the others' hiccups.
    """
    shape = np.broadcast_shapes(*(v.shape for v in values))
    stacked = np.empty((len(values), *shape))
    for row, value in zip(stacked, values, strict=True):
        row[...] = value
    return _soft_maximum(stacked, power)


def _soft_maximum(stacked: Array, power: float) -> Array:
    largest = stacked.max(axis=0)
    scaled = stacked / np.maximum(largest, TINY_S)
    return np.asarray(largest * (scaled**power).sum(axis=0) ** (1.0 / power))


def _spill_seconds(
    cta: CtaClass, work: Work, gpu: Gpu, rates: DeviceRates, occupancy: Array
) -> Array:
    """Time of one trip's spilled registers: at L1's rate while they fit there, else at L2's.

    L1 is what shared memory leaves of the SM's array, and holds the spills of all its CTAs.
    """
    kept = 0.5 * cta.spill_bytes * occupancy
    l1 = np.maximum(gpu.smem_per_sm_bytes - occupancy * work.resources.smem_bytes, L1_BYTES_MIN)
    beyond = np.clip(kept / l1 - 0.5, 0.0, 1.0)
    per_byte = (1.0 - beyond) / rates.smem_bytes_per_s_per_sm + beyond / rates.l2_bytes_per_s_per_sm
    return np.asarray(SPILL_SHARE * cta.spill_bytes * per_byte)


def _spilled_to_dram(work: Work, gpu: Gpu, rates: DeviceRates) -> Array:
    """Spilled registers leave L2 once all resident threads' local memory outgrows it."""
    cta = work.classes[0]
    resident = (
        0.5
        * cta.spill_bytes
        * np.minimum(work.ctas, gpu.sm_count * np.maximum(work.resources.occupancy, 1.0))
    )
    beyond = np.clip(resident / gpu.l2_bytes - 0.5, 0.0, 1.0)
    traffic = work.ctas * cta.iterations * cta.spill_bytes
    return np.asarray(beyond * traffic / rates.dram_bytes_per_s)
