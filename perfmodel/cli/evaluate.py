"""``perfmodel evaluate``: how good the model is, beside every baseline, from the imported data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.options import CacheFolder
from perfmodel.cli.progress import show_progress

if TYPE_CHECKING:
    from perfmodel.evaluate.records import Record

app = typer.Typer(add_completion=False)

_PIPE_WIDTH = 200
"""Columns of a table that is not shown on a terminal."""


@app.command()
def evaluate(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROTOCOL]...", help="Protocols to run; none to list them."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
    large: Annotated[
        bool, typer.Option("--large", help="Also the model without bounds (ten times slower).")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="GPU", help="Report only this device; repeatable.")
    ] = None,
    by_dtype: Annotated[
        bool, typer.Option("--by-dtype", help="Add the figures of each data type.")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A rough look: a tenth of the trees, part of the problems."),
    ] = False,
    parts: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=5,
            show_default=False,
            help="shape-sites: hold out only so many of the five parts of the sites in turn, at "
            "a fifth of the time each. Default: all.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Also plot predicted against measured times of gemm-kfold (.png, .svg, .pdf)."
        ),
    ] = None,
    cache: CacheFolder = None,
) -> None:
    """Run evaluation protocols: our models and every baseline on the same rows."""
    from perfmodel.evaluate import gemm, protocols, records  # noqa: PLC0415 - start-up time
    from perfmodel.hardware.catalog import load_gpu  # noqa: PLC0415 - start-up time
    from perfmodel.report import scatter  # noqa: PLC0415 - start-up time
    from tuner.search.replay_protocol import ALL_PROTOCOLS  # noqa: PLC0415 - the tuner is ours

    if not names:
        for protocol in ALL_PROTOCOLS.values():
            typer.echo(f"{protocol.name:18}{protocol.about}")
        return
    chosen = protocols.find_protocols(names, ALL_PROTOCOLS)
    if plot is not None:
        scatter.check_plot(plot)
    devices = [load_gpu(name).name for name in only or []]
    folds = protocols.find_protocols(["gemm-kfold"]) if plot is not None else []
    tables = protocols.load_for([*chosen, *folds], cache)
    found: list[Record] = []
    with show_progress() as (tell, say):
        if quick:
            say("a quick look: few trees, part of the problems; figures are not comparable")
        run = protocols.new_run(
            tables, protocols.specs(large=large, quick=quick),
            only=devices, by_dtype=by_dtype, quick=quick, held_parts=parts,
            tell=tell, say=say,
        )  # fmt: skip
        for protocol in chosen:
            found += protocol.run(run)
        if plot is not None:
            scatter.plot_errors(gemm.fold_panels(run), plot)
    if as_json:
        typer.echo(records.to_json(found))
        return
    console = _console()
    for table in records.tables(found):
        console.print(table)
        console.print()
    for line in records.gate_lines(found):
        typer.echo(line)


def _console() -> Any:
    from rich.console import Console  # noqa: PLC0415 - start-up time

    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)
