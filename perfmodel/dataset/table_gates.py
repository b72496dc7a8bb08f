"""Gates that look at a whole table: one too often impossible, and rows that their siblings deny.

They flag and never drop. ``suspect_table`` is physics and may exclude rows from a test;
``siblings_disagree`` compares devices, so it is for training alone: a test row is never judged by
another device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from perfmodel.dataset.distinct import Floats, summarise
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.quality import SIBLINGS_DISAGREE, SUSPECT_TABLE, physical_bounds_us
from perfmodel.dataset.schema import COLUMNS, PROBLEM_COLUMNS
from perfmodel.errors import PerfmodelError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.hardware.gpu import Gpu

IMPOSSIBLE_SHARE_MAX = 0.05
"""A file's rows of one kernel are suspect where more of them than this beat the hardware."""

DISAGREEMENT = 2.0
"""Times over the physical bound that differ by this factor between like devices are improbable."""

_KEY_COLUMNS = tuple(
    name
    for name in (
        "family",
        "library",
        "library_version",
        "kernel",
        *sorted({c for p in PROBLEM_COLUMNS.values() for c in p}),
    )
    if not pa.types.is_list(COLUMNS[name].type)
)

_FLOOR_US = 5.0
"""Added to each bound: what a launch costs whatever the work, so that tiny rows compare by it."""

Flags = NDArray[np.bool_]


@dataclass
class TableGates:
    """Collects the rows of one table part by part, then tells which to flag."""

    find_gpu: Callable[[str], Gpu] = load_gpu
    _unit_ids: dict[tuple[str, str], int] = field(default_factory=dict)
    _units: list[NDArray[np.int64]] = field(default_factory=list)
    _impossible: list[Flags] = field(default_factory=list)
    _keys: list[NDArray[np.uint64]] = field(default_factory=list)
    _excess: list[Floats] = field(default_factory=list)  # log of time over expectation; NaN: none

    def add(self, frame: pd.DataFrame) -> None:
        """Add rows that `quality.apply_gates` returned."""
        units = frame[["source_file", "kernel"]] if "kernel" in frame else frame[["source_file"]]
        codes = units.astype(object).fillna("").groupby(list(units), sort=False).ngroup()
        codes_array = codes.to_numpy()
        _, first = np.unique(codes_array, return_index=True)
        names = units.iloc[first].astype(object).fillna("").to_numpy()
        ids = [
            self._unit_ids.setdefault((str(n[0]), str(n[-1])), len(self._unit_ids)) for n in names
        ]
        self._units.append(np.array(ids, dtype=np.int64)[codes_array])
        outcome = frame["outcome"].astype(object)
        self._impossible.append(outcome.eq(Outcome.IMPLAUSIBLE.value).to_numpy())
        self._keys.append(_keys(frame, self.find_gpu))
        bounds, _ = physical_bounds_us(frame, self.find_gpu)
        expected = np.maximum.reduce(list(bounds.values())) + _FLOOR_US
        unknown_tile = ~frame["config_known"].astype(bool).to_numpy()
        latency = frame["latency_us"].to_numpy(dtype=np.float64)
        compared = outcome.eq(Outcome.OK.value).to_numpy() & unknown_tile
        if "q_lens" in frame:  # a batch of unequal lengths has no sibling
            compared &= frame["q_lens"].isna().to_numpy()
        self._excess.append(
            np.where(compared, np.log(np.where(compared, latency, 1) / expected), np.nan)
        )

    def flags(self) -> tuple[list[Mapping[str, Flags]], dict[str, Any]]:
        """Return, by part and gate, the rows to flag; and a report as plain data."""
        ends = np.cumsum([len(unit) for unit in self._units])[:-1]
        unit = np.concatenate(self._units)
        impossible = np.concatenate(self._impossible)
        rows = np.bincount(unit, minlength=len(self._unit_ids))
        bad = np.bincount(unit[impossible], minlength=len(self._unit_ids))
        suspect = bad > IMPOSSIBLE_SHARE_MAX * rows
        flagged = {
            SUSPECT_TABLE: suspect[unit],
            SIBLINGS_DISAGREE: _disagree(np.concatenate(self._keys), np.concatenate(self._excess)),
        }
        tables = {
            " ".join(name).strip(): {"rows": int(rows[i]), "impossible": int(bad[i])}
            for name, i in self._unit_ids.items()
            if bad[i]
        }
        split = {gate: np.split(hit, ends) for gate, hit in flagged.items()}
        report = {
            "rows_flagged": {gate: int(hit.sum()) for gate, hit in flagged.items()},
            "suspect_tables": sorted(
                " ".join(name).strip() for name, i in self._unit_ids.items() if suspect[i]
            ),
            "impossible_by_table": tables,
        }
        return [
            {gate: parts[at] for gate, parts in split.items()} for at in range(len(self._units))
        ], report


def _disagree(keys: NDArray[np.uint64], excess: Floats) -> Flags:
    """Return the rows whose excess lies a factor off the median of the same key's rows.

    Of two that differ by the factor neither is known to be right, and both are flagged.
    """
    flagged = np.zeros(len(keys), dtype=bool)
    known = np.flatnonzero(np.isfinite(excess))
    _, group, counts = np.unique(keys[known], return_inverse=True, return_counts=True)
    median = summarise(excess[known], group, len(counts)).median
    far = np.abs(excess[known] - median[group])
    far = np.where(counts[group] == 2, 2 * far, far)
    flagged[known] = far > np.log(DISAGREEMENT)
    return flagged


def _keys(frame: pd.DataFrame, find_gpu: Callable[[str], Gpu]) -> NDArray[np.uint64]:
    """Return a hash of each row's problem, kernel and kind of device.

    A column that one part lacks counts as one that is null throughout, so that parts compare.
    """
    gpus = frame["gpu"].astype("category")
    like = {name: _generation(name, find_gpu) for name in gpus.cat.categories}
    keys = _hashed(gpus.map(like))
    for name in _KEY_COLUMNS:
        keys *= np.uint64(0x9E3779B97F4A7C15)
        keys += _hashed(frame[name]) if name in frame else _hashed(pd.Series([None]))
    return keys


def _hashed(column: pd.Series[Any]) -> NDArray[np.uint64]:
    if pd.api.types.is_numeric_dtype(column.dtype):  # flags too
        numbers = np.asarray(column.astype(np.float64).fillna(np.nan), dtype=np.float64)
        return pd.util.hash_array(np.where(np.isnan(numbers), -1.0, numbers))
    words = column.astype("category")
    names = np.array([*words.cat.categories.astype(str), ""], dtype=object)
    if column.isna().all():  # of whatever type: the same as a number that is null
        return pd.util.hash_array(np.full(len(column), -1.0))
    return pd.util.hash_array(names, categorize=False)[words.cat.codes.to_numpy()]


def _generation(name: str, find_gpu: Callable[[str], Gpu]) -> str:
    """Return what devices share whose kernels and balance are alike: sm_100 and sm_103 are one,
    and about as many SMs on each.
    """
    try:
        gpu = find_gpu(name)
    except PerfmodelError:
        return name
    like = gpu.architecture[:-1] if gpu.architecture.startswith("sm_1") else gpu.architecture
    return f"{like} {round(gpu.sm_count / 40)}"
