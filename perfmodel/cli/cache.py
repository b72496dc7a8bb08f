"""``perfmodel cache``: what the tuner has measured and decided, where, and whether it is sound."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.options import CacheFolder
from perfmodel.wording import counted

if TYPE_CHECKING:
    from tuner.store.schema import Table
    from tuner.store.store import Store

app = typer.Typer(add_completion=False, no_args_is_help=True)

_SHOWN = 40
"""Rows of a table shown unless all are asked for."""

Kernel = Annotated[
    str | None, typer.Option(metavar="HASH", help="Only this kernel: the start of its hash.")
]


@app.callback()
def root() -> None:
    """Tuning results kept between runs: look at them, move them, mend them."""


@app.command()
def path(cache: CacheFolder = None) -> None:
    """Print the store's file."""
    typer.echo(str(_store(cache).path))


@app.command()
def show(
    cache: CacheFolder = None,
    kernel: Kernel = None,
    every: Annotated[bool, typer.Option("--all", help="Every row.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List decisions, and measurements and quarantined configurations by number."""
    from tuner.store.schema import DECISIONS, MEASUREMENTS, QUARANTINE  # noqa: PLC0415 - start-up

    store = _store(cache)
    if as_json:
        for table in (DECISIONS, MEASUREMENTS, QUARANTINE):
            for row in _rows(store, table, kernel):
                typer.echo(json.dumps({"table": table.name, **row}, ensure_ascii=False))
        return
    decided = _rows(store, DECISIONS, kernel)
    typer.echo(str(store.path))
    for table, rows in (
        (DECISIONS, decided),
        (MEASUREMENTS, _rows(store, MEASUREMENTS, kernel)),
        (QUARANTINE, _rows(store, QUARANTINE, kernel)),
    ):
        typer.echo(f"  {len(rows):,} {table.name}")
    shown = decided if every else decided[-_SHOWN:]
    for row in shown:
        typer.echo("")
        for line in _decision_lines(row):
            typer.echo(line)
    if len(shown) < len(decided):
        typer.echo(f"\nthe last {len(shown)} of {len(decided):,} decisions; --all for the rest")


@app.command("explain-lookup")
def explain_lookup(
    kernel: Annotated[str, typer.Argument(metavar="HASH", help="The start of a kernel's hash.")],
    cache: CacheFolder = None,
) -> None:
    """Say for every measurement of a kernel whether this installation would use it, or why not."""
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from tuner.store.schema import MEASUREMENTS  # noqa: PLC0415 - start-up time

    store = _store(cache)
    rows = _rows(store, MEASUREMENTS, kernel)
    if not rows:
        known = sorted({row["kernel"][:12] for row in store.rows(MEASUREMENTS)})
        raise UsageError(
            f"{store.path} has no measurement of a kernel {kernel!r}; "
            + (f"it has: {', '.join(known)}" if known else "it has none at all")
        )
    now = store.versions
    typer.echo(f"this installation: triton {now.triton}, ptxas {now.ptxas}")
    for row in rows:
        differs = [
            f"{name} {row[name]}, here {here}"
            for name, here in (("triton", now.triton), ("ptxas", now.ptxas))
            if row[name] != here
        ]
        verdict = f"a prior only: {'; '.join(differs)}" if differs else "a hit"
        typer.echo(f"{row['config']}\n  {_device(row)}, {row['protocol']}, {row['arguments']}")
        typer.echo(f"  {row['outcome']} {_median(row)}: {verdict} on that device alone")


@app.command("export")
def export_rows(
    out: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="Where to write.")],
    cache: CacheFolder = None,
) -> None:
    """Write everything as JSON lines, to import elsewhere."""
    from perfmodel.files import atomic_path  # noqa: PLC0415 - start-up time
    from tuner.store.transfer import export_lines  # noqa: PLC0415 - start-up time

    count = -1  # the header is no row
    with atomic_path(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        for line in export_lines(_store(cache)):
            file.write(line + "\n")
            count += 1
    typer.echo(f"wrote {counted(count, 'row')} to {out}")


@app.command("import")
def import_rows(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="What `export` wrote.")],
    cache: CacheFolder = None,
) -> None:
    """Take rows that another store exported; lines that make no sense are named and left out."""
    from perfmodel.errors import RunFailedError, UsageError  # noqa: PLC0415 - start-up time
    from tuner.store.transfer import import_lines  # noqa: PLC0415 - start-up time

    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            found = import_lines(_store(cache), lines)
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read ({error.strerror}); give a file that `perfmodel cache export` "
            "wrote"
        ) from error
    taken = ", ".join(f"{count:,} {name}" for name, count in found.rows.items())
    typer.echo(f"imported {taken}")
    for number, reason in found.refused:
        typer.echo(f"line {number} left out: {reason}", err=True)
    if not found.on_disk:
        raise RunFailedError(
            "the store could not be written, so nothing imported outlives this command; "
            "run: perfmodel cache doctor"
        )
    if found.refused:
        raise RunFailedError(f"{len(found.refused):,} lines of {file} made no sense")


@app.command()
def clear(
    cache: CacheFolder = None,
    kernel: Kernel = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove what was measured, decided and quarantined, of one kernel or of all."""
    from tuner.store.schema import TABLES  # noqa: PLC0415 - start-up time

    store = _store(cache)
    hashes = sorted({row["kernel"] for table in TABLES for row in _rows(store, table, kernel)})
    if not hashes:
        typer.echo("nothing to remove")
        return
    if not yes:
        typer.confirm(f"remove all rows of {len(hashes)} kernels in {store.path}?", abort=True)
    gone = sum(store.clear(table, {"kernel": name}) for table in TABLES for name in hashes)
    typer.echo(f"removed {counted(gone, 'row')}")


@app.command()
def release(cache: CacheFolder = None, kernel: Kernel = None) -> None:
    """Let configurations that hung or crashed be tried again, of one kernel or of all."""
    from tuner.store.schema import QUARANTINE  # noqa: PLC0415 - start-up time

    store = _store(cache)
    rows = _rows(store, QUARANTINE, kernel)
    for row in rows:
        typer.echo(f"kernel {row['kernel'][:12]}  {_device(row)}  {row['config']}")
        typer.echo(f"  {row['reason']}")
    gone = sum(store.clear(QUARANTINE, {"kernel": k}) for k in {row["kernel"] for row in rows})
    typer.echo(f"released {counted(gone, 'configuration')}")


@app.command()
def doctor(cache: CacheFolder = None) -> None:
    """Check the store from end to end, and say what keeps it from being used."""
    from perfmodel.errors import RunFailedError  # noqa: PLC0415 - start-up time
    from tuner.store.location import file_system, is_network, why_here  # noqa: PLC0415 - as above

    store = _store(cache)
    place = store.path
    if place is None:
        raise RunFailedError("there is no cache folder; set PERFMODEL_CACHE_DIR to one")
    chosen = "--cache" if cache is not None else why_here()
    typer.echo(f"file         {place} ({chosen})")
    kind = file_system(place.parent)
    shared = ", shared with other machines" if is_network(place.parent) else ""
    typer.echo(f"file system  {kind or 'unknown'}{shared}")
    found = store.check()
    typer.echo(f"state        {found or 'sound, and it can be written'}")
    if store.shared is not None:
        typer.echo(f"second tier  {store.shared}: {store.check_shared() or 'sound'}")
    if found is not None:
        raise RunFailedError(
            f"the store cannot be used: {found}; results are kept in memory until that is mended, "
            "or until PERFMODEL_CACHE_DIR names another folder"
        )


def _store(cache: Path | None) -> Store:
    from tuner.store.store import Store  # noqa: PLC0415 - start-up time

    return Store.open(cache)


def _rows(store: Store, table: Table, kernel: str | None) -> list[dict[str, Any]]:
    rows = [row for row in store.rows(table) if row["kernel"].startswith(kernel or "")]
    return sorted(rows, key=lambda row: float(row["recorded_at"]))


def _decision_lines(row: Mapping[str, Any]) -> list[str]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["recorded_at"]))
    loss = row["expected_loss"]
    within = "" if loss is None else f", expected within {100 * loss:.1f} % of the best"
    return [
        f"kernel {row['kernel'][:12]}  {_device(row)}  {when}",
        f"  {row['arguments']}",
        f"  {row['config']}",
        f"  policy {row['policy']}, {int(row['timed'])} timed{within}; {row['why']}",
    ]


def _device(row: Mapping[str, Any]) -> str:
    try:
        return str(json.loads(row["device"]).get("name"))
    except (ValueError, AttributeError):
        return str(row["device"])


def _median(row: Mapping[str, Any]) -> str:
    from tuner.store.measurements import to_timing  # noqa: PLC0415 - start-up time

    timing = to_timing(row)
    median = None if timing is None else timing.median_us
    return f"({row['reason']})" if median is None else f"{median:.4g} us"
