"""``perfmodel calibrate``: measure a few problems on a GPU, and correct the model for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.progress import show_progress
from perfmodel.wording import counted

if TYPE_CHECKING:
    from perfmodel.hardware.gpu import Gpu

app = typer.Typer(help="Measure a few problems on a GPU, and correct the model for it.")


@app.command()
def calibrate(
    device: Annotated[
        str, typer.Option(help="cuda, cuda:1, or replay:TABLE.parquet to rehearse.")
    ] = "cuda",
    gpu: Annotated[
        str | None,
        typer.Option(help="Which device a replayed table is of.", show_default=False),
    ] = None,
    problems: Annotated[int, typer.Option(help="Problems to measure.")] = 20,
    configs: Annotated[int, typer.Option(help="Configurations of each.")] = 30,
    dtype: Annotated[
        list[str] | None, typer.Option(help="Data type; may be repeated. Default: bf16.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed chooses the same problems.")] = 0,
    out: Annotated[
        Path, typer.Option(help="Manifest to write; the trees go beside it (.npz).")
    ] = Path("gemm-adapted.json"),
    work: Annotated[
        str, typer.Option(help="Folder for the rows; the same command goes on with them.")
    ] = "calibration",
    model: Annotated[
        Path | None, typer.Option(help="The model to correct. Default: the shipped one.")
    ] = None,
) -> None:
    """Measure about 20 problems (a few minutes), adapt the model, and show what that gained."""
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from perfmodel.learned import artifact  # noqa: PLC0415 - as above
    from perfmodel.predictor import Predictor  # noqa: PLC0415 - as above
    from tuner.collect import calibrate as steps  # noqa: PLC0415 - as above
    from tuner.collect.bench import open_bench  # noqa: PLC0415 - as above
    from tuner.collect.output import Output  # noqa: PLC0415 - as above

    if out.suffix != ".json":
        raise UsageError(f"--out is {str(out)!r}; give the manifest's name, ending in .json")
    if model is not None and out.resolve() == model.resolve():
        raise UsageError(f"--out {out} is the model to correct; write the correction elsewhere")
    predictor = Predictor(artifact.load_model(model))
    steps.require_adaptable(predictor)
    target, table = _target(device, gpu)
    pool = None if table is None else steps.recorded_pool(table, target.name)
    plan = steps.calibration_plan(
        target, predictor, problems=problems, configs=configs, dtypes=dtype or ["bf16"],
        seed=seed, pool=pool,
    )  # fmt: skip
    output = Output(work)
    plan.save(output.folder / "plan.json")
    typer.echo(
        f"{target.name}: {counted(len(plan.problems), 'problem')}, "
        f"{counted(len(plan.items), 'measurement')}, about {plan.seconds / 60:.1f} minutes"
    )
    bench = open_bench(device, plan)
    try:
        with show_progress() as (tell, _):
            done = steps.calibrate(
                plan, bench, output, predictor, lambda state: tell(state.line(), state.share)
            )
    finally:
        bench.close()
    gain = done.gain
    typer.echo(
        f"measured {gain.rows:,} ({done.failed:,} did not run); each problem held out in turn:"
    )
    typer.echo(f"  error {100 * gain.error_before:5.1f} % -> {100 * gain.error_after:5.1f} %")
    typer.echo(f"  pick  {gain.pick_before:7.3f} -> {gain.pick_after:7.3f} of the best")
    artifact.save_adaptation(done.predictor.model, out)  # type: ignore[arg-type]  # was checked
    typer.echo(f"wrote {out} and {out.with_suffix('.npz').name}")


def _target(device: str, gpu: str | None) -> tuple[Gpu, Path | None]:
    """The device to calibrate for, and the table that stands in for it."""
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from perfmodel.hardware.catalog import load_gpu  # noqa: PLC0415 - as above
    from tuner.collect.inventory import require_known, visible_devices  # noqa: PLC0415 - as above

    kind, _, rest = device.partition(":")
    if kind == "replay":
        if gpu is None:
            raise UsageError("a replayed table may hold several devices; say which with --gpu")
        return load_gpu(gpu), Path(rest.partition("?")[0]).expanduser()
    devices = visible_devices()
    ordinal = int(rest) if rest.isdigit() else 0
    found = require_known(devices[min(ordinal, len(devices) - 1)].identity)
    if gpu is not None and load_gpu(gpu).name != found:
        raise UsageError(f"--gpu is {gpu}, and {device} is {found}; leave --gpu out")
    return load_gpu(found), None
