"""``perfmodel predict --from FILE``: a table of problems in, the same one with predictions out."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from perfmodel.cli.options import make_predictor
from perfmodel.cli.progress import show_progress

FORMATS = (".csv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class _Table:
    """Rows as the file has them, and the names of their columns in order."""

    rows: list[dict[str, Any]]
    columns: list[str]


def predict_table(path: Path, gpu: str | None, out: Path | None, model: Path | None) -> None:
    """Predict every row of a file; exit with 1 and a count where rows had no answer.

    Raises:
        DataError: the file cannot be read, is not what its name says, or has an output's column.
        UsageError: the output's format is unknown, or parquet would go to stdout.
    """
    from perfmodel.batch import predict_rows  # noqa: PLC0415 - start-up time
    from perfmodel.batch.parallel import predict_in_processes  # noqa: PLC0415 - as above
    from perfmodel.batch.run import check_columns, unread_columns  # noqa: PLC0415 - as above
    from perfmodel.errors import closest  # noqa: PLC0415 - as above
    from perfmodel.hardware.catalog import load_gpu  # noqa: PLC0415 - as above

    written = _format_of(path if out is None else out, "--from" if out is None else "--out")
    _check_output(written, out)
    table = _read(path)
    check_columns(table.columns)
    if gpu is not None:
        load_gpu(gpu)
    with show_progress() as (tell, say):
        tell("reading", 0.0)
        for name in unread_columns(table.columns):
            near = closest(name, _columns_read())
            if near:
                say(f"note: column {name!r} is not read{near}")
        if model is not None:
            make_predictor(model)  # what is wrong with it shows before processes start
        found = predict_rows(
            table.rows, gpu=gpu, ask=lambda requests: predict_in_processes(requests, model, tell)
        )
    _write(table, found, written, out)
    bad = sum(row["error"] is not None for row in found)
    if bad:
        typer.echo(
            f"error: {bad:,} of {len(found):,} rows have no prediction; their error says why",
            err=True,
        )
        raise typer.Exit(1)


def _columns_read() -> list[str]:
    from perfmodel.batch.requests import read_columns  # noqa: PLC0415 - start-up time

    return sorted(read_columns())


def _format_of(path: Path, option: str) -> str:
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time

    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise UsageError(
            f"{option} is {str(path)!r}; give a name that ends in {', '.join(FORMATS)}"
        )
    return suffix


def _check_output(suffix: str, out: Path | None) -> None:
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time

    if suffix == ".parquet" and out is None:
        raise UsageError("parquet cannot go to stdout; give --out FILE")


def _read(path: Path) -> _Table:
    from perfmodel.errors import DataError  # noqa: PLC0415 - start-up time

    suffix = _format_of(path, "--from")
    if suffix == ".parquet":
        return _read_parquet(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text") from None
    return _read_csv(path, text) if suffix == ".csv" else _read_lines(path, text)


def _read_csv(path: Path, text: str) -> _Table:
    from perfmodel.errors import DataError  # noqa: PLC0415 - start-up time

    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        columns = next(reader, [])
        rows = []
        for values in reader:
            if not values:
                continue
            if len(values) != len(columns):
                raise DataError(
                    f"{path}, line {reader.line_num}: {len(values)} values, but the header names "
                    f"{len(columns)} columns; quote values that hold a comma"
                )
            rows.append(dict(zip(columns, values, strict=True)))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None
    if not columns:
        raise DataError(f"{path} is empty; its first line names the columns")
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise DataError(f"{path}: the header names {twice[0]!r} twice; rename one")
    return _Table(rows, columns)


def _read_lines(path: Path, text: str) -> _Table:
    from perfmodel.errors import DataError  # noqa: PLC0415 - start-up time

    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            reason = getattr(error, "msg", error)
            raise DataError(f"{path}, line {number} is not JSON: {reason}") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number} is {line.strip()[:40]}; use one object a line")
        rows.append(row)
    return _Table(rows, list(dict.fromkeys(name for row in rows for name in row)))


def _read_parquet(path: Path) -> _Table:
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    from perfmodel.errors import DataError  # noqa: PLC0415 - start-up time

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    return _Table(table.to_pylist(), list(table.column_names))


def _write(
    table: _Table, found: Sequence[Mapping[str, Any]], suffix: str, out: Path | None
) -> None:
    from perfmodel.batch import OUTPUT_COLUMNS  # noqa: PLC0415 - start-up time
    from perfmodel.files import atomic_path  # noqa: PLC0415 - start-up time

    rows = [row | dict(more) for row, more in zip(table.rows, found, strict=True)]
    columns = [*table.columns, *OUTPUT_COLUMNS]
    if out is None:
        sys.stdout.writelines(_lines(rows, columns, suffix))
        return
    with atomic_path(out, "--out FILE") as part:
        if suffix == ".parquet":
            _write_parquet(rows, columns, part)
        else:
            with part.open("w", encoding="utf-8", newline="") as file:
                file.writelines(_lines(rows, columns, suffix))


def _lines(rows: Iterable[Mapping[str, Any]], columns: list[str], suffix: str) -> Iterable[str]:
    if suffix == ".jsonl":
        for row in rows:
            yield json.dumps({name: _finite(value) for name, value in row.items()}) + "\n"
        return
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for values in [columns, *([_cell(row.get(name)) for name in columns] for row in rows)]:
        writer.writerow(values)
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def _finite(value: Any) -> Any:
    """JSON has no infinity: such a value comes back as the text that it was read from."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"  # no prediction is better than that
    return json.dumps(value) if isinstance(value, list | dict) else value


def _write_parquet(rows: list[dict[str, Any]], columns: list[str], path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - start-up time
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    from perfmodel.errors import DataError  # noqa: PLC0415 - start-up time

    arrays = {}
    for name in columns:
        try:
            arrays[name] = pa.array([row.get(name) for row in rows])
        except pa.ArrowException as error:
            raise DataError(
                f"column {name!r} mixes types, which parquet cannot hold ({error}); write .jsonl"
            ) from None
    pq.write_table(pa.table(arrays), path)
