"""``perfmodel report``: one HTML file of what the model says, and how far it is to be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.options import CacheFolder, make_predictor
from perfmodel.cli.progress import Say, Tell, show_progress

if TYPE_CHECKING:
    from perfmodel.hardware.gpu import Gpu
    from perfmodel.prediction import Prediction
    from perfmodel.report.page import Section

app = typer.Typer(add_completion=False)

DEFAULT_GPUS = ("a100-sxm4-80gb", "h100-sxm5")
DEFAULT_STEP = "llama-3-8b-prefill"
SHAPE_MODELS = ("gemm", "gemm-fp8", "prefill", "decode", "moe", "moe-fp8")

FAMILY_TITLES = {
    "gemm": "Matrix products of libraries",
    "prefill": "Prefill attention",
    "decode": "Decode attention",
    "moe": "Mixture-of-experts layers",
}
"""Sections on kernels of unknown tile, by family of ``shape-sites``."""


@app.command()
def report(
    out: Annotated[Path, typer.Option(help="The file to write, .html.")] = Path(
        "perfmodel-report.html"
    ),
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            help=f"Of the rooflines; may be repeated. Default: {', '.join(DEFAULT_GPUS)}.",
            show_default=False,
        ),
    ] = None,
    step: Annotated[
        str, typer.Option(help="The kernels of the rooflines: a step file or an example's name.")
    ] = DEFAULT_STEP,
    png: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write each picture there.", show_default=False),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A rough look: a tenth of the trees, part of the problems."),
    ] = False,
    cache: CacheFolder = None,
) -> None:
    """Write a report: rooflines, predicted against measured, errors by GPU and size, intervals.

    Measured times are those imported (perfmodel data pull); the models are trained anew without
    the problems that they are asked about.
    """
    from perfmodel import __version__  # noqa: PLC0415 - start-up time
    from perfmodel.batch.steps import read_step  # noqa: PLC0415 - start-up time
    from perfmodel.errors import UsageError  # noqa: PLC0415 - as above
    from perfmodel.hardware.catalog import load_gpu  # noqa: PLC0415 - as above
    from perfmodel.report.page import page, write_page  # noqa: PLC0415 - as above
    from perfmodel.report.scatter import figure_class  # noqa: PLC0415 - as above

    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out is {str(out)!r}; give a name that ends in .html")
    figure_class()
    devices = [load_gpu(name) for name in dict.fromkeys(gpu or DEFAULT_GPUS)]
    read_step(step)
    with show_progress() as (tell, say):
        sections = [_rooflines(devices, step, tell), *_accuracy(cache, tell, say, quick=quick)]
        sections += _libraries(cache, tell, say, quick=quick)
    sections.append(_shipped())
    lead = [f"perfmodel {__version__}: predicted and measured times of GPU kernels."]
    if quick:
        lead.append("A quick look: few trees, part of the problems; figures are not comparable.")
    pictures = [picture for section in sections for picture in section.pictures]
    write_page(page("perfmodel report", lead, sections), out, pictures, png)
    typer.echo(f"{out}: {len(pictures)} pictures" + (f", also in {png}" if png else ""))


def _rooflines(devices: Sequence[Gpu], step: str, tell: Tell) -> Section:
    from perfmodel.batch.steps import predict_step, read_step  # noqa: PLC0415 - start-up time
    from perfmodel.report.page import Section, Table, draw  # noqa: PLC0415 - as above
    from perfmodel.report.roofline import draw_roofline, points_of  # noqa: PLC0415 - as above

    found, predictor = read_step(step), make_predictor(None)
    pictures, answers = [], []
    for at, device in enumerate(devices):
        tell(f"rooflines: {device.name}", at / len(devices))
        answer = predict_step(found, device, predictor)
        points = points_of(answer.predictions)

        def paint(figure: Any, device: Gpu = device, points: Any = points) -> None:
            draw_roofline(figure, device, points)

        pictures.append(draw(f"roofline-{device.name}", f"roofline of {device.name}", paint))
        answers.append(answer)
    head = ["kernel", "us", "interval", "limiter", "basis"]
    tables = [
        Table(
            head,
            [
                [f"{number} {kernel.name}", *_cells(prediction)]
                for number, (kernel, prediction) in enumerate(
                    zip(found.kernels, answer.predictions, strict=True), start=1
                )
            ],
            frozenset({1, 2}),
            answer.gpu,
        )
        for answer in answers
    ]
    text = (
        f"{found.title}. A point is one launch at its predicted rate; its number is that of the "
        "tables. A roof is the dense peak of a data type, or the bandwidth of DRAM."
    )
    return Section("Rooflines", [text], pictures, tables)


def _cells(found: Prediction) -> list[str]:
    low, high = found.interval_us
    return [f"{found.latency_us:,.1f}", f"{low:,.1f} to {high:,.1f}", found.limiter, found.basis]


def _accuracy(cache: Path | None, tell: Tell, say: Say, *, quick: bool) -> list[Section]:
    from perfmodel.errors import MissingDataError  # noqa: PLC0415 - start-up time
    from perfmodel.evaluate import gemm, protocols  # noqa: PLC0415 - as above
    from perfmodel.report.page import Section  # noqa: PLC0415 - as above

    chosen = protocols.find_protocols(["gemm-kfold", "intervals"])
    try:
        tables = protocols.load_for(chosen, cache)
    except MissingDataError as error:
        say(f"note: no figures of accuracy: {error}")
        return [Section("Predicted and measured", [f"No measurements to compare with: {error}"])]
    run = protocols.new_run(
        tables, protocols.specs(large=False, quick=quick), quick=quick, tell=tell, say=say
    )
    panels = gemm.fold_panels(run)
    records = [r for r in chosen[1].run(run) if r.who == "perfmodel"]
    return [_scatter(panels), _errors(panels), _intervals(records)]


def _libraries(cache: Path | None, tell: Tell, say: Say, *, quick: bool) -> list[Section]:
    """Sections on kernels of unknown tile, one a family and data type that is imported."""
    from perfmodel.errors import MissingDataError  # noqa: PLC0415 - start-up time
    from perfmodel.evaluate import protocols  # noqa: PLC0415 - as above
    from perfmodel.evaluate.held_out_shapes import held_out_fifth  # noqa: PLC0415 - as above
    from perfmodel.evaluate.selection import selections  # noqa: PLC0415 - as above
    from perfmodel.report.page import Section  # noqa: PLC0415 - as above
    from perfmodel.report.shapes import shape_section  # noqa: PLC0415 - as above
    from perfmodel.uncertainty import COVERAGE  # noqa: PLC0415 - as above

    chosen = protocols.find_protocols(["shape-sites"])
    run = protocols.new_run(
        protocols.load_for(chosen, cache), protocols.specs(large=False, quick=quick),
        quick=quick, tell=tell, say=say,
    )  # fmt: skip
    sections = []
    for rows in selections("shape-sites"):
        title = f"{FAMILY_TITLES[rows.family]}, {rows.dtype}"
        try:
            found = held_out_fifth(run, rows)
        except MissingDataError as error:
            say(f"note: no figures of {title}: {error}")
            sections.append(Section(title, [f"No measurements to compare with: {error}"]))
            continue
        name = f"{rows.family}-{rows.dtype.replace('_', '-')}"
        sections.append(shape_section(name, title, found.by_gpu(), COVERAGE))
    return sections


def _scatter(panels: Any) -> Section:
    from perfmodel.report.accuracy import draw_scatter  # noqa: PLC0415 - start-up time
    from perfmodel.report.page import Section, draw  # noqa: PLC0415 - as above

    pictures = []
    for gpu, (measured, predicted) in panels.items():

        def paint(figure: Any, gpu: str = gpu, m: Any = measured, p: Any = predicted) -> None:
            draw_scatter(figure, gpu, m, p)

        shows = f"predicted against measured times on {gpu}"
        pictures.append(draw(f"scatter-{gpu}", shows, paint))
    text = "Triton matrix products; each problem was held out of the training that predicted it."
    return Section("Predicted and measured", [text], pictures)


def _errors(panels: Any) -> Section:
    from perfmodel.report.accuracy import (  # noqa: PLC0415 - start-up time
        draw_errors_by_size,
        errors_by_size,
    )
    from perfmodel.report.page import Section, Table, draw  # noqa: PLC0415 - as above

    errors = errors_by_size(panels)
    picture = draw(
        "error-by-size", "mean error by measured time", lambda f: draw_errors_by_size(f, errors)
    )
    rows = [
        [e.gpu, e.size, f"{100 * e.mean:.1f} %", f"{100 * e.median:.1f} %", f"{e.launches:,}"]
        for e in errors
    ]
    head = ["GPU", "measured us", "mean error", "median", "launches"]
    return Section(
        "Error by GPU and size", [], [picture], [Table(head, rows, frozenset({2, 3, 4}))]
    )


def _intervals(records: Sequence[Any]) -> Section:
    from perfmodel.report.accuracy import draw_coverage  # noqa: PLC0415 - start-up time
    from perfmodel.report.page import Section, Table, draw  # noqa: PLC0415 - as above
    from perfmodel.uncertainty import COVERAGE  # noqa: PLC0415 - as above

    coverage = {r.cell: r.value for r in records if r.metric == "coverage90"}
    width = {r.cell: r.value for r in records if r.metric == "width90"}
    picture = draw(
        "interval-coverage", "measured times inside the interval",
        lambda figure: draw_coverage(figure, coverage, COVERAGE),
    )  # fmt: skip
    rows = [
        [cell, f"{100 * share:.1f} %", f"{100 * width[cell]:.1f} %"]
        for cell, share in coverage.items()
    ]
    text = (
        f"How many measured times lie inside the {100 * COVERAGE:.0f} % interval, on problems held "
        "out; A->B is a model that saw A alone, asked about B."
    )
    table = Table(["GPU", "inside", "median width"], rows, frozenset({1, 2}))
    return Section("Intervals", [text], [picture], [table])


def _shipped() -> Section:
    """Held-out figures that the shipped models were stored with."""
    from perfmodel.families.library_model import shipped_shape_model  # noqa: PLC0415 - start-up time
    from perfmodel.learned.artifact import load_model  # noqa: PLC0415 - as above
    from perfmodel.report.page import Section, Table  # noqa: PLC0415 - as above

    shapes = [shipped_shape_model(name) for name in SHAPE_MODELS]
    models: list[Any] = [load_model(), *(model for model in shapes if model is not None)]
    rows = [
        [model.version, cell, f"{100 * figures['error_mean']:.1f} %",
         f"{100 * figures['error_median']:.1f} %", f"{int(figures['rows']):,}"]
        for model in models
        for cell, figures in model.accuracy.items()
        if {"error_mean", "error_median", "rows"} <= set(figures)
    ]  # fmt: skip
    head = ["model", "GPU and type", "mean error", "median", "rows"]
    text = (
        "What the shipped models erred by on what was held out when they were trained: problems, "
        "or, where it says left-out, all of a GPU."
    )
    return Section("The shipped models", [text], [], [Table(head, rows, frozenset({2, 3, 4}))])
