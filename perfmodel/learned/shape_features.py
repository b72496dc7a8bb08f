"""Named, versioned columns for kernels whose tile is unknown.

Sizes and hardware enter as ratios to the analytic estimate, as waves and as the fill of the last
wave under the tiles that libraries ship, so that a device never measured is described in the same
words. Sizes themselves enter too: at a fixed size a library takes the same way on many devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.shape import SHAPE_LIMITERS, ShapeEstimate
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.problems.grouped_gemm_table import GroupedGemmTable

Array = NDArray[np.float64]
Column = NDArray[np.floating[Any]] | float

SHAPE_SCHEMA = "shape-1"
"""Changes with every column added, dropped or redefined; a model of another schema is refused."""

TINY = 1e-12
WAVES_MAX = 16.0
"""With more rounds than this, how full the last one is no longer matters."""

ALIGNMENT_MAX = 4096

GEMM_TILES = (
    (128, 128), (256, 128), (128, 256), (64, 128), (128, 64), (64, 64), (64, 256), (32, 64),
    (16, 64),
)  # fmt: skip
"""Rows by columns of the tiles whose waves are counted; among them those of every vendor."""

LIBRARIES = ("sglang", "trtllm", "vllm")
BACKENDS = (
    "cublas", "cutlass", "deepgemm", "default", "flash_attention", "flash_attention_2",
    "flash_attention_3", "flash_attention_4", "flashinfer", "marlin", "triton", "trtllm",
)  # fmt: skip

PADDED_SIZES = (64, 128, 256)
QUERY_TILES = (64, 128)

EXPERT_TILES = ((16, 128), (64, 128), (128, 256))
"""Rows of an expert's tokens by columns, as frameworks choose them for few, some and many."""


class Log(NamedTuple):
    """A column on its way: its logarithm to base 2 is the feature."""

    of: Any


_ROWS, _COLS = np.array(GEMM_TILES, dtype=np.float64).T[:, :, None]
_GEMM_NAMES = tuple(f"{rows}x{cols}" for rows, cols in GEMM_TILES)
_PADDED = np.array(PADDED_SIZES, dtype=np.float64)[:, None]
_QUERIES = np.array(QUERY_TILES, dtype=np.float64)[:, None]
_ATTENTION_NAMES = tuple(f"{kind}{rows}" for rows in QUERY_TILES for kind in ("q", "packed"))


def gemm_shape_columns(p: GemmTable, gpu: Gpu, e: ShapeEstimate) -> dict[str, Column]:
    """Return every feature of matrix products by name, each one value or one a row."""
    m, n, k = (np.asarray(v, dtype=np.float64) for v in (p.m, p.n, p.k))
    batch = np.asarray(p.batch, dtype=np.float64)
    l2 = float(gpu.l2_bytes)
    columns = _terms(e, gpu, p.compute_dtype.name)
    columns |= {
        "a_over_l2": Log(batch * m * k * p.a_dtype.bytes / l2),
        "b_over_l2": Log(batch * n * k * p.b_dtype.bytes / l2),
        "out_over_l2": Log(batch * m * n * p.out_dtype.bytes / l2),
        "m": Log(m),
        "n": Log(n),
        "k": Log(k),
        "aspect": 0.0,  # in place, and set below
        "a_bits": float(p.a_dtype.bits),
        "b_bits": float(p.b_dtype.bits),
        "k_rest64": np.mod(k, 64.0),
        "k_rest128": np.mod(k, 128.0),
    }
    tiles = np.ceil(m / _ROWS) * np.ceil(n / _COLS) * batch
    columns |= _waves(_GEMM_NAMES, tiles / gpu.sm_count)
    padded_m, padded_n = (
        np.ceil(value / _PADDED) * _PADDED / np.maximum(value, 1.0) for value in (m, n)
    )
    for size, pad_m, pad_n in zip(PADDED_SIZES, padded_m, padded_n, strict=True):
        columns[f"pad_m{size}"], columns[f"pad_n{size}"] = pad_m, pad_n
    for name, value in (("m", m), ("n", n), ("k", k)):
        columns[f"{name}_alignment"] = Log(np.gcd(value.astype(np.int64), ALIGNMENT_MAX))
    found = _logged(columns, len(e))
    found["aspect"] = found["m"] - found["n"]
    return found


def attention_shape_columns(p: AttentionTable, gpu: Gpu, e: ShapeEstimate) -> dict[str, Column]:
    """Return every feature of attention by name, each one value or one a row.

    Sequences of unequal lengths enter by their totals and their longest.
    """
    sequences = p.total(p.count)
    q_longest, kv_longest = p.largest(p.q_len), p.largest(p.kv_len)
    group = p.q_heads / p.kv_heads
    l2 = float(gpu.l2_bytes)
    _, key, value, _ = p.row_bytes
    columns = _terms(e, gpu, p.compute_dtype.name)
    per_sm = sequences * p.kv_heads / gpu.sm_count
    columns |= {
        "sequences": Log(sequences),
        "q_longest": Log(q_longest),
        "kv_longest": Log(kv_longest),
        "kv_over_q": 0.0,  # in place, and set below
        "q_heads": Log(p.q_heads),
        "kv_heads": Log(p.kv_heads),
        "group": Log(group),
        "head_dim": p.head_dim,
        "v_head_dim": p.v_head_dim,
        "causal": p.causal,
        "window": Log(np.where(np.isinf(p.window), 2.0**30, p.window)),
        "window_over_kv": np.minimum(p.window / np.maximum(kv_longest, 1.0), 2.0),
        "q_bits": float(p.dtype.bits),
        "kv_bits": float(p.kv_dtype.bits),
        "kv_over_l2": Log(p.keys * p.kv_heads * (key + value) / l2),
        "head_kv_over_l2": Log(kv_longest * (key + value) / l2),
        "heads_per_sm": Log(sequences * p.q_heads / gpu.sm_count),
        "kv_heads_per_sm": Log(per_sm),
        "kv_heads_fill": _fill(per_sm),
    }
    alone = p.total(p.count * np.ceil(p.q_len / _QUERIES)) * p.q_heads
    packed = p.total(p.count * np.ceil(p.q_len * p.per_group(group) / _QUERIES)) * p.kv_heads
    both = np.stack([alone, packed], axis=1).reshape(-1, len(p))
    found = _logged(columns | _waves(_ATTENTION_NAMES, both / gpu.sm_count), len(e))
    found["kv_over_q"] = found["kv_longest"] - found["q_longest"]
    return found


def grouped_gemm_shape_columns(
    p: GroupedGemmTable, gpu: Gpu, e: ShapeEstimate
) -> dict[str, Column]:
    """Return every feature of mixture-of-experts layers by name, each one value or one a row."""
    routed, active = p.routed, np.maximum(p.active, 1.0)
    l2, token, weight = float(gpu.l2_bytes), p.dtype.bytes, p.weight_dtype.bytes
    columns = _terms(e, gpu, p.compute_dtype.name)
    # Frameworks keep a row for every expert of a token, also those that other ranks hold.
    layer = p.tokens * p.top_k
    passed = layer * (p.columns + p.inner + 2.0 * p.hidden) * p.out_dtype.bytes
    columns |= {
        "layer_rows": Log(layer),
        "layer_dram": Log(passed / (gpu.dram_bandwidth_gb_per_s * 1e9) / e.seconds),
        "weights_over_l2": Log(active * p.hidden * (p.columns + p.inner) * weight / l2),
        "expert_over_l2": Log(p.hidden * p.columns * weight / l2),
        "rows_over_l2": Log(routed * (p.columns + p.inner) * token / l2),
        "tokens": Log(p.tokens),
        "routed": Log(routed),
        "held": Log(p.held),
        "top_k": Log(p.top_k),
        "ep": Log(p.ep),
        "active_share": active / p.held,
        "rows_per_expert": Log(routed / active),
        "busiest_over_mean": Log(p.busiest * active / np.maximum(routed, 1.0)),
        "busiest": Log(p.busiest),
        "hidden": Log(p.hidden),
        "inner": Log(p.inner),
        "columns": Log(p.columns),
        "gated": p.gated,
        "with_up": p.with_up,
        "with_down": p.with_down,
        "a_bits": float(p.dtype.bits),
        "b_bits": float(p.weight_dtype.bits),
    }
    for rows, cols in EXPERT_TILES:
        tiles = p.row_tiles(rows)
        columns[f"pad_m{rows}"] = tiles * rows / np.maximum(routed, 1.0)
        wide = np.ceil(np.stack([p.columns, p.hidden]) / cols)
        columns |= _waves((f"up{rows}x{cols}", f"down{rows}x{cols}"), tiles * wide / gpu.sm_count)
    for name, value in (("hidden", p.hidden), ("inner", p.inner)):
        columns[f"{name}_alignment"] = Log(np.gcd(value.astype(np.int64), ALIGNMENT_MAX))
    return _logged(columns, len(e))


def kernel_columns(library: str, backend: str, block_scaled: bool) -> dict[str, Column]:
    """Return what the trees may know of whose kernel it is; versions and GPUs are no columns.

    ``block_scaled`` tells kernels with a scale per block of operands from those with one a tensor.
    """
    columns: dict[str, Column] = {f"library_{name}": float(library == name) for name in LIBRARIES}
    columns |= {f"backend_{name}": float(backend == name) for name in BACKENDS}
    return columns | {"block_scaled": float(block_scaled)}


def backend_on(backend: str, gpu: Gpu) -> str:
    """Return whose kernel it is where a source names the framework alone.

    FlashAttention 3 needs Hopper's asynchronous products and version 4 Blackwell's, so that an
    NVIDIA device with neither runs version 2. The frameworks' unnamed products are torch's linear
    layer, which calls cuBLAS there.
    """
    if gpu.vendor != "nvidia":
        return backend
    if backend == "flash_attention" and not (gpu.can("wgmma") or gpu.can("tmem")):
        return "flash_attention_2"
    return "cublas" if backend == "default" else backend


def shape_matrix(columns: dict[str, Column], rows: int) -> NDArray[np.float32]:
    """Stack columns into one (rows, features) float32 array, row-major."""
    out = np.empty((len(columns), rows))
    for i, value in enumerate(columns.values()):
        out[i] = value
    return out.T.astype(np.float32, order="C")


def _terms(e: ShapeEstimate, gpu: Gpu, dtype: str) -> dict[str, Column | Log]:
    """Every term of the estimate as a ratio; sums of times, bytes and operations never alone."""
    peak = gpu.tensor_tflops.get(dtype) or gpu.plain_tflops.get(dtype, 1.0)
    balance = peak * 1e3 / gpu.dram_bandwidth_gb_per_s
    columns: dict[str, Column | Log] = {
        f"{name}_share": Log(e.by_limiter[name] / e.seconds) for name in SHAPE_LIMITERS
    }
    ideal = {
        "tensor": e.tensor_s, "sfu": e.sfu_s, "fma": e.fma_s, "dram": e.dram_s, "l2": e.l2_s,
    }  # fmt: skip
    columns |= {f"ideal_{name}": Log(value / e.seconds) for name, value in ideal.items()}
    return columns | {
        "seconds_over_launch": Log(e.seconds / e.launch_s),
        "roofline_share": Log(e.roofline_s / e.seconds),
        "one_tile": Log(e.one_tile_s / e.seconds),
        "waves": Log(e.waves),
        "sm_share": e.sm_share,
        "padding": Log(e.padding),
        "longest_share": Log(e.longest_share),
        "resident": e.resident,
        "split": e.split,
        "tiling": e.tiling.astype(np.float64),
        "intensity_over_balance": Log(e.flops / np.maximum(e.bytes_moved, 1.0) / balance),
        "footprint_over_l2": Log(e.footprint_bytes / gpu.l2_bytes),
        "wgmma": float(gpu.can("wgmma")),
        "tmem": float(gpu.can("tmem")),
    }


def _fill(per_sm: Array) -> Array:
    """How full the rounds over the SMs are on average, 1 where there are many."""
    rounds = np.ceil(np.maximum(per_sm, TINY))
    return np.where(per_sm > WAVES_MAX, 1.0, per_sm / rounds)


def _waves(names: Sequence[str], per_sm: Array) -> dict[str, Column | Log]:
    """Rounds over the SMs, and how full they are, of tilings (T, N) by name."""
    columns: dict[str, Column | Log] = {}
    for name, waves, share in zip(names, per_sm, _fill(per_sm), strict=True):
        columns[f"waves_{name}"] = Log(waves)
        columns[f"fill_{name}"] = share
    return columns


def _logged(columns: Mapping[str, Column | Log], rows: int) -> dict[str, Column]:
    """Take all logarithms at once: for a single problem each call costs more than its sums."""
    raw = [value.of for value in columns.values() if isinstance(value, Log)]
    stacked = np.empty((len(raw), rows))
    for i, value in enumerate(raw):
        stacked[i] = value
    logs = iter(np.log2(np.maximum(stacked, TINY)))
    found: dict[str, Column] = {}
    for name, value in columns.items():
        found[name] = next(logs) if isinstance(value, Log) else value
    return found
