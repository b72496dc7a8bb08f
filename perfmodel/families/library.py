"""Kernels whose tile is unknown as the predictor sees them: libraries', and memory-bound ones."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

from perfmodel.analytic.shape import ShapeEstimate, ShapeTable, shape_estimate
from perfmodel.errors import InvalidConfigError
from perfmodel.families.base import TileProblem
from perfmodel.families.library_model import LearnedShape, learned_shape
from perfmodel.hardware.gpu import Gpu
from perfmodel.launches import compulsory_floor_s, launch_floor_s, peak_tflops
from perfmodel.notes import memory_notes
from perfmodel.prediction import Prediction
from perfmodel.problems import Problem
from perfmodel.problems.attention import Attention
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.problems.grouped_gemm_table import GroupedGemmTable
from perfmodel.problems.memory_bound import MemoryBound, MemoryBoundTable
from perfmodel.tiling.legality import require_dtype
from perfmodel.uncertainty import COVERAGE, SHAPE_LOG_INTERVAL


def has_tile(problem: Problem) -> TypeGuard[TileProblem]:
    """Whether the kernel's tile is for us to choose: of Triton, and with products."""
    return problem.backend is None and not isinstance(problem, MemoryBound)


def require_tile(problem: Problem) -> None:
    """Do nothing for a kernel whose tile can be chosen.

    Raises:
        InvalidConfigError: it cannot; the message says what to leave out.
    """
    if has_tile(problem):
        return
    if problem.backend is None:
        raise InvalidConfigError(
            f"a {problem.family} kernel has no tile to choose; leave the config out"
        )
    raise InvalidConfigError(
        f"backend is {problem.backend}: a library picks its own tile; leave the config out, or the "
        "backend for a Triton kernel"
    )


def table_of(problem: Problem) -> ShapeTable:
    """Return the arrays that the shape-level estimate reads."""
    if isinstance(problem, Gemm):
        return GemmTable.of_problems([problem])
    if isinstance(problem, Attention):
        return AttentionTable.of(problem)
    if isinstance(problem, GroupedGemm):
        return GroupedGemmTable.of(problem)
    return MemoryBoundTable.of_problems([problem])


def library_prediction(problem: Problem, gpu: Gpu, *, learned: bool = True) -> Prediction:
    """Predict a kernel of unknown tile: by the model of its family, else by the estimate alone.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the problem's type.
    """
    if not isinstance(problem, MemoryBound):
        require_dtype(problem.compute_dtype, gpu)
    table = table_of(problem)
    model = learned_shape(problem, table, gpu) if learned and problem.flops else None
    overhead_s = launch_floor_s(gpu)
    if model is None:
        found = shape_estimate(table, gpu, launch_overhead_s=overhead_s, warm_l2=False)
        seconds, (low, high) = float(found.seconds[0]), SHAPE_LOG_INTERVAL
        floor_us = _floor_s(problem, gpu) * 1e6
    else:
        found, seconds, (low, high) = model.estimate, model.seconds, model.log_interval
        floor_us = float(found.launch_s[0]) * 1e6  # its data repeats launches, operands in L2
    latency_us = max(seconds * 1e6, floor_us)
    tflops = problem.flops / latency_us * 1e-6
    scale = latency_us / (float(found.seconds[0]) * 1e6)
    return Prediction(
        problem=problem,
        gpu=gpu.name,
        config=None,
        latency_us=latency_us,
        interval_us=(
            max(latency_us * float(np.exp(low)), floor_us), latency_us * float(np.exp(high)),
        ),
        coverage=COVERAGE,
        tflops=tflops,
        share_of_peak=tflops / _peak(problem, gpu),
        limiter=found.limiter_name(0),
        breakdown_us={
            name: float(seconds[0]) * 1e6 * scale for name, seconds in found.by_limiter.items()
        },
        waves=None,
        occupancy=None,
        basis="analytic" if model is None else model.basis,
        model=None if model is None else model.model,
        expected_error=None if model is None else model.expected_error,
        notes=_notes(problem, found, gpu, model),
    )  # fmt: skip


def _peak(problem: Problem, gpu: Gpu) -> float:
    return peak_tflops(
        gpu, "fp32" if isinstance(problem, MemoryBound) else problem.compute_dtype.name
    )


def _floor_s(problem: Problem, gpu: Gpu) -> float:
    written = problem.write_bytes
    if isinstance(problem, MemoryBound):
        dtype, products = "fp32", 0.0
    else:
        dtype, products = problem.compute_dtype.name, problem.flops
    return compulsory_floor_s(
        gpu, dtype, flops=products, read_bytes=problem.compulsory_bytes - written,
        write_bytes=written,
    )  # fmt: skip


def _notes(
    problem: Problem, found: ShapeEstimate, gpu: Gpu, model: LearnedShape | None
) -> tuple[str, ...]:
    if not problem.compulsory_bytes:
        return ("no work: the time is the launch overhead alone",)
    notes = [] if model is None else list(model.notes)
    if problem.backend is not None and model is None:
        tiling = found.tiling_names[int(found.tiling[0])]
        notes.append(
            f"no model of {problem.backend} here: the analytic estimate answers, for tiles of "
            f"{tiling} or whatever runs as fast"
        )
    if found.limiter_name(0) == "launch":
        notes.append("launch-bound: the overhead of a launch outweighs its work")
    notes += memory_notes(problem.compulsory_bytes, "what it reads and writes", gpu)
    return tuple(notes)
