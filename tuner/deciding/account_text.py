"""An account as text: what all configurations share is said once, what varies has columns."""

from __future__ import annotations

import string
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.deciding.accounting import Account, Row

WIDTH = 120
"""Columns of a terminal that no line exceeds."""

_REASON_MIN = 32
"""Columns that a reason needs beside its row; with fewer it stands below it."""

_LABEL = 10
_NAME = "config"


def table_text(account: Account) -> str:
    """Return the account, heading first, then a line for each configuration."""
    rows = account.rows
    shared = _shared(rows)
    varying = _varying(rows, shared)
    return "\n".join([*_heading(account, shared), "", *_table(rows, varying)])


def _heading(account: Account, shared: Mapping[str, str]) -> list[str]:
    counts = ", ".join(f"{count} {fate}" for fate, count in sorted(account.counts().items()))
    loss = "unknown" if account.expected_loss is None else f"{100 * account.expected_loss:.1f} %"
    said = [
        ("kernel", account.kernel),
        ("device", account.device),
        ("policy", str(account.policy)),
        ("decided", account.decided_by),
        ("configs", f"{len(account.rows)}: {counts}"),
    ]
    if shared and len(account.rows) > 1:
        said.append(("all have", ", ".join(f"{name} {value}" for name, value in shared.items())))
    if account.problem is not None:
        said.append(("problem", account.problem))
    if account.model_gpu is not None:
        said.append(("model", account.model_gpu + (f" ({account.basis})" if account.basis else "")))
    if account.bucket is not None:
        said.append(("bucket", account.bucket))
    lines = [line for label, text in said for line in _labelled(label, text)]
    lines.append(f"expected loss  {loss}")
    return lines + [line for note in account.notes for line in _labelled("note", note)]


def _labelled(label: str, text: str) -> list[str]:
    parts = textwrap.wrap(text, WIDTH - _LABEL) or [""]
    return [f"{label if i == 0 else '':<{_LABEL}}{part}".rstrip() for i, part in enumerate(parts)]


def _shared(rows: Sequence[Row]) -> dict[str, str]:
    """What every configuration has alike."""
    first = rows[0].values if rows else {}
    return {
        name: value
        for name, value in first.items()
        if all(row.values.get(name) == value for row in rows)
    }


def _varying(rows: Sequence[Row], shared: Mapping[str, str]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row.values)
    return [name for name in names if name not in shared]


def _table(rows: Sequence[Row], varying: Sequence[str]) -> list[str]:
    if len(rows) == 1 or not all(row.values for row in rows):
        columns = [_NAME]
        cells = [[row.config] for row in rows]
    else:
        columns = list(varying)
        cells = [[row.values.get(name, "-") for name in varying] for row in rows]
    rest = [("fate", [str(row.fate) for row in rows])]
    for title, times in (
        ("predicted us", [row.predicted_us for row in rows]),
        ("measured us", [row.measured_us for row in rows]),
    ):
        if any(time is not None for time in times):
            rest.append((title, ["" if time is None else f"{time:.2f}" for time in times]))
    fixed = _width([("", ["*"]), ("#", [str(rows[-1].position if rows else 0)]), *rest])
    titles, legend = _titles(columns, cells, WIDTH - fixed)
    parts = [
        ("", ["*" if row.chosen else "" for row in rows]),
        ("#", [str(row.position) for row in rows]),
        *((title, [line[i] for line in cells]) for i, title in enumerate(titles)),
        *rest,
    ]
    left = WIDTH - _width(parts)
    reasons = [row.reason or "" for row in rows]
    if any(reasons) and left >= _REASON_MIN:
        return legend + _with_reasons(parts, reasons, left)
    if left >= 0:
        return legend + _with_reasons_below(parts, reasons)
    # A configuration too long for a column stands on lines of its own.
    few = [part for part in parts if part[0] not in titles]
    whole = [
        f"{row.config}{f': {reason}' if reason else ''}"
        for row, reason in zip(rows, reasons, strict=True)
    ]
    return _with_reasons_below(few, whole)


def _titles(
    columns: Sequence[str], cells: Sequence[Sequence[str]], room: int
) -> tuple[list[str], list[str]]:
    """Titles of the columns, short ones with a legend where the names take too much room."""
    parts = [(name, [line[i] for line in cells]) for i, name in enumerate(columns)]
    if columns == [_NAME] or _width(parts) + 2 <= room or len(columns) > len(string.ascii_letters):
        return list(columns), []
    short = string.ascii_letters[: len(columns)]
    legend = ", ".join(f"{letter} {name}" for letter, name in zip(short, columns, strict=True))
    return list(short), [*_labelled("columns", legend), ""]


Part = tuple[str, Sequence[str]]


def _width(parts: Sequence[Part]) -> int:
    """Columns that these take, with two between each and the next, and two behind the last."""
    return sum(2 + max(map(len, (title, *values)), default=0) for title, values in parts)


def _lines(parts: Sequence[Part]) -> list[str]:
    """The header and a line a row, padded."""
    padded = []
    for title, values in parts:
        width = max(map(len, (title, *values)))
        numbers = all(_is_number(value) for value in values)
        padded.append(
            [cell.rjust(width) if numbers else cell.ljust(width) for cell in (title, *values)]
        )
    return ["  ".join(line) + "  " for line in zip(*padded, strict=True)]


def _is_number(text: str) -> bool:
    return not text or text == "-" or text.replace(".", "", 1).isdigit()


def _with_reasons(parts: Sequence[Part], reasons: Sequence[str], left: int) -> list[str]:
    lines = _lines(parts)
    indent = " " * len(lines[0])
    found = [lines[0] + "reason"]
    for line, reason in zip(lines[1:], reasons, strict=True):
        first, *more = textwrap.wrap(reason, left) or [""]
        found += [line + first, *(indent + part for part in more)]
    return [line.rstrip() for line in found]


def _with_reasons_below(parts: Sequence[Part], reasons: Sequence[str]) -> list[str]:
    lines = _lines(parts)
    found = [lines[0].rstrip()]
    for line, reason in zip(lines[1:], reasons, strict=True):
        found += [line.rstrip(), *(" " * 8 + part for part in textwrap.wrap(reason, WIDTH - 8))]
    return found
