"""A few launches whose features a model remembers, to notice when the physics has moved on.

Trees are only right for the features they were trained on. The schema's name says which columns
there are; the probes say whether the columns still mean the same.
"""

from __future__ import annotations

import numpy as np

from perfmodel.analytic.model import EVENT_TIMING_LAUNCH_S, estimate
from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.features import gemm_columns, matrix
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.work import gemm_work

DIGITS = 6

_PROBES = (
    ("a100-sxm4-80gb", Gemm(4096, 4096, 4096, a_dtype="fp16"), TileConfig(128, 128, 32)),
    ("a100-sxm4-80gb", Gemm(17, 5120, 333, a_dtype="fp32"), TileConfig(16, 64, 32, num_warps=2)),
    (
        "h100-sxm5",
        Gemm(1000, 3000, 8192, a_dtype="bf16", b_layout="col"),
        TileConfig(256, 128, 64, num_warps=8, num_stages=4),
    ),
    (
        "h100-sxm5",
        Gemm(640, 128, 4100, a_dtype="tf32", a_layout="col"),
        TileConfig(128, 128, 64, num_stages=5),
    ),
)


def probe_features() -> tuple[tuple[float, ...], ...]:
    """Return the features of the probes, rounded, one tuple a launch."""
    rows = []
    for name, problem, config in _PROBES:
        gpu, problems, configs = load_gpu(name), GemmTable.of(problem), ConfigTable.of([config])
        work = gemm_work(problems, configs, gpu)
        found = estimate(work, gpu, launch_overhead_s=EVENT_TIMING_LAUNCH_S)
        columns = gemm_columns(problems, configs, gpu, work, found)
        rows.append(tuple(float(f"{v:.{DIGITS}g}") for v in matrix(columns, 1)[0]))
    return tuple(rows)


def same_features(one: tuple[tuple[float, ...], ...], other: tuple[tuple[float, ...], ...]) -> bool:
    """Whether two sets of probe features are equal but for rounding."""
    first, second = np.array(one), np.array(other)
    return first.shape == second.shape and bool(np.allclose(first, second, rtol=1e-4, atol=1e-4))
