"""What an evaluation answers: one record a number, as JSON or as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rich.table import Table

ALL = "all"
OURS = "perfmodel"
LARGE = "perfmodel-large"
ANALYTIC = "analytic"
GATES = "gates"


@dataclass(frozen=True)
class Record:
    """One number; unused fields are ``None``. Errors, picks and shares are fractions.

    ``who`` is ``perfmodel`` (the shipped kind of model), ``perfmodel-large``, ``analytic`` (our
    estimate alone) or a baseline; ``gates`` counts rows dropped at import. ``cell`` is a device,
    ``DEVICE->DEVICE``, a size, ``DEVICE/SUITE``, a table, or ``all``. ``k`` is how many first
    picks count, ``budget`` how many problems were measured on the target beforehand (in ``replay``:
    how many configurations of a problem may be timed), ``n`` the rows or problems behind the value
    (configurations for ``decision_us``).
    """

    protocol: str
    who: str
    metric: str
    value: float
    family: str | None = "gemm"
    dtype: str | None = None
    cell: str | None = None
    k: int | None = None
    budget: int | None = None
    n: int | None = None

    def with_budget(self, problems: int) -> Record:
        """Return the record of a run that first measured so many problems."""
        return replace(self, budget=problems)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the documented order."""
        values = asdict(self)
        return {name: values[name] for name in JSON_FIELDS}


BUDGETED = {"replay": "timed"}
"""What a protocol's ``budget`` counts, where that is not problems."""

JSON_FIELDS = (
    "protocol", "who", "family", "dtype", "cell", "k", "budget", "metric", "value", "n",
)  # fmt: skip


def to_json(records: Iterable[Record]) -> str:
    """Return all records as one JSON list, one record a line."""
    lines = ",\n".join(json.dumps(record.to_dict()) for record in records)
    return f"[\n{lines}\n]" if lines else "[]"


def with_all(records: Sequence[Record]) -> list[Record]:
    """Return the records and, for each metric, one over all its cells.

    It is the unweighted mean of the cells; of minima the minimum and of maxima the maximum. A
    metric that is missing in one of the protocol's cells gets none, nor does one with one cell.
    """
    cells = {r.cell for r in records}
    groups: dict[Record, list[Record]] = {}
    for record in records:
        groups.setdefault(replace(record, cell=ALL, value=0.0, n=None), []).append(record)
    out = list(records)
    for key, members in groups.items():
        if len(members) == len(cells) > 1:
            value = _over_cells(key.metric, [m.value for m in members])
            known = [m.n for m in members if m.n is not None]
            out.append(replace(key, value=value, n=sum(known) if known else None))
    return out


def averaged(groups: Sequence[Sequence[Record]]) -> list[Record]:
    """Return the mean record over repeated draws; each group holds one draw's records."""
    found: dict[Record, list[Record]] = {}
    for group in groups:
        for record in group:
            found.setdefault(replace(record, value=0.0, n=None), []).append(record)
    return [
        replace(
            key,
            value=_over_cells(key.metric, [r.value for r in records]),
            n=round(float(np.mean([r.n or 0 for r in records]))),
        )
        for key, records in found.items()
    ]


def gate_records(protocol: str, tables: Mapping[str, Any]) -> list[Record]:
    """Return how many rows each quality gate dropped when the named tables were imported."""
    return [
        Record(protocol, GATES, f"dropped_{gate}", float(rows), cell=name, n=int(report["rows"]))
        for name, report in tables.items()
        for gate, rows in report["rows_dropped"].items()
    ]


def tables(records: Sequence[Record]) -> list[Table]:
    """Return one table to print per protocol: a line a cell and contender, its main metrics.

    JSON has every record; a table has the metrics of `HEADLINES`.
    """
    from rich.table import Table  # noqa: PLC0415 - start-up time

    found = []
    for protocol in dict.fromkeys(r.protocol for r in records):
        mine = [r for r in records if r.protocol == protocol and r.who != GATES]
        columns = sorted({c for c in map(_column, mine) if c is not None})
        table = Table(title=protocol, title_justify="left", box=None, pad_edge=False)
        for head in ("cell", "who"):
            table.add_column(head, no_wrap=True)
        for column in columns:
            table.add_column(column[1], justify="right", no_wrap=True)
        at = {(_line(r), _column(r)): _shown(r) for r in mine}
        lines = dict.fromkeys(_line(r) for r in mine)
        cells = sorted(dict.fromkeys(cell for cell, _ in lines), key=lambda c: c.startswith(ALL))
        for cell in cells:
            members = [line for line in lines if line[0] == cell]
            for i, line in enumerate(members):
                shown = (at.get((line, column), "") for column in columns)
                table.add_row(cell if i == 0 else "", line[1], *shown)
            table.add_section()
        found.append(table)
    return found


def gate_lines(records: Sequence[Record]) -> list[str]:
    """Return one line a table: how many of its rows each gate dropped."""
    lines: dict[tuple[str, int], list[str]] = {}
    for r in records:
        if r.who == GATES:
            text = f"{r.metric.removeprefix('dropped_')} {r.value:,.0f}"
            lines.setdefault((r.cell or "", r.n or 0), []).append(text)
    return [
        f"{cell}: {n:,} rows imported; dropped by gates: {', '.join(dict.fromkeys(texts))}"
        for (cell, n), texts in lines.items()
    ]


def _over_cells(metric: str, values: Sequence[float]) -> float:
    if metric.endswith("_min"):
        return min(values)
    return max(values) if metric.endswith("_max") else float(np.mean(values))


def _line(record: Record) -> tuple[str, str]:
    cell = record.cell or "-"
    if record.family not in (None, "gemm"):
        cell = f"{record.family} {cell}"  # one protocol may have several
    if record.dtype is not None:
        cell += f" {record.dtype}"
    if record.budget is not None:
        cell += f", {record.budget} {BUDGETED.get(record.protocol, 'problems')}"
    return cell, record.who


def _column(record: Record) -> tuple[int, str] | None:
    """Return place and title of a record's column, ``None`` for one that only JSON shows."""
    if record.metric == "decision_us":
        return (len(HEADLINES) + (record.n or 0), f"us a decision\nof {record.n}")
    for place, (metric, k, title) in enumerate(HEADLINES):
        if (record.metric, record.k) == (metric, k):
            return (place, title)
    return None


def _shown(record: Record) -> str:
    if record.metric.startswith(("error", "width")):
        return f"{100 * record.value:.1f} %"
    if record.metric.startswith(("trials", "timed")):
        return f"{record.value:,.1f}".removesuffix(".0")
    if record.metric in ("train_s", "decision_us"):
        return f"{record.value:,.0f}"
    if record.metric in ("artifact_mb", "cli_start_ratio", "unseen_over_seen"):
        return f"{record.value:.2f}"
    return f"{record.value:.4f}"


HEADLINES: tuple[tuple[str, int | None, str], ...] = (
    ("timed_mean", None, "timed\nmean"),
    ("error_mean", None, "error\nmean"),
    ("error_median", None, "\nmedian"),
    ("error_p90", None, "\np90"),
    ("hit", 1, "hit\nfirst"),
    ("hit", 5, "\nof 5"),
    ("hit", 10, "\nof 10"),
    ("pick_mean", 1, "top-1\nmean"),
    ("pick_p5", 1, "\np5"),
    ("pick_min", 1, "\nmin"),
    ("pick_share99", 1, "\nshare99"),
    ("pick_mean", 3, "top-3\nmean"),
    ("pick_mean", 5, "top-5\nmean"),
    ("pick_mean", 10, "top-10\nmean"),
    ("trials99", None, "trials\nto 99 %"),
    ("trials99_max", None, "\nat most"),
    ("trials98", None, "\nto 98 %"),
    ("illegal_rejected", None, "failures\nrejected"),
    ("legal_rejected", None, "successes\nrejected"),
    ("coverage90", None, "coverage\nof 90 %"),
    ("width90", None, "median\nwidth"),
    ("unseen_over_seen", None, "unseen\n/ seen"),
    ("train_s", None, "training\ns"),
    ("artifact_mb", None, "model\nMB"),
    ("cli_start_ratio", None, "start\n/ pandas"),
)
"""Metric, k and title of the columns of printed tables."""
