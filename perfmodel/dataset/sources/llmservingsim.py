"""LLMServingSim's attention timings inside vLLM: H100 (milliseconds), RTX PRO 6000 (microseconds).

``profiler/v0`` (H100) has a row per launch of one kind, its statistics in milliseconds.
``kv_cache_size`` is the number of keys in all. A prefill's times do not depend on its chunk, which
they would if the chunk came on top; a decode's fall in proportion to its batch, until the device is
full, so the keys are those of the whole batch: each sequence is taken to hold its share of them,
and one key more where they do not divide. ``n_q_head`` is the model's, before tensor parallelism.

``profiler/perf`` (RTX PRO 6000, Server Edition by the repository's own notes) times one launch that
holds a prefill chunk behind ``kv_prefill`` cached tokens, and ``n_decode`` sequences of
``kv_decode`` keys with one query each, in microseconds. The model is in the path alone.

Neither states the type of the H100 tensors: taken as the models' own, bf16.
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

from perfmodel.dataset.distinct import as_objects, gather_distinct
from perfmodel.dataset.kernels import UNNAMED
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.registry import Dataset
from perfmodel.errors import CorruptFileError

VERSION = 1

_V0 = re.compile(r"profiler/v0/perf_models/(?P<gpu>[^/]+)/.+/tp(?P<tp>\d+)/attention\.csv")
_PERF = re.compile(
    r"profiler/perf/(?P<gpu>[^/]+)/(?P<model>[^/]+/[^/]+)/(?P<dtype>[^/]+)/tp(?P<tp>\d+)/attention\.csv"
)
_GPUS = {"H100": "h100-sxm5", "RTXPRO6000": "rtx-pro-6000-server"}
_HEADS = {"meta-llama/Llama-3.1-8B": (32, 8, 128)}
"""Query heads, KV heads and head size of the models, by their published configuration."""

_V0_COLUMNS = [
    "n_embd", "n_q_head", "n_kv_head", "num_tensor_parallel_workers", "batch_size",
    "prefill_chunk_size", "kv_cache_size",
]  # fmt: skip
_PERF_COLUMNS = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"]


def read(dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]) -> pd.DataFrame:
    """Read attention tables by their paths; see `perfmodel.dataset.sources` for the contract."""
    frames = []
    for file, path in zip(dataset.files, paths, strict=True):
        v0, perf = _V0.fullmatch(file.name), _PERF.fullmatch(file.name)
        if v0:
            frame, gpu = _one_kind(path), v0["gpu"]
        elif perf:
            frame, gpu = _mixed(path, perf), perf["gpu"]
        else:
            raise CorruptFileError(f"{path}: {file.name} is none of the paths this importer reads")
        if gpu not in _GPUS:
            raise CorruptFileError(f"{path}: GPU {gpu!r} is not known: {', '.join(_GPUS)}")
        frames.append(
            frame.assign(
                family="attention",
                direction="forward",
                v_head_dim=frame["head_dim"],
                q_dtype="bf16",
                kv_dtype="bf16",
                out_dtype="bf16",
                causal=True,
                library="vllm",
                is_library=True,
                config_known=False,
                selection="full",
                device_source=gpu,
                gpu=_GPUS[gpu],
                device_inferred=True,
                outcome=Outcome.OK.value,
                outcome_reason=None,
                l2_state=None,
                source=dataset.name,
                source_file=file.name,
                source_sha256=file.sha256,
            )
        )
        advance(file.size_bytes)
    return pd.concat(frames, ignore_index=True)


def _one_kind(path: Path) -> pd.DataFrame:
    times = [f"time_stats.attn_{phase}.median" for phase in ("prefill", "decode")]
    raw = _parse(path, _V0_COLUMNS, ["is_prefill", "attention_backend"], times)
    prefill = raw["is_prefill"].eq("True").to_numpy()
    raw["us"] = np.where(prefill, raw[times[0]], raw[times[1]]) * 1e3
    grouped = gather_distinct(raw.drop(columns=times), "us")
    prefill = grouped["is_prefill"].eq("True").to_numpy()
    chunk = np.where(prefill, grouped["prefill_chunk_size"], 1)
    ways = grouped["num_tensor_parallel_workers"]
    backend = grouped["attention_backend"].str.lower()
    batch, keys = grouped["batch_size"].to_numpy(), grouped["kv_cache_size"].to_numpy()
    share, over = keys // batch, keys % batch
    uneven = over > 0
    return pd.DataFrame(
        {
            "phase": np.where(prefill, "prefill", "decode"),
            "batch": batch,
            "q_len": np.where(uneven, np.nan, chunk),
            "kv_len": np.where(uneven, np.nan, share),
            "prefix_len": np.where(uneven, np.nan, share - chunk),
            "q_lens": _lists(uneven, np.ones_like(over), over - 1, batch - over, 1),
            "kv_lens": _lists(uneven, share + 1, over - 1, batch - over, share),
            "q_heads": grouped["n_q_head"] // ways,
            "kv_heads": grouped["n_kv_head"] // ways,
            "head_dim": grouped["n_embd"] // grouped["n_q_head"],
            "kernel": backend,
            "backend": backend,
            "latency_statistic": np.where(grouped["raw_rows"] > 1, "median_of_distinct", "median"),
            **{name: grouped[name] for name in ("distinct_us", "raw_rows", "source_row")},
        }
    )


def _mixed(path: Path, match: re.Match[str]) -> pd.DataFrame:
    if match["model"] not in _HEADS or match["dtype"] != "bf16":
        raise CorruptFileError(
            f"{path}: model {match['model']} in {match['dtype']} is not known: {', '.join(_HEADS)}"
        )
    q_heads, kv_heads, head_dim = _HEADS[match["model"]]
    ways = int(match["tp"])
    grouped = gather_distinct(_parse(path, _PERF_COLUMNS, [], ["time_us"]), "time_us")
    chunk, cached, decodes, keys = (grouped[c].to_numpy() for c in _PERF_COLUMNS)
    prefill, decode = decodes == 0, chunk == 0
    both = ~prefill & ~decode
    return pd.DataFrame({
        "phase": np.where(prefill, "prefill", np.where(decode, "decode", "mixed")),
        "batch": np.where(prefill, 1, decodes + (chunk > 0)),
        "q_len": _where(prefill, chunk, decode, 1),
        "kv_len": _where(prefill, chunk + cached, decode, keys),
        "prefix_len": _where(prefill, cached, decode, keys - 1),
        "q_lens": _lists(both, chunk, 0, decodes, 1),
        "kv_lens": _lists(both, chunk + cached, 0, decodes, keys),
        "q_heads": q_heads // ways,
        "kv_heads": kv_heads // ways,
        "head_dim": head_dim,
        "backend": UNNAMED,
        "latency_statistic": np.where(grouped["raw_rows"] > 1, "median_of_distinct", "single"),
        **{name: grouped[name] for name in ("distinct_us", "raw_rows", "source_row")},
    })  # fmt: skip


def _where(prefill: Any, of_prefill: Any, decode: Any, of_decode: Any) -> Any:
    return np.where(prefill, of_prefill, np.where(decode, of_decode, np.nan))


def _lists(which: Any, first: Any, more: Any, rest: Any, other: Any) -> Any:
    """Return, where ``which``, the list of 1 + ``more`` times ``first``, ``rest`` times ``other``;
    None elsewhere.
    """
    columns = [np.broadcast_to(c, which.shape) for c in (which, first, more, rest, other)]
    return as_objects([
        [int(a)] * (1 + int(m)) + [int(b)] * int(n) if hit else None
        for hit, a, m, n, b in zip(*columns, strict=True)
    ])  # fmt: skip


def _parse(path: Path, numbers: list[str], texts: list[str], times: list[str]) -> pd.DataFrame:
    wanted = [*numbers, *texts, *times]
    types: dict[str, pa.DataType] = dict.fromkeys(numbers, pa.int64())
    types |= dict.fromkeys(texts, pa.string()) | dict.fromkeys(times, pa.float64())
    try:
        options = pa_csv.ConvertOptions(column_types=types, include_columns=wanted)
        table = pa_csv.read_csv(path, convert_options=options)
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(f"{path} is not the expected CSV: {error}") from error
    nulls = [name for name in (*numbers, *texts) if table[name].null_count]
    if nulls:
        raise CorruptFileError(f"{path}: column {nulls[0]!r} has empty fields")
    frame: pd.DataFrame = table.to_pandas()
    return frame
