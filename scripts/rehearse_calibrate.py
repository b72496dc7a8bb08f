"""Rehearse ``perfmodel calibrate`` on recorded times: a model of one GPU meets another.

python scripts/rehearse_calibrate.py [--problems 20] [--configs 30] [--cache DIR]

A model trained on the A100 rows of autoheuristic-mm alone is calibrated on a replay of the H100's,
as the command does it. Its error and its picks on the H100's other problems, before and after, are
what calibrating is worth. Needs: perfmodel data pull autoheuristic-mm.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from perfmodel.dataset import store
from perfmodel.dataset.splits import kfold
from perfmodel.evaluate.rows import GemmRows, candidate_rows, load_tables
from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.artifact import load_model, save_model
from perfmodel.learned.booster import Heads, TrainSpec
from perfmodel.learned.model import GemmModel
from perfmodel.learned.training import fit_gemm, predict_rows
from perfmodel.predictor import Predictor
from tuner.collect.bench import replay_bench
from tuner.collect.calibrate import calibrate, calibration_plan, recorded_pool
from tuner.collect.output import Output

SOURCE, KNOWN, NEW = "autoheuristic-mm", "a100-sxm4-80gb", "h100-sxm5"

SPEC = TrainSpec(
    "rehearsal", 200, 100, depth=7, learning_rate=0.1, columns_per_tree=0.5, rows_per_leaf=1.0
)
"""Smaller than the shipped model's, for a rehearsal of minutes."""


def model_of_one(rows: GemmRows, path: Path) -> GemmModel:
    """Train on rows of one device, and return the model as it is read from its file."""
    folds = [(split.train, split.test) for split in kfold(rows.labels, parts=2)]
    model, _ = fit_gemm(rows.table, folds, SPEC)
    save_model(model, path)
    return load_model(path)


def judge(model: GemmModel, rows: GemmRows, known: bool) -> tuple[float, float]:
    """Return the mean error, and the mean over problems of best time over the pick's time."""
    base = model.for_device(NEW)
    kinds = rows.table.kinds() if known else frozenset[tuple[str, str]]()
    answer = predict_rows(Heads(time=base.time, rank=base.rank, known=kinds), rows.table)
    predicted = rows.table.analytic_s * np.exp(answer.log_correction)
    error = np.abs(predicted / rows.measured_s - 1).mean()
    order = np.lexsort((answer.rank, rows.problem))
    first = np.unique(rows.problem[order], return_index=True)[1]
    picked = rows.measured_s[order][first]
    return float(error), float((rows.table.best_s()[order][first] / picked).mean())


def main() -> None:
    """Run the rehearsal and print what it showed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--configs", type=int, default=30)
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    rows = candidate_rows(load_tables([SOURCE], given.cache).labels(SOURCE))
    folder = Path(tempfile.mkdtemp(prefix="rehearse_calibrate-"))
    model = model_of_one(rows.take(rows.gpu == KNOWN), folder / "gemm.json")
    print(f"trained on {int((rows.gpu == KNOWN).sum()):,} launches of {KNOWN}")
    table, gpu, predictor = store.table_path(SOURCE, given.cache), load_gpu(NEW), Predictor(model)
    plan = calibration_plan(
        gpu, predictor, problems=given.problems, configs=given.configs,
        pool=recorded_pool(table, NEW),
    )  # fmt: skip
    done = calibrate(plan, replay_bench(table, 0.0, NEW), Output(folder / "rows"), predictor)
    gain = done.gain
    print(
        f"measured {gain.rows:,} launches of {gain.problems} problems, each held out in turn: "
        f"error {100 * gain.error_before:.1f} % -> {100 * gain.error_after:.1f} %, "
        f"pick {gain.pick_before:.3f} -> {gain.pick_after:.3f}"
    )
    sizes = {tuple(p.values[n] for n in ("m", "n", "k")) for p in plan.problems}
    measured = rows.labels[["m", "n", "k"]].itertuples(index=False, name=None)
    others = np.array([size not in sizes for size in measured])
    rest = rows.take((rows.gpu == NEW) & others)
    adapted = done.predictor.model
    assert isinstance(adapted, GemmModel)
    before, after = judge(model, rest, known=False), judge(adapted, rest, known=True)
    print(
        f"{len(np.unique(rest.problem)):,} other problems of {NEW}, {len(rest):,} launches: error "
        f"{100 * before[0]:.1f} % -> {100 * after[0]:.1f} %, "
        f"pick {before[1]:.3f} -> {after[1]:.3f}"
    )


if __name__ == "__main__":
    main()
