"""A measurement table as arrays: features, analytic times and labels, one row a measurement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.model import CUDA_GRAPH_LAUNCH_S, EVENT_TIMING_LAUNCH_S, estimate
from perfmodel.errors import DataError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.hardware.gpu import Gpu
from perfmodel.learned.features import gemm_columns, matrix
from perfmodel.problems.dtypes import parse_dtype
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import PARAMETERS, ConfigTable
from perfmodel.tiling.work import gemm_work

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

_GROUP_COLUMNS = ["gpu", "a_dtype", "b_dtype", "out_dtype", "timing_method"]
_LAUNCH_S = {"events": EVENT_TIMING_LAUNCH_S, "cuda_graph": CUDA_GRAPH_LAUNCH_S}


@dataclass(frozen=True)
class FeatureTable:
    """Arrays of equal length N; ``features`` is (N, F) float32, times are in seconds."""

    features: NDArray[np.float32]
    names: tuple[str, ...]
    analytic_s: Floats
    latency_s: Floats
    gpu: NDArray[np.object_]
    dtype: NDArray[np.object_]
    problem: NDArray[np.int64]  # equal where device and problem are

    @property
    def target(self) -> Floats:
        """log(measured / analytic), what the model learns."""
        return np.log(self.latency_s / self.analytic_s)

    def best_s(self) -> Floats:
        """Return, for each row, the fastest measured time of its problem."""
        _, inverse = np.unique(self.problem, return_inverse=True)
        best = np.full(inverse.max(initial=-1) + 1, np.inf)
        np.minimum.at(best, inverse, self.latency_s)
        return best[inverse]

    def kinds(self) -> frozenset[tuple[str, str]]:
        """Return the pairs of device and data type that occur."""
        return frozenset(zip(map(str, self.gpu), map(str, self.dtype), strict=True))

    def is_of(self, kinds: frozenset[tuple[str, str]]) -> NDArray[np.bool_]:
        """Return which rows have a device and data type among ``kinds``."""
        pairs = zip(map(str, self.gpu), map(str, self.dtype), strict=True)
        return np.fromiter((pair in kinds for pair in pairs), dtype=bool, count=len(self))

    def take(self, rows: NDArray[Any]) -> FeatureTable:
        """Return the rows of a mask or an index."""
        values = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "names"}
        return replace(self, **values)

    def __len__(self) -> int:
        return len(self.analytic_s)


def gemm_feature_table(labels: pd.DataFrame, problem: NDArray[np.int64]) -> FeatureTable:
    """Compute features and analytic times of GEMM measurements with known configurations.

    Args:
        labels: rows of `perfmodel.dataset.splits.label_table`, all with outcome ``ok``.
        problem: `perfmodel.dataset.splits.problem_ids` of the same rows.

    Raises:
        DataError: a row has no configuration, or was timed in an unknown way.
    """
    if not labels["config_known"].all():
        raise DataError("rows without a known configuration cannot train a tile model; drop them")
    parts: list[tuple[NDArray[np.intp], NDArray[np.float32], Floats]] = []
    names: tuple[str, ...] = ()
    for group in launch_groups(labels):
        work = gemm_work(group.problems, group.configs, group.gpu)
        found = estimate(work, group.gpu, launch_overhead_s=launch_s(group.timing_method))
        columns = gemm_columns(group.problems, group.configs, group.gpu, work, found)
        names = tuple(columns)
        parts.append((group.rows, matrix(columns, len(group.rows)), found.seconds))
    features = np.empty((len(labels), len(names)), dtype=np.float32)
    analytic = np.empty(len(labels))
    for rows, block, seconds in parts:
        features[rows], analytic[rows] = block, seconds
    return FeatureTable(
        features=features,
        names=names,
        analytic_s=analytic,
        latency_s=labels["latency_us"].to_numpy(dtype=np.float64) * 1e-6,
        gpu=labels["gpu"].to_numpy(dtype=object),
        dtype=dtype_names(labels),
        problem=problem,
    )


@dataclass(frozen=True)
class LaunchGroup:
    """Rows of a label table on one device, of one set of operand types, timed in one way."""

    rows: NDArray[np.intp]
    gpu: Gpu
    problems: GemmTable
    configs: ConfigTable
    timing_method: str


def launch_groups(labels: pd.DataFrame) -> Iterator[LaunchGroup]:
    """Yield the rows of a GEMM label table in groups that the vectorised physics takes at once.

    Raises:
        DataError: a row names no device.
    """
    unnamed = int(labels["gpu"].isna().sum())
    if unnamed:
        raise DataError(
            f"{unnamed} rows have no canonical device name (column gpu); see: perfmodel gpus"
        )
    groups: Mapping[Any, Any] = labels.groupby(_GROUP_COLUMNS, dropna=False, sort=True).indices
    for (gpu_name, a, b, out, method), rows in groups.items():
        part = labels.iloc[rows]
        problems = _problems(part, (a, b, out))
        yield LaunchGroup(rows, load_gpu(gpu_name), problems, _configs(part), method)


def launch_s(timing_method: str) -> float:
    """Return the launch overhead that a way of timing counts, seconds.

    Raises:
        DataError: it is not known.
    """
    if timing_method not in _LAUNCH_S:
        raise DataError(
            f"rows timed by {timing_method!r} have no known launch overhead; "
            f"use: {sorted(_LAUNCH_S)}"
        )
    return _LAUNCH_S[timing_method]


def dtype_names(labels: pd.DataFrame) -> NDArray[np.object_]:
    """Return each row's operand types: ``fp16``, or ``fp16xint8`` where they differ."""
    a, b = (labels[name].to_numpy(dtype=object) for name in ("a_dtype", "b_dtype"))
    return np.where(a == b, a, a + "x" + b)


def _problems(part: pd.DataFrame, dtypes: Sequence[str]) -> GemmTable:
    a, b, out = (parse_dtype(d) for d in dtypes)
    return GemmTable.of_columns(
        m=part["m"], n=part["n"], k=part["k"], batch=part["batch"],
        a_row=part["a_layout"] == "row", b_row=part["b_layout"] == "row",
        lda=part["lda"], ldb=part["ldb"], dtypes=(a, b, out),
    )  # fmt: skip


def _configs(part: pd.DataFrame) -> ConfigTable:
    columns = [
        part[name].fillna(0 if name == "maxnreg" else 1).to_numpy(dtype=np.float64)
        for name in PARAMETERS
    ]
    return ConfigTable(*columns)
