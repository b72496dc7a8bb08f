"""The shortest time that a device allows for each row: operations at peak, compulsory bytes.

The bounds are physics alone and lean to the generous side: the highest clock, the fastest of the
formats involved, nothing read twice, everything that the L2 can hold already in it. What is
faster than this was not measured, or was not this work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.analytic.rates import L2_BYTES_PER_CLOCK_PER_SM
from perfmodel.dataset.distinct import Floats, flatten
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.dtypes import parse_dtype

ABOVE_PEAK = "above_peak"
ABOVE_BANDWIDTH = "above_bandwidth"
ABOVE_L2 = "above_l2_bandwidth"

_BACKWARD_PRODUCTS = 2.5
"""Backward attention multiplies five matrices (S again, dV, dP, dQ, dK), forward two."""


@dataclass(frozen=True)
class LeastWork:
    """The least that each row must do: operations, and bytes read and written once.

    ``first`` and ``second`` name the columns of the types that are multiplied.
    """

    flops: Floats
    read_bytes: Floats
    written_bytes: Floats
    first: str
    second: str
    narrow: bool = False  # the faster of both formats bounds the rate, not the wider one


def bounds_us(gpu: Gpu, frame: pd.DataFrame, unchecked: dict[str, int]) -> dict[str, Floats]:
    """Return, by gate, the shortest time of each row on ``gpu``, 0 where there is no bound.

    Rows without one are counted by reason in ``unchecked``.
    """
    bounds = {g: np.zeros(len(frame)) for g in (ABOVE_PEAK, ABOVE_BANDWIDTH, ABOVE_L2)}
    for family in frame["family"].unique():
        here = (frame["family"] == family).to_numpy()
        work = _LEAST.get(family)
        if work is None:
            reason = "no bound for this family"
            unchecked[reason] = unchecked.get(reason, 0) + int(here.sum())
            continue
        part = frame[here]
        for gate, least in _of_family(gpu, part, work(part), unchecked).items():
            bounds[gate][here] = least
    return bounds


def _of_family(
    gpu: Gpu, frame: pd.DataFrame, least: LeastWork, unchecked: dict[str, int]
) -> dict[str, Floats]:
    peak = _peak_flops_per_us(gpu, frame, least)
    unknown = int(np.isnan(peak).sum())
    if unknown:
        reason = f"no peak known for its dtype on {gpu.name}"
        unchecked[reason] = unchecked.get(reason, 0) + unknown
    # From a flushed L2 every operand is read through DRAM, and only what the L2 holds of the result
    # may still be unwritten when the clock stops. From a warm one, an L2's worth of all is spared.
    reads, writes = least.read_bytes, least.written_bytes
    cold = _column(frame, "l2_state").eq("cold").to_numpy()
    through_dram = np.where(
        cold,
        reads + np.maximum(writes - gpu.l2_bytes, 0),
        np.maximum(reads + writes - gpu.l2_bytes, 0),
    )
    return {
        ABOVE_PEAK: np.nan_to_num(least.flops / peak),
        ABOVE_BANDWIDTH: through_dram / (gpu.dram_bandwidth_gb_per_s * 1e3),
        ABOVE_L2: np.maximum(reads, writes) / l2_bytes_per_us(gpu),
    }


def l2_bytes_per_us(gpu: Gpu) -> float:
    """Return what the L2 delivers at most at the highest clock; infinite where unknown."""
    if gpu.l2_bandwidth_gb_per_s is not None:
        return gpu.l2_bandwidth_gb_per_s * 1e3 * _clock_headroom(gpu)
    if gpu.vendor != "nvidia":
        return np.inf
    # What one SM reads from L2 a clock, at most (Volta to Blackwell).
    return gpu.sm_count * L2_BYTES_PER_CLOCK_PER_SM * gpu.boost_clock_mhz * _clock_headroom(gpu)


def _gemm(frame: pd.DataFrame) -> LeastWork:
    m, n, k, batch = (_numbers(frame, c) for c in ("m", "n", "k", "batch"))
    a, b, out = (_bytes_each(frame, c) for c in ("a_dtype", "b_dtype", "out_dtype"))
    return LeastWork(
        flops=2 * m * n * k * batch,
        read_bytes=batch * (m * k * a + k * n * b) * (m * n > 0),
        written_bytes=batch * m * n * out,
        first="a_dtype",
        second="b_dtype",
    )


def _attention(frame: pd.DataFrame) -> LeastWork:
    queries, pairs, keys = attention_counts(frame)
    heads, kv_heads, size, v_size = (
        _numbers(frame, c) for c in ("q_heads", "kv_heads", "head_dim", "v_head_dim")
    )
    q, kv, out = (_bytes_each(frame, c) for c in ("q_dtype", "kv_dtype", "out_dtype"))
    # New keys and values may be read in either type: before they are cached, or after.
    kv = np.where(q > 0, np.minimum(q, kv), kv)
    flops = 2 * (size + v_size) * pairs * heads
    reads = queries * heads * size * q + keys * kv_heads * (size + v_size) * kv
    writes = queries * heads * v_size * out
    backward = _column(frame, "direction").eq("backward").to_numpy()
    return LeastWork(
        flops=np.where(backward, _BACKWARD_PRODUCTS * flops, flops),
        read_bytes=np.where(backward, reads + writes, reads),
        written_bytes=np.where(backward, reads, writes),
        first="q_dtype",
        second="kv_dtype",
        narrow=True,
    )


def attention_counts(frame: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
    """Return each row's queries, visible (query, key) pairs of a head, and keys that any query
    sees, over its whole batch.
    """
    causal = _column(frame, "causal").eq(True).to_numpy()
    window = _numbers(frame, "window_size", np.inf)
    counts = _counts(
        _numbers(frame, "q_len"), _numbers(frame, "kv_len"), causal, window
    ) * _numbers(frame, "batch", 1.0)
    if "q_lens" in frame and frame["q_lens"].notna().any():
        lists = np.flatnonzero(frame["q_lens"].notna())
        q, at = flatten(frame["q_lens"].iloc[lists])
        kv, _ = flatten(frame["kv_lens"].iloc[lists])
        row = lists[at]
        counts[:, lists] = 0
        for total, part in zip(counts, _counts(q, kv, causal[row], window[row]), strict=True):
            np.add.at(total, row, part)
    return counts[0], counts[1], counts[2]


def _counts(q: Floats, kv: Floats, causal: NDArray[np.bool_], window: Floats) -> Floats:
    """Return queries, pairs and keys seen, one sequence an item: (3, N).

    The last query sees all ``kv`` keys and each one before it one key fewer, if causal; none sees
    more than ``window``. Query i of q sees min(kv - q + 1 + i, window) keys.
    """
    first = np.maximum(kv - q, 0) + 1
    most = np.minimum(window, kv)
    growing = np.clip(most - first, 0, q)  # queries that see fewer than the most
    causal_pairs = growing * first + growing * (growing - 1) / 2 + (q - growing) * most
    causal_keys = np.minimum(kv, window + q - 1)
    return np.stack([
        q,
        np.where(causal, causal_pairs, q * kv),
        np.where(causal, causal_keys, kv) * (q > 0),
    ])  # fmt: skip


def _grouped_gemm(frame: pd.DataFrame) -> LeastWork:
    tokens, top_k, experts, hidden, inner = (
        _numbers(frame, c)
        for c in ("tokens", "top_k", "experts", "hidden_size", "intermediate_size")
    )
    ep, tp = (_numbers(frame, c, 1.0) for c in ("expert_parallel", "tensor_parallel"))
    a, b, out = (_bytes_each(frame, c) for c in ("a_dtype", "b_dtype", "out_dtype"))
    width = inner / tp
    projection = _column(frame, "projection")
    w13, w2 = projection.eq("w13").to_numpy(), projection.eq("w2").to_numpy()
    # With both projections an expert without a gate has two matrices, one with it three.
    matrices = np.where(w13, 2.0, np.where(w2, 1.0, 2.0))
    # How many of the pairs fall on this device's experts depends on the routing. An even one over
    # all experts has all devices share alike; any other may leave this device with nothing to do.
    spread = _column(frame, "routing").eq("balanced").to_numpy()
    full = spread & (tokens * top_k >= experts)
    pairs = np.where(ep == 1, tokens * top_k, np.where(full, np.floor(tokens * top_k / ep), 0))
    # A balanced routing reaches at least as many experts as one drawn blindly, on average.
    share = np.minimum(top_k / np.maximum(experts, 1), 1)
    drawn = experts * (1 - (1 - share) ** tokens)
    touched = np.where(spread, drawn, np.minimum(experts, top_k))
    touched = np.where(ep == 1, touched, np.where(full, np.floor(drawn / ep), 0))
    touched = np.where(tokens > 0, touched, 0)
    some = pairs > 0
    return LeastWork(
        flops=2 * pairs * hidden * width * matrices,
        read_bytes=tokens * np.where(w2, width, hidden) * a * some
        + touched * hidden * width * matrices * b,
        written_bytes=tokens * np.where(w13, width, hidden) * out * some,
        first="a_dtype",
        second="b_dtype",
    )


_LEAST: dict[str, Callable[[pd.DataFrame], LeastWork]] = {
    "gemm": _gemm,
    "attention": _attention,
    "grouped_gemm": _grouped_gemm,
}


def _peak_flops_per_us(gpu: Gpu, frame: pd.DataFrame, least: LeastWork) -> Floats:
    first, first_names = pd.factorize(frame[least.first].astype(object), use_na_sentinel=False)
    second, second_names = pd.factorize(frame[least.second].astype(object), use_na_sentinel=False)
    peaks = np.full((len(first_names), len(second_names)), np.nan)
    for i, a_dtype in enumerate(first_names):
        for j, b_dtype in enumerate(second_names):
            peaks[i, j] = _peak_tflops(gpu, str(a_dtype), str(b_dtype), least.narrow) * 1e6
    at_peak: Floats = peaks[first, second] if len(frame) else np.empty(0)
    return at_peak * _clock_headroom(gpu)


def _peak_tflops(gpu: Gpu, a_dtype: str, b_dtype: str, narrow: bool) -> float:
    wide = a_dtype if parse_dtype(a_dtype).bits >= parse_dtype(b_dtype).bits else b_dtype
    names = {a_dtype, b_dtype} if narrow else {wide}
    rates = [
        rates[name]
        for rates in (gpu.tensor_tflops, gpu.plain_tflops)
        for name in names
        if name in rates
    ]
    return max(rates) if rates else np.nan


def _clock_headroom(gpu: Gpu) -> float:
    # Peaks are stated at the boost clock; some devices run above it.
    return max(1.0, (gpu.max_clock_mhz or gpu.boost_clock_mhz) / gpu.boost_clock_mhz)


def _bytes_each(frame: pd.DataFrame, name: str) -> Floats:
    codes, names = pd.factorize(frame[name].astype(object))
    sizes = np.array([*(parse_dtype(str(n)).bits / 8 for n in names), 0.0], dtype=np.float64)
    each: Floats = np.take(sizes, codes)
    return each


def _numbers(frame: pd.DataFrame, name: str, absent: float = 0.0) -> Floats:
    if name not in frame:
        return np.full(len(frame), absent)
    return np.asarray(frame[name].astype(np.float64).fillna(absent), dtype=np.float64)


def _column(frame: pd.DataFrame, name: str) -> pd.Series[Any]:
    if name in frame:
        return frame[name].astype(object)
    return pd.Series([None] * len(frame), index=frame.index, dtype=object)
