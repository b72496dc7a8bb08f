"""The performance model that Triton's own matmul once shipped with (``matmul_perf_model``).

Its published formula, written anew: time = max(compute, load) + store. Compute runs at the peak
times the share of warp schedulers that have a warp; DRAM reaches 0.95 min(1, CTAs / 32) + 0.05
clip((CTAs - 32) / 76, 0, 1) of its peak, L2 four times that; of what CTAs read again 80 % comes
from L2; the result is stored at 0.6 of the DRAM rate. It knows nothing of block_k or stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.evaluate.answers import Answer
from perfmodel.evaluate.rows import GemmRows

SCHEDULERS_PER_SM = 4.0


@dataclass(frozen=True)
class TritonPerfModel:
    """Times as that model predicts them; device numbers are those of our device files."""

    name: str = "triton-perf-model"

    def answer(self, train: GemmRows, test: GemmRows) -> Answer | None:  # noqa: ARG002 - learns nothing
        """Return its times."""
        x = test.launched
        tiles_m, tiles_n = np.ceil(x.m / x.block_m), np.ceil(x.n / x.block_n)
        m, n = np.maximum(x.m, x.block_m), np.maximum(x.n, x.block_n)
        schedulers = SCHEDULERS_PER_SM * x.sm_count
        warps = x.ctas * np.minimum(x.num_warps, SCHEDULERS_PER_SM)
        peak = x.peak_flops_per_s * np.minimum(warps / schedulers, 1.0)
        compute = 2.0 * m * n * x.k / peak
        dram = x.dram_bytes_per_s * (
            0.95 * np.minimum(x.ctas / 32.0, 1.0) + 0.05 * np.clip((x.ctas - 32.0) / 76.0, 0.0, 1.0)
        )
        a, b = m * x.k * x.a_bytes, n * x.k * x.b_bytes
        again_a, again_b = a * (tiles_n - 1.0), b * (tiles_m - 1.0)
        load = (a + b + 0.2 * (again_a + again_b)) / dram + 0.8 * (again_a + again_b) / (4.0 * dram)
        store = m * n * x.out_bytes / (0.6 * dram)
        seconds = np.maximum(compute, load) + store
        return Answer(seconds=seconds, score=seconds)
