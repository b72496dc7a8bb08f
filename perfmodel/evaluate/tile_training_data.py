"""What ``perfmodel train tiles`` trains on, and how often held-out winners are among the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.dataset import store
from perfmodel.errors import UsageError, closest
from perfmodel.evaluate import metrics, near_best, winners
from perfmodel.evaluate.selection import Selection, selections
from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.booster import TrainSpec
from perfmodel.learned.tile_preference import PlaceRule, TilePreference
from perfmodel.learned.tile_training import (
    ATTENTION_SPEC,
    MOE_PER_TILE,
    MOE_SPEC,
    TileRows,
    fit_tiles,
    in_places,
    reach_of,
    tile_preference,
)
from perfmodel.learned.training import Tell

Indices = NDArray[np.int64]

CHECKED = (1, 2, 3, 5, 10, 20)
"""Numbers of first places whose hits the manifest tells."""

SIXTEEN_BITS = ("bf16", "fp16")


@dataclass(frozen=True)
class TileData:
    """Candidates of problems with known winners, the fold of each row, where they come from."""

    rows: TileRows
    fold: Indices
    sources: tuple[Mapping[str, Any], ...]


def _attention(cache: str | Path | None, _tell: Tell) -> TileData:
    chosen = selections(winners.NAME)[0]
    frame, _ = chosen.load(winners.COLUMNS, cache)
    rows = winners.winner_rows(frame)
    return TileData(
        rows, winners.winner_folds(frame, chosen)[rows.problem], _source(chosen, rows, cache)
    )


def _moe(cache: str | Path | None, tell: Tell) -> TileData:
    chosen = next(s for s in selections(near_best.NAME) if s.table == "pipeweave-moe-near-best")
    frame, _ = chosen.load(near_best.COLUMNS, cache)
    found = near_best.near_best_rows(frame, tell)
    return TileData(found.rows, found.fold[found.rows.problem], _source(chosen, found.rows, cache))


@dataclass(frozen=True)
class Kind:
    """How the order of one family's tiles is learned."""

    load: Callable[[str | Path | None, Tell], TileData]
    spec: TrainSpec
    per_tile: int = 0
    vendors: tuple[str, ...] = ()
    """Whose other architectures are answered too: `moe-near-best` has whole GPUs left out."""


KINDS: Mapping[str, Kind] = {
    "attention": Kind(_attention, ATTENTION_SPEC),
    "moe": Kind(_moe, MOE_SPEC, MOE_PER_TILE, ("nvidia",)),
}


def tile_kind(name: str) -> Kind:
    """Return how the order of that family's tiles is learned.

    Raises:
        UsageError: winners of no such family are known.
    """
    if name not in KINDS:
        raise UsageError(
            f"no winners of {name!r} are known{closest(name, KINDS)}; use: {', '.join(KINDS)}"
        )
    return KINDS[name]


def train_tiles(
    name: str, cache: str | Path | None = None, tell: Tell | None = None
) -> TilePreference:
    """Train on all winners; how often they are hit comes from grouped folds.

    Raises:
        UsageError: winners of no such family are known.
        MissingDataError: their table is not imported; the message is the command to run.
    """
    kind, say = tile_kind(name), tell or (lambda _what, _share: None)
    data = kind.load(cache, say)
    rows, folds = data.rows, np.unique(data.fold)
    score = np.full(len(rows), np.nan)
    for i in folds:
        say(f"fold {int(i) + 1} held out", float(i) / (len(folds) + 1))
        known, test = rows.take(data.fold != i), np.flatnonzero(data.fold == i)
        rule = PlaceRule(reach_of(known), kind.per_tile)
        score[test] = in_places(rows.take(test), fit_tiles(known, kind.spec), rule)
    say("all winners", len(folds) / (len(folds) + 1))
    gpus = sorted(set(map(str, rows.gpu)))
    return tile_preference(
        name, rows, fit_tiles(rows, kind.spec),
        sources=data.sources, architectures=[load_gpu(gpu).architecture for gpu in gpus],
        dtypes=SIXTEEN_BITS, vendors=kind.vendors, rule=PlaceRule(reach_of(rows), kind.per_tile),
        accuracy={"hit": _hits(rows, score)}, spec=kind.spec,
    )  # fmt: skip


def _hits(rows: TileRows, score: NDArray[np.float64]) -> dict[str, float]:
    order = metrics.in_order(rows.problem, score, np.ones(len(score)))
    return {str(k): round(float(order.hit(rows.won, k).mean()), 4) for k in CHECKED}


def _source(
    chosen: Selection, rows: TileRows, cache: str | Path | None
) -> tuple[Mapping[str, Any], ...]:
    info = next(e for e in store.imported(cache) if e.name == chosen.table).info
    files = dict(sorted(info.files.items())) if info else {}
    return (
        {
            "name": chosen.table, "dtype": chosen.dtype, "files": files,
            "problems": len(np.unique(rows.problem)), "winners": int(rows.won.sum()),
        },
    )  # fmt: skip
