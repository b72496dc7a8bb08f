"""Imported tables in the user's cache folder, found by registry name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from perfmodel.dataset import quality, schema
from perfmodel.dataset.registry import Dataset, find_table, load_registry
from perfmodel.dataset.schema import TableInfo
from perfmodel.dataset.sources import importer
from perfmodel.errors import DataError, MissingDataError, SchemaMismatchError
from perfmodel.files import cache_dir as cache_dir  # noqa: PLC0414 - part of this module

NOT_IMPORTED = "not imported"


def table_path(name: str, cache: str | Path | None = None) -> Path:
    """Return where the imported table of dataset ``name`` lies, there or not."""
    return cache_dir(cache) / "datasets" / f"{name}.parquet"


def load(
    name: str,
    cache: str | Path | None = None,
    columns: list[str] | None = None,
    filters: list[tuple[str, str, Any]] | None = None,
) -> pd.DataFrame:
    """Return the imported table called ``name``, one row per (device, problem, config, file).

    ``columns`` and ``filters`` are those of `schema.read`; a table of millions of rows needs them.

    `perfmodel.dataset.splits.label_table` merges the files into one row per configuration.

    Raises:
        DataError: the registry has no such name.
        MissingDataError: not imported, or imported from other files than the registry now names;
            the message is the command to run.
        SchemaMismatchError, CorruptFileError: the imported table cannot be used.
    """
    return schema.read(_usable(name, cache), columns, filters)


def load_parts(
    name: str, cache: str | Path | None = None, columns: list[str] | None = None
) -> Iterator[pd.DataFrame]:
    """Return a table like `load`, a part of its rows at a time."""
    return schema.read_parts(_usable(name, cache), columns)


def load_info(name: str, cache: str | Path | None = None) -> TableInfo:
    """Return what a table says of itself, checked like `load`."""
    return schema.read_info(_usable(name, cache))


def _usable(name: str, cache: str | Path | None) -> Path:
    dataset = find_table(name)
    path = table_path(name, cache)
    info = _info(dataset, path)
    stale = staleness(dataset, info)
    if stale:
        raise MissingDataError(
            f"dataset {name!r} in {path} is out of date ({stale}); {_pull(dataset.name)}"
        )
    return path


@dataclass(frozen=True)
class Imported:
    """Where one table stands in the cache; ``problem`` says why it cannot be loaded."""

    name: str
    dataset: Dataset
    path: Path
    info: TableInfo | None
    problem: str | None


def imported(cache: str | Path | None = None) -> list[Imported]:
    """Return every table of the registry's entries with what the cache holds of it."""
    found = []
    named = [(name, entry) for entry in load_registry().values() for name in entry.table_names]
    for name, dataset in named:
        path = table_path(name, cache)
        info, problem = None, None
        try:
            info = _info(dataset, path)
            problem = staleness(dataset, info)
        except MissingDataError:
            problem = NOT_IMPORTED
        except DataError as error:
            problem = str(error)
        found.append(Imported(name, dataset, path, info, problem))
    return found


def staleness(dataset: Dataset, info: TableInfo) -> str | None:
    """Return why an import no longer matches its registry entry and importer, or None."""
    if dict(info.files) != {file.name: file.sha256 for file in dataset.files}:
        return "imported from other files than the registry names"
    if (
        info.importer != dataset.importer
        or info.importer_version != importer(info.importer).VERSION
    ):
        return "imported by another version of the importer"
    if (info.gates or {}).get("version") != quality.VERSION:
        return "gated by another version of the quality gates"
    return None


def _info(dataset: Dataset, path: Path) -> TableInfo:
    try:
        return schema.read_info(path)
    except MissingDataError:
        raise MissingDataError(
            f"dataset {path.stem!r} has not been imported into {path.parent}; {_pull(dataset.name)}"
        ) from None
    except SchemaMismatchError as error:
        raise SchemaMismatchError(f"{error}; {_pull(dataset.name)} --force") from error


def _pull(name: str) -> str:
    return f"run: perfmodel data pull {name}"
