"""Counts of a measurement table, by device and data type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from perfmodel.dataset import store
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.schema import CONFIG_COLUMNS, PROBLEM_COLUMNS
from perfmodel.dataset.splits import group_ids, problem_ids

_DTYPES = {"attention": ("q_dtype", "kv_dtype")}

_ROWS_AT_ONCE = 500_000
"""A larger table is counted one device at a time."""


def of_table(name: str, cache: str | Path | None = None) -> list[dict[str, Any]]:
    """Return the records of `by_device` for the imported table called ``name``, by family."""
    found = store.load(name, cache, ["family", "gpu"])
    records = []
    for family in sorted(found["family"].unique()):
        wanted = list(dict.fromkeys([
            "gpu", "outcome", "latency_us", "family", "is_library", *CONFIG_COLUMNS,
            *PROBLEM_COLUMNS[family], *_DTYPES.get(family, ("a_dtype", "b_dtype")),
        ]))  # fmt: skip
        only: list[tuple[str, str, Any]] = [("family", "=", family)]
        if len(found) <= _ROWS_AT_ONCE:
            records += by_device(store.load(name, cache, wanted, only))
        else:
            for gpu in sorted(found["gpu"].dropna().unique()):
                records += by_device(store.load(name, cache, wanted, [*only, ("gpu", "=", gpu)]))
    return records


def by_device(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one record per device and data type of one family's rows.

    Keys: ``gpu``, ``dtype`` (``fp16``, ``fp16xint8``), ``problems``, ``configs``, ``rows``,
    ``ok``, ``failed``, and ``fastest_us``, ``median_us``, ``slowest_us`` of the rows that ran.
    """
    ran = table["outcome"] == Outcome.OK.value
    first, second = (
        table[name] for name in _DTYPES.get(str(table["family"].iloc[0]), ("a_dtype", "b_dtype"))
    )
    counted = pd.DataFrame(
        {
            "gpu": table["gpu"].fillna("unknown"),
            "dtype": first.where(first == second, first + "x" + second),
            "problem": problem_ids(table),
            "config": group_ids(table, ("is_library", *CONFIG_COLUMNS)),
            "ran": ran,
            "us": table["latency_us"].where(ran),
        }
    )
    records = []
    for (gpu, dtype), rows in counted.groupby(["gpu", "dtype"], sort=True):
        ok = int(rows["ran"].sum())
        record: dict[str, Any] = {
            "gpu": str(gpu),
            "dtype": str(dtype),
            "problems": int(rows["problem"].nunique()),
            "configs": int(rows["config"].nunique()),
            "rows": len(rows),
            "ok": ok,
            "failed": len(rows) - ok,
        }
        for name, value in (
            ("fastest_us", rows["us"].min()),
            ("median_us", rows["us"].median()),
            ("slowest_us", rows["us"].max()),
        ):
            record[name] = float(value) if ok else None
        records.append(record)
    return records
