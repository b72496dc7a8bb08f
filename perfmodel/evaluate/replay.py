"""Tuning sessions on recorded tables: what a policy times of a problem, and how good its pick is.

The time a session sees is the recorded median of a configuration, and the pick is judged by the
same recorded time: a session here has no noise to cope with. (How a search copes with noise is
tested on a fake device.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.evaluate import metrics
from perfmodel.evaluate.answers import Answer
from perfmodel.evaluate.gemm import held_out
from perfmodel.evaluate.grid import sizes_of
from perfmodel.evaluate.records import Record
from perfmodel.evaluate.rows import GemmRows
from perfmodel.evaluate.run import Run
from perfmodel.tiling.config import PARAMETERS

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

NAME = "replay"


@dataclass(frozen=True)
class Session:
    """One problem whose configurations were all timed once; arrays over its N configurations.

    They come in the order of a user's list: the configuration that most problems were given
    first, equally common ones by their parameters. ``measured_us`` is the recorded median,
    ``score`` orders them, lower first, and ``expected_us`` is the model's time; both are NaN where
    a contender says nothing. ``parameters`` (N, P) are the tile's.
    """

    measured_us: Floats
    score: Floats
    expected_us: Floats
    parameters: Floats

    @property
    def best_us(self) -> float:
        """The least recorded time."""
        return float(self.measured_us.min())

    @cached_property
    def order(self) -> Indices:
        """Configurations by score; equal ones in an order drawn with the seed of all metrics."""
        found = metrics.in_order(np.zeros(len(self.score)), self.score, self.measured_us)
        return found.rows

    def __len__(self) -> int:
        return len(self.measured_us)


@dataclass(frozen=True)
class Played:
    """What one policy did with one session: the configuration picked, how many were timed."""

    pick: int
    timed: int


class Policy(Protocol):
    """How to pick a configuration, timing at most ``budget`` of them (``None``: as many as are)."""

    @property
    def budget(self) -> int | None:
        """How many configurations may be timed."""

    def play(self, session: Session, seed: int) -> Played:
        """Pick; ``seed`` differs by problem, for policies that draw."""


@dataclass(frozen=True)
class FirstOfOrder:
    """Times nothing, or the first few of the order, and takes the best of them."""

    budget: int

    def play(self, session: Session, seed: int) -> Played:  # noqa: ARG002 - draws nothing
        """Return the best of the first ones."""
        first = session.order[: max(self.budget, 1)]
        pick = int(first[np.argmin(session.measured_us[first])])
        return Played(pick, min(self.budget, len(session)))


@dataclass(frozen=True)
class Cells:
    """Problems to play: rows of a table, which of them each cell holds, and what held-out parts
    of training they belong to."""

    rows: GemmRows
    cells: Mapping[str, Mask]
    parts: Sequence[tuple[Mask, Mask]]
    all_name: str


def kfold_cells(run: Run) -> Cells:
    """Return the problems of ``gemm-kfold``, by device."""
    rows = run.mm
    return Cells(rows, run.devices(rows), [(s.train, s.test) for s in run.folds], "all")


def grid_cells(run: Run) -> Cells:
    """Return the problems of ``grid-loso``, by size."""
    rows = run.mm_and_grid
    cells = sizes_of(run, rows)
    return Cells(rows, cells, [(~test, test) for test in cells.values()], "all sizes")


def answers_of(run: Run, what: Cells, label: str) -> dict[str, Answer]:
    """Return what each contender that orders says of the held-out rows; nothing is trained twice.

    Of the baselines those take part that the run was given.
    """
    found = held_out(run, label, what.rows, what.parts)
    return {who: answer for who, answer in found.items() if answer.score is not None}


def sessions(rows: GemmRows, here: Mask, answer: Answer | None, common: Floats) -> list[Session]:
    """Return the sessions of some rows, which hold whole problems.

    Args:
        rows: measured launches.
        here: which of them.
        answer: arrays over all of ``rows``; ``None`` for a contender that needs none.
        common: how many problems each row's configuration was offered in (N,), see `offered`.
    """
    nothing = np.full(len(rows), np.nan)
    answer = Answer() if answer is None else answer
    score = nothing if answer.score is None else answer.score
    seconds = nothing if answer.seconds is None else answer.seconds
    parameters = rows.labels[list(PARAMETERS)].fillna(0).to_numpy(dtype=np.float64)
    index = np.flatnonzero(here)
    keys = (*parameters[index].T[::-1], -common[index], rows.problem[index])
    index = index[np.lexsort(keys)]
    starts = np.flatnonzero(np.diff(rows.problem[index], prepend=-1))
    return [
        Session(
            measured_us=1e6 * rows.measured_s[part],
            score=score[part],
            expected_us=1e6 * seconds[part],
            parameters=parameters[part],
        )
        for part in np.split(index, starts[1:])
        if len(part)
    ]


def offered(rows: GemmRows) -> Floats:
    """Return in how many problems of its data type each row's configuration was offered, (N,)."""
    dtype = np.unique(rows.dtype.astype(str), return_inverse=True)[1]
    code = dtype.astype(np.int64) * (int(rows.tile.max(initial=0)) + 1) + rows.tile
    return np.asarray(np.bincount(code)[code], dtype=np.float64)


def scored(
    who: str, cell: str, budget: int | None, sessions: Sequence[Session], played: Sequence[Played]
) -> Iterator[Record]:
    """Yield the records of one contender and budget: quality of its picks, configurations timed."""
    quality = np.array(
        [s.best_us / s.measured_us[p.pick] for s, p in zip(sessions, played, strict=True)]
    )
    timed = np.array([p.timed for p in played], dtype=np.float64)
    values = metrics.pick_metrics(quality) | {
        "timed_mean": float(timed.mean()),
        "timed_max": float(timed.max()),
    }
    for name, value in values.items():
        k = 1 if name.startswith("pick") else None
        yield Record(NAME, who, name, value, cell=cell, k=k, budget=budget, n=len(played))


def random_records(
    cell: str, budgets: Sequence[int], sessions: Sequence[Session]
) -> Iterator[Record]:
    """Yield what timing configurations drawn at random reaches, as an expectation."""
    problem = np.repeat(np.arange(len(sessions)), [len(s) for s in sessions])
    measured = np.concatenate([s.measured_us for s in sessions])
    for budget in budgets:
        expected = metrics.random_pick(problem, measured, max(budget, 1))
        timed = float(np.mean([min(budget, len(s)) for s in sessions]))
        for name, value in (expected | {"timed_mean": timed}).items():
            k = 1 if name.startswith("pick") else None
            yield Record(
                NAME, "random", name, value, cell=cell, k=k, budget=budget, n=len(sessions)
            )
