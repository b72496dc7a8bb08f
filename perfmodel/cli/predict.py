"""``perfmodel predict``: how long one kernel takes, and on what the answer rests."""

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
    """Predict how long a kernel takes; perfmodel predict gemm --help."""


@app.command()
@takes_gemm
def gemm(
    problem: Gemm, gpu: Device, config: Config = None, model: Model = None, as_json: AsJson = False
) -> None:
    """Predict a matrix product C[m, n] = A[m, k] @ B[k, n] in Triton.

    Without --config: of the best configuration found, and its rivals.
    """
    from perfmodel.cli.rendering import RIVALS, prediction_text  # noqa: PLC0415 - start-up time

    given = parse_config(config)
    predictor = make_predictor(model)
    if given is not None:
        prediction, ranking = predictor.predict(problem, gpu, given), None
    else:
        ranking = predictor.rank(problem, gpu, top=RIVALS + 1, with_rejected=False)
        prediction = predictor.predict(problem, gpu, ranking.best)
    if not as_json:
        typer.echo(prediction_text(prediction, ranking))
        return
    values = prediction.to_dict()
    values["considered"] = None if ranking is None else ranking.considered
    values["unsure"] = None if ranking is None else ranking.unsure
    values["rivals"] = [c.to_dict() for c in ranking.candidates[1:]] if ranking else []
    typer.echo(json.dumps(values, indent=2))
