"""From answers to records: errors, picks and trials, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.evaluate import metrics
from perfmodel.evaluate.answers import Answer
from perfmodel.evaluate.records import Record
from perfmodel.evaluate.rows import GemmRows

Mask = NDArray[np.bool_]

PICKS = (1, 3, 5, 10)


def score(
    protocol: str,
    who: str,
    answer: Answer,
    rows: GemmRows,
    cells: Mapping[str, Mask],
    *,
    by_dtype: bool = False,
    picks: Sequence[int] = PICKS,
) -> list[Record]:
    """Compare one contender's answer with what was measured.

    Args:
        protocol, who: for the records.
        answer: arrays over all of ``rows``; rows without an answer are NaN and left out.
        rows: measured launches.
        cells: which rows each cell holds; whole problems.
        by_dtype: add records of each data type to those of all.
        picks: how many first picks count.
    """
    out = []
    for cell, mask in cells.items():
        kinds: list[str | None] = [None]
        if by_dtype:
            kinds += sorted(set(rows.dtype[mask]))
        for dtype in kinds:
            here = mask if dtype is None else mask & (rows.dtype == dtype)
            for name, value, k, n in _metrics(answer, rows, here, picks):
                out.append(Record(protocol, who, name, value, dtype=dtype, cell=cell, k=k, n=n))
    return out


def _metrics(
    answer: Answer, rows: GemmRows, here: Mask, picks: Sequence[int]
) -> list[tuple[str, float, int | None, int]]:
    """Return metric, value, k and the number of rows or problems behind it."""
    found: list[tuple[str, float, int | None, int]] = []
    if answer.seconds is not None:
        known = here & np.isfinite(answer.seconds)
        if known.any():
            error = metrics.relative_error(answer.seconds[known], rows.measured_s[known])
            found += [
                (name, v, None, len(error)) for name, v in metrics.error_metrics(error).items()
            ]
    if answer.is_random and here.any():
        problem, measured = rows.problem[here], rows.measured_s[here]
        problems = len(np.unique(problem))
        for k in picks:
            expected = metrics.random_pick(problem, measured, k)
            found += [(name, v, k, problems) for name, v in expected.items()]
        trials = metrics.random_trials(problem, measured)
        found += [(name, v, None, problems) for name, v in trials.items()]
    if answer.score is not None:
        known = here & ~np.isnan(answer.score)
        if known.any():
            order = metrics.in_order(
                rows.problem[known], answer.score[known], rows.measured_s[known]
            )
            problems = len(order.start)
            for k in picks:
                quality = order.pick(k)
                found += [(n, v, k, problems) for n, v in metrics.pick_metrics(quality).items()]
            found += [(n, v, None, problems) for n, v in metrics.trials_metrics(order).items()]
    return found
