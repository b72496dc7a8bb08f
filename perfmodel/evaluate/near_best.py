"""Protocol on tuned mixture-of-experts tiles: is a pick within 1 % of the best?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.analytic.model import LIMITERS
from perfmodel.evaluate import metrics
from perfmodel.evaluate.library import site_folds
from perfmodel.evaluate.records import ANALYTIC, OURS, Record, with_all
from perfmodel.evaluate.run import Run
from perfmodel.evaluate.selection import selections
from perfmodel.families import family_of
from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.booster import SEED, TrainSpec, fit_preference
from perfmodel.learned.feature_table import FeatureTable
from perfmodel.learned.forest import Forest
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import ConfigTable, TileConfig

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Features = NDArray[np.float32]

NAME = "moe-near-best"
VOTE = "vote"
PICKS = (1, 5)
TILE = ("block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages")
MODEL = ("experts", "top_k", "hidden_size", "intermediate_size")
OTHERS = 200
"""Of the configurations that are not near the best, so many of each problem are trained on."""

PER_TILE = 2
"""Of the first picks, so many may share a tile; inner folds preferred it to one and to any."""

SPEC = TrainSpec(
    "near-best", 0, 200, depth=6, learning_rate=0.1, rank_learning_rate=0.06, rank_pairs=12,
    rows_per_leaf=5.0,
)  # fmt: skip

REACH = (0.8, 0.8, 1.5, 1.5)
"""How far a vote carries, in factors of two: rows an expert gets, tokens, hidden, intermediate."""


@dataclass(frozen=True)
class Tuned:
    """Near-best sets: ``member[g, p, c]`` of GPU g, problem p and configuration c.

    ``size`` are the logarithms of each problem that `REACH` measures, (P, 4); ``model`` numbers
    its (E, top-k, H, N); ``features`` (legal candidates, F) and ``legal`` are by (GPU, problem).
    """

    gpus: tuple[str, ...]
    problems: pd.DataFrame
    configs: tuple[tuple[int, ...], ...]
    member: Mask
    size: Floats
    model: NDArray[np.int64]
    features: Mapping[tuple[int, int], Features]
    legal: Mapping[tuple[int, int], NDArray[np.intp]]
    estimate_s: Mapping[tuple[int, int], Floats]
    names: tuple[str, ...]


def moe_near_best(run: Run) -> list[Record]:
    """Tiles of fused MoE within 1 % of the best of all tried: is one among our first picks?

    Folds are grouped by (E, top-k, H, N). ``vote`` counts the near-best sets of the same GPU and
    number of tokens in the other folds.
    """
    tuned = _load(run)
    fold = site_folds(tuned.model)
    hits: dict[str, list[tuple[int, dict[int, bool]]]] = {}
    for i in np.unique(fold):
        run.trainer.tell(f"{NAME}, fold {int(i) + 1}", float(i) / float(fold.max() + 1))
        known = fold != i
        trees = _fit(tuned, known, run.scaled(SPEC))
        for g, p in tuned.features:
            if fold[p] != i:
                continue
            votes = _votes(tuned, g, p, known)
            legal = tuned.legal[g, p]
            matrix = np.concatenate([tuned.features[g, p], votes], axis=1)
            preferred = -trees.predict(matrix)
            answers = {
                OURS: spread_out(preferred, [tuned.configs[c] for c in legal]),
                VOTE: -votes[:, 0].astype(np.float64),
                ANALYTIC: tuned.estimate_s[g, p],
            }
            member = tuned.member[g, p, legal]
            for who, score in answers.items():
                order = metrics.in_order(np.zeros(len(score)), score, np.ones(len(score)))
                hit = {k: bool(order.hit(member, k)[0]) for k in PICKS}
                hits.setdefault(who, []).append((g, hit))
    records = []
    for who, found in hits.items():
        for g, gpu in enumerate(tuned.gpus):
            if not run.wanted(gpu):
                continue
            mine = [hit for at, hit in found if at == g]
            records += [
                Record(NAME, who, "hit", float(np.mean([h[k] for h in mine])), "moe", "bf16", gpu,
                       k=k, n=len(mine))
                for k in PICKS
            ]  # fmt: skip
    return with_all(records)


def spread_out(score: Floats, configs: Sequence[Sequence[int]]) -> Floats:
    """Return scores that put no third configuration of one tile (block_m, n, k) before others.

    Configurations of a tile succeed and fail together, so that several picks are worth more apart.
    """
    order = np.argsort(score, kind="stable")
    place = np.empty(len(score))
    count: dict[tuple[int, ...], int] = {}
    for rank, at in enumerate(order):
        tile = tuple(configs[at][:3])
        count[tile] = count.get(tile, 0) + 1
        place[at] = rank + (len(order) if count[tile] > PER_TILE else 0)
    return place


def _load(run: Run) -> Tuned:
    chosen = next(s for s in selections(NAME) if s.table == "pipeweave-moe-near-best")
    frame, _ = chosen.load([*MODEL, "tokens", "gpu", *TILE], run.tables.cache)
    if run.quick:
        frame = frame[frame["tokens"].isin(sorted(frame["tokens"].unique())[::4])]
    values = [sorted(int(v) for v in frame[name].unique()) for name in TILE]
    configs = tuple(product(*values))
    place = {config: i for i, config in enumerate(configs)}
    gpus = tuple(sorted(map(str, frame["gpu"].unique())))
    keys = ["tokens", *MODEL]
    problems = frame[keys].drop_duplicates().sort_values(keys).reset_index(drop=True)
    at = {tuple(row): i for i, row in enumerate(problems.itertuples(index=False, name=None))}
    member = np.zeros((len(gpus), len(problems), len(configs)), dtype=np.bool_)
    for row in frame[["gpu", *keys, *TILE]].itertuples(index=False, name=None):
        problem = at[tuple(row[1 : 1 + len(keys)])]
        member[gpus.index(row[0]), problem, place[tuple(map(int, row[1 + len(keys) :]))]] = True
    table = ConfigTable.of([_tile(config) for config in configs])
    rows_of = problems["tokens"] * problems["top_k"] / problems["experts"]
    size = np.log2(
        np.stack([rows_of, problems["tokens"], problems["hidden_size"],
                  problems["intermediate_size"]], axis=1).astype(np.float64)
    )  # fmt: skip
    features, legal, estimates = {}, {}, {}
    names: tuple[str, ...] = ()
    for g, gpu in enumerate(gpus):
        run.trainer.tell(f"{NAME}, candidates on {gpu}", g / len(gpus))
        for p in range(len(problems)):
            if member[g, p].any():
                columns, index, seconds = _candidates(problems.iloc[p], gpu, table)
                names = tuple(columns)
                stacked = [np.broadcast_to(v, len(seconds))[index] for v in columns.values()]
                features[g, p] = np.stack(stacked, axis=1).astype(np.float32)
                legal[g, p], estimates[g, p] = index, seconds[index]
    model = np.asarray(problems.groupby(list(MODEL)).ngroup(), dtype=np.int64)
    return Tuned(gpus, problems, configs, member, size, model, features, legal, estimates, names)


def _tile(config: Sequence[int]) -> TileConfig:
    m, n, k, group, warps, stages = config
    return TileConfig(m, n, k, group_m=group, num_warps=warps, num_stages=stages)


def _candidates(
    row: pd.Series[int], gpu_name: str, configs: ConfigTable
) -> tuple[dict[str, Floats | float], NDArray[np.intp], Floats]:
    problem = GroupedGemm(
        tokens=int(row["tokens"]), experts=int(row["experts"]), top_k=int(row["top_k"]),
        hidden=int(row["hidden_size"]), intermediate=int(row["intermediate_size"]),
        projection="up", dtype="bf16",
    )  # fmt: skip
    gpu = load_gpu(gpu_name)
    family = family_of(problem)
    found = family.launches(problem, configs, gpu, with_features=False)
    index = np.flatnonzero(family.legal(problem, configs, found))
    estimate, work = found.estimate, found.work
    seconds = estimate.seconds
    per_expert = problem.tokens * problem.top_k / problem.experts
    columns: dict[str, Floats | float] = {
        f"{name}_share": estimate.limiter_s[i] / seconds for i, name in enumerate(LIMITERS)
    }
    columns |= {
        "over_best": np.log(seconds / seconds[index].min()),
        **{name: np.log2(getattr(configs, name)) for name in TILE[:-1]},
        "num_stages": configs.num_stages,
        "smem_share": work.resources.smem_bytes / gpu.smem_per_sm_bytes,
        "registers_wanted": work.resources.registers_wanted,
        "occupancy": work.resources.occupancy,
        "accumulators": work.resources.accumulators_per_thread,
        "waves": np.log2(np.maximum(work.ctas, 1.0) / gpu.sm_count),
        "rows_over_block": np.log2(per_expert / configs.block_m),
        "trips": np.log2(problem.hidden / configs.block_k),
        "columns_over_block": np.log2(problem.up_columns / configs.block_n),
        "rows_of_expert": float(np.log2(per_expert)),
        "tokens": float(np.log2(problem.tokens)),
        "hidden": float(np.log2(problem.hidden)),
        "intermediate": float(np.log2(problem.intermediate)),
        "experts": float(np.log2(problem.experts)),
        "balance": gpu.tensor_tflops["bf16"] * 1e3 / gpu.dram_bandwidth_gb_per_s,
    }
    return columns, index, seconds


def _votes(tuned: Tuned, g: int, p: int, known: Mask) -> Features:
    """Return three votes on each legal candidate of one problem by those of ``known`` problems.

    The share of the same number of tokens, that of like problems (`REACH`), and the latter on the
    other GPUs. Problems of the same model never vote.
    """
    legal = tuned.legal[g, p]
    voters = known & (tuned.model != tuned.model[p])
    same = voters & (tuned.size[:, 1] == tuned.size[p, 1])
    distance = ((tuned.size - tuned.size[p]) / np.array(REACH)) ** 2
    weight = np.where(voters, np.exp(-0.5 * distance.sum(axis=1)), 0.0)
    weight = weight / max(float(weight.sum()), 1e-30)
    here = tuned.member[g][:, legal]
    others = [tuned.member[o][:, legal] for o in range(len(tuned.gpus)) if o != g]
    away = np.mean([weight @ o for o in others], axis=0) if others else np.zeros(len(legal))
    votes = [here[same].mean(axis=0) if same.any() else np.zeros(len(legal)), weight @ here, away]
    return np.stack(votes, axis=1).astype(np.float32)


def _fit(tuned: Tuned, known: Mask, spec: TrainSpec) -> Forest:
    """Learn which candidate of a problem is near the best from the problems of ``known``."""
    draw = np.random.default_rng(SEED)
    blocks, wins, numbers = [], [], []
    for number, (g, p) in enumerate(k for k in tuned.features if known[k[1]]):
        member = tuned.member[g, p, tuned.legal[g, p]]
        rest = np.flatnonzero(~member)
        # The estimate's own favourites are what has to be told apart from the best.
        hard = rest[np.argsort(tuned.estimate_s[g, p][rest], kind="stable")[: OTHERS // 2]]
        some = draw.choice(rest, min(OTHERS // 2, len(rest)), replace=False)
        rows = np.unique(np.concatenate([np.flatnonzero(member), hard, some]))
        votes = _votes(tuned, g, p, known)
        blocks.append(np.concatenate([tuned.features[g, p][rows], votes[rows]], axis=1))
        wins.append(member[rows])
        numbers.append(np.full(len(rows), number))
    features, won, problem = (np.concatenate(parts) for parts in (blocks, wins, numbers))
    blank = np.full(len(won), "", dtype=object)
    table = FeatureTable(
        features=features, names=(*tuned.names, "vote", "vote_near", "vote_away"),
        analytic_s=np.ones(len(won)), latency_s=np.where(won, 1.0, 2.0), gpu=blank, dtype=blank,
        problem=problem.astype(np.int64),
    )  # fmt: skip
    return fit_preference(table, spec)


PROTOCOLS = {NAME: moe_near_best}
