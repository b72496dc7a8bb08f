"""``perfmodel compare``: one kernel on several GPUs, side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.attention_options import takes_attention
from perfmodel.cli.gemm_options import takes_gemm
from perfmodel.cli.memory_options import takes_memory
from perfmodel.cli.moe_options import takes_moe
from perfmodel.cli.options import AsJson, Config, Model, make_predictor, parse_config

if TYPE_CHECKING:
    from perfmodel.cli.comparison import Entry
    from perfmodel.hardware.gpu import Gpu
    from perfmodel.problems import Problem
    from perfmodel.problems.attention import Attention
    from perfmodel.problems.gemm import Gemm
    from perfmodel.problems.grouped_gemm import GroupedGemm
    from perfmodel.problems.memory_bound import MemoryBound

app = typer.Typer(no_args_is_help=True)

Devices = Annotated[
    list[str],
    typer.Option("--gpu", help="A name (perfmodel gpus) or a device file; once for each GPU."),
]
Prices = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="GPU=PER-HOUR",
        help="What an hour of that GPU costs you, in any currency; once for each GPU.",
        show_default=False,
    ),
]


@app.callback()
def root() -> None:
    """Compare GPUs on one kernel; perfmodel compare gemm --help."""


@app.command()
@takes_gemm
def gemm(
    problem: Gemm,
    gpu: Devices,
    price: Prices = None,
    config: Config = None,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Compare GPUs on a matrix product, each with its own best configuration."""
    answer(problem, gpu, price, config, model, as_json=as_json)


@app.command()
@takes_attention
def attention(
    problem: Attention,
    gpu: Devices,
    price: Prices = None,
    config: Config = None,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Compare GPUs on attention, each with its own best configuration."""
    answer(problem, gpu, price, config, model, as_json=as_json)


@app.command()
@takes_moe
def moe(
    problem: GroupedGemm,
    gpu: Devices,
    price: Prices = None,
    config: Config = None,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Compare GPUs on a mixture-of-experts layer, each with its own best configuration."""
    answer(problem, gpu, price, config, model, as_json=as_json)


@app.command()
@takes_memory
def memory(
    problem: MemoryBound, gpu: Devices, price: Prices = None, as_json: AsJson = False
) -> None:
    """Compare GPUs on a memory-bound kernel."""
    answer(problem, gpu, price, None, None, as_json=as_json)


def answer(
    problem: Problem,
    gpus: Sequence[str],
    prices: Sequence[str] | None,
    config: str | None,
    model: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print the comparison; exit with 1 where some of the devices cannot run the kernel."""
    from perfmodel.cli.comparison import (  # noqa: PLC0415 - start-up time
        COMPARISON_SCHEMA,
        comparison_text,
    )

    given = parse_config(config)
    devices = read_devices(gpus)
    costs = read_prices(prices or (), devices)
    entries = predict_each(problem, devices, costs, given, model)
    refused = [e for e in entries if e.prediction is None]
    if as_json:
        values = {
            "schema": COMPARISON_SCHEMA,
            "family": problem.family,
            "problem": problem.to_dict(),
            "gpus": [entry.to_dict() for entry in entries],
        }
        typer.echo(json.dumps(values, indent=2))
    else:
        typer.echo(comparison_text(problem, entries))
    if refused:
        typer.echo(f"error: {len(refused)} of {len(entries)} GPUs cannot run this", err=True)
        raise typer.Exit(1)


def predict_each(
    problem: Problem,
    devices: Sequence[Gpu],
    prices: dict[str, float],
    config: object,
    model: Path | None,
) -> list[Entry]:
    """Predict the kernel on every device; one that cannot run it has the reason instead.

    Raises:
        UsageError: none of the devices can; the error is that of the first.
    """
    from perfmodel.cli.comparison import Entry  # noqa: PLC0415 - start-up time
    from perfmodel.errors import IllegalConfigError, UnsupportedDtypeError  # noqa: PLC0415 - as above

    predictor = make_predictor(model)
    entries, errors = [], []
    for device in devices:
        price = prices.get(device.name)
        try:
            found = predictor.predict(problem, device, config)  # type: ignore[arg-type]  # parsed
        except (UnsupportedDtypeError, IllegalConfigError) as error:
            errors.append(error)
            entries.append(Entry(device.name, None, price, str(error)))
        else:
            entries.append(Entry(device.name, found, price))
    if len(errors) == len(entries):
        raise errors[0]
    return entries


def read_devices(names: Sequence[str]) -> list[Gpu]:
    """Return the devices; one named twice is an error.

    Raises:
        UnknownGpuError, AmbiguousGpuError, InvalidGpuSpecError: from `load_gpu`.
        UsageError: a device is there twice.
    """
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from perfmodel.hardware.catalog import load_gpu  # noqa: PLC0415 - start-up time

    found: list[Gpu] = []
    for name in names:
        device = load_gpu(name)
        if any(device.name == other.name for other in found):
            raise UsageError(
                f"--gpu {name} is {device.name}, which is listed already; leave it out"
            )
        found.append(device)
    return found


def read_prices(texts: Sequence[str], devices: Sequence[Gpu]) -> dict[str, float]:
    """Return the price of an hour by device.

    Raises:
        UsageError: not of the form GPU=NUMBER, no positive number, given twice, or of a device that
            is not compared.
    """
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from perfmodel.hardware.catalog import load_gpu  # noqa: PLC0415 - start-up time

    found: dict[str, float] = {}
    for text in texts:
        name, equals, amount = text.rpartition("=")
        if not equals:
            raise UsageError(f"--price is {text!r}; write GPU=PER-HOUR, e.g. a100-sxm4-80gb=1.8")
        try:
            price = float(amount)
        except ValueError:
            price = math.nan
        if not (0 < price < math.inf):
            raise UsageError(f"--price {text!r}: {amount!r} is no price; use a number above 0")
        device = load_gpu(name).name
        if device not in [d.name for d in devices]:
            raise UsageError(
                f"--price {text!r}: {device} is not compared; add --gpu {device} or leave it out"
            )
        if device in found:
            raise UsageError(f"--price of {device} is given twice; leave one out")
        found[device] = price
    return found
