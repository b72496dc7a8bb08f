"""Protocol on tuned mixture-of-experts tiles: is a pick within 1 % of the best?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.dataset.vllm_default import vllm_default
from perfmodel.evaluate import metrics
from perfmodel.evaluate.library import site_folds
from perfmodel.evaluate.records import ANALYTIC, OURS, Record, with_all
from perfmodel.evaluate.run import Run
from perfmodel.evaluate.selection import selections
from perfmodel.families import family_of
from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.tile_columns import grouped_gemm_tile_columns, tile_matrix
from perfmodel.learned.tile_preference import PlaceRule
from perfmodel.learned.tile_training import (
    MOE_PER_TILE,
    MOE_SPEC,
    TileRows,
    fit_tiles,
    in_places,
    reach_of,
)
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import ConfigTable, TileConfig

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

NAME = "moe-near-best"
VOTE = "vote"
VLLM = "vllm-default"
PICKS = (1, 5)
TILE = ("block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages")
MODEL = ["experts", "top_k", "hidden_size", "intermediate_size"]
COLUMNS = [*MODEL, "tokens", "gpu", *TILE]

Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class NearBest:
    """Candidates of all problems, and by problem number what it is, its model and device, (P,)."""

    rows: TileRows
    problems: tuple[GroupedGemm, ...]
    model: Indices
    gpu: NDArray[np.str_]

    @property
    def tokens(self) -> Indices:
        """Tokens of each problem."""
        return np.array([problem.tokens for problem in self.problems], dtype=np.int64)

    @property
    def fold(self) -> Indices:
        """The fold of each problem: those of one (E, top-k, H, N) stay together."""
        return site_folds(self.model)


def moe_near_best(run: Run) -> list[Record]:
    """Tiles of fused MoE within 1 % of the best of all tried: is one among our first picks?

    Folds are grouped by (E, top-k, H, N). ``vote`` counts the near-best sets of the same GPU and
    number of tokens in the other folds; ``vllm-default`` is the tile that vLLM takes untuned. A
    cell ``GPU left out`` is answered by the other GPUs' problems of the other folds.
    """
    chosen = next(s for s in selections(NAME) if s.table == "pipeweave-moe-near-best")
    frame, _ = chosen.load(COLUMNS, run.tables.cache)
    if run.quick:
        frame = frame[frame["tokens"].isin(sorted(frame["tokens"].unique())[::4])]
    found = near_best_rows(frame, run.trainer.tell)
    records = []
    score = {**held_out(found, run), ANALYTIC: found.rows.estimate_s}
    for who, order in score.items():
        records += _hits(who, order, found, run, "{}")
    records += _default_hits(found, run)
    records = with_all(records)
    return records + _hits(OURS, left_out(found, run), found, run, "{} left out")


def near_best_rows(frame: pd.DataFrame, tell: Tell | None = None) -> NearBest:
    """Describe every legal candidate of every problem: the product of all values that occur."""
    values = [sorted(int(v) for v in frame[name].unique()) for name in TILE]
    tiles = tuple(product(*values))
    place = {tile: i for i, tile in enumerate(tiles)}
    configs = ConfigTable.of(
        [
            TileConfig(m, n, k, group_m=group, num_warps=warps, num_stages=stages)
            for m, n, k, group, warps, stages in tiles
        ]
    )
    parts: list[tuple[Any, ...]] = []
    problems: list[GroupedGemm] = []
    gpus: list[str] = []
    names: tuple[str, ...] = ()
    keys = ["gpu", "tokens", *MODEL]
    grouped = frame.groupby(keys, sort=True)
    for number, (_, here) in enumerate(grouped):
        gpu_name = str(here["gpu"].iloc[0])
        tokens, *model = (int(here[name].iloc[0]) for name in keys[1:])
        if tell is not None:
            tell(f"{NAME}, candidates on {gpu_name}", number / grouped.ngroups)
        member = np.zeros(len(tiles), dtype=np.bool_)
        for row in here[list(TILE)].itertuples(index=False, name=None):
            member[place[tuple(map(int, row))]] = True
        problems.append(_problem(tokens, model))
        gpus.append(gpu_name)
        columns, index, seconds = _candidates(problems[-1], gpu_name, configs)
        names = tuple(columns)
        parts.append(
            (
                tile_matrix(columns, len(seconds))[index], seconds[index],
                np.full(len(index), number, dtype=np.int64), index,
                np.full(len(index), gpu_name, dtype=object), member[index],
            )
        )  # fmt: skip
    features, estimate_s, problem, config, device, won = (
        np.concatenate(p) for p in zip(*parts, strict=True)
    )
    rows = TileRows(
        features, names, estimate_s, problem, config, device, won, np.full(len(won), np.nan),
        configs,
    )  # fmt: skip
    sizes = [(p.experts, p.top_k, p.hidden, p.intermediate) for p in problems]
    model_of = np.unique(np.array(sizes), axis=0, return_inverse=True)[1].ravel()
    return NearBest(rows, tuple(problems), np.asarray(model_of, dtype=np.int64), np.array(gpus))


def held_out(found: NearBest, run: Run) -> Mapping[str, Floats]:
    """Return the scores of our trees and of the vote, each problem's from the other folds."""
    rows, fold = found.rows, found.fold[found.rows.problem]
    score = {who: np.full(len(rows), np.nan) for who in (OURS, VOTE)}
    for i in np.unique(fold):
        run.trainer.tell(f"{NAME}, fold {int(i) + 1}", float(i) / float(fold.max() + 1))
        test = np.flatnonzero(fold == i)
        score[OURS][test] = _learned(rows.take(fold != i), rows.take(test), run)
        score[VOTE][test] = -_votes(found, test, fold != i)
    return score


def left_out(found: NearBest, run: Run) -> Floats:
    """Return our trees' scores of each problem, from other folds' problems of the other GPUs."""
    rows, fold = found.rows, found.fold[found.rows.problem]
    score = np.full(len(rows), np.nan)
    for gpu in np.unique(found.gpu):
        for i in np.unique(fold):
            run.trainer.tell(f"{NAME}, {gpu} left out", float(i) / float(fold.max() + 1))
            known = rows.take((fold != i) & (rows.gpu != gpu))
            test = np.flatnonzero((fold == i) & (rows.gpu == gpu))
            score[test] = _learned(known, rows.take(test), run)
    return score


def _learned(known: TileRows, asked: TileRows, run: Run) -> Floats:
    """Return the places of rows, by what other rows taught."""
    trees = fit_tiles(known, run.scaled(MOE_SPEC))
    return in_places(asked, trees, PlaceRule(reach_of(known), MOE_PER_TILE))


def _problem(tokens: int, model: list[int]) -> GroupedGemm:
    experts, top_k, hidden, intermediate = model
    return GroupedGemm(
        tokens=tokens, experts=experts, top_k=top_k, hidden=hidden, intermediate=intermediate,
        projection="up", dtype="bf16",
    )  # fmt: skip


def _candidates(
    problem: GroupedGemm, gpu_name: str, configs: ConfigTable
) -> tuple[Mapping[str, Floats | float], Indices, Floats]:
    gpu, family = load_gpu(gpu_name), family_of(problem)
    found = family.launches(problem, configs, gpu, with_features=False)
    legal = family.legal(problem, configs, found)
    columns = grouped_gemm_tile_columns(problem, configs, gpu, found.work, found.estimate, legal)
    return columns, np.flatnonzero(legal), found.estimate.seconds


def _votes(found: NearBest, test: Indices, known: Mask) -> Floats:
    """Return the share of known problems of that GPU and number of tokens that each row won in."""
    rows = found.rows
    kind = np.unique(
        np.stack([np.unique(found.gpu, return_inverse=True)[1], found.tokens]), axis=1,
        return_inverse=True,
    )[1].ravel()  # fmt: skip
    configs = len(rows.configs)
    wins = np.flatnonzero(known & rows.won)
    cast = np.bincount(
        kind[rows.problem[wins]] * configs + rows.config[wins], minlength=(kind.max() + 1) * configs
    )
    return np.asarray(
        cast[kind[rows.problem[test]] * configs + rows.config[test]], dtype=np.float64
    )


def _default_hits(found: NearBest, run: Run) -> list[Record]:
    """Return how often vLLM's own default is in the set; it has no second pick."""
    rows = found.rows
    hit = np.zeros(len(found.problems), dtype=np.bool_)
    for here in rows.problems():
        number = int(rows.problem[here[0]])
        default = vllm_default(found.problems[number], load_gpu(str(found.gpu[number])))
        won = rows.config[here[rows.won[here]]]
        hit[number] = any(rows.configs.configs[i] == default for i in won)
    return [
        Record(NAME, VLLM, "hit", float(hit[found.gpu == gpu].mean()), "moe", "bf16", gpu, k=1,
               n=int((found.gpu == gpu).sum()))
        for gpu in map(str, np.unique(found.gpu))
        if run.wanted(gpu)
    ]  # fmt: skip


def _hits(who: str, score: Floats, found: NearBest, run: Run, cell: str) -> list[Record]:
    order = metrics.in_order(found.rows.problem, score, np.ones(len(score)))
    hit = {k: order.hit(found.rows.won, k) for k in PICKS}
    return [
        Record(NAME, who, "hit", float(hit[k][found.gpu == gpu].mean()), "moe", "bf16",
               cell.format(gpu), k=k, n=int((found.gpu == gpu).sum()))
        for gpu in map(str, np.unique(found.gpu))
        if run.wanted(gpu)
        for k in PICKS
    ]  # fmt: skip


PROTOCOLS = {NAME: moe_near_best}
