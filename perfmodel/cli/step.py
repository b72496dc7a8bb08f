"""``perfmodel step``: how long a step of a model takes, and which kernels it spends it in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.options import AsJson, Model, make_predictor

if TYPE_CHECKING:
    from perfmodel.batch.steps import StepPrediction

app = typer.Typer(add_completion=False)

STEP_SCHEMA = "perfmodel.step/1"


@app.command()
def step(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL.toml",
            help="A step file, or the name of an example; none to list the examples.",
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="A name (perfmodel gpus) or a device file; may be repeated."),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SIZE=INT[,INT...]",
            help="Another value for one of the file's sizes; may be repeated.",
        ),
    ] = None,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Predict a step of a model: kernels one after the other, each some number of times.

    Kernels do not overlap, tokens that run together are one launch (m = [2048, 32] is one product
    of 2080 rows), and what goes on between GPUs is not in it.
    """
    from perfmodel.batch.steps import (  # noqa: PLC0415 - start-up time
        predict_step,
        read_step,
        shipped_steps,
    )
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time

    if path is None:
        for name in shipped_steps():
            typer.echo(f"{name:28}{read_step(name).title}")
        return
    found = read_step(path, _sizes(sizes or ()))
    if not gpu:
        raise UsageError("--gpu is missing; name one (perfmodel gpus) or a device file")
    predictor = make_predictor(model)
    answers = [predict_step(found, name, predictor) for name in gpu]
    if as_json:
        typer.echo(json.dumps([_to_dict(answer) for answer in answers], indent=2))
    else:
        typer.echo("\n\n".join(_text(answer) for answer in answers))


def _sizes(texts: Sequence[str]) -> dict[str, Any]:
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from perfmodel.problems.sizes import parse_lengths  # noqa: PLC0415 - start-up time

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set is {text!r}; write SIZE=NUMBER, e.g. tokens=4096")
        if name.strip() in found:
            raise UsageError(f"--set {name.strip()} is given twice; leave one out")
        found[name.strip()] = parse_lengths(name.strip(), value.strip())
    return found


def _text(answer: StepPrediction) -> str:
    from perfmodel.cli.rendering import (  # noqa: PLC0415 - start-up time
        columns,
        note_lines,
        share_text,
        time_text,
        wrapped,
    )

    total = answer.total_us
    rows = [["kernel", "times", "each", "in all", "share", "limiter", "basis"]]
    kernels = zip(answer.step.kernels, answer.predictions, answer.totals_us, strict=True)
    for kernel, found, time in kernels:
        share = share_text(time / total) if total else ""
        rows.append([
            kernel.name, f"{kernel.repeat:,}", time_text(found.latency_us), time_text(time), share,
            found.limiter, found.basis,
        ])  # fmt: skip
    low, high = (time_text(us) for us in answer.interval_us)
    limits = ", ".join(
        f"{name} {share_text(us / total)}" for name, us in answer.limiter_us.items() if us
    )
    sizes = ", ".join(f"{name}={_size_text(value)}" for name, value in answer.step.sizes.items())
    lines = [*wrapped("", f"{answer.step.title} on {answer.gpu}")]
    lines += wrapped("sizes      ", sizes) if sizes else []
    lines += ["", *columns(rows, right=(1, 2, 3, 4)), ""]
    lines.append(f"total      {time_text(total)}  ({low} to {high} if all err the same way)")
    lines += wrapped("limited by ", f"{limits} (share of the time)") if limits else []
    return "\n".join([*lines, *note_lines(_notes(answer))])


def _notes(answer: StepPrediction) -> list[str]:
    """Notes with the kernels they are about."""
    about: dict[str, list[str]] = {}
    for kernel, found in zip(answer.step.kernels, answer.predictions, strict=True):
        for note in found.notes:
            if not note.startswith("launch-bound"):  # the limiter's column has it
                about.setdefault(note, []).append(kernel.name)
    return [f"{', '.join(dict.fromkeys(names))}: {note}" for note, names in about.items()]


def _size_text(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _to_dict(answer: StepPrediction) -> dict[str, Any]:
    """``perfmodel.step/1``: totals and, for each kernel, its prediction of one launch."""
    kernels = zip(answer.step.kernels, answer.predictions, answer.totals_us, strict=True)
    total = answer.total_us
    return {
        "schema": STEP_SCHEMA,
        "title": answer.step.title,
        "source": answer.step.source,
        "sizes": dict(answer.step.sizes),
        "gpu": answer.gpu,
        "total_us": total,
        "interval_us": list(answer.interval_us),
        "limiter_us": answer.limiter_us,
        "kernels": [
            {
                "name": kernel.name,
                "line": kernel.line,
                "repeat": kernel.repeat,
                "total_us": time,
                "share": time / total if total else 0.0,
                "prediction": found.to_dict(),
            }
            for kernel, found, time in kernels
        ],
    }
