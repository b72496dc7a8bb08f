"""``perfmodel predict``: how long one kernel takes, and on what the answer rests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.attention_options import takes_attention
from perfmodel.cli.gemm_options import takes_gemm
from perfmodel.cli.memory_options import takes_memory
from perfmodel.cli.moe_options import takes_moe
from perfmodel.cli.options import AsJson, Config, Device, Model, make_predictor, parse_config

if TYPE_CHECKING:
    from perfmodel.problems import Problem
    from perfmodel.problems.attention import Attention
    from perfmodel.problems.gemm import Gemm
    from perfmodel.problems.grouped_gemm import GroupedGemm
    from perfmodel.problems.memory_bound import MemoryBound

app = typer.Typer(no_args_is_help=True, invoke_without_command=True)


@app.callback()
def root(
    context: typer.Context,
    table: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Many mixed problems, one a row: .csv, .jsonl or .parquet.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="With --from: of rows that name none.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="With --from: where to write. Default: stdout.", show_default=False),
    ] = None,
    model: Model = None,
) -> None:
    """Predict how long a kernel takes; perfmodel predict gemm --help.

    With --from: of every row of a table, which comes back with the predictions added.
    """
    from perfmodel.cli.predict_table import predict_table  # noqa: PLC0415 - start-up time
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time

    command = context.invoked_subcommand
    if table is None and command is not None and gpu is None and out is None and model is None:
        return
    if command is not None:
        raise UsageError(
            f"options before {command} are those of a table; give --from FILE without {command}, "
            f"or the options of one problem after {command}"
        )
    if table is None:
        raise UsageError("there is nothing to predict: give --from FILE, or a kernel such as gemm")
    predict_table(table, gpu, out, model)


@app.command()
@takes_gemm
def gemm(
    problem: Gemm, gpu: Device, config: Config = None, model: Model = None, as_json: AsJson = False
) -> None:
    """Predict a matrix product C[m, n] = A[m, k] @ B[k, n] in Triton.

    Without --config: of the best configuration found, and its rivals.
    """
    answer(problem, gpu, config, model, as_json=as_json)


@app.command()
@takes_attention
def attention(
    problem: Attention,
    gpu: Device,
    config: Config = None,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Predict attention: prefill, decode or a mix, item by item.

    Without --config: of the best configuration found, and its rivals.
    """
    answer(problem, gpu, config, model, as_json=as_json)


@app.command()
@takes_moe
def moe(
    problem: GroupedGemm,
    gpu: Device,
    config: Config = None,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Predict the products of a mixture-of-experts layer on its busiest rank.

    Without --config: of the best configuration found, and its rivals.
    """
    answer(problem, gpu, config, model, as_json=as_json)


@app.command()
@takes_memory
def memory(problem: MemoryBound, gpu: Device, as_json: AsJson = False) -> None:
    """Predict a memory-bound kernel: a norm, an activation, a copy."""
    answer(problem, gpu, None, None, as_json=as_json)


def answer(
    problem: Problem, gpu: str, config: str | None, model: Path | None, *, as_json: bool
) -> None:
    """Print the prediction, of the best tile and its rivals where none is given."""
    from perfmodel.cli.rendering import RIVALS, prediction_text  # noqa: PLC0415 - start-up time
    from perfmodel.families.library import has_tile  # noqa: PLC0415 - start-up time

    given = parse_config(config)
    predictor = make_predictor(model)
    ranking = None
    if given is not None or not has_tile(problem):
        prediction = predictor.predict(problem, gpu, given)
    else:
        ranking = predictor.rank(problem, gpu, top=RIVALS + 1, with_rejected=False)
        prediction = predictor.predict(problem, gpu, ranking.best)
        prediction = replace(prediction, notes=ranking.notes)
    if not as_json:
        typer.echo(prediction_text(prediction, ranking))
        return
    values = prediction.to_dict()
    values["considered"] = None if ranking is None else ranking.considered
    values["unsure"] = None if ranking is None else ranking.unsure
    values["rivals"] = [c.to_dict() for c in ranking.candidates[1:]] if ranking else []
    typer.echo(json.dumps(values, indent=2))
