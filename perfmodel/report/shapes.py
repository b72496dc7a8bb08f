"""Library kernels on many devices: predicted against measured times, errors, intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfmodel.report.accuracy import SizeError, draw_coverage, errors_by_size
from perfmodel.report.page import Picture, Section, Table, draw
from perfmodel.report.scatter import Floats, draw_panel

Panel = tuple[Floats, Floats, Floats]
"""Measured seconds, predicted seconds, half of the interval in natural logarithms, (N,) each."""


def shape_section(name: str, title: str, panels: Mapping[str, Panel], nominal: float) -> Section:
    """Return pictures and a table of one family; ``name`` starts the pictures' names.

    Args:
        name: stem of the pictures' file names.
        title: what the family is, in words.
        panels: what was measured, predicted and stated, by device.
        nominal: the share that intervals should hold.
    """
    errors = errors_by_size({gpu: (m, p) for gpu, (m, p, _) in panels.items()})
    inside = {gpu: float(covered(panel).mean()) for gpu, panel in panels.items()}
    pictures = [
        _scatter(name, title, panels),
        draw(
            f"error-{name}", f"{title}: mean error by device and measured time",
            lambda figure: draw_error_map(figure, errors),
        ),
        draw(
            f"coverage-{name}", f"{title}: measured times inside the interval",
            lambda figure: draw_coverage(figure, inside, nominal),
        ),
    ]  # fmt: skip
    rows = []
    for gpu, (measured, predicted, half) in panels.items():
        error = np.abs(predicted / measured - 1.0)
        width = float(np.median(np.exp(half) - np.exp(-half)))
        rows.append([
            gpu, _share(error.mean()), _share(np.median(error)), _share(inside[gpu]),
            _share(width), f"{len(error):,}",
        ])  # fmt: skip
    head = ["GPU", "mean error", "median", "inside", "width", "launches"]
    text = (
        f"Launches of layers that were held out of the training that predicted them. Inside: the "
        f"share of times in the {100 * nominal:.0f} % interval; width: that interval's median."
    )
    return Section(title, [text], pictures, [Table(head, rows, frozenset(range(1, len(head))))])


def covered(panel: Panel) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each measured time lies inside its interval, (N,)."""
    measured, predicted, half = panel
    return np.asarray(np.abs(np.log(measured / predicted)) <= half)


def _scatter(name: str, title: str, panels: Mapping[str, Panel]) -> Picture:
    measured, predicted = (np.concatenate([p[i] for p in panels.values()]) for i in (0, 1))

    def paint(figure: Any) -> None:
        ax = figure.subplots()
        draw_panel(ax, f"{len(panels)} GPUs", 1e6 * measured, 1e6 * predicted)
        ax.title.set_fontsize(9)

    return draw(f"scatter-{name}", f"{title}: predicted against measured times", paint)


def draw_error_map(figure: Any, errors: list[SizeError]) -> None:
    """Draw the mean error of each device (rows) and class of measured time, in per cent."""
    ax = figure.subplots()
    sizes = list(dict.fromkeys(e.size for e in sorted(errors, key=lambda e: _edge(e.size))))
    gpus = list(dict.fromkeys(e.gpu for e in errors))
    table = np.full((len(gpus), len(sizes)), np.nan)
    for e in errors:
        table[gpus.index(e.gpu), sizes.index(e.size)] = 100 * e.mean
    most = float(np.nanmax(table))
    ax.imshow(table, cmap="YlOrRd", vmin=0.0, vmax=most, aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            color = "white" if value > 0.6 * most else "black"
            ax.text(column, row, f"{value:.1f}", ha="center", va="center", color=color, fontsize=7)
    ax.set_xticks(range(len(sizes)), sizes, fontsize=7)
    ax.set_yticks(range(len(gpus)), gpus, fontsize=7)
    ax.set_xlabel("measured time, us", fontsize=8)
    ax.set_title("mean error, %", fontsize=9)


def _edge(size: str) -> float:
    """Where a class of measured time begins."""
    return -1.0 if size.startswith("<") else float(size.rstrip("+").partition("-")[0])


def _share(value: Any) -> str:
    return f"{100 * float(value):.1f} %"
