"""tokamax's autotuning results: winners of Pallas kernels lowered through Triton, H100 and B200.

A file is JSON whose keys are JSON themselves: problem, then config, then five timings in
milliseconds. Only the winner is kept, for six attention problems two of them. A problem without
any config was not timed and gives no row.

Three kernels share the words of our families. A gated linear unit is the first projection of one
expert. A ragged product is the second projection of ``experts``: its inner size is
``intermediate_size``; where the ragged axis is contracted (a gradient) the number of experts is
not in the file. A kernel that also returns its residuals is another kernel (``-residuals``).
"""

from __future__ import annotations

import json
import math
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

_GPUS = {"nvidia_h100_80gb_hbm3": "h100-sxm5", "nvidia_b200": "b200"}
_TILE = {
    "block_q": "block_m", "block_k": "block_n", "num_warps": "num_warps",
    "num_stages": "num_stages", "split_k": "split_k",
}  # fmt: skip
_BACKWARD_TILE = {
    "block_m1": "block_m", "block_n1": "block_n", "num_warps": "num_warps",
    "num_stages": "num_stages",
}  # fmt: skip
_PRODUCT_TILE = {
    name: name for name in ("block_m", "block_n", "block_k", "num_warps", "num_stages", "split_k")
}

Problem = Mapping[str, Any]


def read(dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]) -> pd.DataFrame:
    """Read result files by their names; see `perfmodel.dataset.sources` for the contract."""
    rows: list[dict[str, Any]] = []
    for file, path in zip(dataset.files, paths, strict=True):
        device, name = file.name.split("/")[-2:]
        kernel = name.removesuffix(".json")
        if kernel not in _KERNELS or device not in _GPUS:
            raise CorruptFileError(
                f"{path}: {device}/{name} is not a file that this importer reads"
            )
        found = _file(path, kernel)
        for row in found:
            row |= {
                "source_file": file.name, "source_sha256": file.sha256, "device_source": device,
                "gpu": _GPUS[device],
            }  # fmt: skip
        rows += found
        advance(file.size_bytes)
    frame = pd.DataFrame(rows)
    frame["distinct_us"] = as_objects(list(frame["distinct_us"]))
    return frame.assign(
        source=dataset.name, backend="triton", library="tokamax", is_library=False,
        config_known=True, selection="winner", device_inferred=False, num_ctas=1,
        latency_statistic="median_of_distinct", outcome=Outcome.OK.value, outcome_reason=None,
        l2_state=None,
    )  # fmt: skip


def _file(path: Path, kernel: str) -> list[dict[str, Any]]:
    describe, tile = _KERNELS[kernel]
    rows = []
    try:
        content = json.loads(path.read_bytes())
        for at, (key, configs) in enumerate(content.items()):
            problem = describe(json.loads(key))
            for text, result in configs.items():
                config = json.loads(text)
                times_ms = [float(t) for t in result["evaluation_times_ms"]]
                extras = [(k, json.dumps(v)) for k, v in config.items() if k not in tile]
                rows.append({
                    "kernel": kernel + problem.get("variant", ""),
                    **{k: v for k, v in problem.items() if k != "variant"},
                    **{ours: config[theirs] for theirs, ours in tile.items() if theirs in config},
                    "config_extras": extras or None,
                    "compile_time_s": result["compile_time_ms"] / 1e3,
                    "distinct_us": np.unique(np.array(times_ms) * 1e3),
                    "samples": 1,
                    "raw_rows": len(times_ms),
                    "source_row": at,
                })  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CorruptFileError(f"{path} is not the expected JSON of timings: {error!r}") from error
    except PerfmodelError as error:
        raise CorruptFileError(f"{path}: {error}") from error
    return rows


def _attention(problem: Problem, direction: str = "forward") -> dict[str, Any]:
    dtype, q = _array(problem["q"])
    (kv_dtype, k), (_, v) = _array(problem["k"]), _array(problem["v"])
    mask = problem["mask"]
    return {
        "family": "attention", "phase": "prefill", "direction": direction,
        "batch": math.prod(q[:-3]), "q_len": q[-3], "kv_len": k[-3], "prefix_len": 0,
        "q_heads": q[-2], "kv_heads": k[-2], "head_dim": q[-1], "v_head_dim": v[-1],
        "causal": bool(mask["is_causal"]), "paged": False,
        "has_bias": problem["bias"] is not None or mask["bool_mask"] is not None,
        "q_dtype": dtype, "kv_dtype": kv_dtype, "out_dtype": dtype,
        "variant": "-residuals" if problem["return_residuals"] else "",
    }  # fmt: skip


def _attention_backward(problem: Problem) -> dict[str, Any]:
    return _attention(problem, "backward")


def _gated_linear_unit(problem: Problem) -> dict[str, Any]:
    (dtype, x), (b_dtype, (inner, _, width)) = _array(problem["x"]), _array(problem["weights"])
    return {
        "family": "grouped_gemm", "tokens": math.prod(x[:-1]), "experts": 1, "top_k": 1,
        "hidden_size": inner, "intermediate_size": width, "expert_parallel": 1,
        "tensor_parallel": 1, "projection": "w13", "routing": "balanced",
        # With this precision 32-bit operands are rounded on the way to the tensor units.
        "a_dtype": "tf32" if dtype == "fp32" else dtype,
        "b_dtype": "tf32" if b_dtype == "fp32" else b_dtype,
        "out_dtype": dtype,
        "variant": "-residuals" if problem["return_residuals"] else "",
    }  # fmt: skip


def _ragged_dot(problem: Problem) -> dict[str, Any]:
    (dtype, lhs), (b_dtype, rhs) = _array(problem["lhs"]), _array(problem["rhs"])
    ((lhs_axis,), (rhs_axis,)), _ = problem["ragged_dot_dimension_numbers"]["dot_dimension_numbers"]
    if lhs_axis == 0:  # tokens are contracted
        sizes = {"intermediate_size": lhs[1], "hidden_size": rhs[1]}
        kind = {"direction": "backward", "variant": "-ragged_contraction"}
    else:
        sizes = {"experts": rhs[0], "intermediate_size": lhs[1], "hidden_size": rhs[3 - rhs_axis]}
        kind = {"direction": "forward", "variant": "" if rhs_axis == 1 else "-transposed"}
    return {
        "family": "grouped_gemm", "tokens": lhs[0], "top_k": 1, "expert_parallel": 1,
        "tensor_parallel": 1, "projection": "w2", "a_dtype": dtype, "b_dtype": b_dtype,
        "out_dtype": dtype, **sizes, **kind,
    }  # fmt: skip


def _array(text: str) -> tuple[str, list[int]]:
    """Read ``bf16[2,1024,8,128]``."""
    found = re.fullmatch(r"(\w+)\[([\d,]+)\]", text)
    if found is None:
        raise ValueError(f"array is {text!r}")
    return str(parse_dtype(found[1])), [int(size) for size in found[2].split(",")]


_KERNELS: Mapping[str, tuple[Callable[[Problem], dict[str, Any]], Mapping[str, str]]] = {
    "pallas_triton_flash_attention": (_attention, _TILE),
    "pallas_triton_flash_attention_vjp": (_attention_backward, _BACKWARD_TILE),
    "pallas_triton_gated_linear_unit": (_gated_linear_unit, _PRODUCT_TILE),
    "pallas_triton_ragged_dot": (_ragged_dot, _PRODUCT_TILE),
}
