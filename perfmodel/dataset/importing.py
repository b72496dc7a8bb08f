"""From verified files to tables in the cache: read part by part, gate, look at the whole, write.

A table of millions of rows never stands in memory: its parts are staged on disk, and written again
with the flags that only the whole table tells.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from perfmodel.dataset import schema
from perfmodel.dataset.quality import GateReport, apply_gates, merge_reports
from perfmodel.dataset.registry import Dataset
from perfmodel.dataset.schema import TableInfo
from perfmodel.dataset.sources import ManyTables, importer
from perfmodel.dataset.table_gates import Flags, TableGates
from perfmodel.errors import CorruptFileError
from perfmodel.files import cannot_write


def import_tables(
    dataset: Dataset,
    paths: Sequence[Path],
    targets: Sequence[Path],
    advance: Callable[[int], None],
) -> tuple[GateReport, ...]:
    """Import ``paths`` into one table per name of ``dataset``, at ``targets``; return the reports.

    Raises:
        CorruptFileError: a file's content is not what it should be, or a table got no rows.
        CacheFolderError: the folder of ``targets`` cannot be written.
    """
    module = importer(dataset.importer)
    try:
        with (
            tempfile.TemporaryDirectory(
                dir=targets[0].parent, prefix=f".{dataset.name}.", suffix=".import"
            ) as folder,
            ExitStack() as stack,
        ):
            staged = {
                table: stack.enter_context(_Staged(Path(folder) / f"{table}.parquet"))
                for table in dataset.table_names
            }
            for table, frame in _parts(dataset, paths, advance):
                staged[table].add(frame)
            reports = []
            for (table, stage), target in zip(staged.items(), targets, strict=True):
                if not stage.reports:
                    raise CorruptFileError(f"{paths[0]} holds no rows for the table {table!r}")
                report, parts = stage.finish()
                info = TableInfo(
                    source=dataset.name,
                    files={file.name: file.sha256 for file in dataset.files},
                    importer=dataset.importer,
                    importer_version=module.VERSION,
                    licence=dataset.licence,
                    gates=report.to_dict(),
                )
                schema.write_parts(parts, target, info)
                reports.append(report)
    except OSError as error:
        raise cannot_write(targets[0], error) from error
    return tuple(reports)


def _parts(
    dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]
) -> Iterator[tuple[str, pd.DataFrame]]:
    module = importer(dataset.importer)
    if isinstance(module, ManyTables):
        for table, frame in module.read_tables(dataset, paths, advance):
            yield f"{dataset.name}-{table}", frame
    else:
        yield dataset.name, module.read(dataset, paths, advance)


class _Staged:
    """One table on its way: gated parts on disk, and what the gates of the whole remember."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reports: list[GateReport] = []
        self._gates = TableGates()

    def __enter__(self) -> _Staged:
        self._writer = pq.ParquetWriter(self.path, schema.arrow_schema(), compression="lz4")
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, frame: pd.DataFrame) -> None:
        gated, report = apply_gates(frame)
        self.reports.append(report)
        self._gates.add(gated)
        # One row group a part, so that the flags find their rows again.
        self._writer.write_table(schema.conform(gated), row_group_size=max(len(gated), 1))

    def finish(self) -> tuple[GateReport, Iterator[pa.Table]]:
        self._writer.close()
        flags, found = self._gates.flags()
        report = replace(merge_reports(self.reports), **found)
        return report, self._flagged(flags)

    def _flagged(self, flags: Sequence[Mapping[str, Flags]]) -> Iterator[pa.Table]:
        with pq.ParquetFile(self.path) as staged:
            at = staged.schema_arrow.get_field_index("gates")
            for group, by_gate in enumerate(flags):
                part = staged.read_row_group(group)
                names = _named(part["gates"].to_pylist(), by_gate)
                yield part.set_column(at, part.schema.field(at), pa.array(names, pa.string()))


def _named(gates: list[str | None], by_gate: Mapping[str, Flags]) -> Any:
    named = np.array(gates, dtype=object)
    for gate, hit in by_gate.items():
        rows = np.flatnonzero(hit)
        named[rows] = [f"{old},{gate}" if old else gate for old in named[rows]]
    return named
