"""Protocols on kernels of unknown tile: libraries' products and attention, GPUs left out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfmodel.dataset import store
from perfmodel.evaluate import metrics
from perfmodel.evaluate.records import ALL, ANALYTIC, OURS, Record
from perfmodel.evaluate.run import Run
from perfmodel.learned.shape_table import COLUMNS, ROW_COLUMNS, ShapeRows, shape_rows
from perfmodel.learned.shape_training import FP8_SPEC, fit_shape

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

PIPEWEAVE_FP8 = "pipeweave-fp8"
ROOFLINE = "roofline"


def fp8_pipeweave(run: Run) -> list[Record]:
    """PipeWeave's own split of FP8 products: H20 and H800 trained on, H100 and H200 unseen.

    ``all`` is the mean over test rows. Their feature columns are not read.
    """
    name = "fp8-pipeweave"
    columns = [*COLUMNS["gemm"], *ROW_COLUMNS, "source_file"]
    frame = run.thinned(store.load(PIPEWEAVE_FP8, run.tables.cache, columns))
    rows = shape_rows(frame)
    train = frame["source_file"].str.endswith("gemm_fp8_train.csv").to_numpy(dtype=bool)
    spec = run.scaled(FP8_SPEC)
    run.trainer.tell(name, 0.0)
    model = fit_shape(rows.take(train), spec, lambda share: run.trainer.tell(name, share))
    test = rows.take(~train)
    answers = {
        OURS: test.analytic_s * np.exp(model.predict(test.features)),
        ANALYTIC: test.analytic_s,
        ROOFLINE: test.roofline_s,
    }
    cells = {gpu: test.gpu == gpu for gpu in sorted(set(test.gpu)) if run.wanted(gpu)}
    cells[ALL] = np.ones(len(test), dtype=np.bool_)
    return row_errors(name, answers, test, cells, "gemm", "fp8_e4m3")


def row_errors(
    protocol: str,
    answers: Mapping[str, Floats],
    rows: ShapeRows,
    cells: Mapping[str, Mask],
    family: str,
    dtype: str | None,
) -> list[Record]:
    """Return the error metrics of each contender in each cell; rows answered by NaN are left out.

    ``answers`` are seconds, one a row.
    """
    found = []
    for who, seconds in answers.items():
        for cell, mask in cells.items():
            known = mask & np.isfinite(seconds)
            if not known.any():
                continue
            error = metrics.relative_error(seconds[known], rows.latency_s[known])
            found += [
                Record(protocol, who, metric, value, family, dtype, cell, n=int(known.sum()))
                for metric, value in metrics.error_metrics(error).items()
            ]
    return found


PROTOCOLS = {"fp8-pipeweave": fp8_pipeweave}
