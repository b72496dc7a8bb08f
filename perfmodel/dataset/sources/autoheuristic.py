"""AutoHeuristic's archives: Inductor's Triton GEMM choices, and the library's, on A100 and H100.

Each text file has a JSON header, a CSV header, and one row per timed choice; ``feedback`` is in
milliseconds and infinite where the choice could not be compiled or launched. Files gathered from
model suites repeat one cached number up to hundreds of times, so only distinct values count.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv

from perfmodel.dataset.archive import read_members
from perfmodel.dataset.distinct import as_objects
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.registry import Dataset
from perfmodel.errors import CorruptFileError, PerfmodelError
from perfmodel.problems.dtypes import parse_dtype

VERSION = 1

_DEVICES = {(8, 0): "a100-sxm4-80gb", (9, 0): "h100-sxm5"}
"""By compute capability; the exact device is not stated, but the throughput reached tells it."""

_LIBRARY_CHOICES = {"extern_mm": "cublas", "extern_fallback_mixed_mm": "aten"}

_CHOICE = (
    r"^type=triton_BLOCK-M=(?P<block_m>\d+)_BLOCK-K=(?P<block_k>\d+)_BLOCK-N=(?P<block_n>\d+)"
    r"_numstages=(?P<num_stages>\d+)_numwarps=(?P<num_warps>\d+)$"
)
_TILE = ["block_m", "block_n", "block_k", "num_stages", "num_warps"]

_SIZES = ["m", "k", "n", "mat1_stride_0", "mat1_stride_1", "mat2_stride_0", "mat2_stride_1"]
_WORDS = ["mat1_dtype", "mat2_dtype", "choice"]
_GROUP_M = 8  # fixed in Inductor's mm template

_NO_REASON = "not stated: the source marks it as failed to compile or launch"


def read(dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]) -> pd.DataFrame:
    """Read the archives of ``dataset``; see `perfmodel.dataset.sources` for the contract."""
    frames = []
    for file, path in zip(dataset.files, paths, strict=True):
        members = 0
        for name, content in read_members(path, r".*\.txt"):
            frame = _read_text(content, f"{path}: {name}")
            frame["source"] = dataset.name
            frame["source_file"] = f"{file.name}/{name}"
            frame["source_sha256"] = file.sha256
            frames.append(frame)
            members += 1
        if not members:
            raise CorruptFileError(f"{path} holds no .txt table")
        advance(file.size_bytes)
    return pd.concat(frames, ignore_index=True)


def _read_text(content: bytes, where: str) -> pd.DataFrame:
    first, _, body = content.partition(b"\n")
    header = _header(first, where)
    raw = _parse_csv(body, where)
    grouped = _distinct(raw)
    device_source, gpu = _device(header)
    frame = _problem(grouped, where).join(_config(grouped, where))
    frame["family"] = "gemm"
    frame["kernel"] = np.where(frame["is_library"], grouped["choice"], f"inductor_{header['name']}")
    frame["library"] = "pytorch"
    frame["selection"] = "full"
    frame["device_source"] = device_source
    frame["gpu"] = gpu
    frame["device_inferred"] = None if gpu is None else True
    # Inductor times its choices with Triton's do_bench: events around each launch, L2 flushed
    # before it.
    frame["timing_method"] = "events"
    frame["l2_state"] = "cold"
    frame["latency_statistic"] = "median_of_distinct"
    frame["distinct_us"] = grouped["distinct_us"]
    frame["raw_rows"] = grouped["raw_rows"]
    frame["source_row"] = grouped["first_row"]
    failed = grouped["distinct_us"].map(len) == 0
    frame["outcome"] = np.where(failed, Outcome.COMPILE_FAILED.value, Outcome.OK.value)
    frame["outcome_reason"] = failed.map({True: _NO_REASON, False: None})
    return frame


def _header(line: bytes, where: str) -> dict[str, Any]:
    try:
        header = json.loads(line)
        tuple(header["device_capa"])
        str(header["name"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(
            f"{where}: line 1 is not AutoHeuristic's JSON header (device_capa, name): {error}"
        ) from error
    return dict(header)


def _device(header: dict[str, Any]) -> tuple[str, str | None]:
    capability = tuple(header["device_capa"])
    name = f"capability {'.'.join(map(str, capability))}"
    if "shared_memory" in header:
        name += f", shared_memory {header['shared_memory']}"
    return name, _DEVICES.get(capability)


def _parse_csv(body: bytes, where: str) -> pd.DataFrame:
    text = pa.dictionary(pa.int32(), pa.string())
    types: dict[str, pa.DataType] = dict.fromkeys(_SIZES, pa.int64())
    types |= dict.fromkeys([*_WORDS, "using_tf32"], text)
    types["feedback"] = pa.float64()
    wanted = [*_SIZES, *_WORDS, "feedback"]
    try:
        options = pa_csv.ConvertOptions(column_types=types)
        table = pa_csv.read_csv(io.BytesIO(body), convert_options=options)
        missing = [name for name in wanted if name not in table.column_names]
        if missing:
            raise CorruptFileError(f"{where}: column {missing[0]!r} is missing")
        nulls = [name for name in wanted if table[name].null_count]
        if nulls:
            raise CorruptFileError(f"{where}: column {nulls[0]!r} has empty fields")
    except pa.ArrowException as error:
        raise CorruptFileError(f"{where} is not the expected CSV: {error}") from error
    if "using_tf32" in table.column_names:
        wanted.insert(-1, "using_tf32")
    frame: pd.DataFrame = table.select(wanted).to_pandas()
    return frame


def _distinct(raw: pd.DataFrame) -> pd.DataFrame:
    """Return one row per problem and choice in order of first appearance, its values gathered."""
    keys = [name for name in raw.columns if name != "feedback"]
    group = raw.groupby(keys, sort=False, observed=True, dropna=False).ngroup().to_numpy()
    count = int(group.max()) + 1 if len(group) else 0
    _, first = np.unique(group, return_index=True)
    # Infinite means failed: the absence of a time. Other odd values are the gates' to drop.
    values = pd.DataFrame({"group": group, "us": raw["feedback"].to_numpy() * 1e3})
    values = values[values["us"] != np.inf].drop_duplicates().sort_values(["group", "us"])
    lengths = np.bincount(values["group"], minlength=count)
    lists = np.split(values["us"].to_numpy(), np.cumsum(lengths)[:-1]) if count else []
    grouped = raw.loc[first, keys].reset_index(drop=True)
    grouped["distinct_us"] = as_objects(lists)
    grouped["raw_rows"] = np.bincount(group, minlength=count)
    grouped["first_row"] = first
    return grouped


def _problem(grouped: pd.DataFrame, where: str) -> pd.DataFrame:
    frame = grouped[["m", "n", "k"]].copy()
    frame["batch"] = 1
    frame["a_dtype"] = _dtypes(grouped["mat1_dtype"], where)
    frame["b_dtype"] = _dtypes(grouped["mat2_dtype"], where)
    frame["out_dtype"] = frame["a_dtype"]
    if "using_tf32" in grouped:
        tf32 = (grouped["using_tf32"] == "True") & (frame["a_dtype"] == "fp32")
        frame.loc[tf32, ["a_dtype", "b_dtype"]] = "tf32"
    frame["a_layout"], frame["lda"] = layout_of(
        frame["m"], frame["k"], grouped["mat1_stride_0"], grouped["mat1_stride_1"], where
    )
    frame["b_layout"], frame["ldb"] = layout_of(
        frame["k"], frame["n"], grouped["mat2_stride_0"], grouped["mat2_stride_1"], where
    )
    for operand, source in (("a", "mat1"), ("b", "mat2")):
        for index in (0, 1):
            frame[f"{operand}_stride_{index}"] = grouped[f"{source}_stride_{index}"]
    return frame


def layout_of(
    rows: pd.Series[int], columns: pd.Series[int],
    stride_0: pd.Series[int], stride_1: pd.Series[int], where: str,
) -> tuple[Any, Any]:  # fmt: skip
    """Return layout and leading stride of operands given both strides, arrays of equal length.

    Where both strides are 1 an index of size 1 has no stride of its own: the operand is contiguous
    along the other one.

    Raises:
        CorruptFileError: neither stride is 1, or rows overlap.
    """
    both = (stride_0 == 1) & (stride_1 == 1)
    row = np.where(both, rows == 1, stride_1 == 1)
    leading = np.where(row, stride_0, stride_1)
    packed = np.where(row, columns, rows)
    leading = np.where(both, packed, leading)
    wrong = ((stride_0 != 1) & (stride_1 != 1)) | (leading < packed)
    wrong |= both & (rows > 1) & (columns > 1)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise CorruptFileError(
            f"{where}: a {rows.iloc[at]} x {columns.iloc[at]} operand has strides "
            f"{stride_0.iloc[at]} and {stride_1.iloc[at]}; expected a row- or column-major matrix"
        )
    return np.where(row, "row", "col"), leading


def _config(grouped: pd.DataFrame, where: str) -> pd.DataFrame:
    choice = grouped["choice"].astype("category")
    names = pd.Series(choice.cat.categories.astype(str))
    tiles = names.str.extract(_CHOICE).astype("Float64").astype(float)
    library = names.map(_LIBRARY_CHOICES)
    unread = names[tiles["block_m"].isna() & library.isna()]
    if len(unread):
        raise CorruptFileError(f"{where}: choice {unread.iloc[0]!r} is of an unknown form")
    is_library = library.notna()
    tiles["group_m"] = np.where(is_library, np.nan, _GROUP_M)
    for name in ("split_k", "num_ctas"):
        tiles[name] = np.where(is_library, np.nan, 1)
    tiles["config_known"] = ~is_library
    tiles["is_library"] = is_library
    tiles["backend"] = library.fillna("triton")
    return tiles.iloc[choice.cat.codes.to_numpy()].reset_index(drop=True)


def _dtypes(words: pd.Series[Any], where: str) -> pd.Series[str]:
    categories = words.astype("category").cat.categories
    try:
        names = {word: str(parse_dtype(str(word))) for word in categories}
    except PerfmodelError as error:
        raise CorruptFileError(f"{where}: {error}") from error
    return words.astype(object).map(names)
