"""Held-out errors as pictures: predicted against measured, by size, and what intervals hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from perfmodel.report.scatter import Floats, draw_panel

SIZES_US = (0.0, 10.0, 30.0, 100.0, 300.0, 1000.0, np.inf)
"""Edges of the classes of measured time, microseconds."""


@dataclass(frozen=True)
class SizeError:
    """Errors of the launches of one class of measured time on one device."""

    gpu: str
    size: str
    launches: int
    mean: float
    median: float


def errors_by_size(panels: Mapping[str, tuple[Floats, Floats]]) -> list[SizeError]:
    """Return mean and median relative error by device and class of measured time.

    Args:
        panels: measured and predicted seconds, (N,) each, by device.
    """
    found = []
    for gpu, (measured, predicted) in panels.items():
        error = np.abs(predicted / measured - 1.0)
        for low, high in pairwise(SIZES_US):
            here = (measured * 1e6 >= low) & (measured * 1e6 < high)
            if here.any():
                mean, median = float(error[here].mean()), float(np.median(error[here]))
                found.append(SizeError(gpu, _size(low, high), int(here.sum()), mean, median))
    return found


def draw_scatter(figure: Any, gpu: str, measured: Floats, predicted: Floats) -> None:
    """Draw predicted against measured times of one device."""
    ax = figure.subplots()
    draw_panel(ax, gpu, measured * 1e6, predicted * 1e6)
    ax.title.set_fontsize(9)


def draw_errors_by_size(figure: Any, errors: list[SizeError]) -> None:
    """Draw the mean error by class of measured time, a bar a device."""
    ax = figure.subplots()
    sizes = list(dict.fromkeys(e.size for e in errors))
    gpus = list(dict.fromkeys(e.gpu for e in errors))
    width = 0.8 / max(len(gpus), 1)
    for i, gpu in enumerate(gpus):
        mine = [e for e in errors if e.gpu == gpu]
        at = [sizes.index(e.size) + (i - (len(gpus) - 1) / 2) * width for e in mine]
        ax.bar(at, [100 * e.mean for e in mine], width, label=gpu)
    ax.set_xticks(range(len(sizes)), sizes, fontsize=8)
    ax.set_xlabel("measured time, us")
    ax.set_ylabel("mean error, %")
    ax.legend(fontsize=8)


def draw_coverage(figure: Any, coverage: Mapping[str, float], nominal: float) -> None:
    """Draw the share of measured times inside the interval, a bar a device or pair of them."""
    ax = figure.subplots()
    names = list(coverage)
    ax.barh(range(len(names)), [100 * coverage[name] for name in names], color="C0")
    for i, name in enumerate(names):
        ax.text(2, i, f"{name}  {100 * coverage[name]:.0f} %", color="white", va="center",
                fontsize=8)  # fmt: skip
    ax.axvline(100 * nominal, color="black", linewidth=1.0, linestyle="--")
    ax.set_yticks([])
    ax.set_xlim(0, 100)
    ax.invert_yaxis()
    ax.set_xlabel(f"measured times inside, % (dashed: the nominal {100 * nominal:.0f} %)")


def _size(low: float, high: float) -> str:
    if not low:
        return f"< {high:g}"
    return f"{low:g}+" if np.isinf(high) else f"{low:g}-{high:g}"
