"""Shapes to tune: a CSV or JSON-lines file with a named field for each argument of a problem."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from perfmodel.batch.requests import CLASSES, is_blank, read_problem
from perfmodel.errors import DataError, UnknownShapeError, UsageError, closest
from perfmodel.families import TileProblem
from perfmodel.families.library import has_tile

FORMATS = (".csv", ".jsonl")
BLOCK_SHAPE = "block_shape"
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k", "dtype"),
    "attention": ("q_len", "q_heads", "head_dim", "dtype"),
    "moe": ("tokens", "experts", "top_k", "hidden", "intermediate", "dtype"),
}
"""The fields that a shape of each family cannot do without."""


@dataclass(frozen=True)
class Shape:
    """One problem to tune, and the block [n, k] that shares a scale where weights have one.

    n is 0 where only a group along k does (vLLM's weight-only kernels).
    """

    problem: TileProblem
    block_shape: tuple[int, int] | None = None


def shape_fields(family: str) -> tuple[str, ...]:
    """Return the names of all fields that a shape of ``family`` may have."""
    own = [f.name for f in fields(CLASSES[family]) if f.init and f.name != "backend"]
    extra = {"gemm": ["dtype"], "moe": [BLOCK_SHAPE]}.get(family, [])
    return (*REQUIRED[family], *(n for n in [*own, *extra] if n not in REQUIRED[family]))


def read_shapes(path: Path, family: str) -> list[Shape]:
    """Return the shapes of a file, each once, in its order; ``tokens`` may list several numbers.

    Raises:
        DataError: the file cannot be read, or holds no shape.
        UnknownShapeError: a field is missing or unknown; the message lists their names.
        UsageError: a value is impossible; the message says where.
    """
    shapes: list[Shape] = []
    for place, row in _rows(path):
        try:
            shapes += _shapes(row, family)
        except UsageError as error:
            raise type(error)(f"{path}, {place}: {error}") from None
    if not shapes:
        raise DataError(f"{path} has no shapes; give at least one row of {_names(family)}")
    return list(dict.fromkeys(shapes))


def _shapes(row: Mapping[str, Any], family: str) -> Iterator[Shape]:
    values = {str(name).strip(): value for name, value in row.items() if not is_blank(value)}
    named = str(values.pop("family", family)).strip().lower()
    if CLASSES.get(named) is not CLASSES[family]:
        raise UnknownShapeError(f"family is {named!r}; perfmodel tune {family} takes {family} rows")
    known = shape_fields(family)
    unknown = [name for name in values if name not in known]
    if unknown:
        raise UnknownShapeError(
            f"unknown field {unknown[0]!r}{closest(unknown[0], known)}; a shape of {family} takes: "
            f"{_names(family)}"
        )
    missing = [name for name in REQUIRED[family] if name not in values]
    if family == "gemm" and "a_dtype" in values:
        missing = [name for name in missing if name != "dtype"]
    if missing:
        raise UnknownShapeError(
            f"missing field{'s' * (len(missing) > 1)} {', '.join(missing)}; a {family} shape "
            f"takes: {_names(family)}"
        )
    block = _block(values.pop(BLOCK_SHAPE, None))
    for one in _each_tokens(values) if family == "moe" else [values]:
        problem = read_problem({"family": family, **one})
        if has_tile(problem):  # always: no field names a library's kernel
            yield Shape(problem, block)


def _names(family: str) -> str:
    needed = REQUIRED[family]
    rest = [name for name in shape_fields(family) if name not in needed]
    return f"{', '.join(needed)} (needed), {', '.join(rest)}"


def _each_tokens(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row whose ``tokens`` lists several numbers is a row for each."""
    tokens = values["tokens"]
    if isinstance(tokens, str):
        tokens = tokens.replace(";", ",").replace(" ", ",").strip("[],").split(",")
    for one in tokens if isinstance(tokens, list) else [tokens]:
        if not is_blank(one):
            yield {**values, "tokens": one}


def _block(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    try:
        parts = json.loads(value) if isinstance(value, str) else value
        rows, columns = (int(part) for part in parts)
    except (TypeError, ValueError):
        rows = columns = -1
    if rows < 0 or columns < 1:
        raise UnknownShapeError(
            f"{BLOCK_SHAPE} is {value!r}; use two whole numbers: [128, 128], or [0, 128] for "
            "groups along k alone"
        )
    return rows, columns


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each row with the place to look for it."""
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise DataError(f"{path}: the name of a list of shapes ends in {' or '.join(FORMATS)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    if kind == ".csv":
        yield from _csv_rows(path, text)
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number} is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {number}: {row!r} is not an object of named fields")
            yield f"line {number}", row


def _csv_rows(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    try:
        for row in reader:
            if None in row:
                raise DataError(
                    f"{path}, line {reader.line_num}: more values than the header names; put "
                    "quotes around a list"
                )
            yield f"line {reader.line_num}", row
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num} is not CSV: {error}") from None
