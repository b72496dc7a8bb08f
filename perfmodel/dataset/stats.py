"""Counts of a measurement table, by device and data type."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.schema import CONFIG_COLUMNS
from perfmodel.dataset.splits import group_ids, problem_ids


def by_device(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one record per device and data type of one family's rows.

    Keys: ``gpu``, ``dtype`` (``fp16``, ``fp16xint8``), ``problems``, ``configs``, ``rows``,
    ``ok``, ``failed``, and ``fastest_us``, ``median_us``, ``slowest_us`` of the rows that ran.
    """
    ran = table["outcome"] == Outcome.OK.value
    same = table["a_dtype"] == table["b_dtype"]
    counted = pd.DataFrame(
        {
            "gpu": table["gpu"].fillna("unknown"),
            "dtype": table["a_dtype"].where(same, table["a_dtype"] + "x" + table["b_dtype"]),
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
