"""``perfmodel rank``: configurations in order of predicted time, and why others cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfmodel.cli.attention_options import takes_attention
from perfmodel.cli.gemm_options import takes_gemm
from perfmodel.cli.moe_options import takes_moe
from perfmodel.cli.options import (
    TOP,
    AsJson,
    Configs,
    Device,
    KeepExtras,
    Model,
    ShowAll,
    Top,
    make_predictor,
)

if TYPE_CHECKING:
    from perfmodel.families import TileProblem
    from perfmodel.hardware.gpu import Gpu
    from perfmodel.prediction import Ranking, Rejected
    from perfmodel.problems.attention import Attention
    from perfmodel.problems.gemm import Gemm
    from perfmodel.problems.grouped_gemm import GroupedGemm
    from perfmodel.tiling.config import TileConfig

app = typer.Typer(no_args_is_help=True)


@app.callback()
def root() -> None:
    """Order configurations by predicted time; perfmodel rank gemm --help."""


@app.command()
@takes_gemm
def gemm(
    problem: Gemm,
    gpu: Device,
    configs: Configs = None,
    keep_extras: KeepExtras = False,
    top: Top = None,
    show_all: ShowAll = False,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Order the tiles of a matrix product by predicted time, fastest first."""
    order(problem, gpu, _own(configs, keep_extras), _limit(top, show_all, as_json), model, as_json)


@app.command()
@takes_attention
def attention(
    problem: Attention,
    gpu: Device,
    configs: Configs = None,
    keep_extras: KeepExtras = False,
    top: Top = None,
    show_all: ShowAll = False,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Order the tiles of attention (block_m queries, block_n keys) by predicted time."""
    order(problem, gpu, _own(configs, keep_extras), _limit(top, show_all, as_json), model, as_json)


@app.command()
@takes_moe
def moe(
    problem: GroupedGemm,
    gpu: Device,
    configs: Configs = None,
    keep_extras: KeepExtras = False,
    top: Top = None,
    show_all: ShowAll = False,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Order the tiles of a mixture-of-experts layer by predicted time."""
    order(problem, gpu, _own(configs, keep_extras), _limit(top, show_all, as_json), model, as_json)


def order(
    problem: TileProblem,
    gpu: str,
    own: list[TileConfig] | None,
    limit: int | None,
    model: Path | None,
    as_json: bool,
) -> None:
    """Print the ranking of the candidates, or of the user's own configurations."""
    from perfmodel.cli.rendering import ranking_text  # noqa: PLC0415 - start-up time
    from perfmodel.predictor import as_gpu  # noqa: PLC0415 - start-up time

    device = as_gpu(gpu)
    ranking = make_predictor(model).rank(problem, device, own, top=limit)
    if as_json:
        typer.echo(json.dumps(ranking.to_dict(), indent=2))
    else:
        nearby = None if own is None else _with_nearest(problem, ranking, device)
        typer.echo(ranking_text(ranking, nearby))


def _own(configs: Path | None, keep_extras: bool) -> list[TileConfig] | None:
    from perfmodel.cli.config_files import read_configs  # noqa: PLC0415 - start-up time

    return None if configs is None else read_configs(configs, keep_extras=keep_extras)


def _limit(top: int | None, show_all: bool, as_json: bool) -> int | None:
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time

    if show_all and top is not None:
        raise UsageError("--top and --all exclude each other; give one")
    return None if show_all or (as_json and top is None) else top or TOP


def _with_nearest(problem: TileProblem, ranking: Ranking, gpu: Gpu) -> list[tuple[Rejected, str]]:
    """The first rejected ones, each with the closest configuration that can run."""
    from perfmodel.cli.rendering import REJECTED_SHOWN, config_text  # noqa: PLC0415 - start-up time
    from perfmodel.families import family_of  # noqa: PLC0415 - start-up time

    family, found = family_of(problem), []
    for rejected in ranking.rejected[:REJECTED_SHOWN]:
        near = family.nearest(problem, rejected.config, gpu)
        found.append((rejected, "" if near is None else config_text(near, problem)))
    return found
