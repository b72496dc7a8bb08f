"""Kernels whose tile is unknown as the predictor sees them: libraries', and memory-bound ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.shape import ShapeEstimate, ShapeTable, shape_estimate
from perfmodel.errors import InvalidConfigError
from perfmodel.families.base import TileProblem
from perfmodel.families.library_model import LearnedShape, learned_shape, model_family
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

Array = NDArray[np.float64]


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


def table_of(problems: Sequence[Problem]) -> ShapeTable:
    """Return the arrays that the shape-level estimate reads, of problems of one `kind_of`."""
    first = problems[0]
    alike: Any = problems
    if isinstance(first, Gemm):
        return GemmTable.of_problems(alike)
    if isinstance(first, Attention):
        one = len(problems) == 1
        return AttentionTable.of(first) if one else AttentionTable.of_problems(alike)
    if isinstance(first, GroupedGemm):
        return GroupedGemmTable.of_problems(alike)
    return MemoryBoundTable.of_problems(alike)


def kind_of(problem: Problem) -> tuple[object, ...]:
    """Return what problems have to share to be worked out together: types, backend and model."""
    if isinstance(problem, Gemm):
        types: tuple[object, ...] = (problem.a_dtype, problem.b_dtype, problem.out_dtype)
    elif isinstance(problem, Attention):
        types = (problem.dtype, problem.kv_dtype, problem.out_dtype)
        several = not isinstance(problem.q_len, int) or not isinstance(problem.kv_len, int)
        types = (*types, problem.backward, several)
    elif isinstance(problem, GroupedGemm):
        types = (problem.dtype, problem.weight_dtype, problem.out_dtype)
    else:
        types = (problem.dtype,)  # the peak that its rate is a share of is the same for all
    return (problem.family, types, problem.backend, model_family(problem))


def library_prediction(problem: Problem, gpu: Gpu, *, learned: bool = True) -> Prediction:
    """Predict a kernel of unknown tile: by the model of its family, else by the estimate alone.

    Raises:
        UnsupportedDtypeError: the device has no arithmetic for the problem's type.
    """
    return library_predictions([problem], gpu, learned=learned)[0]


def library_predictions(
    problems: Sequence[Problem], gpu: Gpu, *, learned: bool = True
) -> list[Prediction]:
    """Predict kernels of one `kind_of`; see `library_prediction`."""
    first = problems[0]
    if not isinstance(first, MemoryBound):
        require_dtype(first.compute_dtype, gpu)
    table = table_of(problems)
    exact = _exact_work(problems, table)
    model = learned_shape(first, table, gpu) if learned and exact.flops.any() else None
    estimated = None
    if model is None or not exact.flops.all():
        overhead_s = launch_floor_s(gpu)
        estimated = shape_estimate(table, gpu, launch_overhead_s=overhead_s, warm_l2=False)
    floor_s = _floors_s(first, exact, gpu)
    answers = []
    for at, problem in enumerate(problems):
        row = _Row(at, float(exact.flops[at]), float(exact.bytes_moved[at]))
        source = estimated if model is None or not row.flops else model
        assert source is not None  # the estimate is there for whatever the model has no answer to
        answers.append(_prediction(problem, gpu, row, source, float(floor_s[at])))
    return answers


@dataclass(frozen=True)
class _Row:
    at: int
    flops: float
    bytes_moved: float


@dataclass(frozen=True)
class _Exact:
    flops: Array
    bytes_moved: Array
    write_bytes: Array


def _exact_work(problems: Sequence[Problem], table: ShapeTable) -> _Exact:
    """Operations and compulsory bytes of each problem, (N,)."""
    if isinstance(table, AttentionTable):
        return _Exact(table.flops, table.compulsory_bytes, table.write_bytes)
    if isinstance(table, MemoryBoundTable):
        return _Exact(table.flops, table.read_bytes + table.write_bytes, table.write_bytes)
    names = ("flops", "compulsory_bytes", "write_bytes")
    return _Exact(*(np.array([getattr(p, name) for p in problems]) for name in names))


def _prediction(
    problem: Problem, gpu: Gpu, row: _Row, source: LearnedShape | ShapeEstimate, floor_s: float
) -> Prediction:
    at = row.at
    if isinstance(source, ShapeEstimate):
        model, found, (low, high) = None, source, SHAPE_LOG_INTERVAL
        seconds, floor_us = float(source.seconds[at]), floor_s * 1e6
    else:
        model, found, seconds = source, source.estimate, float(source.seconds[at])
        low, high = (float(end[at]) for end in source.log_interval)
        floor_us = float(found.launch_s[at]) * 1e6  # its data repeats launches, operands in L2
    latency_us = max(seconds * 1e6, floor_us)
    tflops = row.flops / latency_us * 1e-6
    scale = latency_us / (float(found.seconds[at]) * 1e6)
    return Prediction(
        problem=problem,
        gpu=gpu.name,
        config=None,
        latency_us=latency_us,
        interval_us=(
            max(latency_us * math.exp(low), floor_us), latency_us * math.exp(high),
        ),
        coverage=COVERAGE,
        tflops=tflops,
        share_of_peak=tflops / _peak(problem, gpu),
        limiter=found.limiter_name(at),
        breakdown_us={
            name: float(seconds[at]) * 1e6 * scale for name, seconds in found.by_limiter.items()
        },
        waves=None,
        occupancy=None,
        basis="analytic" if model is None else model.basis[at],
        model=None if model is None else model.model,
        expected_error=None if model is None else model.expected_error,
        notes=_notes(problem, row, found, gpu, model),
    )  # fmt: skip


def _peak(problem: Problem, gpu: Gpu) -> float:
    return peak_tflops(
        gpu, "fp32" if isinstance(problem, MemoryBound) else problem.compute_dtype.name
    )


def _floors_s(problem: Problem, exact: _Exact, gpu: Gpu) -> Array:
    dtype = "fp32" if isinstance(problem, MemoryBound) else problem.compute_dtype.name
    products = 0.0 * exact.flops if isinstance(problem, MemoryBound) else exact.flops
    return np.array(
        [
            compulsory_floor_s(
                gpu, dtype, flops=float(f), read_bytes=float(b - w), write_bytes=float(w)
            )
            for f, b, w in zip(products, exact.bytes_moved, exact.write_bytes, strict=True)
        ]
    )


def _notes(
    problem: Problem, row: _Row, found: ShapeEstimate, gpu: Gpu, model: LearnedShape | None
) -> tuple[str, ...]:
    if not row.bytes_moved:
        return ("no work: the time is the launch overhead alone",)
    notes = [] if model is None else list(model.notes)
    if problem.backend is not None and model is None:
        tiling = found.tiling_names[int(found.tiling[row.at])]
        notes.append(
            f"no model of {problem.backend} here: the analytic estimate answers, for tiles of "
            f"{tiling} or whatever runs as fast"
        )
    if found.limiter_name(row.at) == "launch":
        notes.append("launch-bound: the overhead of a launch outweighs its work")
    notes += memory_notes(row.bytes_moved, "what it reads and writes", gpu)
    return tuple(notes)
