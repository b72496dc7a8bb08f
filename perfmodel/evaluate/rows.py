"""Measured launches as arrays: what the contenders of an evaluation may know of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.dataset import store
from perfmodel.dataset.schema import PROBLEM_COLUMNS
from perfmodel.dataset.splits import candidates, group_ids, label_table
from perfmodel.errors import DataError
from perfmodel.learned.feature_table import (
    FeatureTable,
    gemm_feature_table,
    launch_groups,
    launch_s,
)
from perfmodel.tiling.config import PARAMETERS
from perfmodel.tiling.work import gemm_work

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

MEASURED_ONCE = ["source", "gpu", *PROBLEM_COLUMNS["gemm"]]
"""Columns that tell one set of comparable times from another: the same problem timed by another
source is another problem."""


@dataclass(frozen=True)
class Launched:
    """Formulas' inputs, one launch a row (N,). Sizes in elements, rates per second."""

    m: Floats
    n: Floats
    k: Floats
    block_m: Floats
    block_n: Floats
    block_k: Floats
    num_warps: Floats
    a_bytes: Floats
    b_bytes: Floats
    out_bytes: Floats
    flops: Floats  # useful operations
    compulsory_bytes: Floats
    ctas: Floats
    iterations: Floats  # of one CTA's main loop
    occupancy: Floats  # CTAs that fit an SM, at least 1
    sm_count: Floats
    peak_flops_per_s: Floats
    dram_bytes_per_s: Floats
    launch_s: Floats  # overhead of the timing protocol

    def take(self, rows: NDArray[Any]) -> Launched:
        """Return the rows of a mask or an index."""
        return Launched(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True)
class GemmRows:
    """Measured GEMM launches with known configurations, one a row (N,).

    ``problem`` numbers sets of comparable times, ``tile`` configurations.
    """

    labels: pd.DataFrame
    table: FeatureTable
    launched: Launched
    problem: Indices
    tile: Indices

    @property
    def gpu(self) -> NDArray[np.object_]:
        """Canonical device names."""
        return self.table.gpu

    @property
    def dtype(self) -> NDArray[np.object_]:
        """Operand types: ``fp16``, ``fp16xint8``."""
        return self.table.dtype

    @property
    def measured_s(self) -> Floats:
        """Measured times, seconds."""
        return self.table.latency_s

    def take(self, rows: NDArray[Any]) -> GemmRows:
        """Return the rows of a mask or an index; numbers of problems and tiles stay.

        Of the labels, only what tells problems and configurations apart is kept.
        """
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return GemmRows(
            labels=self.labels[[*MEASURED_ONCE, *PARAMETERS]].iloc[index],
            table=self.table.take(rows),
            launched=self.launched.take(rows),
            problem=self.problem[rows],
            tile=self.tile[rows],
        )

    def __len__(self) -> int:
        return len(self.problem)


def gemm_rows(labels: pd.DataFrame) -> GemmRows:
    """Describe the rows of a label table that all ran with a known configuration.

    Raises:
        DataError: no rows, or a row whose configuration or timing is not known.
    """
    if labels.empty:
        raise DataError("no measured GEMM launch is left to evaluate; import more data")
    labels = labels.reset_index(drop=True)
    problem = group_ids(labels, MEASURED_ONCE)
    return GemmRows(
        labels=labels,
        table=gemm_feature_table(labels, problem),
        launched=_launched(labels),
        problem=problem,
        tile=group_ids(labels, list(PARAMETERS)),
    )


def candidate_rows(*tables: pd.DataFrame) -> GemmRows:
    """Describe what a tuner may pick from the rows of one or several label tables."""
    picked = [t[candidates(t)].dropna(axis="columns", how="all") for t in tables]
    columns = list(dict.fromkeys(c for t in tables for c in t.columns))
    return gemm_rows(pd.concat(picked, ignore_index=True).reindex(columns=columns))


@dataclass(frozen=True)
class Tables:
    """Imported measurements by registry name, and what the gates dropped when they came in."""

    raw: Mapping[str, pd.DataFrame]
    cache: str | Path | None = None  # folder that further tables are read from

    def labels(self, name: str) -> pd.DataFrame:
        """Return one row per problem and configuration of the named table."""
        return label_table(self.raw[name])

    def gates(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the quality report of the named tables, where they carry one."""
        infos = {name: self.raw[name].attrs.get("info") for name in names}
        return {name: info.gates for name, info in infos.items() if info and info.gates}


def load_tables(names: Sequence[str], cache: str | Path | None = None) -> Tables:
    """Load imported tables.

    Raises:
        MissingDataError: one is not imported; the message is the command to run.
    """
    return Tables({name: store.load(name, cache) for name in names}, cache)


def _launched(labels: pd.DataFrame) -> Launched:
    columns = {f.name: np.empty(len(labels)) for f in fields(Launched)}
    for group in launch_groups(labels):
        gpu, problems, configs = group.gpu, group.problems, group.configs
        work = gemm_work(problems, configs, gpu)
        dtype = work.compute_dtype
        peak = gpu.tensor_tflops.get(dtype) or gpu.plain_tflops[dtype]
        values: dict[str, Floats | float] = {
            "m": np.asarray(problems.m),
            "n": np.asarray(problems.n),
            "k": np.asarray(problems.k),
            "block_m": configs.block_m,
            "block_n": configs.block_n,
            "block_k": configs.block_k,
            "num_warps": configs.num_warps,
            "a_bytes": problems.a_dtype.bytes,
            "b_bytes": problems.b_dtype.bytes,
            "out_bytes": problems.out_dtype.bytes,
            "flops": work.flops,
            "compulsory_bytes": work.compulsory_bytes,
            "ctas": work.ctas,
            "iterations": work.classes[0].iterations,
            "occupancy": np.maximum(work.resources.occupancy, 1.0),
            "sm_count": gpu.sm_count,
            "peak_flops_per_s": peak * 1e12,
            "dram_bytes_per_s": gpu.dram_bandwidth_gb_per_s * 1e9,
            "launch_s": launch_s(group.timing_method),
        }
        for name, value in values.items():
            columns[name][group.rows] = value
    return Launched(**columns)
