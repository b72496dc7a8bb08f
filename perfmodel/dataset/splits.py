"""From measurements to labels, and from labels to train and test rows.

A label table has one row per (device, problem, config) with the median of the distinct values;
every split function yields boolean masks over the rows of the table that it is given. Splits do not
depend on the order of the rows, and their seed is fixed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.dataset.distinct import Indices, flatten, summarise
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.schema import CONFIG_COLUMNS, PROBLEM_COLUMNS
from perfmodel.errors import DataError, NotInstalledError

SEED = 20_240_814
PARTS = 5
DRAWS = 10
SIZE_COLUMNS = ("m", "n", "k")

_ID_MAX = 2**62

Mask = NDArray[np.bool_]

_KERNEL_COLUMNS = (
    "config_extras",
    "kernel", "backend", "library", "library_version", "kernel_source_hash", "is_library",
    "source", "timing_method",
)  # fmt: skip


@dataclass(frozen=True)
class Split:
    """One division of a table's rows.

    ``adapt`` marks the few measured rows of the target device in few-shot splits; they are in
    neither ``train`` nor ``test``.
    """

    name: str
    train: Mask
    test: Mask
    adapt: Mask | None = None


def problem_ids(table: pd.DataFrame, *, with_gpu: bool = True) -> Indices:
    """Return a number per row that is equal where the problem is: sizes, dtypes and strides.

    Args:
        table: rows of one kernel family.
        with_gpu: problems of different devices differ, as in the evaluation protocols.
    """
    columns = PROBLEM_COLUMNS[_family(table)]
    return group_ids(table, ["gpu", *columns] if with_gpu else columns)


def group_ids(table: pd.DataFrame, columns: Sequence[str]) -> Indices:
    """Return a number per row that is equal where ``columns`` are, ordered by their values."""
    ids = np.zeros(len(table), dtype=np.int64)
    used = 1
    for name in columns:
        code, values = pd.factorize(_hashable(table[name]), sort=True)
        count = len(values) + 1
        if used > _ID_MAX // count:  # numbers would overflow: close the gaps between them
            ids, used = _dense(ids)
        ids = ids * count + (code + 1)  # null, -1, comes first
        used *= count
    return _dense(ids)[0]


def label_table(table: pd.DataFrame, *, by_source_file: bool = False) -> pd.DataFrame:
    """Merge rows of one (device, problem, kernel, config) into one label each.

    The label is the median of the distinct values of all merged rows; spread, counts and outcome
    follow. A configuration that ran in any file has outcome ``ok``.

    Args:
        table: schema columns, rows of one family, as `perfmodel.dataset.store.load` gives them.
        by_source_file: keep source files apart, as the suites protocol needs.

    Returns:
        The same columns, rows in order of first appearance; ``source_file`` lists the merged files.
    """
    if by_source_file and table["source_file"].isna().any():
        raise DataError("rows without a source_file cannot be kept apart by it")
    keys = ["gpu", *PROBLEM_COLUMNS[_family(table)], *CONFIG_COLUMNS, *_KERNEL_COLUMNS]
    code = group_ids(table, [*keys, "source_file"] if by_source_file else keys)
    table = table.reset_index(drop=True)
    failed = (table["outcome"] != Outcome.OK.value).to_numpy()
    order = np.lexsort((np.arange(len(table)), failed, code))
    first = order[np.unique(code[order], return_index=True)[1]]
    groups = len(first)
    values, row = flatten(table["distinct_us"].where(~failed, other=[[]] * len(table)))
    summary = summarise(values, code[row], groups)
    merged = table.iloc[first].assign(
        **summary.columns(),
        raw_rows=np.bincount(code, weights=table["raw_rows"].fillna(1), minlength=groups).astype(
            int
        ),
    )
    if not by_source_file:
        merged["source_file"] = _joined_files(table, code, groups)
    appeared = np.full(groups, len(table))
    np.minimum.at(appeared, code, np.arange(len(table)))
    return merged.iloc[np.argsort(appeared)].reset_index(drop=True)


def candidates(labels: pd.DataFrame) -> Mask:
    """Return which rows a tuner may pick: they ran, and are not a library's closed kernel."""
    ran = (labels["outcome"] == Outcome.OK.value).to_numpy()
    return np.asarray(ran & ~labels["is_library"].to_numpy(dtype=bool), dtype=bool)


def kfold(
    labels: pd.DataFrame, columns: Sequence[str] = SIZE_COLUMNS, parts: int = PARTS
) -> Iterator[Split]:
    """Yield grouped folds: rows equal in ``columns`` are held out together.

    Raises:
        NotInstalledError: scikit-learn is missing.
    """
    try:
        from sklearn.model_selection import GroupKFold  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise NotInstalledError(
            "grouped folds need scikit-learn; install it with: pip install 'perfmodel[train]'"
        ) from error
    groups = group_ids(labels, columns)
    folds = GroupKFold(n_splits=parts, shuffle=True, random_state=SEED).split(groups, groups=groups)
    for fold, (_, held) in enumerate(folds):
        test = np.zeros(len(labels), dtype=bool)
        test[held] = True
        yield Split(f"fold{fold}", ~test, test)


def suite_of(source_file: pd.Series[str]) -> pd.Series[str]:
    """Return ``hf``, ``timm`` or ``mm`` for AutoHeuristic's three files of each device.

    Raises:
        DataError: a row from another file.
    """
    stem = source_file.str.extract(r"_((?:hf|timm)_train_mm|mm)\.txt$", expand=False)
    foreign = source_file[stem.isna()]
    if len(foreign):
        raise DataError(
            f"source file {foreign.iloc[0]!r} belongs to no suite; the suites protocol needs "
            "autoheuristic-mm with source files kept apart (label_table by_source_file=True)"
        )
    return stem.str.split("_").str[0]


def suites(labels: pd.DataFrame) -> Iterator[Split]:
    """Yield one split per suite left out, test problems that training has seen removed.

    ``labels`` keeps source files apart; rows of ``train`` from two files still want `label_table`.
    """
    suite = suite_of(labels["source_file"]).to_numpy()
    problem = problem_ids(labels)
    for left_out in sorted(set(suite)):
        train = suite != left_out
        yield Split(f"without-{left_out}", train, ~train & ~_shares(problem, train))


def transfer(labels: pd.DataFrame) -> Iterator[Split]:
    """Yield one split per ordered pair of devices: all rows of one, then all rows of the other."""
    gpu = labels["gpu"].to_numpy(dtype=object)
    names = sorted(set(gpu))
    for source in names:
        for target in names:
            if source != target:
                yield Split(f"{source}->{target}", gpu == source, gpu == target)


def fewshot(labels: pd.DataFrame, problems: int, draws: int = DRAWS) -> Iterator[Split]:
    """Yield, per ordered pair of devices and draw, a few problems of the target to adapt with.

    Problems of the target with the same (m, n, k) as a drawn one are in no part.

    Raises:
        DataError: the target has no more problems than are to be drawn.
    """
    problem, size = problem_ids(labels), group_ids(labels, SIZE_COLUMNS)
    for pair in transfer(labels):
        available = np.unique(problem[pair.test])
        if not 0 < problems < len(available):
            raise DataError(
                f"cannot draw {problems} of the {len(available)} problems of {pair.name}; "
                f"use 1 to {len(available) - 1}"
            )
        for draw in range(draws):
            chosen = np.random.default_rng([SEED, problems, draw]).choice(
                available, size=problems, replace=False
            )
            adapt = pair.test & np.isin(problem, chosen)
            test = pair.test & ~_shares(size, adapt)
            yield Split(f"{pair.name}/draw{draw}", pair.train, test, adapt)


def leave_one_size_out(labels: pd.DataFrame) -> Iterator[Split]:
    """Yield one split per (m, n, k), named ``MxNxK`` or ``M`` for square ones."""
    sizes = labels.loc[:, list(SIZE_COLUMNS)]
    for size in sorted(set(sizes.itertuples(index=False, name=None))):
        test = (sizes == np.array(size)).all(axis=1).to_numpy()
        m, n, k = (int(s) for s in size)
        yield Split(str(m) if m == n == k else f"{m}x{n}x{k}", ~test, test)


def _shares(ids: Indices, rows: Mask) -> Mask:
    """Return which rows have an id that occurs among ``rows``."""
    return np.isin(ids, np.unique(ids[rows]))


def _dense(ids: Indices) -> tuple[Indices, int]:
    """Number ``ids`` from 0 without gaps, in order; return them and how many there are."""
    values, dense = np.unique(ids, return_inverse=True)
    return np.asarray(dense, dtype=np.int64), len(values)


def _joined_files(table: pd.DataFrame, code: Indices, groups: int) -> NDArray[np.object_]:
    pairs = pd.DataFrame({"code": code, "file": table["source_file"]}).dropna().drop_duplicates()
    pairs = pairs.sort_values(["code", "file"])
    several = pairs["code"].duplicated(keep=False)
    joined = pairs[~several].set_index("code")["file"].astype(object)
    joined = pd.concat([joined, pairs[several].groupby("code")["file"].agg(", ".join)])
    return np.asarray(joined.reindex(range(groups)), dtype=object)


def _family(table: pd.DataFrame) -> str:
    families = table["family"].unique()
    if len(families) != 1 or families[0] not in PROBLEM_COLUMNS:
        raise DataError(
            f"expected the rows of one kernel family ({', '.join(PROBLEM_COLUMNS)}), "
            f"found {', '.join(map(str, families)) or 'no rows'}"
        )
    return str(families[0])


def _hashable(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return ``column`` with lists and maps spelt out, so that rows can be grouped by it."""
    if column.dtype != object or not column.map(lambda v: isinstance(v, Sized)).any():
        return column
    return column.map(lambda v: repr(list(v)) if isinstance(v, np.ndarray | list) else v)
