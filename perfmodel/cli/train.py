"""``perfmodel train``: rebuild a model from imported measurements, or correct one with a few."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.options import CacheFolder
from perfmodel.cli.progress import show_progress
from perfmodel.wording import counted

app = typer.Typer(no_args_is_help=True, help="Train a model from imported measurements.")


@app.callback()
def root() -> None:
    """Train a model from imported measurements."""


@app.command()
def gemm(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Manifest to write; the trees go beside it (.npz). "
            "Default: gemm.json, or gemm-adapted.json with --adapt.",
            show_default=False,
        ),
    ] = None,
    large: Annotated[
        bool, typer.Option("--large", help="Without bounds on size and speed; never shipped.")
    ] = False,
    adapt: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE",
            help="Instead of training anew, correct a model with this measurement table "
            "(.parquet): a few problems of a device.",
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="With --adapt: the model to correct. Default: the shipped.")
    ] = None,
    cache: CacheFolder = None,
) -> None:
    """Train the GEMM model from all imported measurements, its accuracy from grouped folds."""
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time

    target = out or Path("gemm.json" if adapt is None else "gemm-adapted.json")
    if target.suffix != ".json":
        raise UsageError(f"--out is {str(target)!r}; give the manifest's name, ending in .json")
    if adapt is None and model is not None:
        raise UsageError("--model is only used with --adapt; leave it out to train from scratch")
    if adapt is not None and large:
        raise UsageError("--large trains a model anew; leave it out with --adapt")
    if adapt is None:
        _train(target, large=large, cache=cache)
    else:
        _adapt(adapt, model, target)


@app.command()
def shape(
    family: Annotated[
        str,
        typer.Argument(
            help="gemm, gemm-fp8, prefill, decode, moe or moe-fp8: kernels of unknown tile."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Manifest to write; the trees go beside it (.npz). Default: shape-FAMILY.json.",
            show_default=False,
        ),
    ] = None,
    cache: CacheFolder = None,
) -> None:
    """Train the model of a family's library kernels; intervals from sites and GPUs left out."""
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from perfmodel.evaluate import shape_training_data  # noqa: PLC0415 - start-up time
    from perfmodel.learned.shape_artifact import save_shape_model  # noqa: PLC0415 - start-up time

    target = out or Path(f"shape-{family}.json")
    if target.suffix != ".json":
        raise UsageError(f"--out is {str(target)!r}; give the manifest's name, ending in .json")
    data = shape_training_data.shape_data(family, cache)
    with show_progress() as (tell, _):
        model = shape_training_data.train_shape(family, data, tell)
    save_shape_model(model, target)
    for source in model.manifest.sources:
        typer.echo(
            f"trained on {source['rows']:,} launches of {source['name']} ({source['dtype']})"
        )
    typer.echo("error on sites held out, and on whole GPUs left out:")
    for cell, figures in model.accuracy.items():
        typer.echo(
            f"  {cell:42} mean {100 * figures['error_mean']:5.1f} %  "
            f"median {100 * figures['error_median']:5.1f} %  {figures['rows']:>9,.0f} launches"
        )
    _wrote(target)


@app.command()
def tiles(
    family: Annotated[
        str, typer.Argument(help="attention or moe: families whose winners are known, not times.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Manifest to write; the trees go beside it (.npz). Default: tiles-FAMILY.json.",
            show_default=False,
        ),
    ] = None,
    cache: CacheFolder = None,
) -> None:
    """Train the order of a family's tiles from autotuning winners."""
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from perfmodel.evaluate import tile_training_data  # noqa: PLC0415 - start-up time
    from perfmodel.learned.tile_preference import (  # noqa: PLC0415 - start-up time
        save_tile_preference,
    )

    target = out or Path(f"tiles-{family}.json")
    if target.suffix != ".json":
        raise UsageError(f"--out is {str(target)!r}; give the manifest's name, ending in .json")
    with show_progress() as (tell, _):
        model = tile_training_data.train_tiles(family, cache, tell)
    save_tile_preference(model, target)
    for source in model.manifest.sources:
        typer.echo(f"trained on {counted(source['problems'], 'problem')} of {source['name']}")
    typer.echo("a winner among the first, of problems held out (folds grouped by shape):")
    for k, share in model.manifest.accuracy["hit"].items():
        typer.echo(f"  first {k:>2}  {100 * share:5.1f} %")
    _wrote(target)


def _train(target: Path, *, large: bool, cache: Path | None) -> None:
    from perfmodel.evaluate import training_data  # noqa: PLC0415 - start-up time
    from perfmodel.learned.artifact import save_model  # noqa: PLC0415 - start-up time
    from perfmodel.learned.booster import LARGE, SHIPPED  # noqa: PLC0415 - start-up time

    tables = training_data.training_tables(cache)
    with show_progress() as (tell, _):
        trained = training_data.train_gemm(tables, LARGE if large else SHIPPED, tell)
    save_model(trained.model, target)
    for source in trained.model.manifest.sources:
        typer.echo(f"trained on {source['rows']:,} launches of {source['name']}")
    typer.echo("error on problems held out (five folds grouped by m, n, k):")
    for cell, figures in trained.model.accuracy.items():
        typer.echo(
            f"  {cell:32} mean {100 * figures['error_mean']:5.1f} %  "
            f"median {100 * figures['error_median']:5.1f} %  {figures['rows']:>9,.0f} launches"
        )
    _wrote(target)


def _adapt(table: Path, model: Path | None, target: Path) -> None:
    from perfmodel.adaptation import adapt_to_table  # noqa: PLC0415 - start-up time
    from perfmodel.dataset import schema  # noqa: PLC0415 - start-up time
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from perfmodel.learned import artifact  # noqa: PLC0415 - start-up time

    if model is not None and target.resolve() == model.resolve():
        raise UsageError(f"--out {target} is the model to correct; write the correction elsewhere")
    base, measured = artifact.load_model(model), schema.read(table)
    with show_progress() as (tell, _):
        tell("adapting", 0.0)
        adapted, gains = adapt_to_table(base, measured)
    artifact.save_adaptation(adapted, target)
    for gpu, gain in gains.items():
        typer.echo(
            f"{gpu}, {counted(gain.problems, 'problem')}, each held out in turn: "
            f"error {100 * gain.error_before:.1f} % -> {100 * gain.error_after:.1f} %, "
            f"pick {gain.pick_before:.3f} -> {gain.pick_after:.3f} of the best"
        )
    _wrote(target)


def _wrote(target: Path) -> None:
    trees = target.with_suffix(".npz")
    size = (target.stat().st_size + trees.stat().st_size) / 1e6
    typer.echo(f"wrote {target} and {trees.name} ({size:.1f} MB)")
