"""What tells the tiles of one attention or mixture-of-experts problem apart, a column a feature.

The estimate's shares and its distance from the least say what physics has to say; sizes in logs to
the base of two say for which tiles and problems that was off.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.model import LIMITERS, Estimate
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention import Attention
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.work import Work

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Columns = Mapping[str, Floats | float]

TILE_SCHEMA = "tiles-1"
"""Raised whenever a column changes its meaning."""

OVER_BEST = "over_best"
"""The column of the log of the estimate over the least of the problem's."""


def tile_matrix(columns: Columns, rows: int) -> NDArray[np.float32]:
    """Return columns side by side, (rows, F)."""
    spread = [np.broadcast_to(np.asarray(values), rows) for values in columns.values()]
    return np.stack(spread, axis=1).astype(np.float32)


def attention_tile_columns(
    problem: Attention,
    configs: ConfigTable,
    gpu: Gpu,
    work: Work,
    estimate: Estimate,
    legal: Mask,
    *,
    residuals: bool = False,
) -> dict[str, Floats | float]:
    """Return the columns of N tiles of one attention problem.

    Args:
        problem, configs, gpu, work, estimate: the launches, N of them.
        legal: which of them can run (N,); the least time is taken among those.
        residuals: the kernel returns the softmax's sums besides.
    """
    items = problem.items
    return _estimate_columns(configs, gpu, work, estimate, legal) | {
        "block_m": np.log2(configs.block_m),
        "block_n": np.log2(configs.block_n),
        "num_warps": np.log2(configs.num_warps),
        "head_dim": float(problem.head_dim),
        "v_head_dim": float(problem.v_head_dim or problem.head_dim),
        "q_len": _log2(max((q for q, _ in items), default=0)),
        "kv_len": _log2(max((kv for _, kv in items), default=0)),
        "heads_per_sm": _log2(len(items) * problem.q_heads / gpu.sm_count),
        "causal": float(problem.causal),
        "residuals": float(residuals),
    }


def grouped_gemm_tile_columns(
    problem: GroupedGemm,
    configs: ConfigTable,
    gpu: Gpu,
    work: Work,
    estimate: Estimate,
    legal: Mask,
) -> dict[str, Floats | float]:
    """Return the columns of N tiles of a mixture of experts' first projection, of one rank."""
    rows = problem.tokens * problem.top_k / problem.experts
    return _estimate_columns(configs, gpu, work, estimate, legal) | {
        "block_m": np.log2(configs.block_m),
        "block_n": np.log2(configs.block_n),
        "block_k": np.log2(configs.block_k),
        "group_m": np.log2(configs.group_m),
        "num_warps": np.log2(configs.num_warps),
        "rows_over_block": np.log2(max(rows, TINY) / configs.block_m),
        "trips": np.log2(max(problem.hidden, 1) / configs.block_k),
        "columns_over_block": np.log2(max(problem.up_columns, 1) / configs.block_n),
        "rows_of_expert": _log2(rows),
        "tokens": _log2(problem.tokens),
        "hidden": _log2(problem.hidden),
        "intermediate": _log2(problem.intermediate / problem.tp),
        "experts": _log2(problem.experts / problem.ep),
        "balance": gpu.tensor_tflops["bf16"] * 1e3 / gpu.dram_bandwidth_gb_per_s,
    }


TINY = 2.0**-20


def _log2(value: float) -> float:
    return float(np.log2(max(value, TINY)))


def _estimate_columns(
    configs: ConfigTable, gpu: Gpu, work: Work, estimate: Estimate, legal: Mask
) -> dict[str, Floats | float]:
    seconds, resources = estimate.seconds, work.resources
    columns: dict[str, Floats | float] = {
        f"{name}_share": estimate.limiter_s[i] / seconds for i, name in enumerate(LIMITERS)
    }
    return columns | {
        OVER_BEST: np.log(seconds / seconds[legal].min()),
        "num_stages": configs.num_stages,
        "smem_share": resources.smem_bytes / gpu.smem_per_sm_bytes,
        "registers_wanted": resources.registers_wanted,
        "occupancy": resources.occupancy,
        "accumulators": resources.accumulators_per_thread,
        "waves": np.log2(np.maximum(work.ctas, 1.0) / gpu.sm_count),
    }
