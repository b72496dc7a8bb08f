"""Reading a user's own list of configurations."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfmodel.errors import DataError, InvalidConfigError
from perfmodel.tiling.config import TileConfig

FORMATS = (".json", ".jsonl", ".csv")


def read_configs(path: Path, *, keep_extras: bool = False) -> list[TileConfig]:
    """Return the configurations of a ``.json``, ``.jsonl`` or ``.csv`` file, in its order.

    Args:
        path: a JSON list of objects, an object a line, or a CSV whose header names parameters.
            Names in any common spelling; Triton's ``{"kwargs": {...}, "num_warps": 8}`` too.
        keep_extras: keep unknown parameters with the configuration instead of refusing them.

    Raises:
        DataError: the file cannot be read, or is not what its name says.
        InvalidConfigError: an entry cannot be used; the message says which.
    """
    if path.suffix.lower() not in FORMATS:
        raise DataError(f"{path}: the name of a list of configs ends in {', '.join(FORMATS)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text") from None
    configs = []
    for place, entry in _entries(path, text):
        if not isinstance(entry, Mapping):
            raise InvalidConfigError(f"{path}, {place}: {entry!r} is not an object of parameters")
        try:
            configs.append(TileConfig.from_mapping(_flat(entry), keep_unknown=keep_extras))
        except InvalidConfigError as error:
            hint = "" if keep_extras or "unknown" not in str(error) else "; or give --keep-extras"
            raise InvalidConfigError(f"{path}, {place}: {error}{hint}") from None
    if not configs:
        raise DataError(f"{path} lists no configs; give at least one")
    return configs


def _entries(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Each entry with the place to look for it."""
    kind = path.suffix.lower()
    if kind == ".csv":
        for row in (reader := csv.DictReader(io.StringIO(text), strict=True)):
            if None in row:
                raise DataError(
                    f"{path}, line {reader.line_num}: more values than the header names"
                )
            values = {name: _value(value) for name, value in row.items() if value not in (None, "")}
            yield f"line {reader.line_num}", values
    elif kind == ".jsonl":
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                yield f"line {number}", _json(path, line, number)
    else:
        entries = _json(path, text, None)
        if not isinstance(entries, list):
            raise DataError(f"{path} holds a JSON {type(entries).__name__}; give a list of objects")
        for number, entry in enumerate(entries, start=1):
            yield f"entry {number}", entry


def _json(path: Path, text: str, line: int | None) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        at = getattr(error, "lineno", 1) if line is None else line
        reason = getattr(error, "msg", error)
        raise DataError(f"{path} is not JSON at line {at}: {reason}") from None
    except RecursionError:
        raise DataError(f"{path} is nested too deep for a list of configs") from None


def _flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Triton nests the block sizes in ``kwargs``; absent options are null there."""
    inner = entry.get("kwargs")
    outer = {name: value for name, value in entry.items() if name != "kwargs"}
    if inner is None:
        return outer
    if not isinstance(inner, Mapping):
        raise InvalidConfigError(f"kwargs is {inner!r}; use an object of parameters")
    return {**inner, **{name: value for name, value in outer.items() if value is not None}}


def _value(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text
