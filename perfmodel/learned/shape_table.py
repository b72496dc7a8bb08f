"""Measurements of kernels whose tile is unknown, as features, analytic times and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.model import CUDA_GRAPH_LAUNCH_S, EVENT_TIMING_LAUNCH_S
from perfmodel.analytic.shape import ShapeEstimate, ShapeTable, shape_estimate
from perfmodel.errors import DataError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.hardware.gpu import Gpu
from perfmodel.learned.shape_features import (
    Column,
    attention_shape_columns,
    backend_on,
    gemm_shape_columns,
    grouped_gemm_shape_columns,
    kernel_columns,
    shape_matrix,
)
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.problems.dtypes import DType, parse_dtype
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.problems.grouped_gemm_table import GroupedGemmTable
from perfmodel.problems.routing import Routing, parse_routing

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Names = NDArray[np.object_]

LAUNCH_S = {"pipeweave-fp8": EVENT_TIMING_LAUNCH_S}
"""Sources that do not say how they timed: no launch of PipeWeave's takes less than 4.7 us, which
is what events around it show; all others go below 3 us, as launches in a graph do."""

BLOCK_SCALED = "fp8_block"
"""Part of the names of kernels whose operands have a scale per block."""

UNGATED = "nongated"
"""Part of the names of experts whose first weights have no gate beside them."""

SITE_COLUMNS = {
    "gemm": ("n", "k"),
    "attention": ("batch", "q_heads", "kv_heads", "head_dim"),
    "grouped_gemm": (
        "experts", "top_k", "hidden_size", "intermediate_size", "expert_parallel",
        "tensor_parallel",
    ),
}  # fmt: skip
"""What makes a site: a layer of a model, asked about with many sizes of its input."""

COLUMNS = {
    "gemm": ("family", "m", "n", "k", "batch", "a_dtype", "b_dtype", "out_dtype"),
    "attention": (
        "family", "phase", "direction", "batch", "q_len", "kv_len", "q_heads", "kv_heads",
        "head_dim", "v_head_dim", "causal", "window_size", "q_dtype", "kv_dtype", "out_dtype",
    ),
    "grouped_gemm": (
        "family", "tokens", "experts", "top_k", "hidden_size", "intermediate_size",
        "expert_parallel", "tensor_parallel", "projection", "routing", "a_dtype", "b_dtype",
        "out_dtype",
    ),
}  # fmt: skip
"""Columns of an imported table that describe the problem."""

ROW_COLUMNS = ("gpu", "library", "library_version", "backend", "kernel", "latency_us", "source")
"""Columns that every family needs besides."""


@dataclass(frozen=True)
class ShapeRows:
    """Measured launches, arrays of equal length N; ``features`` is (N, F) float32.

    ``dtype`` are the operand types as in ``fp8_e4m3`` or ``bf16/fp8_e4m3`` (queries and cache),
    ``kernel`` the identities of `perfmodel.problems.library`, ``site`` equal numbers where the
    layer is the same, on whatever device.
    """

    features: NDArray[np.float32]
    names: tuple[str, ...]
    analytic_s: Floats
    roofline_s: Floats
    latency_s: Floats
    gpu: Names
    dtype: Names
    kernel: Names
    site: NDArray[np.int64]

    @property
    def target(self) -> Floats:
        """log(measured / analytic), what the model learns."""
        return np.log(self.latency_s / self.analytic_s)

    def take(self, rows: NDArray[Any]) -> ShapeRows:
        """Return the rows of a mask or an index."""
        values = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "names"}
        return replace(self, **values)

    def __len__(self) -> int:
        return len(self.latency_s)


def shape_rows(frame: pd.DataFrame) -> ShapeRows:
    """Compute features and analytic times of a table of one family, `COLUMNS` and `ROW_COLUMNS`.

    Raises:
        DataError: no rows, several families, or one whose tiles are not unknown.
    """
    families = list(frame["family"].unique())
    if len(families) != 1 or families[0] not in COLUMNS:
        raise DataError(
            f"shape-level rows are of one family of {', '.join(COLUMNS)}; "
            f"these are of {', '.join(map(str, families)) or 'none'}"
        )
    family = str(families[0])
    of = _TABLES[family]
    frame = frame.reset_index(drop=True)
    count = len(frame)
    parts = []
    names: tuple[str, ...] = ()
    types = list(_DTYPES[family])
    blocks = frame["kernel"].astype(str).str.contains(BLOCK_SCALED, regex=False)
    keys = ["gpu", "source", "library", "backend", *types]
    groups: Mapping[Any, Any] = frame.groupby(
        [*keys, blocks.rename("block_scaled")], observed=True, dropna=False
    ).indices
    for (gpu_name, source, library, backend, *dtypes, scaled), index in groups.items():
        gpu = load_gpu(str(gpu_name))
        table = of(frame.iloc[index], _types(dtypes))
        columns, found = shape_columns(table, gpu, LAUNCH_S.get(str(source), CUDA_GRAPH_LAUNCH_S))
        columns |= kernel_columns(str(library), backend_on(str(backend), gpu), bool(scaled))
        names = tuple(columns)
        parts.append((index, shape_matrix(columns, len(index)), found.seconds, found.roofline_s))
    features = np.empty((count, len(names)), dtype=np.float32)
    analytic, roofline = np.empty(count), np.empty(count)
    for index, block, seconds, least in parts:
        features[index], analytic[index], roofline[index] = block, seconds, least
    identity = frame["library"].astype(str) + "/" + frame["backend"].astype(str)
    version = frame["library_version"].astype(object)
    identity = identity + np.where(version.isna(), "", "@" + version.astype(str))
    site = frame.groupby(list(SITE_COLUMNS[family]), observed=True).ngroup()
    return ShapeRows(
        features=features,
        names=names,
        analytic_s=analytic,
        roofline_s=roofline,
        latency_s=frame["latency_us"].to_numpy(dtype=np.float64) * 1e-6,
        gpu=frame["gpu"].to_numpy(dtype=object),
        dtype=_dtype_names(frame, types[:2]),
        kernel=identity.to_numpy(dtype=object),
        site=np.asarray(site, dtype=np.int64),
    )


def has_arithmetic(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which rows' devices have arithmetic for the type that products are formed in.

    A source may have timed what a device only emulates; no rate describes it.
    """
    types = _DTYPES[str(frame["family"].iloc[0])][:2] if len(frame) else ()
    found = np.ones(len(frame), dtype=np.bool_)
    groups: Mapping[Any, Any] = (
        frame.groupby(["gpu", *types], observed=True).indices if types else {}
    )
    for (gpu_name, *dtypes), index in groups.items():
        gpu = load_gpu(str(gpu_name))
        compute = max(_types(dtypes), key=lambda dtype: dtype.bits).name
        found[index] = compute in gpu.tensor_tflops or compute in gpu.plain_tflops
    return found


CLOCK_HEADROOM = 1.05
"""How far the highest clock lies above the one behind the stated peaks, where no source says: the
middle of what the catalog knows of H100 (1.08), B200 (1.06), GB200 (1.03) and A100 (1.0)."""


def at_highest_clock(gpu: Gpu) -> Gpu:
    """Return ``gpu`` at the clock that it runs at as long as power allows, peaks to match.

    Short kernels never see another; the stated peaks belong to clocks that makers chose freely.
    """
    found: Gpu | None = gpu.__dict__.get(_FAST)
    if found is None:
        found = gpu.__dict__[_FAST] = _clocked(gpu)  # kept, since to build one takes 0.2 ms
    return found


_FAST = "_at_highest_clock"


def _clocked(gpu: Gpu) -> Gpu:
    clock = gpu.max_clock_mhz or CLOCK_HEADROOM * gpu.boost_clock_mhz
    scale = clock / gpu.boost_clock_mhz
    peaks = {name: scale * value for name, value in gpu.tensor_tflops.items()}
    return replace(gpu, boost_clock_mhz=clock, tensor_tflops=peaks)


def shape_columns(
    table: ShapeTable, gpu: Gpu, launch_s: float = CUDA_GRAPH_LAUNCH_S
) -> tuple[dict[str, Column], ShapeEstimate]:
    """Return the features of problems on one device, kernel identity aside, and the estimate.

    Raises:
        DataError: a family without shape-level features.
        UnsupportedDtypeError: the device has no arithmetic for the compute type.
    """
    gpu = at_highest_clock(gpu)
    found = shape_estimate(table, gpu, launch_overhead_s=launch_s)
    if isinstance(table, GemmTable):
        return gemm_shape_columns(table, gpu, found), found
    if isinstance(table, AttentionTable):
        return attention_shape_columns(table, gpu, found), found
    if isinstance(table, GroupedGemmTable):
        return grouped_gemm_shape_columns(table, gpu, found), found
    raise DataError(f"there are no shape-level features of a {type(table).__name__}")


def _gemm_table(part: pd.DataFrame, dtypes: tuple[DType, ...]) -> GemmTable:
    a, b, out = dtypes
    flag = np.ones(len(part))
    return GemmTable.of_columns(
        m=part["m"], n=part["n"], k=part["k"], batch=part["batch"],
        a_row=flag, b_row=0.0 * flag, lda=part["k"], ldb=part["k"], dtypes=(a, b, out),
    )  # fmt: skip


def _attention_table(part: pd.DataFrame, dtypes: tuple[DType, ...]) -> AttentionTable:
    q, kv, out = dtypes
    return AttentionTable.of_columns(
        batch=part["batch"], q_len=part["q_len"], kv_len=part["kv_len"],
        q_heads=part["q_heads"], kv_heads=part["kv_heads"], head_dim=part["head_dim"],
        v_head_dim=part["v_head_dim"], causal=part["causal"].astype(np.float64),
        window=part["window_size"].fillna(0).to_numpy(dtype=np.float64),
        backward=(part["direction"] == "backward").to_numpy(dtype=np.float64),
        dtypes=(q, kv, out),
    )  # fmt: skip


def _grouped_gemm_table(part: pd.DataFrame, dtypes: tuple[DType, ...]) -> GroupedGemmTable:
    a, b, out = dtypes
    projection = part["projection"].astype(str)
    return GroupedGemmTable.of_columns(
        tokens=part["tokens"], experts=part["experts"], top_k=part["top_k"],
        hidden=part["hidden_size"], intermediate=part["intermediate_size"],
        ep=part["expert_parallel"], tp=part["tensor_parallel"],
        routing=routings(part["routing"]),
        gated=1.0 - part["kernel"].astype(str).str.contains(UNGATED, regex=False),
        with_up=(projection != "w2").astype(np.float64),
        with_down=(projection != "w13").astype(np.float64),
        dtypes=(a, b, out),
    )  # fmt: skip


def routings(names: pd.Series) -> list[Routing]:
    """Return the distributions of a measured table as problems name them.

    A source writes ``power_law_1.2`` where a problem has ``power-law:1.2``; one that says nothing
    spread tokens by chance.

    Raises:
        InvalidProblemError: a source has a distribution that we have not.
    """
    texts = names.astype(object).where(names.notna(), "uniform").astype(str)
    told = texts.str.replace(r"^power_law_", "power-law:", regex=True).astype("category")
    found = [parse_routing(name, 1, 1, 1) for name in told.cat.categories]
    return [found[code] for code in told.cat.codes]


_DTYPES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("a_dtype", "b_dtype", "out_dtype"),
    "attention": ("q_dtype", "kv_dtype", "out_dtype"),
    "grouped_gemm": ("a_dtype", "b_dtype", "out_dtype"),
}
_TABLES: Mapping[str, Callable[[pd.DataFrame, tuple[DType, ...]], ShapeTable]] = {
    "gemm": _gemm_table,
    "attention": _attention_table,
    "grouped_gemm": _grouped_gemm_table,
}


def _types(names: list[Any]) -> tuple[DType, ...]:
    return tuple(parse_dtype(str(name)) for name in names)


def _dtype_names(frame: pd.DataFrame, types: list[str]) -> Names:
    one, other = (frame[name].astype(str).to_numpy(dtype=object) for name in types)
    return np.where(one == other, one, one + "/" + other)
