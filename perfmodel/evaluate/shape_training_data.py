"""What ``perfmodel train shape`` trains on, and the folds that its intervals come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.dataset import store
from perfmodel.errors import DataError, closest
from perfmodel.evaluate.library import columns_of, site_folds
from perfmodel.evaluate.selection import TRAIN, Selection, selection
from perfmodel.learned.booster import TrainSpec
from perfmodel.learned.shape_model import ShapeModel
from perfmodel.learned.shape_table import ShapeRows, has_arithmetic, shape_rows
from perfmodel.learned.shape_training import (
    ANY_SPEC,
    DEVICE_SPEC,
    any_spec,
    device_spec,
    drawn,
    fit_any_device,
    fit_shape_heads,
    shape_model,
)
from perfmodel.learned.training import Tell

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


MODELS: Mapping[str, tuple[str, str]] = {
    "gemm": ("gemm", "bf16"),
    "gemm-fp8": ("gemm", "fp8_e4m3"),
    "prefill": ("prefill", "bf16"),
    "decode": ("decode", "bf16"),
    "moe": ("moe", "bf16"),
    "moe-fp8": ("moe", "fp8_e4m3"),
}
"""Models by name, and the family and data type of the rows that each learns from: one model of
several types of products answered worse for all of them."""


MOST_ROWS = {"moe": 120_000}
"""Of families with more rows so many are drawn at random: experts come in few layers, measured with
every number of tokens and rank, and what trees of the size we ship can hold is soon learnt."""


@dataclass(frozen=True)
class ShapeData:
    """All rows that a model may be trained on, where they come from, and each device's trees."""

    rows: ShapeRows
    sources: tuple[Mapping[str, Any], ...]
    any_spec: TrainSpec = ANY_SPEC
    device_spec: TrainSpec = DEVICE_SPEC


def shape_data(name: str, cache: str | Path | None = None) -> ShapeData:
    """Load what the model called ``name`` (`MODELS`) learns from.

    Raises:
        DataError: there is no such model.
        MissingDataError: its table is not imported; the message is the command to run.
    """
    if name not in MODELS:
        raise DataError(
            f"no shape-level model is called {name!r}{closest(name, MODELS)}; "
            f"use: {', '.join(MODELS)}"
        )
    family, dtype = MODELS[name]
    chosen = selection("shape-sites", family, dtype)
    frame, _ = chosen.load(columns_of(family), cache)
    frame = frame[chosen.usable(frame, TRAIN) & has_arithmetic(frame)]
    frame = frame.iloc[drawn(len(frame), MOST_ROWS.get(family, len(frame)))].reset_index(drop=True)
    sources = _sources([chosen], [frame], cache)
    return ShapeData(shape_rows(frame), sources, any_spec(family), device_spec(family, dtype))


def train_shape(name: str, data: ShapeData, tell: Tell | None = None) -> ShapeModel:
    """Train on all rows; intervals from a fifth of the sites and from every device left out."""
    rows, say = data.rows, tell or (lambda _what, _share: None)
    gpus = sorted(set(map(str, rows.gpu)))
    steps = len(gpus) + 2
    held = site_folds(rows.site) == 0
    say("a fifth of the sites held out", 0.0)
    heads = fit_shape_heads(rows.take(~held), data.any_spec, data.device_spec)
    sites = rows.take(held)
    seen = sites.target - heads.log_correction(sites)
    unseen = np.empty(len(rows))
    for i, gpu in enumerate(gpus):
        say(f"{gpu} left out", (i + 1) / steps)
        here = np.asarray(rows.gpu == gpu, dtype=np.bool_)
        forest = fit_any_device(rows.take(~here), data.any_spec)
        unseen[here] = rows.target[here] - forest.predict(rows.features[here])
    say("all rows", (steps - 1) / steps)
    heads = fit_shape_heads(rows, data.any_spec, data.device_spec)
    accuracy = _accuracy(sites, seen, "") | _accuracy(rows, unseen, "left-out/")
    return shape_model(
        name, rows, heads, (sites, np.abs(seen)), (rows, np.abs(unseen)),
        sources=data.sources, accuracy=accuracy, specs=(data.any_spec, data.device_spec),
    )  # fmt: skip


def _accuracy(rows: ShapeRows, log_error: Floats, prefix: str) -> dict[str, dict[str, float]]:
    """Held-out errors of each device and type, fractions of the measured time."""
    error = np.abs(np.exp(-log_error) - 1.0)
    found = {}
    for gpu in sorted(set(map(str, rows.gpu))):
        here = np.asarray(rows.gpu == gpu, dtype=np.bool_)
        for dtype in ["", *sorted(set(map(str, rows.dtype[here])))]:
            mask = here & (rows.dtype == dtype) if dtype else here
            found[f"{prefix}{gpu}/{dtype}".rstrip("/")] = {
                "error_mean": round(float(error[mask].mean()), 4),
                "error_median": round(float(np.median(error[mask])), 4),
                "rows": int(mask.sum()),
            }
    return found


def _sources(
    chosen: Sequence[Selection], parts: Sequence[pd.DataFrame], cache: str | Path | None
) -> tuple[Mapping[str, Any], ...]:
    imported = {entry.name: entry for entry in store.imported(cache)}
    found = []
    for part, frame in zip(chosen, parts, strict=True):
        info = imported[part.table].info
        files = dict(sorted(info.files.items())) if info else {}
        found.append({"name": part.table, "dtype": part.dtype, "files": files, "rows": len(frame)})
    return tuple(found)
