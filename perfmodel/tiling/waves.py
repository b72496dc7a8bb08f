"""How a grid of CTAs fills a device, and what neighbouring CTAs share in L2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Waves:
    """The schedule of ``ctas`` equal CTAs on ``sm_count`` SMs that hold ``occupancy``, arrays (N,).

    ``full`` is the number of complete waves, ``tail_ctas`` what is left for the last one and
    ``tail_occupancy`` how many of those share the busiest SM (spread evenly over all SMs).
    """

    full: Array
    tail_ctas: Array
    tail_occupancy: Array

    @property
    def count(self) -> Array:
        """Waves started: ceil(G / (S occ))."""
        return self.full + (self.tail_ctas > 0)


def schedule(ctas: Array, sm_count: int, occupancy: Array) -> Waves:
    """Fill ``sm_count`` SMs with ``occupancy`` CTAs each until ``ctas`` are done."""
    slots = sm_count * np.maximum(occupancy, 1.0)
    full = np.floor(ctas / slots)
    tail = ctas - full * slots
    return Waves(full=full, tail_ctas=tail, tail_occupancy=np.ceil(tail / sm_count))


@dataclass(frozen=True)
class Patch:
    """Rows and columns of output tiles that one wave covers, arrays (N,)."""

    rows: Array
    columns: Array


def patch(tiles_m: Array, tiles_n: Array, group_m: Array, concurrent: Array) -> Patch:
    """Shape of the block of output tiles that ``concurrent`` CTAs cover in ``group_m`` order.

    CTAs walk down ``group_m`` rows of tiles before stepping to the next column, and start the
    next band of rows when the columns run out.
    """
    band = np.minimum(group_m, tiles_m)
    columns = np.minimum(tiles_n, np.ceil(concurrent / band))
    bands = np.ceil(concurrent / np.maximum(band * tiles_n, 1.0))
    rows = np.minimum(tiles_m, np.minimum(band * bands, np.maximum(concurrent, 1.0)))
    return Patch(rows=rows, columns=columns)
