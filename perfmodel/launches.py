"""What is known of launches before the learned part speaks: work, estimate, features, bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.model import EVENT_TIMING_LAUNCH_S, LIMITERS, Estimate, estimate
from perfmodel.errors import RunFailedError
from perfmodel.hardware.gpu import Gpu
from perfmodel.learned.features import gemm_columns, matrix
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.work import Work, gemm_work

Array = NDArray[np.float64]
Features = NDArray[np.float32]


@dataclass(frozen=True)
class Launches:
    """N launches on one device, arrays of shape (N,).

    ``features`` are the model's columns, (N, F), ``None`` where no model asks for them.
    ``floor_s`` is what no launch can beat: the launch overhead, the products at the dense peak,
    the compulsory bytes through DRAM.
    """

    gpu: Gpu
    dtype: str  # as models and their accuracy name it
    work: Work
    estimate: Estimate
    features: Features | None
    floor_s: Array
    family: str = "gemm"

    def limiter(self, row: int) -> str:
        """Name of the resource that alone takes longest."""
        return LIMITERS[int(self.estimate.limiter[row])]

    def __len__(self) -> int:
        return len(self.estimate.seconds)


def gemm_launches(
    problems: GemmTable, configs: ConfigTable, gpu: Gpu, *, with_features: bool
) -> Launches:
    """Describe launches, one row of ``configs`` each.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the problems' type.
        RunFailedError: a feature is not a finite number; a model would still answer, wrongly.
    """
    work = gemm_work(problems, configs, gpu)
    found = estimate(work, gpu, launch_overhead_s=launch_floor_s(gpu))
    features = None
    if with_features:
        columns = gemm_columns(problems, configs, gpu, work, found)
        features = matrix(columns, len(configs))
        if not np.isfinite(features).all():
            bad = [n for n, v in zip(columns, features.T, strict=True) if not np.isfinite(v).all()]
            raise RunFailedError(
                f"features are not finite on {gpu.name}: {', '.join(bad)}; check the device file"
            )
    return Launches(gpu, dtype_key(problems), work, found, features, _floor_s(problems, work, gpu))


def compulsory_floor_s(
    gpu: Gpu, dtype: str, *, flops: float, read_bytes: float, write_bytes: float
) -> float:
    """Return what no launch can beat: its overhead, products at peak, compulsory bytes from DRAM.

    Caches start cold, so all is read through DRAM; of what is written an L2's worth may still be
    there when the clock stops.
    """
    moved = read_bytes + max(write_bytes - gpu.l2_bytes, 0.0)
    dram = moved / (gpu.dram_bandwidth_gb_per_s * 1e9)
    return max(dram, flops / (peak_tflops(gpu, dtype) * 1e12), launch_floor_s(gpu))


def launch_floor_s(gpu: Gpu) -> float:
    """Return the launch overhead: the device file's own, else that of timing with events."""
    own = gpu.launch_overhead_us
    return EVENT_TIMING_LAUNCH_S if own is None else own * 1e-6


def peak_tflops(gpu: Gpu, dtype: str) -> float:
    """Return the dense peak for ``dtype``: of the matrix units, or of the ordinary lanes."""
    return float(gpu.tensor_tflops.get(dtype) or gpu.plain_tflops[dtype])


def dtype_key(problems: GemmTable) -> str:
    """Return ``bf16``, or ``fp16xint8`` where the operands' types differ."""
    a, b = problems.a_dtype.name, problems.b_dtype.name
    return a if a == b else f"{a}x{b}"


def _floor_s(p: GemmTable, work: Work, gpu: Gpu) -> Array:
    # Caches start cold, so every operand is read through DRAM; of the result an L2's worth may
    # still be unwritten when the clock stops.
    a, b, out = p.a_dtype.bytes, p.b_dtype.bytes, p.out_dtype.bytes
    reads = p.batch * (p.m * p.k * a + p.k * p.n * b) * (work.ctas > 0)
    writes = np.maximum(p.batch * p.m * p.n * out - gpu.l2_bytes, 0.0)
    dram = (reads + writes) / (gpu.dram_bandwidth_gb_per_s * 1e9)
    products = work.flops / (peak_tflops(gpu, work.compute_dtype) * 1e12)
    return np.maximum(np.maximum(dram, products), launch_floor_s(gpu))
