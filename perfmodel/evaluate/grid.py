"""Protocols on the full grid: every configuration of a few sizes was timed, so nothing is hidden.

A cell is a size. Candidates are the configurations that ran.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.dataset import splits
from perfmodel.evaluate.answers import Answer, spread
from perfmodel.evaluate.gemm import baselines, held_out
from perfmodel.evaluate.records import ALL, Record, averaged, with_all
from perfmodel.evaluate.rows import GemmRows
from perfmodel.evaluate.run import GRID, MM, Run
from perfmodel.evaluate.scoring import score

Mask = NDArray[np.bool_]

SEEDS = 3


def leave_one_size_out(run: Run) -> list[Record]:
    """Train on AutoHeuristic's tables and the full-grid sizes but one, test on that one."""
    name, rows = "grid-loso", run.mm_and_grid
    cells = sizes_of(run, rows)
    if not cells:
        return []
    parts = [(~test, test) for test in cells.values()]
    records = []
    for who, answer in held_out(run, name, rows, parts).items():
        records += score(name, who, answer, rows, cells)
    return with_all(records) + run.gates(name, MM, GRID)


def zero_shot(run: Run) -> list[Record]:
    """Train on AutoHeuristic's rows of the grid's device alone; test on every size, three seeds.

    Tiles, warps and stages of the grid never occur in training. A size's record is the mean over
    seeds (of minima the least, of maxima the largest); a cell ``seed N`` holds that seed's ``all``.
    """
    name, rows = "grid-zero", run.mm_and_grid
    cells = sizes_of(run, rows)
    if not cells:
        return []
    test = np.logical_or.reduce(list(cells.values()))
    train = (rows.labels["source"] == MM).to_numpy() & np.isin(rows.gpu, np.unique(rows.gpu[test]))
    records, by_seed = [], []
    for who, spec in run.trainer.specs:
        found = []
        for i in range(SEEDS):
            seeded = replace(spec, seed=spec.seed + i)
            label = f"{name} seed {i + 1}/{SEEDS}"
            answer = run.trainer.answer(rows, train, test, seeded, label)
            found.append(_scored(name, who, answer, test, rows, cells))
        records += averaged(found)
        by_seed += [
            replace(record, cell=f"seed {i + 1}")
            for i, of_seed in enumerate(found)
            for record in with_all(of_seed)
            if record.cell == ALL
        ]
    for who, answer in baselines(run, rows, train, test, name).items():
        records += _scored(name, who, answer, test, rows, cells)
    return with_all(records) + by_seed + run.gates(name, MM, GRID)


PROTOCOLS = {"grid-loso": leave_one_size_out, "grid-zero": zero_shot}


def _scored(
    name: str, who: str, answer: Answer, test: Mask, rows: GemmRows, cells: dict[str, Mask]
) -> list[Record]:
    return score(name, who, spread([(test, answer)], len(rows)), rows, cells)


def sizes_of(run: Run, rows: GemmRows) -> dict[str, Mask]:
    """Return which rows each full-grid size has, smallest size first."""
    wanted = np.array([run.wanted(gpu) for gpu in rows.gpu], dtype=bool)
    grid = (rows.labels["source"] == GRID).to_numpy() & wanted
    cells = {}
    for split in splits.leave_one_size_out(rows.labels[grid]):
        cells[split.name] = np.zeros(len(rows), dtype=bool)
        cells[split.name][np.flatnonzero(grid)[split.test]] = True
    return cells
