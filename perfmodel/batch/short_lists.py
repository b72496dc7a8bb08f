"""Short lists of tiles: what is best for a few problems, for the many that lie near them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import IllegalConfigError
from perfmodel.families import TileProblem, family_of
from perfmodel.problems.attention import Attention
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import ConfigTable, TileConfig

if TYPE_CHECKING:
    from perfmodel.hardware.gpu import Gpu
    from perfmodel.predictor import Predictor

Array = NDArray[np.float32]
Index = NDArray[np.intp]
Done = Callable[[int], None]
"""Called with how many more problems are done."""

OWN, NEAR, NEIGHBOURS = 4, 4, 5
"""Best tiles kept of a problem's representative, of others near it, and how many others. Of 5,000
products of all sizes so chosen, 60 compared with their own best: 0.9 % slower on average."""

FEW = 48
"""Attention and mixture-of-experts problems for which all candidates are compared."""


def short_lists(
    points: Array, best_of: Callable[[int], list[TileConfig]], most: int
) -> Iterator[tuple[Index, list[TileConfig]]]:
    """Yield problems (their rows) and the tiles that they choose among.

    Args:
        points: where each problem lies, (N, D), so that near ones want like tiles.
        best_of: returns the best tiles of one problem, the best first.
        most: how many problems may be asked about.
    """
    picks = [0]
    distances = [np.linalg.norm(points - points[0], axis=1)]
    nearest = distances[0].copy()
    while len(picks) < most and nearest.max() > 0:
        picks.append(int(nearest.argmax()))
        distances.append(np.linalg.norm(points - points[picks[-1]], axis=1))
        nearest = np.minimum(nearest, distances[-1])
    found = np.stack(distances)
    owner = found.argmin(axis=0)
    best = [best_of(pick) for pick in picks]
    for cell, pick in enumerate(picks):
        near = [i for i in np.argsort(found[:, pick], kind="stable") if i != cell][:NEIGHBOURS]
        listed = [*best[cell], *(config for i in near for config in best[i][:NEAR])]
        yield np.flatnonzero(owner == cell), list(dict.fromkeys(listed))


def best_tiles(predictor: Predictor, problem: TileProblem, gpu: Gpu) -> list[TileConfig]:
    """Return the best few of all candidates."""
    space = family_of(problem).candidates(problem, gpu)
    score = predictor.scores(problem, gpu, space, shortlist=True)
    order = np.argsort(score, kind="stable")[:OWN]
    return [space.configs[i] for i in order if np.isfinite(score[i])]


def choose_by_problem(
    predictor: Predictor, problems: Sequence[Attention | GroupedGemm], gpu: Gpu, done: Done
) -> list[TileConfig | None]:
    """Return a tile for each problem, ``None`` where no tile of its short list can run.

    For families whose work is worked out a problem at a time.
    """
    points = np.array([_point(problem) for problem in problems], dtype=np.float32)
    chosen: list[TileConfig | None] = [None] * len(problems)

    def best_of(row: int) -> list[TileConfig]:
        return best_tiles(predictor, problems[row], gpu)

    for rows, short in short_lists(points, best_of, FEW):
        table = ConfigTable.of(short)
        for row in rows.tolist():
            with suppress(IllegalConfigError):
                chosen[row] = short[predictor.decide(problems[row], gpu, table)]
            done(1)
    return chosen


def _point(problem: Attention | GroupedGemm) -> list[float]:
    """Log sizes that a tile depends on."""
    if isinstance(problem, GroupedGemm):
        sizes = [
            float(problem.loads.max(initial=0.0)), float((problem.loads > 0).sum()),
            problem.hidden, problem.up_columns, problem.intermediate // problem.tp,
        ]  # fmt: skip
        return [*np.log2(np.maximum(sizes, 0.5)), 4.0 * ("both", "up", "down").index(
            problem.projection
        )]  # fmt: skip
    q_len = max((q for q, _ in problem.items), default=0)
    kv_len = max((kv for _, kv in problem.items), default=0)
    heads = (problem.batch or 0) * problem.q_heads
    sizes = [q_len, kv_len, heads, problem.window or kv_len]
    # A head's size and how many share keys decide more than lengths do.
    shapes = [problem.head_dim, problem.v_head_dim or 1, problem.group]
    flags = [problem.causal, problem.backward, q_len > 1]
    return [
        *np.log2(np.maximum(sizes, 0.5)), *(4.0 * np.log2(shapes)), *(8.0 * np.array(flags)),
    ]  # fmt: skip
