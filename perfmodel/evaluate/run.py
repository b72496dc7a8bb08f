"""What a run of evaluations shares: data, models, progress, and the wishes of who asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.dataset import splits
from perfmodel.errors import NotInstalledError
from perfmodel.evaluate.answers import Adapt, Answer, Baseline, Trainer
from perfmodel.evaluate.records import Record, gate_records
from perfmodel.evaluate.rows import GemmRows, Tables, candidate_rows
from perfmodel.learned.booster import TrainSpec, scaled

Mask = NDArray[np.bool_]

MM = "autoheuristic-mm"
GRID = "triton-grid-a100"

QUICK_PROBLEMS = 8
QUICK_DRAWS = 2
QUICK_SHARE = 0.1
"""A quick look takes every eighth problem (by size), two draws, and a tenth of the trees."""


@dataclass
class Run:
    """One call of ``perfmodel evaluate``.

    Protocols are functions of it. What one computes (folds, trained heads) serves the next.
    """

    tables: Tables
    trainer: Trainer
    adapt: Adapt
    baselines: tuple[Baseline, ...] = ()
    only: frozenset[str] = frozenset()  # devices to report; empty for all
    by_dtype: bool = False
    quick: bool = False
    held_parts: int | None = None  # so many of a protocol's parts of sites; None: all of them
    say: Callable[[str], None] = lambda _line: None
    _refused: set[str] = field(default_factory=set)

    @cached_property
    def mm(self) -> GemmRows:
        """What a tuner may pick from AutoHeuristic's tables, both devices."""
        return candidate_rows(self.thinned(self.tables.labels(MM)))

    @cached_property
    def mm_and_grid(self) -> GemmRows:
        """`mm` and what ran of the full grid."""
        thinned = self.thinned(self.tables.labels(MM))
        return candidate_rows(thinned, self.tables.labels(GRID))

    @cached_property
    def folds(self) -> tuple[splits.Split, ...]:
        """Grouped folds of `mm`."""
        return tuple(splits.kfold(self.mm.labels))

    @property
    def draws(self) -> int:
        """Draws of a few-shot protocol."""
        return QUICK_DRAWS if self.quick else splits.DRAWS

    def suites(self) -> GemmRows:
        """Return the rows of `mm` with source files kept apart."""
        raw = self.tables.raw[MM]
        return candidate_rows(self.thinned(splits.label_table(raw, by_source_file=True)))

    def wanted(self, gpu: str) -> bool:
        """Whether results on that device are asked for."""
        return not self.only or gpu in self.only

    def devices(self, rows: GemmRows) -> dict[str, Mask]:
        """Return which rows each wanted device has."""
        names = sorted(set(rows.gpu))
        return {gpu: np.asarray(rows.gpu == gpu, dtype=bool) for gpu in names if self.wanted(gpu)}

    def gates(self, protocol: str, *names: str) -> list[Record]:
        """Return how many rows of the named tables the quality gates dropped."""
        return gate_records(protocol, self.tables.gates(names))

    def scaled(self, spec: TrainSpec) -> TrainSpec:
        """Return ``spec``, for a quick look with part of its trees."""
        return scaled(spec, QUICK_SHARE) if self.quick else spec

    def ask(self, baseline: Baseline, train: GemmRows, test: GemmRows) -> Answer | None:
        """Return a baseline's answer; one that lacks its package is left out with a note."""
        if baseline.name in self._refused:
            return None
        try:
            return baseline.answer(train, test)
        except NotInstalledError as error:
            self._refused.add(baseline.name)
            self.say(f"left out {baseline.name}: {error}")
            return None

    def thinned(self, labels: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of some problems for a quick look, else all of them."""
        if not self.quick:
            return labels
        size = splits.group_ids(labels, splits.SIZE_COLUMNS)
        thinned: pd.DataFrame = labels[size % QUICK_PROBLEMS == 0]
        return thinned
