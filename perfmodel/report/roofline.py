"""Kernels under a device's roofline: useful rate against useful operations per compulsory byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.hardware.gpu import Gpu
from perfmodel.launches import peak_tflops
from perfmodel.prediction import Prediction
from perfmodel.problems import MemoryBound

CLOSE = 1.35
"""Points within this factor of each other on both axes overlap on the plot."""


@dataclass(frozen=True)
class Point:
    """One kernel: its number on the plot, operations per byte, and predicted TFLOP/s."""

    number: int
    intensity: float
    tflops: float
    dtype: str


def points_of(predictions: Sequence[Prediction]) -> list[Point]:
    """Return the kernels that form products or compute at all, numbered from 1 as listed."""
    found = []
    for number, prediction in enumerate(predictions, start=1):
        problem = prediction.problem
        if not (problem.flops and problem.compulsory_bytes):
            continue
        dtype = "fp32" if isinstance(problem, MemoryBound) else problem.compute_dtype.name
        intensity = problem.flops / problem.compulsory_bytes
        found.append(Point(number, intensity, prediction.tflops, dtype))
    return found


def draw_roofline(figure: Any, gpu: Gpu, points: Sequence[Point]) -> None:
    """Draw the roofs of every data type that a point has, and the points by number."""
    ax = figure.subplots()
    bandwidth = gpu.dram_bandwidth_gb_per_s * 1e-3  # TFLOP/s at one operation a byte
    intensities = [p.intensity for p in points] or [1.0]
    dtypes = sorted({p.dtype for p in points})
    ridge = max((peak_tflops(gpu, d) / bandwidth for d in dtypes), default=1.0)
    x = np.geomspace(min(*intensities, 0.5) / 2, max(*intensities, ridge) * 4, 200)
    for color, dtype in enumerate(dtypes):
        peak = peak_tflops(gpu, dtype)
        ax.plot(x, np.minimum(x * bandwidth, peak), color=f"C{color}", linewidth=1.2,
                label=f"{dtype}, {peak:,.0f} TFLOP/s")  # fmt: skip
        mine = [p for p in points if p.dtype == dtype]
        ax.scatter([p.intensity for p in mine], [p.tflops for p in mine], s=22, color=f"C{color}")
    for label, x_at, y_at in _labels(points):
        ax.annotate(label, (x_at, y_at), xytext=(0, -4), textcoords="offset points", ha="center",
                    va="top", fontsize=8)  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_title(f"{gpu.name}, {gpu.dram_bandwidth_gb_per_s:,.0f} GB/s")
    ax.set_xlabel("useful operations per compulsory byte")
    ax.set_ylabel("useful TFLOP/s")
    ax.grid(alpha=0.3)
    ax.legend(loc="lower right", fontsize=8)


def _labels(points: Sequence[Point]) -> list[tuple[str, float, float]]:
    """Numbers and where they stand; points too close to tell apart share a label."""
    groups: list[list[Point]] = []
    for p in points:
        for group in groups:
            x, y = p.intensity / group[0].intensity, p.tflops / group[0].tflops
            if 1 / CLOSE < x < CLOSE and 1 / CLOSE < y < CLOSE:
                group.append(p)
                break
        else:
            groups.append([p])
    return [
        (", ".join(str(p.number) for p in group), group[0].intensity,
         min(p.tflops for p in group))
        for group in groups
    ]  # fmt: skip
