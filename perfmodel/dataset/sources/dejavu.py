"""triton-dejavu caches of vLLM's Triton attention on H100: the winner of 240 to 540 configs each.

A key lists the values of the autotuner's key and then types; the winner is text
(``BLOCK_M: 64, num_warps: 4``) and its time milliseconds, from CUDA graphs. No key holds the batch
size, so ``batch`` is null and the lengths are those of the longest sequence; where the average
differs it is kept among the extras as ``avg_seq_q`` and ``avg_seq_k``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfmodel.dataset.distinct import as_objects
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.registry import Dataset
from perfmodel.errors import CorruptFileError, PerfmodelError
from perfmodel.problems.dtypes import parse_dtype

VERSION = 1

_GPUS = {"gpu_NVIDIA_H100_80GB_HBM3": "h100-sxm5"}
_TILE = {
    "BLOCK_M": "block_m", "BLOCK_N": "block_n", "num_warps": "num_warps",
    "num_stages": "num_stages", "num_ctas": "num_ctas", "maxnreg": "maxnreg",
}  # fmt: skip

Key = Mapping[str, str]


def read(dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]) -> pd.DataFrame:
    """Read caches by their paths; see `perfmodel.dataset.sources` for the contract."""
    rows: list[dict[str, Any]] = []
    for file, path in zip(dataset.files, paths, strict=True):
        parts = file.name.split("/")
        device = next((part for part in parts if part in _GPUS), None)
        compiler = next((p for p in parts if re.fullmatch(r"triton_[\d.]+", p)), None)
        if device is None or compiler is None:
            raise CorruptFileError(f"{path}: {file.name} names no known GPU or no Triton version")
        for row in _file(path):
            rows.append(row | {
                "source_file": file.name, "source_sha256": file.sha256, "gpu": _GPUS[device],
                "device_source": device, "compiler_version": compiler.replace("_", " "),
            })  # fmt: skip
        advance(file.size_bytes)
    frame = pd.DataFrame(rows)
    frame["distinct_us"] = as_objects(list(frame["distinct_us"]))
    return frame.assign(
        family="attention", direction="forward", source=dataset.name, backend="triton",
        library="vllm-triton-backend", is_library=False, config_known=True, selection="winner",
        device_inferred=False, latency_statistic="single", outcome=Outcome.OK.value,
        outcome_reason=None, l2_state=None,
    )  # fmt: skip


def _file(path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        content = json.loads(path.read_bytes())
        kernel = content["signature"].rsplit(":", 1)[-1].rstrip(")")
        describe = _KERNELS.get(kernel)
        if describe is None:
            raise ValueError(f"kernel is {kernel!r}; {', '.join(_KERNELS)} are known")
        if content["timings_data"]["labels"] != ["ms"]:
            raise ValueError(f"timings are {content['timings_data']['labels']}, not milliseconds")
        graphs = content["timings_data"]["cuda_graphs"]
        for at, (text, winner) in enumerate(content["cache"].items()):
            values = ast.literal_eval(text)
            key = dict(zip(content["keys"], values, strict=False))
            problem, extras = describe(key, values[len(content["keys"]) :])
            config = dict(part.split(": ") for part in winner.split(", "))
            extras |= {name: value for name, value in config.items() if name not in _TILE}
            (time_ms,) = content["timings"][text]
            rows.append({
                "kernel": kernel, **problem,
                **{
                    ours: None if config[theirs] == "None" else int(config[theirs])
                    for theirs, ours in _TILE.items()
                },
                "config_extras": sorted((name, _json(value)) for name, value in extras.items()),
                "distinct_us": np.array([float(time_ms) * 1e3]), "raw_rows": 1, "source_row": at,
                "timing_method": "cuda_graph" if graphs else "events",
            })  # fmt: skip
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{path} is not the expected cache: {error!r}") from error
    except PerfmodelError as error:
        raise CorruptFileError(f"{path}: {error}") from error
    return rows


def _flash(key: Key, types: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    dtype = str(parse_dtype(types[0]))
    size = int(key["ACTUAL_BLOCK_DMODEL"])
    q_len, kv_len = int(key["MAX_SEQLENS_Q"]), int(key["MAX_SEQLENS_K"])
    return {
        "phase": "prefill", "q_len": q_len, "kv_len": kv_len, "prefix_len": kv_len - q_len,
        "q_heads": int(key["HQ"]), "kv_heads": int(key["HK"]), "head_dim": size,
        "v_head_dim": size, "causal": key["IS_CAUSAL"] == "True", "paged": False,
        "q_dtype": dtype, "kv_dtype": dtype, "out_dtype": dtype,
    }, {}  # fmt: skip


def _unified(key: Key, _types: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    heads, size = int(key["num_query_heads"]), int(key["HEAD_SIZE"])
    q_len, kv_len = int(key["MAX_SEQ_Q"]), int(key["MAX_SEQ_K"])
    extras = {
        ours: key[theirs]
        for theirs, ours, longest in (
            ("AVG_SEQ_Q", "avg_seq_q", "MAX_SEQ_Q"), ("AVG_SEQ_K", "avg_seq_k", "MAX_SEQ_K"),
        )
        if key[theirs] != key[longest]
    }  # fmt: skip
    # The key names no types; 16 bits is what the kernel's caches hold by default.
    return {
        "phase": "decode" if q_len == 1 else "prefill", "q_len": q_len, "kv_len": kv_len,
        "prefix_len": kv_len - q_len, "q_heads": heads,
        "kv_heads": heads // int(key["num_queries_per_kv"]), "head_dim": size, "v_head_dim": size,
        "causal": True, "window_size": int(key["SLIDING_WINDOW"]) or None, "paged": True,
        "page_size": int(key["BLOCK_SIZE"]), "q_dtype": "fp16", "kv_dtype": "fp16",
        "out_dtype": "fp16",
    }, extras  # fmt: skip


def _json(value: str) -> str:
    """Return a value of the winner's text as JSON."""
    read = ast.literal_eval(value) if re.fullmatch(r"-?\d+|True|False|None", value) else value
    return json.dumps(read)


_KERNELS: Mapping[str, Callable[[Key, Sequence[str]], tuple[dict[str, Any], dict[str, str]]]] = {
    "attn_fwd": _flash,
    "kernel_unified_attention_2d": _unified,
}
