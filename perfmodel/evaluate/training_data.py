"""What ``perfmodel train gemm`` trains on: all imported measurements, and folds for its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from perfmodel.dataset import store
from perfmodel.dataset.splits import kfold
from perfmodel.errors import MissingDataError
from perfmodel.evaluate.rows import GemmRows, Tables, candidate_rows, load_tables
from perfmodel.evaluate.run import GRID, MM
from perfmodel.learned.booster import TrainSpec
from perfmodel.learned.model import GemmModel
from perfmodel.learned.training import HeldOut, Tell, fit_gemm

MIXED = "autoheuristic-mixedmm"

REQUIRED = (MM,)
WELCOME = (GRID, MIXED)
"""Used where imported."""


@dataclass(frozen=True)
class TrainedGemm:
    """A model, the rows behind it, and what models without them said of each."""

    model: GemmModel
    rows: GemmRows
    held_out: HeldOut


def training_tables(cache: str | Path | None = None) -> Tables:
    """Load every imported table that a GEMM model learns from.

    Raises:
        MissingDataError: nothing is imported; the message is the command to run.
    """
    there = {e.name: e.problem for e in store.imported(cache)}
    names = [*REQUIRED, *(n for n in WELCOME if there.get(n, store.NOT_IMPORTED) is None)]
    try:
        return load_tables(names, cache)
    except MissingDataError as error:
        raise MissingDataError(
            f"training a GEMM model needs measurements, and {error}"
            f" (add {' and '.join(WELCOME)} for tiles and types that it lacks)"
        ) from None


def train_gemm(
    tables: Tables,
    spec: TrainSpec,
    tell: Tell | None = None,
    thin: Callable[[pd.DataFrame], pd.DataFrame] = lambda labels: labels,
) -> TrainedGemm:
    """Train on all tables; intervals and accuracy come from folds grouped by (m, n, k).

    ``thin`` may leave rows of each label table out, for a quick look.
    """
    if tell is not None:
        tell("reading tables", 0.0)
    rows = candidate_rows(*(thin(tables.labels(name)) for name in tables.raw))
    folds = [(split.train, split.test) for split in kfold(rows.labels)]
    model, held_out = fit_gemm(rows.table, folds, spec, sources=_sources(tables, rows), tell=tell)
    return TrainedGemm(model, rows, held_out)


def _sources(tables: Tables, rows: GemmRows) -> tuple[dict[str, object], ...]:
    """Return what the manifest says of each table: files, their checksums, rows used."""
    used = rows.labels["source"].value_counts()
    found = []
    for name, table in tables.raw.items():
        info = table.attrs.get("info")
        files = dict(sorted(info.files.items())) if info else {}
        found.append({"name": name, "files": files, "rows": int(used.get(name, 0))})
    return tuple(found)
