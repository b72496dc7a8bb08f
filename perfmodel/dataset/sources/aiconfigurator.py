"""aiconfigurator's tables: library kernels of three serving frameworks on ten GPUs, shapes only.

The wheel holds one parquet file per GPU, operation, framework and version; times are milliseconds.
What the columns mean, where the names do not tell:

- ``step`` is the number of tokens already in the KV cache, so decode sees ``step + 1`` keys;
- ``num_key_value_heads`` 0 stands for as many as there are query heads;
- ``window_size`` above 0 is sliding-window attention, and a table without the column has none;
- ``inter_size`` is an expert's whole width, of which ``moe_tp_size`` devices hold a share each.

A quantisation that the types alone do not tell (block scales, the kind of 4-bit format) becomes
part of the kernel's name, ``deepgemm-fp8_block``: it is another kernel. Times of block-scaled and
4-bit products include the quantisation of the activations where the framework does it per call.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from perfmodel.dataset.archive import read_members
from perfmodel.dataset.distinct import gather_distinct
from perfmodel.dataset.kernels import backend_of
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.registry import Dataset
from perfmodel.errors import CorruptFileError

VERSION = 1

_FOLDER = r"aiconfigurator_core/systems/data"
_FILES = {
    "gemm": ("gemm", "gemm_perf"),
    "prefill": ("attention", "context_attention_perf"),
    "decode": ("attention", "generation_attention_perf"),
    "encoder": ("encoder_attention", "encoder_attention_perf"),
    "moe": ("moe", "moe_perf"),
}
"""By table: the operation's folder and the file's name."""

GPUS = {
    "a100_sxm": "a100-sxm4-80gb",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "b60": "arc-pro-b60",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100_sxm": "h100-sxm5",
    "h200_sxm": "h200-sxm",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-server",
}
"""Canonical names of its folders. The files' device column agrees, and tells the exact A100."""

_QUANTISED = {
    "bfloat16": ("bf16", "bf16"),
    "float16": ("fp16", "fp16"),
    "fp8": ("fp8_e4m3", "fp8_e4m3"),
    "fp8_block": ("fp8_e4m3", "fp8_e4m3"),
    "nvfp4": ("fp4", "fp4"),
    "int8_wo": ("bf16", "int8"),
    "int4_wo": ("bf16", "int4"),
    "sq": ("int8", "int8"),
    "w4afp8": ("fp8_e4m3", "int4"),
    "w4a16_mxfp4": ("bf16", "fp4"),
    "w4a8_mxfp4_mxfp8": ("fp8_e4m3", "fp4"),
}
"""Types of activations and weights. Weight-only kernels take 16-bit activations, of which the
source does not tell the kind."""

_PLAIN = frozenset({"bfloat16", "float16", "fp8"})

_TEXTS = ["framework", "version", "device", "kernel_source"]
_COLUMNS = {
    "gemm": (["gemm_dtype"], ["m", "n", "k"]),
    "attention": (
        ["attn_dtype", "kv_cache_dtype"],
        ["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step"],
    ),
    "encoder_attention": (["attn_dtype"], ["batch_size", "isl", "num_heads", "head_dim"]),
    "moe": (
        ["moe_dtype", "distribution"],
        [
            "num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
            "moe_tp_size", "moe_ep_size",
        ],
    ),
}  # fmt: skip
_OPTIONAL = {"attention": ["window_size"]}


def read_tables(
    dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each parquet file; see `perfmodel.dataset.sources` for the contract."""
    (file,), (path,) = dataset.files, paths
    tables = {_FILES[table]: table for table in dataset.tables}
    folders, names = ("|".join({pair[i] for pair in tables}) for i in (0, 1))
    pattern = rf"{_FOLDER}/[^/]+/({folders})/[^/]+/[^/]+/({names})\.parquet"
    told = 0
    members = list(read_members(path, pattern))
    for done, (member, content) in enumerate(members, 1):
        gpu, operation, _, _, name = member.removeprefix(_FOLDER + "/").split("/")
        table = tables.get((operation, name.removesuffix(".parquet")))
        if table is not None:
            frame = _read_member(table, operation, gpu, content, f"{path}: {member}")
            frame["source"] = dataset.name
            frame["source_file"] = f"{file.name}/{member}"
            frame["source_sha256"] = file.sha256
            yield table, frame
        reached = file.size_bytes * done // len(members)
        advance(reached - told)
        told = reached


def _read_member(table: str, operation: str, gpu: str, content: bytes, where: str) -> pd.DataFrame:
    raw = _parse(operation, content, where)
    if operation == "gemm":
        raw = raw[raw["m"] > 0].reset_index(drop=True)  # nothing to multiply
    raw["latency"] *= 1e3  # milliseconds
    grouped = gather_distinct(raw, "latency")
    build = {"gemm": _gemm, "attention": _attention, "encoder_attention": _encoder, "moe": _moe}
    frame = build[operation](grouped, where)
    quantised = grouped[{"gemm": "gemm_dtype", "moe": "moe_dtype"}.get(operation, "attn_dtype")]
    frame["kernel"] = _kernel(grouped["kernel_source"], quantised)
    frame["library"] = grouped["framework"].cat.rename_categories(str.lower)
    frame["backend"] = _map(frame["kernel"], backend_of, where, "kernel_source")
    if table in ("prefill", "decode"):
        frame["phase"] = table
    elif table == "encoder":
        frame["phase"] = "prefill"
    frame["library_version"] = grouped["version"]
    frame["device_source"] = grouped["device"]
    frame["gpu"] = GPUS.get(gpu)
    frame["device_inferred"] = False
    repeated = grouped["raw_rows"] > 1
    frame["latency_statistic"] = np.where(repeated, "median_of_distinct", "single")
    for name in ("distinct_us", "raw_rows", "source_row"):
        frame[name] = grouped[name]
    return frame.assign(
        config_known=False, is_library=True, selection="full", outcome=Outcome.OK.value,
        outcome_reason=None, l2_state=None,
    )  # fmt: skip


def _parse(operation: str, content: bytes, where: str) -> pd.DataFrame:
    texts, numbers = _COLUMNS[operation]
    texts = [*_TEXTS, *texts]
    try:
        table = pq.read_table(io.BytesIO(content))
        numbers = [*numbers, *(n for n in _OPTIONAL.get(operation, []) if n in table.column_names)]
        missing = [n for n in (*texts, *numbers, "latency") if n not in table.column_names]
        if missing:
            raise CorruptFileError(f"{where}: column {missing[0]!r} is missing")
        arrays = {n: table[n].cast(pa.string()).dictionary_encode() for n in texts}
        arrays |= {n: table[n].cast(pa.int64()) for n in numbers}
        arrays["latency"] = table["latency"].cast(pa.float64())
        nulls = [n for n in (*texts, *numbers) if arrays[n].null_count and n != "window_size"]
        if nulls:
            raise CorruptFileError(f"{where}: column {nulls[0]!r} has empty fields")
        frame: pd.DataFrame = pa.table(arrays).to_pandas()
    except (pa.ArrowException, ValueError) as error:
        raise CorruptFileError(f"{where} is not the expected parquet file: {error}") from error
    for name in numbers:
        low = frame[name].min()
        if low < 0:
            raise CorruptFileError(f"{where}: column {name!r} holds {low}")
    return frame


def _gemm(grouped: pd.DataFrame, where: str) -> pd.DataFrame:
    frame = grouped[["m", "n", "k"]].copy()
    frame["family"], frame["batch"] = "gemm", 1
    _types(frame, grouped["gemm_dtype"], where)
    # A linear layer: x of (m, k) by the transpose of a weight of (n, k), both contiguous.
    frame["a_layout"], frame["b_layout"] = "row", "col"
    frame["lda"] = frame["ldb"] = frame["k"]
    frame["a_stride_0"], frame["a_stride_1"] = frame["k"], 1
    frame["b_stride_0"], frame["b_stride_1"] = 1, frame["k"]
    return frame


def _attention(grouped: pd.DataFrame, where: str) -> pd.DataFrame:
    frame = _heads(grouped, where)
    kv_heads = grouped["num_key_value_heads"]
    frame["kv_heads"] = kv_heads.where(kv_heads > 0, grouped["num_heads"])
    frame["kv_dtype"] = _map(grouped["kv_cache_dtype"], _weights, where, "kv_cache_dtype")
    frame["prefix_len"] = grouped["step"]
    frame["kv_len"] = grouped["isl"] + grouped["step"]
    frame["causal"] = True
    if "window_size" in grouped:
        window = grouped["window_size"].astype("Int64")
        frame["window_size"] = window.where(window > 0)
    return frame


def _encoder(grouped: pd.DataFrame, where: str) -> pd.DataFrame:
    frame = _heads(grouped, where)
    frame["kv_heads"] = grouped["num_heads"]
    frame["kv_dtype"] = frame["q_dtype"]
    frame["prefix_len"], frame["kv_len"], frame["causal"] = 0, grouped["isl"], False
    return frame


def _heads(grouped: pd.DataFrame, where: str) -> pd.DataFrame:
    frame = grouped[["batch_size", "isl", "num_heads", "head_dim"]].set_axis(
        ["batch", "q_len", "q_heads", "head_dim"], axis=1
    )
    frame["family"], frame["direction"] = "attention", "forward"
    frame["v_head_dim"] = frame["head_dim"]
    frame["q_dtype"] = _map(grouped["attn_dtype"], _weights, where, "attn_dtype")
    frame["out_dtype"] = "bf16"
    return frame


def _moe(grouped: pd.DataFrame, where: str) -> pd.DataFrame:
    renamed = {
        "num_tokens": "tokens", "hidden_size": "hidden_size", "inter_size": "intermediate_size",
        "topk": "top_k", "num_experts": "experts", "moe_tp_size": "tensor_parallel",
        "moe_ep_size": "expert_parallel",
    }  # fmt: skip
    frame = grouped[list(renamed)].rename(columns=renamed)
    frame["family"], frame["projection"] = "grouped_gemm", "both"
    frame["routing"] = grouped["distribution"]
    _types(frame, grouped["moe_dtype"], where)
    return frame


def _types(frame: pd.DataFrame, quantised: pd.Series[Any], where: str) -> None:
    frame["a_dtype"] = _map(quantised, _activations, where, quantised.name)
    frame["b_dtype"] = _map(quantised, _weights, where, quantised.name)
    frame["out_dtype"] = "bf16"


def _activations(quantised: str) -> str:
    return _QUANTISED[quantised][0]


def _weights(quantised: str) -> str:
    return _QUANTISED[quantised][1]


def _kernel(source: pd.Series[Any], quantised: pd.Series[Any]) -> pd.Series[Any]:
    """Return the kernels' names, with the quantisation where the types do not tell it."""
    pairs = source.cat.codes.astype(np.int64) * len(quantised.cat.categories) + quantised.cat.codes
    codes, seen = pd.factorize(pairs)
    names = []
    for pair in seen:
        at, kind = divmod(int(pair), len(quantised.cat.categories))
        name = re.sub(r"[^a-z0-9_.]+", "_", str(source.cat.categories[at]).lower()).strip("_")
        quantisation = quantised.cat.categories[kind]
        names.append(name if quantisation in _PLAIN else f"{name}-{quantisation}")
    unique = sorted(set(names))
    places = np.array([unique.index(name) for name in names], dtype=np.int64)
    return pd.Series(pd.Categorical.from_codes(places[codes], pd.Index(unique)))


def _map(
    words: pd.Series[Any], of: Callable[[str], str], where: str, column: object
) -> pd.Series[Any]:
    """Return ``of`` of each of a categorical column's words."""
    try:
        found = {word: of(word) for word in words.cat.categories}
    except KeyError as error:
        raise CorruptFileError(
            f"{where}: {column} {error.args[0]!r} is not known; known are: {', '.join(_QUANTISED)}"
        ) from None
    return words.map(found).astype("category")
