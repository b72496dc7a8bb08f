"""Quality gates, run on every import: what cannot be a time of this work on this device.

The gates use physics alone, never a model and never another device. A gate works on the values
behind a row; a row keeps the values that pass, and one that keeps none stays in the table with
outcome ``implausible`` and the gates' names, so that nothing vanishes unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.dataset.distinct import Floats, flatten, summarise
from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import PerfmodelError
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.dtypes import parse_dtype

VERSION = 1
"""Raised whenever a gate changes: tables gated under another version are imported again."""

NOT_FINITE = "not_finite"
NOT_POSITIVE = "not_positive"
ABOVE_PEAK = "above_peak"
ABOVE_BANDWIDTH = "above_bandwidth"

GATES: Mapping[str, str] = {
    NOT_FINITE: "the time is not a finite number",
    NOT_POSITIVE: "the time is zero or negative",
    ABOVE_PEAK: "faster than its operations at the device's dense peak",
    ABOVE_BANDWIDTH: "faster than the compulsory bytes that the L2 cannot spare, through DRAM",
}


@dataclass(frozen=True)
class GateReport:
    """What the gates saw and dropped.

    ``values_dropped`` and ``rows_dropped`` count by gate; a row is dropped when none of its values
    passes. ``unchecked_rows`` counts rows without a physical bound, by reason. ``by_file`` holds
    each source file's rows and dropped rows.
    """

    raw_rows: int
    rows: int
    repeats_dropped: int
    values_dropped: Mapping[str, int] = field(default_factory=dict)
    rows_dropped: Mapping[str, int] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(default_factory=dict)
    unchecked_rows: Mapping[str, int] = field(default_factory=dict)
    by_file: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    version: int = VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def apply_gates(
    frame: pd.DataFrame, load_gpu: Callable[[str], Gpu] | None = None
) -> tuple[pd.DataFrame, GateReport]:
    """Gate the values in ``distinct_us`` and fill in each row's label.

    Args:
        frame: schema columns; ``distinct_us`` holds each row's distinct values in microseconds.
        load_gpu: finds a device by canonical name; by default the catalog.

    Returns:
        The frame with ``latency_us`` (median of the distinct values that pass), its spread, counts,
        ``outcome`` and ``gates``; and the report.
    """
    values, row = flatten(frame["distinct_us"])
    lengths = np.bincount(row, minlength=len(frame))
    bounds, unchecked = physical_bounds_us(frame, load_gpu)
    fired = {
        NOT_FINITE: ~np.isfinite(values),
        NOT_POSITIVE: np.isfinite(values) & (values <= 0),
    }
    sound = ~fired[NOT_FINITE] & ~fired[NOT_POSITIVE]
    for gate, bound in bounds.items():
        fired[gate] = sound & (values < bound[row])
    kept = sound.copy()
    for gate in bounds:
        kept &= ~fired[gate]
    summary = summarise(values[kept], row[kept], len(frame))
    result = frame.assign(**summary.columns())
    dropped = (lengths > 0) & (summary.counts == 0)
    names = np.full(len(frame), "", dtype=object)
    for gate, hit in fired.items():
        rows = np.unique(row[hit])
        names[rows] = [f"{old},{gate}" if old else gate for old in names[rows]]
    result["gates"] = [name or None for name in names]
    result.loc[dropped, "outcome"] = Outcome.IMPLAUSIBLE.value
    result.loc[dropped, "outcome_reason"] = [
        "; ".join(GATES[g] for g in name.split(",")) for name in names[dropped]
    ]
    report = GateReport(
        raw_rows=int(frame["raw_rows"].sum()),
        rows=len(frame),
        repeats_dropped=_repeats(frame, lengths),
        values_dropped={gate: int(hit.sum()) for gate, hit in fired.items()},
        rows_dropped={
            gate: int((dropped & _member(row[hit], len(frame))).sum())
            for gate, hit in fired.items()
        },
        outcomes={str(k): int(v) for k, v in result["outcome"].value_counts().items()},
        unchecked_rows=unchecked,
        by_file=_by_file(result, dropped),
    )
    return result, report


def violations(frame: pd.DataFrame, load_gpu: Callable[[str], Gpu] | None = None) -> dict[str, int]:
    """Return, by gate, how many rows with outcome ``ok`` hold a time that the gate refuses.

    A gated table has none; one that was altered since, or written by others, may.
    """
    ran = frame[frame["outcome"] == Outcome.OK.value]
    fastest = ran["latency_us"].fillna(np.nan).to_numpy(dtype=np.float64)
    if "latency_min_us" in ran:
        fastest = np.fmin(fastest, ran["latency_min_us"].to_numpy(dtype=np.float64))
    bounds, _ = physical_bounds_us(ran, load_gpu)
    found = {
        NOT_FINITE: int((~np.isfinite(fastest)).sum()),
        NOT_POSITIVE: int((fastest <= 0).sum()),
    }
    found |= {
        gate: int(((fastest > 0) & (fastest < bound)).sum()) for gate, bound in bounds.items()
    }
    return found


def physical_bounds_us(
    frame: pd.DataFrame, load_gpu: Callable[[str], Gpu] | None = None
) -> tuple[dict[str, Floats], dict[str, int]]:
    """Return, by gate, the shortest time that each row's device allows, and the rows not covered.

    A row without a bound gets 0. Operations run at the dense peak of the wider operand's type, at
    the highest clock; compulsory bytes that the L2 cannot spare go through DRAM at its full
    bandwidth.
    """
    find = load_gpu or _catalog
    peak_us = np.zeros(len(frame))
    bandwidth_us = np.zeros(len(frame))
    unchecked: dict[str, int] = {}
    gpus = frame["gpu"].astype(object).where(frame["gpu"].notna(), None)
    for name in gpus.unique():
        here = (gpus == name).to_numpy() if name is not None else gpus.isna().to_numpy()
        if name is None:
            unchecked["device not known"] = int(here.sum())
            continue
        try:
            gpu = find(str(name))
        except PerfmodelError as error:
            unchecked[str(error)] = int(here.sum())
            continue
        peak_us[here], bandwidth_us[here] = _bounds_on(gpu, frame[here], unchecked)
    return {ABOVE_PEAK: peak_us, ABOVE_BANDWIDTH: bandwidth_us}, unchecked


def _bounds_on(gpu: Gpu, frame: pd.DataFrame, unchecked: dict[str, int]) -> tuple[Floats, Floats]:
    is_gemm = (frame["family"] == "gemm").to_numpy()
    if not is_gemm.all():
        reason = "no bound for this family"
        unchecked[reason] = unchecked.get(reason, 0) + int((~is_gemm).sum())
    m, n, k, batch = (
        frame[c].fillna(0).to_numpy(dtype=np.float64) for c in ("m", "n", "k", "batch")
    )
    a, b, out = (frame[c].map(_bits).to_numpy(dtype=np.float64) / 8 for c in
                 ("a_dtype", "b_dtype", "out_dtype"))  # fmt: skip
    reads, writes = batch * (m * k * a + k * n * b), batch * m * n * out
    # From a flushed L2 every operand is read through DRAM, and only what the L2 holds of the result
    # may still be unwritten when the clock stops. From a warm one, an L2's worth of all is spared.
    cold = frame["l2_state"].eq("cold").to_numpy() if "l2_state" in frame else False
    through_dram = np.where(
        cold,
        reads + np.maximum(writes - gpu.l2_bytes, 0),
        np.maximum(reads + writes - gpu.l2_bytes, 0),
    )
    bandwidth_us = through_dram / (gpu.dram_bandwidth_gb_per_s * 1e3)
    peak = _peak_flops_per_us(gpu, frame)
    if np.isnan(peak[is_gemm]).any():
        reason = f"no peak known for its dtype on {gpu.name}"
        unchecked[reason] = int(np.isnan(peak[is_gemm]).sum())
    peak_us = np.nan_to_num(2 * m * n * k * batch / peak)
    return np.where(is_gemm, peak_us, 0), np.where(is_gemm, bandwidth_us, 0)


def _peak_flops_per_us(gpu: Gpu, frame: pd.DataFrame) -> Floats:
    peaks = {}
    for a_dtype, b_dtype in set(zip(frame["a_dtype"], frame["b_dtype"], strict=True)):
        wide = a_dtype if _bits(a_dtype) >= _bits(b_dtype) else b_dtype
        rates = [rates[wide] for rates in (gpu.tensor_tflops, gpu.plain_tflops) if wide in rates]
        peaks[a_dtype, b_dtype] = max(rates) * 1e6 if rates else np.nan
    at_peak = np.array(
        [peaks[pair] for pair in zip(frame["a_dtype"], frame["b_dtype"], strict=True)],
        dtype=np.float64,
    )
    # Peaks are stated at the boost clock; some devices run above it.
    return at_peak * max(1.0, (gpu.max_clock_mhz or gpu.boost_clock_mhz) / gpu.boost_clock_mhz)


def _member(rows: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    found = np.zeros(count, dtype=bool)
    found[rows] = True
    return found


def _repeats(frame: pd.DataFrame, lengths: NDArray[np.int64]) -> int:
    return int((frame["raw_rows"].to_numpy() - np.maximum(lengths, 1)).sum())


def _by_file(frame: pd.DataFrame, dropped: NDArray[np.bool_]) -> dict[str, dict[str, int]]:
    table = pd.DataFrame({
        "file": frame["source_file"].astype(object),
        "raw_rows": frame["raw_rows"],
        "rows": 1,
        "ok": (frame["outcome"] == Outcome.OK.value).astype(int),
        "rows_dropped": dropped.astype(int),
    })  # fmt: skip
    sums = table.groupby("file", sort=True).sum()
    return {str(file): {str(k): int(v) for k, v in row.items()} for file, row in sums.iterrows()}


def _bits(name: str) -> int:
    return parse_dtype(name).bits


def _catalog(name: str) -> Gpu:
    from perfmodel.hardware.catalog import load_gpu  # noqa: PLC0415 - reads files only when used

    return load_gpu(name)
