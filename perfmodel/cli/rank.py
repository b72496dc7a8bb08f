"""``perfmodel rank``: configurations in order of predicted time, and why others cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.gemm_options import AsJson, Device, Model, make_predictor, takes_gemm

if TYPE_CHECKING:
    from perfmodel.hardware.gpu import Gpu
    from perfmodel.prediction import Ranking, Rejected
    from perfmodel.problems.gemm import Gemm

app = typer.Typer(no_args_is_help=True)

TOP = 10


@app.callback()
def root() -> None:
    """Order configurations by predicted time; perfmodel rank gemm --help."""


@app.command()
@takes_gemm
def gemm(
    problem: Gemm,
    gpu: Device,
    configs: Annotated[
        Path | None,
        typer.Option(help="Your own configs: .json (a list), .jsonl or .csv, a name a column."),
    ] = None,
    keep_extras: Annotated[
        bool, typer.Option("--keep-extras", help="Keep parameters that no formula knows.")
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Show this many. Default: {TOP}; all with --json.", show_default=False
        ),
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show all.")] = False,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Order the tiles of a matrix product by predicted time, fastest first."""
    from perfmodel.cli.config_files import read_configs  # noqa: PLC0415 - start-up time
    from perfmodel.cli.rendering import ranking_text  # noqa: PLC0415 - start-up time
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from perfmodel.predictor import as_gpu  # noqa: PLC0415 - start-up time

    if show_all and top is not None:
        raise UsageError("--top and --all exclude each other; give one")
    own = None if configs is None else read_configs(configs, keep_extras=keep_extras)
    device = as_gpu(gpu)
    limit = None if show_all or (as_json and top is None) else top or TOP
    ranking = make_predictor(model).rank(problem, device, own, top=limit)
    if as_json:
        typer.echo(json.dumps(ranking.to_dict(), indent=2))
    else:
        nearby = None if own is None else _with_nearest(ranking, device)
        typer.echo(ranking_text(ranking, nearby))


def _with_nearest(ranking: Ranking, gpu: Gpu) -> list[tuple[Rejected, str]]:
    """The first rejected ones, each with the closest configuration that can run."""
    from perfmodel.cli.rendering import REJECTED_SHOWN, config_text  # noqa: PLC0415 - start-up time
    from perfmodel.tiling.legality import nearest_legal  # noqa: PLC0415 - start-up time

    found = []
    for rejected in ranking.rejected[:REJECTED_SHOWN]:
        near = nearest_legal(ranking.problem, rejected.config, gpu)
        found.append((rejected, "" if near is None else config_text(near)))
    return found
