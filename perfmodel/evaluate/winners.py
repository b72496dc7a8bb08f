"""Protocol on autotuning winners of Triton attention: is the winner among our first picks?"""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.dataset.splits import group_ids
from perfmodel.evaluate import metrics
from perfmodel.evaluate.library import site_folds
from perfmodel.evaluate.records import ANALYTIC, OURS, Record
from perfmodel.evaluate.run import Run
from perfmodel.evaluate.selection import Selection, selections
from perfmodel.families import family_of
from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.tile_columns import attention_tile_columns, tile_matrix
from perfmodel.learned.tile_preference import PlaceRule
from perfmodel.learned.tile_training import ATTENTION_SPEC, TileRows, fit_tiles, in_places, reach_of
from perfmodel.problems.attention import Attention
from perfmodel.tiling.config import ConfigTable, TileConfig

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

NAME = "attention-winners"
MOST_FREQUENT = "most-frequent"
PICKS = (1, 5, 10)
SHAPE = [
    "batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "v_head_dim", "causal",
    "q_dtype", "kv_dtype", "gpu", "kernel",
]  # fmt: skip
"""What makes a problem; a kernel that also returns its residuals is another one."""
TILE = ["block_m", "block_n", "num_warps", "num_stages"]
COLUMNS = [*SHAPE, *TILE, "latency_us"]
CANDIDATES = tuple(product((32, 64, 128, 256), (16, 32, 64, 128, 256), (2, 4, 8), range(1, 6)))


def attention_winners(run: Run) -> list[Record]:
    """The winner of an autotuner among our first picks, beside the most frequent winners.

    Folds are grouped by shape. The error is that of the winner's time, which is the estimate's.
    """
    run.trainer.tell(NAME, 0.0)
    chosen = selections(NAME)[0]
    frame, _ = chosen.load(COLUMNS, run.tables.cache)
    rows = winner_rows(frame)
    fold = winner_folds(frame, chosen)[rows.problem]
    score = {who: np.full(len(rows), np.nan) for who in (OURS, MOST_FREQUENT)}
    score[ANALYTIC] = rows.estimate_s
    for i in np.unique(fold):
        run.trainer.tell(f"{NAME}, fold {int(i) + 1}", float(i) / (float(fold.max()) + 1.0))
        train, test = fold != i, fold == i
        learnt = rows.take(train)
        trees = fit_tiles(learnt, run.scaled(ATTENTION_SPEC))
        score[OURS][test] = in_places(rows.take(test), trees, PlaceRule(reach_of(learnt)))
        won = np.bincount(learnt.config[learnt.won], minlength=len(CANDIDATES))
        score[MOST_FREQUENT][test] = -won[rows.config[test]].astype(np.float64)
    records = []
    for who, order in score.items():
        records += _hits(who, order, rows)
    error = metrics.relative_error(rows.estimate_s[rows.won], rows.measured_s[rows.won])
    for who in (OURS, ANALYTIC):
        records += [
            Record(NAME, who, metric, value, "attention", chosen.dtype, "h100-sxm5", n=len(error))
            for metric, value in metrics.error_metrics(error).items()
        ]
    return records


def winner_folds(frame: pd.DataFrame, chosen: Selection) -> Indices:
    """Return the fold of each problem, by its number in `winner_rows`."""
    first = np.unique(group_ids(frame, SHAPE), return_index=True)[1]
    return site_folds(group_ids(frame, list(chosen.folds)))[first]


def winner_rows(frame: pd.DataFrame) -> TileRows:
    """Describe every legal candidate of every problem; a winner that is none counts as missed."""
    parts = []
    names: tuple[str, ...] = ()
    configs = ConfigTable.of(
        [
            TileConfig(block_m=m, block_n=n, block_k=1, num_warps=warps, num_stages=stages)
            for m, n, warps, stages in CANDIDATES
        ]
    )
    problems = group_ids(frame, SHAPE)
    for at, index_of in frame.groupby(problems).indices.items():
        row = frame.iloc[index_of[0]]
        problem, gpu = _problem(row), load_gpu(str(row.gpu))
        family = family_of(problem)
        found = family.launches(problem, configs, gpu, with_features=False)
        legal = family.legal(problem, configs, found)
        columns = attention_tile_columns(
            problem, configs, gpu, found.work, found.estimate, legal,
            residuals=str(row.kernel).endswith("-residuals"),
        )  # fmt: skip
        names = tuple(columns)
        measured = np.full(len(configs), np.nan)
        for i in index_of:
            won = frame.iloc[i]
            tile = tuple(int(won[name]) for name in TILE)
            if tile in CANDIDATES:
                measured[CANDIDATES.index(tile)] = float(won["latency_us"]) * 1e-6
        index = np.flatnonzero(legal)
        parts.append(
            (
                tile_matrix(columns, len(configs))[index], found.estimate.seconds[index],
                np.full(len(index), at, dtype=np.int64), index,
                np.full(len(index), gpu.name, dtype=object), measured[index],
            )
        )  # fmt: skip
    features, estimate_s, problem_of, config, device, measured_s = (
        np.concatenate(p) for p in zip(*parts, strict=True)
    )
    return TileRows(
        features, names, estimate_s, problem_of, config, device, np.isfinite(measured_s),
        measured_s, configs,
    )  # fmt: skip


def _problem(row: pd.Series[int]) -> Attention:
    return Attention(
        batch=int(row.batch), q_len=int(row.q_len), kv_len=int(row.kv_len),
        q_heads=int(row.q_heads), kv_heads=int(row.kv_heads), head_dim=int(row.head_dim),
        v_head_dim=int(row.v_head_dim), causal=bool(row.causal), dtype=str(row.q_dtype),
        kv_dtype=str(row.kv_dtype),
    )  # fmt: skip


def _hits(who: str, score: Floats, rows: TileRows) -> list[Record]:
    order = metrics.in_order(rows.problem, score, np.ones(len(score)))
    return [
        Record(
            NAME, who, "hit", float(order.hit(rows.won, k).mean()), "attention", "16-bit",
            "h100-sxm5", k=k, n=len(order.start),
        )
        for k in PICKS
    ]  # fmt: skip


PROTOCOLS = {NAME: attention_winners}
