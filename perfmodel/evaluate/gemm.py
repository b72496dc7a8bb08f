"""Protocols on AutoHeuristic's matrix products: folds, suites, another device, a few shots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.dataset import splits
from perfmodel.evaluate.answers import Answer, ours, spread
from perfmodel.evaluate.records import Record, averaged, with_all
from perfmodel.evaluate.rows import GemmRows, gemm_rows
from perfmodel.evaluate.run import MM, Run
from perfmodel.evaluate.scoring import score

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

FEW_SHOTS = (20, 100)


def kfold(run: Run) -> list[Record]:
    """Five folds grouped by (m, n, k), both devices in one model; a cell is a device."""
    rows, name = run.mm, "gemm-kfold"
    parts = [(s.train, s.test) for s in run.folds]
    records = []
    for who, answer in held_out(run, name, rows, parts).items():
        records += score(name, who, answer, rows, run.devices(rows), by_dtype=run.by_dtype)
    return with_all(records) + run.gates(name, MM)


def suites(run: Run) -> list[Record]:
    """Train on two source files of each device, test on the third; a cell is ``DEVICE/SUITE``.

    Problems of the third that training has seen are removed.
    """
    name, records = "gemm-suites", []
    apart = run.suites().labels
    for split in splits.suites(apart):
        suite = split.name.removeprefix("without-")
        # A configuration timed in both training files is one row, as everywhere else.
        train_labels, test_labels = splits.label_table(apart[split.train]), apart[split.test]
        rows = gemm_rows(pd.concat([train_labels, test_labels], ignore_index=True))
        train = np.arange(len(rows)) < len(train_labels)
        answers = held_out(run, f"{name} without {suite}", rows, [(train, ~train)])
        cells = {f"{gpu}/{suite}": here & ~train for gpu, here in run.devices(rows).items()}
        for who, answer in answers.items():
            records += score(name, who, answer, rows, cells, by_dtype=run.by_dtype)
    return with_all(_by_contender(records)) + run.gates(name, MM)


def transfer(run: Run) -> list[Record]:
    """Train on one device, test on the other; a cell is ``DEVICE->DEVICE``."""
    rows, name, records = run.mm, "gemm-transfer", []
    for split in _pairs(run, rows):
        answers = held_out(run, f"{name} {split.name}", rows, [(split.train, split.test)])
        for who, answer in answers.items():
            cells = {split.name: split.test}
            records += score(name, who, answer, rows, cells, by_dtype=run.by_dtype)
    return with_all(_by_contender(records)) + run.gates(name, MM)


def fewshot(run: Run) -> list[Record]:
    """Train on one device, adapt with 20 or 100 problems of the other, test on its remainder.

    The mean over draws; ``budget`` is the number of problems. Baselines train on both parts.
    """
    rows, name, records = run.mm, "gemm-fewshot", []
    wanted = {split.name for split in _pairs(run, rows)}
    for problems in FEW_SHOTS:
        draws: dict[str, list[list[Record]]] = {}
        for split in splits.fewshot(rows.labels, problems, run.draws):
            pair, _, draw = split.name.partition("/")
            if pair in wanted:
                run.trainer.tell(f"{name} {pair}, {problems} problems, {draw}", 0.0)
                draws.setdefault(pair, []).append(_one_draw(run, rows, split, pair, problems))
        for groups in draws.values():
            records += averaged(groups)
    return with_all(_by_contender(records)) + run.gates(name, MM)


def fold_panels(run: Run) -> dict[str, tuple[Floats, Floats]]:
    """Return measured and predicted seconds of the folds, by device; nothing is trained twice."""
    rows, parts = run.mm, [(s.train, s.test) for s in run.folds]
    who = run.trainer.specs[0][0]
    answer = held_out(replace(run, baselines=()), "gemm-kfold", rows, parts)[who]
    if answer.seconds is None:
        return {}
    return {
        gpu: (rows.measured_s[here], answer.seconds[here])
        for gpu, here in run.devices(rows).items()
    }


PROTOCOLS = {
    "gemm-kfold": kfold,
    "gemm-suites": suites,
    "gemm-transfer": transfer,
    "gemm-fewshot": fewshot,
}


def held_out(
    run: Run, what: str, rows: GemmRows, parts: Sequence[tuple[Mask, Mask]]
) -> dict[str, Answer]:
    """Return every contender's answers for the second mask of each part, trained on the first.

    Arrays are over all of ``rows``, NaN where no part holds a row out.
    """
    found: dict[str, list[tuple[Mask, Answer]]] = {}
    for i, (train, test) in enumerate(parts):
        label = f"{what} {i + 1}/{len(parts)}" if len(parts) > 1 else what
        for who, spec in run.trainer.specs:
            answer = run.trainer.answer(rows, train, test, spec, label)
            found.setdefault(who, []).append((test, answer))
        for who, theirs in baselines(run, rows, train, test, label).items():
            found.setdefault(who, []).append((test, theirs))
    return {who: spread(answers, len(rows)) for who, answers in found.items()}


def baselines(run: Run, rows: GemmRows, train: Mask, test: Mask, label: str) -> dict[str, Answer]:
    """Return the answers of all baselines that apply, arrays over the test rows."""
    learnt, asked = rows.take(train), rows.take(test)
    found = {}
    for i, baseline in enumerate(run.baselines):
        run.trainer.tell(f"{label} ({baseline.name})", i / len(run.baselines))
        answer = run.ask(baseline, learnt, asked)
        if answer is not None:
            found[baseline.name] = answer
    return found


def _one_draw(
    run: Run, rows: GemmRows, split: splits.Split, pair: str, problems: int
) -> list[Record]:
    if split.adapt is None:
        return []
    name, asked = "gemm-fewshot", rows.table.take(split.test)
    answers = {}
    for who, spec in run.trainer.specs:
        heads = run.trainer.heads(rows, split.train, spec, f"gemm-transfer {pair}")
        answers[who] = ours(run.adapt(heads, rows.table.take(split.adapt)), asked)
    answers |= baselines(run, rows, split.train | split.adapt, split.test, f"{name} {pair}")
    mine = rows.take(split.test)
    everything = {pair: np.ones(len(mine), dtype=bool)}
    records = []
    for who, answer in answers.items():
        for record in score(name, who, answer, mine, everything, by_dtype=run.by_dtype):
            records.append(record.with_budget(problems))
    return records


def _pairs(run: Run, rows: GemmRows) -> list[splits.Split]:
    pairs = splits.transfer(rows.labels)
    return [s for s in pairs if run.wanted(s.name.partition("->")[2])]


def _by_contender(records: list[Record]) -> list[Record]:
    """Gather each contender's records, in the order of first appearance."""
    order = {who: i for i, who in enumerate(dict.fromkeys(r.who for r in records))}
    return sorted(records, key=lambda r: order[r.who])
