"""The label rule: the median of the distinct values, however often each one is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class DistinctValues:
    """Summary of each row's distinct values; statistics are NaN where a row has none."""

    values: Floats  # ascending within a row
    counts: Indices  # of each row
    median: Floats
    minimum: Floats
    maximum: Floats

    @property
    def spread(self) -> Floats:
        """(maximum - minimum) / median of each row, NaN for fewer than two values."""
        return np.where(self.counts > 1, (self.maximum - self.minimum) / self.median, np.nan)

    def columns(self) -> dict[str, Any]:
        """Return the schema's label columns."""
        return {
            "latency_us": self.median,
            "latency_min_us": self.minimum,
            "latency_max_us": self.maximum,
            "latency_spread": self.spread,
            "distinct_us": as_lists(self.values, self.counts),
            "distinct_repeats": self.counts,
        }


def summarise(values: Floats, row: Indices, rows: int) -> DistinctValues:
    """Summarise finite ``values``, in any order and with repeats, by the row each belongs to."""
    order = np.lexsort((values, row))
    values, row = values[order], row[order]
    if len(values):
        new = np.r_[True, (np.diff(row) != 0) | (np.diff(values) != 0)]
        values, row = values[new], row[new]
    counts = np.bincount(row, minlength=rows).astype(np.int64)
    median, minimum, maximum = (np.full(rows, np.nan) for _ in range(3))
    filled = counts > 0
    first = (np.cumsum(counts) - counts)[filled]
    size = counts[filled]
    minimum[filled], maximum[filled] = values[first], values[first + size - 1]
    median[filled] = (values[first + (size - 1) // 2] + values[first + size // 2]) / 2
    return DistinctValues(values, counts, median, minimum, maximum)


def flatten(lists: pd.Series[Any]) -> tuple[Floats, Indices]:
    """Return all values of a column of lists, and the position of the row that each comes from."""
    if isinstance(lists.dtype, pd.ArrowDtype):
        array = pa.array(lists, from_pandas=True)
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        counts = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        found = pc.list_flatten(array).to_numpy(zero_copy_only=False)
        return found.astype(np.float64), np.repeat(np.arange(len(lists)), counts)
    lengths = lists.map(len).to_numpy(dtype=np.int64)
    parts = [np.asarray(part, dtype=np.float64) for part in lists]
    values = np.concatenate(parts) if parts else np.empty(0)
    return values, np.repeat(np.arange(len(lists)), lengths)


def gather_distinct(raw: pd.DataFrame, value: str) -> pd.DataFrame:
    """Return one row per combination of all other columns, in order of first appearance.

    ``distinct_us`` holds the distinct numbers of the column ``value``, ascending; ``raw_rows`` and
    ``source_row`` say how many rows there were and which was first.
    """
    keys = [name for name in raw.columns if name != value]
    group = raw.groupby(keys, sort=False, observed=True, dropna=False).ngroup().to_numpy()
    count = int(group.max()) + 1 if len(group) else 0
    _, first = np.unique(group, return_index=True)
    values = pd.DataFrame({"group": group, "us": raw[value].to_numpy(dtype=np.float64)})
    values = values.drop_duplicates().sort_values(["group", "us"])
    lengths = np.bincount(values["group"], minlength=count).astype(np.int64)
    grouped = raw.loc[first, keys].reset_index(drop=True)
    grouped["distinct_us"] = as_lists(values["us"].to_numpy(), lengths)
    grouped["raw_rows"] = np.bincount(group, minlength=count)
    grouped["source_row"] = first
    return grouped


def as_lists(values: Floats, counts: Indices) -> pd.arrays.ArrowExtensionArray:
    """Return a column of lists, row i holding the next ``counts[i]`` of ``values``.

    It is kept as arrow has it: an object a row would take most of the memory of an import.
    """
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.float64()))
    return pd.arrays.ArrowExtensionArray(lists)  # no Series: an index of its own would be aligned


def as_objects(lists: Sequence[Any]) -> NDArray[np.object_]:
    """Return ``lists`` as an array of objects, even where all have one length."""
    array = np.empty(len(lists), dtype=object)
    for at, part in enumerate(lists):
        array[at] = part
    return array
