"""Rows out of a store and into another, as JSON lines: one object a row, its table named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.store import decisions, measurements
from tuner.store.schema import DECISIONS, MEASUREMENTS, QUARANTINE, TABLES, Table
from tuner.store.store import Store

FORMAT = "perfmodel-tuning-1"
_BATCH = 500


@dataclass(frozen=True)
class Imported:
    """What came of an import: rows taken by table, and lines refused with the reason."""

    rows: Mapping[str, int]
    refused: tuple[tuple[int, str], ...]
    on_disk: bool


def export_lines(store: Store, tables: Iterable[Table] = TABLES) -> Iterator[str]:
    """Yield every sound row as one line of JSON, a header first."""
    yield json.dumps({"format": FORMAT})
    for table in tables:
        for values in store.rows(table):
            yield json.dumps({"table": table.name, **values}, sort_keys=True, ensure_ascii=False)


def import_lines(store: Store, lines: Iterable[str]) -> Imported:
    """Write the rows of ``lines`` to ``store``; lines that make no sense are refused one by one.

    Of two rows about the same thing the imported one stands. A last line cut short is refused like
    any other.
    """
    by_name = {table.name: table for table in TABLES}
    batches: dict[str, list[dict[str, Any]]] = {name: [] for name in by_name}
    counts = dict.fromkeys(by_name, 0)
    refused: list[tuple[int, str]] = []
    on_disk = True
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, values, reason = _parse(line, by_name)
        if reason:
            refused.append((number, reason))
        if name is None:
            continue
        batches[name].append(values)
        counts[name] += 1
        if len(batches[name]) >= _BATCH:
            on_disk &= store.add_rows(by_name[name], batches[name])
            batches[name] = []
    for name, rows in batches.items():
        if rows:
            on_disk &= store.add_rows(by_name[name], rows)
    return Imported(counts, tuple(refused), on_disk)


def _parse(  # noqa: PLR0911 - one way out for each way that a line can be wrong
    line: str, tables: Mapping[str, Table]
) -> tuple[str | None, dict[str, Any], str | None]:
    """The table and values of a line, or the reason why not; a header is neither."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, {}, f"not JSON: {error}"
    if not isinstance(found, dict):
        return None, {}, f"not an object: {line.strip()[:40]}"
    if "format" in found:
        wrong = f"format is {found['format']!r}, not {FORMAT!r}"
        return None, {}, None if found["format"] == FORMAT else wrong
    table = tables.get(str(found.get("table")))
    if table is None:
        return None, {}, f"table is {found.get('table')!r}; one of: {', '.join(tables)}"
    missing = [column for column in table.columns if column not in found]
    if missing:
        return None, {}, f"no {', '.join(missing)}"
    values = {column: found[column] for column in table.columns}
    for column, value in values.items():
        if not _fits(column in table.real, value):
            return None, {}, f"{column} is {value!r}"
    if not _makes_sense(table, values):
        return None, {}, f"no {table.name} row: outcome, samples, policy or config make no sense"
    return table.name, values, None


def _fits(real: bool, value: Any) -> bool:
    if real:
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return isinstance(value, str)


def _makes_sense(table: Table, values: Mapping[str, Any]) -> bool:
    if table is MEASUREMENTS:
        return measurements.to_timing(values) is not None
    if table is DECISIONS:
        return decisions.to_decision(values) is not None
    return table is QUARANTINE and bool(values["config"])
