"""``perfmodel explain``: where a kernel's time goes, and what to change first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfmodel.cli.attention_options import takes_attention
from perfmodel.cli.gemm_options import takes_gemm
from perfmodel.cli.moe_options import takes_moe
from perfmodel.cli.options import AsJson, Config, Device, Model, make_predictor, parse_config

if TYPE_CHECKING:
    from perfmodel.families import TileProblem
    from perfmodel.problems.attention import Attention
    from perfmodel.problems.gemm import Gemm
    from perfmodel.problems.grouped_gemm import GroupedGemm

app = typer.Typer(no_args_is_help=True)


@app.callback()
def root() -> None:
    """Say where a kernel's time goes; perfmodel explain gemm --help."""


@app.command()
@takes_gemm
def gemm(
    problem: Gemm, gpu: Device, config: Config = None, model: Model = None, as_json: AsJson = False
) -> None:
    """Explain a matrix product: limiters, waves, resources, what the model learned, what to change.

    Without --config: of the best configuration found.
    """
    show(problem, gpu, config, model, as_json=as_json)


@app.command()
@takes_attention
def attention(
    problem: Attention,
    gpu: Device,
    config: Config = None,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Explain attention: limiters, waves, resources, what to change.

    Without --config: of the best configuration found.
    """
    show(problem, gpu, config, model, as_json=as_json)


@app.command()
@takes_moe
def moe(
    problem: GroupedGemm,
    gpu: Device,
    config: Config = None,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Explain a mixture-of-experts layer: limiters, waves, resources, what to change.

    Without --config: of the best configuration found.
    """
    show(problem, gpu, config, model, as_json=as_json)


def show(
    problem: TileProblem, gpu: str, config: str | None, model: Path | None, *, as_json: bool
) -> None:
    """Print the explanation of one launch."""
    from perfmodel.cli.rendering import explanation_text  # noqa: PLC0415 - start-up time

    explanation = make_predictor(model).explain(problem, gpu, parse_config(config))
    if as_json:
        typer.echo(json.dumps(explanation.to_dict(), indent=2))
    else:
        typer.echo(explanation_text(explanation))
