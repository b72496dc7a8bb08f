"""Protocol on autotuning winners of Triton attention: is the winner among our first picks?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.analytic.model import LIMITERS
from perfmodel.dataset.splits import group_ids
from perfmodel.evaluate import metrics
from perfmodel.evaluate.library import site_folds
from perfmodel.evaluate.records import ANALYTIC, OURS, Record
from perfmodel.evaluate.run import Run
from perfmodel.evaluate.selection import selections
from perfmodel.families import family_of
from perfmodel.hardware.catalog import load_gpu
from perfmodel.launches import Launches
from perfmodel.learned.booster import TrainSpec, fit_preference
from perfmodel.learned.feature_table import FeatureTable
from perfmodel.problems.attention import Attention
from perfmodel.tiling.config import ConfigTable, TileConfig

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

NAME = "attention-winners"
MOST_FREQUENT = "most-frequent"
PICKS = (1, 5, 10)
SHAPE = [
    "batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "v_head_dim", "causal",
    "q_dtype", "kv_dtype", "gpu", "kernel",
]  # fmt: skip
"""What makes a problem; a kernel that also returns its residuals is another one."""
TILE = ["block_m", "block_n", "num_warps", "num_stages"]
CANDIDATES = tuple(product((32, 64, 128, 256), (16, 32, 64, 128, 256), (2, 4, 8), range(1, 6)))

SPEC = TrainSpec(
    "winners", 0, 150, depth=4, learning_rate=0.1, rank_learning_rate=0.05, rows_per_leaf=5.0
)
"""Seventy problems with one winner each: few and shallow trees."""


@dataclass(frozen=True)
class Candidates:
    """All legal configurations of all problems, one a row; ``measured_s`` is NaN but of winners."""

    features: NDArray[np.float32]
    names: tuple[str, ...]
    estimate_s: Floats
    problem: Indices
    config: Indices  # index into `CANDIDATES`
    measured_s: Floats

    @property
    def winner(self) -> Mask:
        """Which rows are winners; a problem may have two."""
        return np.isfinite(self.measured_s)

    def take(self, rows: Mask) -> Candidates:
        """Return some of the rows."""
        return Candidates(
            self.features[rows], self.names, self.estimate_s[rows], self.problem[rows],
            self.config[rows], self.measured_s[rows],
        )  # fmt: skip


def attention_winners(run: Run) -> list[Record]:
    """The winner of an autotuner among our first picks, beside the most frequent winners.

    Folds are grouped by shape. The error is that of the winner's time: the estimate times the
    median ratio of the other folds' winners.
    """
    run.trainer.tell(NAME, 0.0)
    chosen = selections(NAME)[0]
    frame, _ = chosen.load([*SHAPE, *TILE, "latency_us"], run.tables.cache)
    rows = candidates(frame)
    first = np.unique(group_ids(frame, SHAPE), return_index=True)[1]
    fold = site_folds(group_ids(frame, list(chosen.folds)))[first][rows.problem]
    score = {who: np.full(len(rows.problem), np.nan) for who in (OURS, MOST_FREQUENT)}
    score[ANALYTIC] = rows.estimate_s
    seconds = np.full(len(rows.problem), np.nan)
    for i in np.unique(fold):
        run.trainer.tell(f"{NAME}, fold {int(i) + 1}", float(i) / (float(fold.max()) + 1.0))
        train, test = fold != i, fold == i
        learnt = rows.take(train)
        trees = fit_preference(_ranked(learnt), run.scaled(SPEC))
        score[OURS][test] = -trees.predict(rows.features[test])
        won = np.bincount(learnt.config[learnt.winner], minlength=len(CANDIDATES))
        score[MOST_FREQUENT][test] = -won[rows.config[test]].astype(np.float64)
        known = train & rows.winner
        factor = float(np.median(rows.measured_s[known] / rows.estimate_s[known]))
        seconds[test] = rows.estimate_s[test] * factor
    records = []
    for who, order in score.items():
        records += _hits(who, order, rows)
    for who, answer in ((OURS, seconds), (ANALYTIC, rows.estimate_s)):
        error = metrics.relative_error(answer[rows.winner], rows.measured_s[rows.winner])
        records += [
            Record(NAME, who, metric, value, "attention", chosen.dtype, "h100-sxm5", n=len(error))
            for metric, value in metrics.error_metrics(error).items()
        ]
    return records


def candidates(frame: pd.DataFrame) -> Candidates:
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
        problem = Attention(
            batch=int(row.batch), q_len=int(row.q_len), kv_len=int(row.kv_len),
            q_heads=int(row.q_heads), kv_heads=int(row.kv_heads), head_dim=int(row.head_dim),
            v_head_dim=int(row.v_head_dim), causal=bool(row.causal), dtype=str(row.q_dtype),
            kv_dtype=str(row.kv_dtype),
        )  # fmt: skip
        family = family_of(problem)
        found = family.launches(problem, configs, load_gpu(str(row.gpu)), with_features=False)
        legal = family.legal(problem, configs, found)
        columns = _columns(problem, configs, found, str(row.kernel))
        names = tuple(columns)
        block = np.stack([np.broadcast_to(v, len(configs)) for v in columns.values()], axis=1)
        measured = np.full(len(configs), np.nan)
        for i in index_of:
            won = frame.iloc[i]
            tile = tuple(int(won[name]) for name in TILE)
            if tile in CANDIDATES:
                measured[CANDIDATES.index(tile)] = float(won["latency_us"]) * 1e-6
        index = np.flatnonzero(legal)
        parts.append(
            (block[index], found.estimate.seconds[index], np.full(len(index), at), index,
             measured[index])
        )  # fmt: skip
    features, estimate_s, problem_of, config, measured_s = (
        np.concatenate(p) for p in zip(*parts, strict=True)
    )
    return Candidates(
        features.astype(np.float32), names, estimate_s, problem_of, config, measured_s
    )


def _columns(
    p: Attention, c: ConfigTable, found: Launches, kernel: str
) -> dict[str, Floats | float]:
    estimate, work = found.estimate, found.work
    seconds = estimate.seconds
    per_sm = float(p.batch or 1) * p.q_heads / found.gpu.sm_count
    columns: dict[str, Floats | float] = {
        f"{name}_share": estimate.limiter_s[i] / seconds for i, name in enumerate(LIMITERS)
    }
    return columns | {
        "over_best": np.log(seconds / seconds.min()),
        "block_m": np.log2(c.block_m),
        "block_n": np.log2(c.block_n),
        "num_warps": np.log2(c.num_warps),
        "num_stages": c.num_stages,
        "smem_share": work.resources.smem_bytes / found.gpu.smem_per_sm_bytes,
        "registers_wanted": work.resources.registers_wanted,
        "occupancy": work.resources.occupancy,
        "accumulators": work.resources.accumulators_per_thread,
        "waves": np.log2(np.maximum(work.ctas, 1.0) / found.gpu.sm_count),
        "head_dim": float(p.head_dim),
        "v_head_dim": float(p.v_head_dim or p.head_dim),
        "q_len": float(np.log2(max(q for q, _ in p.items))),
        "kv_len": float(np.log2(max(kv for _, kv in p.items))),
        "heads_per_sm": float(np.log2(per_sm)),
        "causal": float(p.causal),
        "residuals": float(kernel.endswith("-residuals")),
    }


def _ranked(rows: Candidates) -> FeatureTable:
    """As a table in which a problem's winner takes one second and everything else two."""
    blank = np.full(len(rows.problem), "", dtype=object)
    return FeatureTable(
        features=rows.features, names=rows.names, analytic_s=rows.estimate_s,
        latency_s=np.where(rows.winner, 1.0, 2.0), gpu=blank, dtype=blank,
        problem=rows.problem.astype(np.int64),
    )  # fmt: skip


def _hits(who: str, score: Floats, rows: Candidates) -> list[Record]:
    order = metrics.in_order(rows.problem, score, np.ones(len(score)))
    return [
        Record(
            NAME, who, "hit", float(order.hit(rows.winner, k).mean()), "attention", "16-bit",
            "h100-sxm5", k=k, n=len(order.start),
        )
        for k in PICKS
    ]  # fmt: skip


PROTOCOLS = {NAME: attention_winners}
