"""Predicted against measured times of held-out problems, one panel a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import NotInstalledError, UsageError

Floats = NDArray[np.float64]

FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Do nothing where a plot can be written in the format of ``path``'s name.

    Raises:
        UsageError: the format is not known.
        NotInstalledError: matplotlib is missing.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot is {str(path)!r}; give a name that ends in {', '.join(FORMATS)}")
    figure_class()


def plot_errors(panels: Mapping[str, tuple[Floats, Floats]], path: Path) -> None:
    """Draw measured (x) and predicted (y) times of each panel on equal logarithmic axes.

    Args:
        panels: measured and predicted seconds, (N,) each, by title.
        path: file to write, whole or not at all.

    Raises:
        UsageError, NotInstalledError: as `check_plot`.
        CacheFolderError: the file cannot be written.
    """
    from perfmodel.files import atomic_path  # noqa: PLC0415 - only writing needs it

    check_plot(path)
    figure = figure_class()(figsize=(5.0 * len(panels), 4.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, (measured, predicted)) in zip(axes, panels.items(), strict=True):
        draw_panel(ax, title, measured * 1e6, predicted * 1e6)
    with atomic_path(path) as part:
        figure.savefig(part, format=path.suffix[1:].lower(), dpi=150)


def draw_panel(ax: Any, title: str, measured_us: Floats, predicted_us: Floats) -> None:
    """Draw one device's times, microseconds, on equal logarithmic axes."""
    error = np.abs(predicted_us / measured_us - 1.0)
    low = float(min(measured_us.min(), predicted_us.min()))
    high = float(max(measured_us.max(), predicted_us.max()))
    ax.hexbin(
        measured_us, predicted_us, gridsize=80, xscale="log", yscale="log", bins="log",
        mincnt=1, cmap="viridis",
    )  # fmt: skip
    ax.plot([low, high], [low, high], color="black", linewidth=0.8)
    ax.set_title(f"{title}: mean error {100 * error.mean():.1f} %, {len(error):,} launches")
    ax.set_xlabel("measured, us")
    ax.set_ylabel("predicted, us")
    ax.set_aspect("equal")


def figure_class() -> Any:
    """Return matplotlib's figure.

    Raises:
        NotInstalledError: matplotlib is missing.
    """
    try:
        # The class itself, not pyplot: no window, no global state.
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise NotInstalledError(
            "plots need matplotlib; install it with: pip install 'perfmodel[report]'"
        ) from error
    return Figure
