"""The full grid on an A100: every config of Triton's tutorial matmul, at five square fp16 sizes.

``SIZE_results.json`` lists what ran (one CUDA-graph timing a config, milliseconds) and
``SIZE_fails.json`` what did not, both with the seconds spent compiling and neither with a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfmodel.dataset.distinct import as_objects
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.registry import Dataset
from perfmodel.errors import CorruptFileError

VERSION = 1

_FIELDS = {
    "BLOCK_SIZE_M": "block_m",
    "BLOCK_SIZE_N": "block_n",
    "BLOCK_SIZE_K": "block_k",
    "GROUP_SIZE_M": "group_m",
    "num_stages": "num_stages",
    "num_warps": "num_warps",
}

COMPILE_CUT_S = 6.0
"""Nothing that the source lists as run compiled for longer: past this, its harness gave up."""

_NO_REASON = "not stated: the source lists it among the failures"
_CUT = f"not stated: the source keeps nothing that compiled for more than {COMPILE_CUT_S:.0f} s"


def read(dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]) -> pd.DataFrame:
    """Read results and failures; see `perfmodel.dataset.sources` for the contract."""
    frames = []
    for file, path in zip(dataset.files, paths, strict=True):
        match = re.search(r"(\d+)_(results|fails)\.json$", file.name)
        if match is None:
            raise CorruptFileError(f"{path}: name is not SIZE_results.json or SIZE_fails.json")
        ran = match.group(2) == "results"
        raw = _records(path, ["ms", "compile_time"] if ran else ["compile_time"])
        frame = _frame(raw, int(match.group(1)), ran)
        frame["source"] = dataset.name
        frame["source_file"] = file.name
        frame["source_sha256"] = file.sha256
        frames.append(frame)
        advance(file.size_bytes)
    return pd.concat(frames, ignore_index=True)


def _records(path: Path, extra: list[str]) -> pd.DataFrame:
    try:
        raw = pd.DataFrame(json.loads(path.read_bytes()))
        names = [*_FIELDS, *extra]
        missing = [name for name in names if name not in raw.columns]
        if missing:
            raise CorruptFileError(f"{path}: field {missing[0]!r} is missing")
        return raw[names].astype(dict.fromkeys(_FIELDS, "int64") | dict.fromkeys(extra, "float64"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{path} is not the expected list of configs: {error}") from error


def _frame(raw: pd.DataFrame, size: int, ran: bool) -> pd.DataFrame:
    tile = list(_FIELDS)
    group = raw.groupby(tile, sort=False).ngroup().to_numpy()
    _, first = np.unique(group, return_index=True)
    frame = raw.loc[first, tile].rename(columns=_FIELDS).reset_index(drop=True)
    frame["compile_time_s"] = raw["compile_time"].to_numpy()[first]
    frame["raw_rows"] = np.bincount(group, minlength=len(first))
    frame["source_row"] = first
    empty: list[float] = []
    values: list[Any] = [empty] * len(first)
    if ran:
        by_config = (raw["ms"] * 1e3).groupby(group)
        values = [np.unique(found.to_numpy()) for _, found in by_config]
        frame["outcome"] = Outcome.OK.value
        frame["outcome_reason"] = None
    else:
        cut = frame["compile_time_s"] > COMPILE_CUT_S
        frame["outcome"] = np.where(cut, Outcome.TIMEOUT.value, Outcome.COMPILE_FAILED.value)
        frame["outcome_reason"] = np.where(cut, _CUT, _NO_REASON)
    frame["distinct_us"] = as_objects(values)
    constants: dict[str, Any] = {
        "family": "gemm", "m": size, "n": size, "k": size, "batch": 1,
        "a_dtype": "fp16", "b_dtype": "fp16", "out_dtype": "fp16",
        "a_layout": "row", "b_layout": "row", "lda": size, "ldb": size,
        "a_stride_0": size, "a_stride_1": 1, "b_stride_0": size, "b_stride_1": 1,
        "split_k": 1, "num_ctas": 1, "config_known": True,
        "kernel": "triton_tutorial_matmul", "backend": "triton", "library": "triton",
        "is_library": False, "selection": "full",
        "latency_statistic": "single", "timing_method": "cuda_graph",
        "device_source": "A100", "gpu": "a100-sxm4-80gb", "device_inferred": True,
    }  # fmt: skip
    return frame.assign(**constants)
