"""Do the intervals hold what they state, and how wide are they?

Calibrated on the other folds' held-out errors, asked of the fold held out. On a device out of
training the interval widens by a factor that comes from the reverse direction alone. A cell is a
device, or ``DEVICE->DEVICE``; ``all`` counts the rows of all devices seen in training.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.dataset import splits
from perfmodel.evaluate import metrics
from perfmodel.evaluate.gemm import held_out
from perfmodel.evaluate.records import ALL, Record
from perfmodel.evaluate.rows import GemmRows
from perfmodel.evaluate.run import MM, Run
from perfmodel.learned.booster import TrainSpec
from perfmodel.learned.forest import Forest
from perfmodel.learned.intervals import COVERAGE, Calibration, conformal_quantile
from perfmodel.learned.training import calibrate

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CONSTANT = "-constant-width"
"""The same predictions with one width for all: what the difficulty trees are worth."""


def intervals(run: Run) -> list[Record]:
    """Coverage and width of intervals on held-out problems, and on devices out of training."""
    rows, records = run.mm, []
    parts = [(s.train, s.test) for s in run.folds]
    answers = held_out(replace(run, baselines=()), "gemm-kfold", rows, parts)
    for who, spec in run.trainer.specs:
        predicted = answers[who].seconds
        if predicted is None:
            continue
        error = np.abs(np.log(rows.measured_s / predicted))
        records += _seen(run, who, rows, predicted, error)
        records += _unseen(run, who, spec, rows, error)
    return records + run.gates("intervals", MM)


PROTOCOLS = {"intervals": intervals}


def _seen(run: Run, who: str, rows: GemmRows, predicted: Floats, error: Floats) -> list[Record]:
    half, constant = np.empty(len(rows)), np.empty(len(rows))
    for i, fold in enumerate(run.folds):
        run.trainer.tell(f"intervals {i + 1}/{len(run.folds)}", i / len(run.folds))
        spread, multiple = _calibrated(rows, error, fold.train)
        half[fold.test] = _half_width(spread, rows, fold.test, multiple)
        one = np.zeros(int(fold.train.sum()))  # log of 1
        constant[fold.test] = conformal_quantile(error[fold.train], one, rows.problem[fold.train])
    cells = run.devices(rows)
    cells[ALL] = np.logical_or.reduce(list(cells.values()))
    return [
        record
        for cell, here in cells.items()
        for name, width in ((who, half), (who + CONSTANT, constant))
        for record in _records(name, cell, predicted[here], width[here], rows.measured_s[here])
    ]


def _unseen(run: Run, who: str, spec: TrainSpec, rows: GemmRows, error: Floats) -> list[Record]:
    """Ask each device's model of the other device; widen by what the reverse direction needed."""
    answers, spreads, seen, ratio = {}, {}, {}, {}
    pairs = {tuple(s.name.split("->")): s for s in splits.transfer(rows.labels)}
    for (source, target), pair in pairs.items():
        label = f"gemm-transfer {source}->{target}"
        answer = run.trainer.answer(rows, pair.train, pair.test, spec, label).seconds
        if answer is None:
            continue
        run.trainer.tell(f"intervals {source}->{target}", 0.0)
        if source not in spreads:
            spreads[source], seen[source] = _calibrated(rows, error, pair.train)
        log_error = np.abs(np.log(rows.measured_s[pair.test] / answer))
        log_spread = spreads[source].predict(rows.table.features[pair.test])
        needed = conformal_quantile(log_error, log_spread, rows.problem[pair.test])
        answers[source, target] = answer
        ratio[source, target] = needed / seen[source]
    records = []
    for (source, target), answer in answers.items():
        test, cell = pairs[source, target].test, f"{source}->{target}"
        factor = ratio.get((target, source))
        if factor is None or not run.wanted(target):
            continue
        half = _half_width(spreads[source], rows, test, factor * seen[source])
        records += _records(who, cell, answer, half, rows.measured_s[test])
        needed = ratio[source, target]
        records.append(Record("intervals", who, "unseen_over_seen", needed, cell=cell))
    return records


def _calibrated(rows: GemmRows, error: Floats, known: Mask) -> tuple[Forest, float]:
    return calibrate(rows.table.features[known], error[known], rows.problem[known])


def _half_width(spread: Forest, rows: GemmRows, where: Mask, multiple: float) -> Floats:
    """Return half of each interval in log units."""
    calibration = Calibration(COVERAGE, multiple, multiple)
    log_spread = spread.predict(rows.table.features[where])
    return calibration.bounds(log_spread, known=True)[1]


def _records(
    who: str, cell: str, predicted: Floats, half: Floats, measured: Floats
) -> list[Record]:
    low, high = predicted * np.exp(-half), predicted * np.exp(half)
    found = metrics.interval_metrics(predicted, low, high, measured)
    return [
        Record("intervals", who, name, value, cell=cell, n=len(predicted))
        for name, value in found.items()
    ]
