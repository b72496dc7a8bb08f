"""What memory-bound kernels do: bytes in, bytes out, a few operations on the way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.problems.memory_bound import MemoryBoundTable
from perfmodel.tiling.shape_work import NOTHING, ONE, ShapeWork, Tilings

Array = NDArray[np.float64]

BYTES_PER_CTA = 8192.0
"""256 threads with two 16-byte loads each: what element-wise kernels commonly give a CTA."""


_OCCUPANCY = np.full((1, 1), 8.0)


def memory_bound_shape_work(p: MemoryBoundTable) -> ShapeWork:
    """Describe memory-bound launches, one a row."""
    return streaming_work(
        reads=p.read_bytes,
        writes=p.write_bytes,
        flops=p.flops,
        sfu_ops=p.sfu_ops,
        launches=(p.row_count * p.columns > 0).astype(np.float64),
    )


def streaming_work(
    *, reads: Array, writes: Array, flops: Array, sfu_ops: Array, launches: Array
) -> ShapeWork:
    """Describe launches that read, compute a little and write, arrays (N,)."""
    moved = reads + writes
    zero = np.zeros_like(moved)
    ctas = np.ceil(moved / BYTES_PER_CTA)
    whole = np.maximum(ctas, 1.0)
    tilings = Tilings(
        names=("stream",),
        ctas=ctas[None],
        mean_flops=NOTHING,
        mean_sfu_ops=(sfu_ops / whole)[None],
        mean_fma_flops=(flops / whole)[None],
        mean_load_bytes=(moved / whole)[None],
        longest_share=ONE,
        occupancy=_OCCUPANCY,
        partial_bytes=NOTHING,
        extra_launches=NOTHING,
    )
    return ShapeWork(
        compute_dtype="fp32",
        flops=zero,
        sfu_ops=sfu_ops,
        fma_flops=flops,
        read_bytes=reads,
        write_bytes=writes,
        footprint_bytes=moved,
        launches=launches,
        tilings=tilings,
    )
