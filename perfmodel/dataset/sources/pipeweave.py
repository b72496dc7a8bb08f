"""PipeWeave's timings: FP8 GEMM of four Hopper GPUs, and Triton fused MoE of ten.

Times are microseconds. Their cycle and operation counts are features of their model, and
``pred_perf``, ``perf_diff`` and ``rel_gap`` its output: none of these is read. ``overall_perf`` is
derived from the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv

from perfmodel.dataset.distinct import gather_distinct
from perfmodel.dataset.kernels import UNNAMED
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.registry import Dataset
from perfmodel.errors import CorruptFileError

VERSION = 1

GPUS = {
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb",
    "NVIDIA A40": "a40",
    "NVIDIA H20": "h20",
    "NVIDIA H100": "h100-sxm5",
    "NVIDIA H200": "h200-sxm",
    "NVIDIA H800": "h800",
    "NVIDIA L20": "l20",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "A100": "a100-sxm4-80gb",
    "A40": "a40",
    "H20": "h20",
}
"""Its names of the devices. Which H100 it is the bandwidth in its features tells (3,352 GB/s)."""

_EXACT = frozenset(
    {"NVIDIA A100-SXM4-80GB", "NVIDIA A40", "NVIDIA L20", "NVIDIA RTX 6000 Ada Generation", "A40"}
)
_MOE = {
    "M": "tokens", "E": "experts", "topk": "top_k", "H": "hidden_size", "N": "intermediate_size",
}  # fmt: skip
_TILE = {
    "BLOCK_SIZE_M": "block_m", "BLOCK_SIZE_N": "block_n", "BLOCK_SIZE_K": "block_k",
    "GROUP_SIZE_M": "group_m", "num_warps": "num_warps", "num_stages": "num_stages",
}  # fmt: skip


def read(dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]) -> pd.DataFrame:
    """Read FP8 GEMM or MoE files by their names; see `perfmodel.dataset.sources`."""
    frames = []
    for file, path in zip(dataset.files, paths, strict=True):
        name = file.name.rsplit("/", 1)[-1]
        report = re.fullmatch(r"topk_underperforming_(.+)\.csv", name)
        near_best = re.fullmatch(r"moe_dse_(.+)_99\.csv", name)
        if report:
            frame = _default_rule(path, report.group(1))
        elif near_best:
            frame = _near_best(path, near_best.group(1))
        elif re.fullmatch(r"gemm_fp8_(train|test)\.csv", name):
            frame = _gemm(path)
        else:
            raise CorruptFileError(f"{path}: {name} is none of the files that this importer reads")
        frame["source"] = dataset.name
        frame["source_file"] = file.name
        frame["source_sha256"] = file.sha256
        frames.append(frame)
        advance(file.size_bytes)
    return pd.concat(frames, ignore_index=True)


def _gemm(path: Path) -> pd.DataFrame:
    grouped = gather_distinct(_parse(path, ["M", "N", "K"], ["hardware"]), "avg_duration")
    frame = grouped.rename(columns={"M": "m", "N": "n", "K": "k"}).drop(columns="hardware")
    frame["latency_statistic"] = np.where(frame["raw_rows"] > 1, "median_of_distinct", "mean")
    return _device(frame, grouped["hardware"], path).assign(
        family="gemm", batch=1, a_dtype="fp8_e4m3", b_dtype="fp8_e4m3",
        a_layout="row", b_layout="col", lda=frame["k"], ldb=frame["k"],
        backend=UNNAMED, is_library=True,
        out_dtype="bf16", config_known=False, selection="full",
    )  # fmt: skip


def _default_rule(path: Path, device: str) -> pd.DataFrame:
    grouped = gather_distinct(_parse(path, list(_MOE), ["weight_type"]), "avg_duration")
    return _moe(grouped, device, path).assign(
        config_known=False, selection="default_rule", latency_statistic="mean",
    )  # fmt: skip


def _near_best(path: Path, device: str) -> pd.DataFrame:
    raw = _parse(path, [*_MOE, *_TILE, "sample_count"], ["weight_type"])
    grouped = gather_distinct(raw, "avg_duration")
    frame = _moe(grouped, device, path).assign(
        config_known=True, selection="near_best", latency_statistic="mean", split_k=1, num_ctas=1,
        samples=grouped["sample_count"],
    )  # fmt: skip
    return frame.join(grouped[list(_TILE)].rename(columns=_TILE))


def _moe(grouped: pd.DataFrame, device: str, path: Path) -> pd.DataFrame:
    frame = grouped[[*_MOE, "distinct_us", "raw_rows", "source_row"]].rename(columns=_MOE)
    frame["projection"] = grouped["weight_type"].astype(str)
    foreign = set(frame["projection"]) - {"w13", "w2"}
    if foreign:
        raise CorruptFileError(f"{path}: weight_type is {sorted(foreign)[0]!r}; w13 or w2 is known")
    devices = pd.Series([device] * len(frame))
    return _device(frame, devices, path).assign(
        family="grouped_gemm", a_dtype="bf16", b_dtype="bf16", out_dtype="bf16",
        expert_parallel=1, tensor_parallel=1,
        kernel="fused_moe_kernel", backend="triton", library="sglang", is_library=False,
    )  # fmt: skip


def _device(frame: pd.DataFrame, devices: pd.Series[Any], path: Path) -> pd.DataFrame:
    names = devices.astype("category")
    foreign = [name for name in names.cat.categories if name not in GPUS]
    if foreign:
        raise CorruptFileError(f"{path}: hardware {foreign[0]!r} is not known: {', '.join(GPUS)}")
    return frame.assign(
        device_source=names, gpu=names.map(GPUS),
        device_inferred=~names.isin(_EXACT).to_numpy(),
        outcome=Outcome.OK.value, outcome_reason=None, l2_state=None,
    )  # fmt: skip


def _parse(path: Path, numbers: list[str], texts: list[str]) -> pd.DataFrame:
    wanted = [*texts, *numbers, "avg_duration"]
    types: dict[str, pa.DataType] = dict.fromkeys(numbers, pa.int64())
    types |= dict.fromkeys(texts, pa.string()) | {"avg_duration": pa.float64()}
    try:
        options = pa_csv.ConvertOptions(column_types=types, include_columns=wanted)
        table = pa_csv.read_csv(path, convert_options=options)
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(f"{path} is not the expected CSV: {error}") from error
    nulls = [name for name in wanted if table[name].null_count]
    if nulls:
        raise CorruptFileError(f"{path}: column {nulls[0]!r} has empty fields")
    frame: pd.DataFrame = table.to_pandas()
    return frame
