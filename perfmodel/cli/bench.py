"""``perfmodel bench``: time one kernel on this machine's GPU, the prediction beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.attention_options import takes_attention
from perfmodel.cli.gemm_options import takes_gemm
from perfmodel.cli.moe_options import takes_moe
from perfmodel.cli.options import AsJson, Model, make_predictor, parse_config

if TYPE_CHECKING:
    from perfmodel.families import TileProblem
    from perfmodel.problems.attention import Attention
    from perfmodel.problems.gemm import Gemm
    from perfmodel.problems.grouped_gemm import GroupedGemm

app = typer.Typer(
    no_args_is_help=True,
    help="Time one kernel on this machine's GPU: clocks, interval and prediction beside it.",
)

Where = Annotated[
    str,
    typer.Option(
        "--device",
        help="cuda, cuda:1, replay:TABLE.parquet for recorded times, fake to rehearse.",
    ),
]
Stands = Annotated[
    str | None,
    typer.Option(
        "--gpu", help="The device behind replay or fake; a file for an unknown GPU.",
        show_default=False,
    ),
]  # fmt: skip
Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="NAME=VALUE,...",
        help="Tile parameters; several are timed by turns. Default: the model's pick.",
        show_default=False,
    ),
]
Kernel = Annotated[
    str | None, typer.Option(help="A reference kernel's name. Default: by the problem.")
]
L2 = Annotated[str, typer.Option("--l2", help="cold or warm when a launch starts.")]
Samples = Annotated[int | None, typer.Option(help="Samples at most. Default: 1500.")]
Limit = Annotated[float, typer.Option("--limit", help="Seconds at most, for each config.")]
Check = Annotated[
    bool, typer.Option("--check", help="Compare the result with a float64 reference first.")
]


@app.command()
@takes_gemm
def gemm(
    problem: Gemm,
    config: Configs = None,
    device: Where = "cuda",
    gpu: Stands = None,
    kernel: Kernel = None,
    l2: L2 = "cold",
    samples: Samples = None,
    limit: Limit = 10.0,
    check: Check = False,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Time a matrix product of the reference kernels."""
    run(problem, config, device, gpu, kernel, l2, samples, limit, check, model, as_json)


@app.command()
@takes_attention
def attention(
    problem: Attention,
    config: Configs = None,
    device: Where = "cuda",
    gpu: Stands = None,
    kernel: Kernel = None,
    l2: L2 = "cold",
    samples: Samples = None,
    limit: Limit = 10.0,
    check: Check = False,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Time flash attention, decode attention or the gradients of the reference kernels."""
    run(problem, config, device, gpu, kernel, l2, samples, limit, check, model, as_json)


@app.command()
@takes_moe
def moe(
    problem: GroupedGemm,
    config: Configs = None,
    device: Where = "cuda",
    gpu: Stands = None,
    kernel: Kernel = None,
    l2: L2 = "cold",
    samples: Samples = None,
    limit: Limit = 10.0,
    check: Check = False,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Time the products of a mixture-of-experts layer of the reference kernels."""
    run(problem, config, device, gpu, kernel, l2, samples, limit, check, model, as_json)


def run(
    problem: TileProblem,
    config: list[str] | None,
    device: str,
    gpu: str | None,
    kernel: str | None,
    l2: str,
    samples: int | None,
    limit: float,
    check: bool,
    model: Path | None,
    as_json: bool,
) -> None:
    """Measure and print; exit code 1 where the configuration did not run."""
    from perfmodel.cli.bench_text import bench_record, bench_text  # noqa: PLC0415 - start-up time
    from perfmodel.errors import UsageError  # noqa: PLC0415 - as above
    from tuner.benchmark.rig import open_rig  # noqa: PLC0415 - as above
    from tuner.benchmark.single import Subject, bench, choose_kernel  # noqa: PLC0415 - as above
    from tuner.measure.protocol import TimingProtocol  # noqa: PLC0415 - as above

    if problem.backend is not None:
        raise UsageError(
            f"bench times the reference Triton kernels, not {problem.backend}; leave --backend out"
        )
    if not 0 < limit < float("inf"):
        raise UsageError(f"--limit is {limit:g} s; use a positive number of seconds")
    usual = TimingProtocol(l2=l2)  # type: ignore[arg-type]  # it checks that itself
    most = usual.samples_max if samples is None else samples
    protocol = TimingProtocol(
        l2=usual.l2, samples_min=min(usual.samples_min, most), samples_max=most
    )
    configs = [c for text in config or () if (c := parse_config(text)) is not None]
    chosen = choose_kernel(problem, kernel, configs[0] if configs else None)
    rig = open_rig(device, gpu, protocol)
    try:
        found = bench(
            Subject(problem, chosen, rig.gpu), rig, make_predictor(model), configs,
            limit_s=limit, check=check,
        )  # fmt: skip
    finally:
        rig.close()
    typer.echo(
        json.dumps(bench_record(found, rig), indent=2) if as_json else bench_text(found, rig)
    )
    if not found.measurement.outcome.ran:
        raise typer.Exit(1)
