"""Protocols on kernels of unknown tile: libraries' products and attention, GPUs left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.evaluate import metrics
from perfmodel.evaluate.baselines.other_framework import OTHER_FRAMEWORK, other_framework_s
from perfmodel.evaluate.records import ALL, ANALYTIC, GATES, OURS, Record, with_all
from perfmodel.evaluate.run import Run
from perfmodel.evaluate.selection import TEST, TRAIN, Selection, selections
from perfmodel.learned.shape_model import half_width
from perfmodel.learned.shape_table import (
    COLUMNS,
    ROW_COLUMNS,
    ShapeRows,
    has_arithmetic,
    shape_rows,
)
from perfmodel.learned.shape_training import (
    FP8_SPEC,
    any_spec,
    device_spec,
    drawn,
    fit_any_device,
    fit_shape,
    fit_shape_heads,
    fit_spread,
    fit_unseen_spread,
)

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

ROOFLINE = "roofline"
FEATURES = {
    "gemm": "gemm",
    "prefill": "attention",
    "decode": "attention",
    "moe": "grouped_gemm",
    "moe-up": "grouped_gemm",
}
"""Families of the selections in ``rows.toml``, and the problems whose features describe them.
``moe-up`` is the first product of experts alone."""

SAME_LIBRARY = ("gemm", "bf16")
"""Family and type for which all frameworks call one library, cuBLAS, through torch."""

FOLDS = 5
FOLD_SEED = 20_240_814
QUICK_FOLDS = 1


@dataclass(frozen=True)
class Library:
    """Rows of one selection, and which of them may train and test."""

    name: str
    dtype: str
    rows: ShapeRows
    frame: pd.DataFrame
    train: Mask
    test: Mask
    dropped: Mapping[str, int]

    def gates(self, protocol: str) -> list[Record]:
        """Return what the gates dropped at import, and what stays out of training or test."""
        counts = {
            **self.dropped,
            "training_only": int((~self.train).sum()),
            "test_only": int((~self.test).sum()),
        }
        return [
            Record(protocol, GATES, f"dropped_{gate}", float(rows), self.name, self.dtype,
                   f"{self.name} {self.dtype}", n=len(self.rows))
            for gate, rows in counts.items()
        ]  # fmt: skip


def load_library(
    run: Run, chosen: Selection, extra: tuple[str, ...] = (), most: int | None = None
) -> Library:
    """Load a selection and compute its features; of more than ``most`` rows, so many are drawn.

    Raises:
        MissingDataError: its table is not imported; the message is the command to run.
    """
    frame, dropped = chosen.load([*columns_of(chosen.family), *extra], run.tables.cache)
    if run.quick:
        frame = frame.iloc[::8].reset_index(drop=True)
    if most is not None:
        frame = frame.iloc[drawn(len(frame), most)].reset_index(drop=True)
    possible = has_arithmetic(frame)
    frame = frame[possible].reset_index(drop=True)
    dropped = {**dropped, "no_arithmetic": int((~possible).sum())}
    train, test = (chosen.usable(frame, purpose) for purpose in (TRAIN, TEST))
    rows = shape_rows(frame)
    return Library(chosen.family, chosen.dtype, rows, frame, train, test, dropped)


def columns_of(family: str) -> list[str]:
    """Return the columns of an imported table that the features of ``family`` need."""
    return [*COLUMNS[FEATURES[family]], *ROW_COLUMNS]


def fp8_pipeweave(run: Run) -> list[Record]:
    """PipeWeave's own split of FP8 products: H20 and H800 trained on, H100 and H200 unseen.

    ``all`` is the mean over test rows. Their feature columns are not read.
    """
    name = "fp8-pipeweave"
    found = load_library(run, selections(name)[0], ("source_file",))
    theirs = found.frame["source_file"].str.endswith("gemm_fp8_train.csv").to_numpy(dtype=bool)
    run.trainer.tell(name, 0.0)
    model = fit_shape(
        found.rows.take(theirs), run.scaled(FP8_SPEC), lambda share: run.trainer.tell(name, share)
    )
    test = found.rows.take(~theirs)
    answers = contenders(test, model.predict(test.features))
    cells = run_cells(run, test.gpu) | {ALL: np.ones(len(test), dtype=np.bool_)}
    return row_errors(name, answers, test, cells, "gemm", found.dtype)


def shape_sites(run: Run) -> list[Record]:
    """Whole sites held out on known GPUs: (n, k) of products, heads and batch of attention.

    A cell is ``GPU/FRAMEWORK``; ``all`` is over rows. Intervals: difficulty and its multiple come
    from half of the sites, coverage and width from the other half.
    """
    name, records = "shape-sites", []
    for chosen in selections(name):
        found = load_library(run, chosen)
        label = f"{name} {chosen.family} {chosen.dtype}"
        correction = held_out_sites(run, found, label)
        known = found.test & np.isfinite(correction)
        rows = found.rows.take(known)
        cells = _framework_cells(run, rows) | {ALL: np.ones(len(rows), dtype=np.bool_)}
        answers = contenders(rows, correction[known])
        if (chosen.family, chosen.dtype) == SAME_LIBRARY:
            answers[OTHER_FRAMEWORK] = other_framework_s(
                found.frame[known], list(COLUMNS[FEATURES[chosen.family]])
            )
        records += row_errors(name, answers, rows, cells, chosen.family, chosen.dtype)
        half = site_widths(rows, correction[known])
        cells = run_cells(run, rows.gpu) | {ALL: cells[ALL]}
        records += interval_errors(
            name, answers[OURS], half, rows, cells, chosen.family, chosen.dtype
        )
        records += found.gates(name)
    return records


def shape_logo(run: Run) -> list[Record]:
    """Every GPU left out in turn, asked about by trees of the others; a cell is the GPU.

    ``all`` is the mean of the GPUs. Intervals of a GPU come from what leaving each of the others
    out gets wrong.
    """
    name, records = "shape-logo", []
    for chosen in selections(name):
        family = chosen.family
        found = load_library(run, chosen)
        correction = held_out_devices(run, found, f"{name} {family}")
        known = found.test & np.isfinite(correction)
        rows = found.rows.take(known)
        cells = run_cells(run, rows.gpu)
        answers = contenders(rows, correction[known])
        of = row_errors(name, answers, rows, cells, family, chosen.dtype)
        half = device_widths(rows, correction[known])
        of += interval_errors(name, answers[OURS], half, rows, cells, family, chosen.dtype)
        records += with_all(of)
        causes = expert_causes(found.frame[known], rows) if "tokens" in found.frame else {}
        records += row_errors(name, answers, rows, causes, family, chosen.dtype)
        records += found.gates(name)
    return records


CAUSES = {
    "tokens": (1, 17, 129, 1025, 8193, np.inf),
    "experts": (1, 33, 129, 257, np.inf),
    "expert_parallel": (1, 2, 9, np.inf),
    "tensor_parallel": (1, 2, 9, np.inf),
}
"""Edges of the classes of experts' layers that errors are told apart by, of all GPUs together."""


def expert_causes(frame: pd.DataFrame, rows: ShapeRows) -> dict[str, Mask]:
    """Return which rows of experts' layers lie in each class of `CAUSES`, routing and library."""
    found = {}
    for column, edges in CAUSES.items():
        values = frame[column].to_numpy(dtype=np.float64)
        for low, high in pairwise(edges):
            last = "+" if np.isinf(high) else f"-{high - 1:g}"
            label = f"{column} {low:g}" if high == low + 1 else f"{column} {low:g}{last}"
            found[label] = (values >= low) & (values < high)
    routing = frame["routing"].astype(object).fillna("not told").to_numpy(dtype=object)
    library = pd.Series(rows.kernel).str.partition("/")[0].to_numpy(dtype=object)
    for column, names in (("routing", routing), ("library", library)):
        for name in sorted(set(map(str, names))):
            found[f"{column} {name}"] = np.asarray(names == name, dtype=np.bool_)
    return {label: mask for label, mask in found.items() if mask.any() and not mask.all()}


def held_out_sites(run: Run, found: Library, label: str) -> Floats:
    """Return log(measured / analytic) of every row by trees that never saw its site, NaN if none.

    A quick look holds out one fifth of the sites only, as may be asked for.
    """
    rows, fold = found.rows, site_folds(found.rows.site)
    correction = np.full(len(rows), np.nan)
    folds = run.held_parts or (QUICK_FOLDS if run.quick else FOLDS)
    spec = run.scaled(any_spec(found.name))
    own_spec = run.scaled(device_spec(found.name, found.dtype))
    for i in range(folds):
        test = fold == i
        run.trainer.tell(f"{label}, fold {i + 1}", i / folds)
        heads = fit_shape_heads(rows.take(~test & found.train), spec, own_spec)
        correction[test] = heads.log_correction(rows.take(test))
    return correction


def held_out_devices(run: Run, found: Library, label: str) -> Floats:
    """Return log(measured / analytic) of every row by trees that never saw its device."""
    rows = found.rows
    correction = np.full(len(rows), np.nan)
    names, spec = sorted(set(rows.gpu)), run.scaled(any_spec(found.name))
    for i, gpu in enumerate(names):
        run.trainer.tell(f"{label} without {gpu}", i / len(names))
        here = rows.gpu == gpu
        forest = fit_any_device(rows.take(~here & found.train), spec)
        correction[here] = forest.predict(rows.features[here])
    return correction


def site_folds(site: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the fold of each row: sites are dealt out at random, with a fixed seed."""
    numbers = np.unique(site, return_inverse=True)[1]
    order = np.random.default_rng(FOLD_SEED).permutation(numbers.max(initial=0) + 1)
    return np.asarray(order[numbers] % FOLDS, dtype=np.int64)


def contenders(rows: ShapeRows, correction: Floats) -> dict[str, Floats]:
    """Return the predicted seconds of our model and of every baseline that applies."""
    return {
        OURS: rows.analytic_s * np.exp(correction),
        ANALYTIC: rows.analytic_s,
        ROOFLINE: rows.roofline_s,
    }


def run_cells(run: Run, gpu: NDArray[np.object_]) -> dict[str, Mask]:
    """Return which rows each wanted device has."""
    names = sorted(set(map(str, gpu)))
    return {name: np.asarray(gpu == name, dtype=np.bool_) for name in names if run.wanted(name)}


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


def interval_errors(
    protocol: str,
    predicted: Floats,
    half: Floats,
    rows: ShapeRows,
    cells: Mapping[str, Mask],
    family: str,
    dtype: str | None,
) -> list[Record]:
    """Return coverage and median width of intervals of ``half`` log units to each side."""
    low, high = predicted * np.exp(-half), predicted * np.exp(half)
    found = []
    for cell, here in cells.items():
        values = metrics.interval_metrics(
            predicted[here], low[here], high[here], rows.latency_s[here]
        )
        found += [
            Record(protocol, OURS, metric, value, family, dtype, cell, n=int(here.sum()))
            for metric, value in values.items()
        ]
    return found


def _framework_cells(run: Run, rows: ShapeRows) -> dict[str, Mask]:
    framework = pd.Series(rows.kernel).str.partition("/")[0].to_numpy(dtype=object)
    pairs = sorted({(str(g), str(f)) for g, f in zip(rows.gpu, framework, strict=True)})
    return {
        f"{gpu}/{name}": np.asarray((rows.gpu == gpu) & (framework == name), dtype=np.bool_)
        for gpu, name in pairs
        if run.wanted(gpu)
    }


def site_widths(rows: ShapeRows, correction: Floats) -> Floats:
    """Half widths of each row, learnt from the other half of the sites."""
    error = np.abs(rows.target - correction)
    half = np.full(len(rows), np.nan)
    numbers = np.unique(rows.site, return_inverse=True)[1]
    odd = np.random.default_rng(1).permutation(numbers.max(initial=0) + 1)[numbers] % 2 == 0
    for learnt in (odd, ~odd):
        if not learnt.any() or learnt.all():
            continue
        mine = rows.take(learnt)
        spread, multiple = fit_spread(mine, error[learnt], mine.site)
        half[~learnt] = half_width(spread, multiple, rows.features[~learnt])
    return half


def device_widths(rows: ShapeRows, correction: Floats) -> Floats:
    """Half widths of each row, learnt from leaving out devices other than its own."""
    error = np.abs(rows.target - correction)
    half = np.full(len(rows), np.nan)
    number = np.unique(rows.gpu.astype(str), return_inverse=True)[1].astype(np.int64)
    for mine in _each(number):
        others = rows.take(~mine)
        spread, multiple = fit_unseen_spread(others, error[~mine])
        half[mine] = half_width(spread, multiple, rows.features[mine])
    return half


def _each(number: NDArray[np.int64]) -> Iterator[Mask]:
    for i in range(int(number.max(initial=-1)) + 1):
        yield number == i


PROTOCOLS = {
    "fp8-pipeweave": fp8_pipeweave,
    "shape-sites": shape_sites,
    "shape-logo": shape_logo,
}
