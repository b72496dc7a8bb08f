"""``perfmodel train``: rebuild a model from imported measurements, or correct one with a few."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.progress import show_progress

if TYPE_CHECKING:
    from perfmodel.learned.artifact import GemmModel

app = typer.Typer(no_args_is_help=True, help="Train a model from imported measurements.")


@app.callback()
def root() -> None:
    """Train a model from imported measurements."""


@app.command()
def gemm(
    out: Annotated[
        Path, typer.Option(help="Manifest to write (.json); the trees go beside it (.npz).")
    ] = Path("gemm.json"),
    large: Annotated[
        bool, typer.Option("--large", help="Without bounds on size and speed; never shipped.")
    ] = False,
    adapt: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE",
            help="Correct a model with the measurements of this table instead of training anew.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="With --adapt: the model to correct. Default: the shipped one."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Cache folder; else PERFMODEL_CACHE_DIR, else the user's own.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train the GEMM model from all imported measurements; its accuracy comes from grouped folds."""
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time

    if out.suffix != ".json":
        raise UsageError(f"--out is {str(out)!r}; give the manifest's name, ending in .json")
    if model is not None and adapt is None:
        raise UsageError("--model is only used with --adapt; leave it out to train from scratch")
    if adapt is not None and large:
        raise UsageError("--large trains a model anew; leave it out with --adapt")
    if adapt is not None:
        _adapt(adapt, model, out)
        return
    from perfmodel.evaluate.training_data import train_gemm, training_tables  # noqa: PLC0415
    from perfmodel.learned.artifact import save_model  # noqa: PLC0415 - start-up time
    from perfmodel.learned.booster import LARGE, SHIPPED  # noqa: PLC0415 - start-up time

    tables = training_tables(cache)
    with show_progress() as (tell, _):
        trained = train_gemm(tables, LARGE if large else SHIPPED, tell)
    save_model(trained.model, out)
    for source in trained.model.manifest.sources:
        typer.echo(f"trained on {source['rows']:,} launches of {source['name']}")
    typer.echo("held-out error (problems grouped by m, n, k):")
    for cell, figures in trained.model.accuracy.items():
        typer.echo(
            f"  {cell:32} mean {100 * figures['error_mean']:5.1f} %  "
            f"median {100 * figures['error_median']:5.1f} %  {figures['rows']:>9,.0f} rows"
        )
    _wrote(trained.model, out)


def _adapt(table: Path, model: Path | None, out: Path) -> None:
    from perfmodel.errors import NotInstalledError  # noqa: PLC0415 - start-up time

    del table, model, out
    raise NotInstalledError("adapting is not there yet")


def _wrote(model: GemmModel, out: Path) -> None:
    typer.echo(f"wrote {out} and {out.with_suffix('.npz').name} ({model.megabytes:.1f} MB)")
