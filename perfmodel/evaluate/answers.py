"""Who takes part in an evaluation, and what each says of the rows held out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.evaluate.records import ANALYTIC
from perfmodel.evaluate.rows import GemmRows
from perfmodel.learned.booster import Heads, TrainSpec, fit_heads
from perfmodel.learned.feature_table import FeatureTable
from perfmodel.learned.training import predict_rows

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Tell = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1."""


@dataclass(frozen=True)
class Answer:
    """What a contender says of N rows.

    ``seconds`` are predicted times, ``None`` from one that only orders; ``score`` orders the rows
    of a problem, lower first, ``None`` from one that cannot tell configurations apart. NaN marks
    rows it has no answer to. ``is_random`` stands for an order drawn at random.
    """

    seconds: Floats | None = None
    score: Floats | None = None
    is_random: bool = False


class Baseline(Protocol):
    """One peer or simple rule, run beside our models on the same rows."""

    @property
    def name(self) -> str:
        """What records call it."""

    def answer(self, train: GemmRows, test: GemmRows) -> Answer | None:
        """Learn from ``train`` what there is to learn, then answer for ``test``.

        ``None`` where it does not apply to these rows.

        Raises:
            NotInstalledError: it needs a package that is missing; it is left out, with a note.
        """


class Adapt(Protocol):
    """Corrects trained heads with a few measured rows of another device."""

    def __call__(self, heads: Heads, table: FeatureTable, /) -> Heads:
        """Return heads that answer for the device of ``table``; ``heads`` stay as they are."""


@dataclass
class Trainer:
    """Trains our models; asked twice for the same rows and specification, it trains once."""

    specs: tuple[tuple[str, TrainSpec], ...]
    """Name in the records and specification of each model that takes part."""
    tell: Tell = lambda _what, _share: None
    _known: dict[tuple[str, TrainSpec], Heads] = field(default_factory=dict)

    def heads(self, rows: GemmRows, train: Mask, spec: TrainSpec, what: str) -> Heads:
        """Return heads trained on the rows of ``train``."""
        table = rows.table.take(train)
        key = (_digest(table), spec)
        if key not in self._known:
            label = f"{what} ({spec.name})"
            self.tell(label, 0.0)
            self._known[key] = fit_heads(table, spec, lambda share: self.tell(label, share))
        return self._known[key]

    def answer(self, rows: GemmRows, train: Mask, test: Mask, spec: TrainSpec, what: str) -> Answer:
        """Return what heads trained on ``train`` say of ``test``, arrays over the test rows."""
        return ours(self.heads(rows, train, spec, what), rows.table.take(test))


def ours(heads: Heads, table: FeatureTable) -> Answer:
    """Return what trained heads say of every row."""
    found = predict_rows(heads, table)
    return Answer(seconds=found.seconds(table), score=found.rank)


@dataclass(frozen=True)
class AnalyticAlone:
    """Our analytic estimate without a learned part."""

    name: str = ANALYTIC

    def answer(self, train: GemmRows, test: GemmRows) -> Answer | None:  # noqa: ARG002 - learns nothing
        """Return the estimates."""
        return Answer(seconds=test.table.analytic_s, score=test.table.analytic_s)


def spread(answers: Sequence[tuple[Mask, Answer]], rows: int) -> Answer:
    """Put the answers for disjoint sets of rows together, NaN elsewhere."""
    seconds, score = np.full(rows, np.nan), np.full(rows, np.nan)
    for where, answer in answers:
        if answer.seconds is not None:
            seconds[where] = answer.seconds
        if answer.score is not None:
            score[where] = answer.score
    return Answer(
        seconds=None if np.isnan(seconds).all() else seconds,
        score=None if np.isnan(score).all() else score,
        is_random=any(answer.is_random for _, answer in answers),
    )


def _digest(table: FeatureTable) -> str:
    """Tell training sets apart by their content: equal rows train equal trees."""
    found = hashlib.blake2b(digest_size=16)
    for part in (table.features, table.analytic_s, table.latency_s, table.problem):
        found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()
