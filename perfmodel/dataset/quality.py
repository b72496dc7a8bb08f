"""Quality gates, run on every import: what cannot be a time of this work on this device.

The gates use physics alone, never a model and never another device. A gate works on the values
behind a row; a row keeps the values that pass, and one that keeps none stays in the table with
outcome ``implausible`` and the gates' names, so that nothing vanishes unseen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.dataset.bounds import ABOVE_BANDWIDTH, ABOVE_L2, ABOVE_PEAK, bounds_us
from perfmodel.dataset.distinct import Floats, flatten, summarise
from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import PerfmodelError
from perfmodel.hardware.gpu import Gpu

VERSION = 2
"""Raised whenever a gate changes: tables gated under another version are imported again."""

NOT_FINITE = "not_finite"
NOT_POSITIVE = "not_positive"

SUSPECT_TABLE = "suspect_table"
SIBLINGS_DISAGREE = "siblings_disagree"

FLAGS: Mapping[str, str] = {
    SUSPECT_TABLE: "more than 5 % of this kernel's rows in the file are impossible",
    SIBLINGS_DISAGREE: "a device of the same generation took a time severalfold apart from this",
}
"""Gates of `perfmodel.dataset.table_gates` that mark rows and drop none."""

GATES: Mapping[str, str] = {
    NOT_FINITE: "the time is not a finite number",
    NOT_POSITIVE: "the time is zero or negative",
    ABOVE_PEAK: "faster than its operations at the device's dense peak",
    ABOVE_BANDWIDTH: "faster than the compulsory bytes that the L2 cannot spare, through DRAM",
    ABOVE_L2: "faster than its compulsory bytes through the L2",
}


@dataclass(frozen=True)
class GateReport:
    """What the gates saw and dropped.

    ``values_dropped`` and ``rows_dropped`` count by gate; a row is dropped when none of its values
    passes. ``unchecked_rows`` counts rows without a physical bound, by reason. ``by_file`` holds
    each source file's rows and dropped rows. ``rows_flagged`` counts the marks of `FLAGS`, and
    ``impossible_by_table`` the dropped rows of each file and kernel that has any.
    """

    raw_rows: int
    rows: int
    repeats_dropped: int
    values_dropped: Mapping[str, int] = field(default_factory=dict)
    rows_dropped: Mapping[str, int] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(default_factory=dict)
    unchecked_rows: Mapping[str, int] = field(default_factory=dict)
    by_file: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rows_flagged: Mapping[str, int] = field(default_factory=dict)
    suspect_tables: Sequence[str] = ()
    impossible_by_table: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
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


def merge_reports(reports: Sequence[GateReport]) -> GateReport:
    """Return one report for all parts of a table, each source file being in one part or several."""

    def total(counts: Callable[[GateReport], Mapping[str, int]]) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for report in reports:
            counted.update(counts(report))
        return dict(counted)

    by_file: dict[str, Counter[str]] = {}
    for report in reports:
        for file, counts in report.by_file.items():
            by_file.setdefault(file, Counter()).update(counts)
    return GateReport(
        raw_rows=sum(report.raw_rows for report in reports),
        rows=sum(report.rows for report in reports),
        repeats_dropped=sum(report.repeats_dropped for report in reports),
        values_dropped=total(lambda report: report.values_dropped),
        rows_dropped=total(lambda report: report.rows_dropped),
        outcomes=total(lambda report: report.outcomes),
        unchecked_rows=total(lambda report: report.unchecked_rows),
        by_file={file: dict(counts) for file, counts in by_file.items()},
    )


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
    bounds = {gate: np.zeros(len(frame)) for gate in (ABOVE_PEAK, ABOVE_BANDWIDTH, ABOVE_L2)}
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
        for gate, least in bounds_us(gpu, frame[here], unchecked).items():
            bounds[gate][here] = least
    return bounds, unchecked


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


def _catalog(name: str) -> Gpu:
    from perfmodel.hardware.catalog import load_gpu  # noqa: PLC0415 - reads files only when used

    return load_gpu(name)
