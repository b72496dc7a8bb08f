"""``perfmodel explain``: where a kernel's time goes, and what to change first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from perfmodel.cli.gemm_options import (
    AsJson,
    Config,
    Device,
    Model,
    make_predictor,
    parse_config,
    takes_gemm,
)

if TYPE_CHECKING:
    from perfmodel.problems.gemm import Gemm

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
    from perfmodel.cli.rendering import explanation_text  # noqa: PLC0415 - start-up time

    given = parse_config(config)
    explanation = make_predictor(model).explain(problem, gpu, given)
    if as_json:
        typer.echo(json.dumps(explanation.to_dict(), indent=2))
    else:
        typer.echo(explanation_text(explanation))
