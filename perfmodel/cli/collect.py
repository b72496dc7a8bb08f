"""``perfmodel collect``: plan measurements, compile them ahead, run them, and merge what came."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.wording import counted

if TYPE_CHECKING:
    from tuner.collect.check import CheckReport
    from tuner.collect.heartbeat import Progress
    from tuner.collect.plan_file import Plan

app = typer.Typer(
    no_args_is_help=True,
    help="Measure kernels on a GPU or a fleet: plan, compile, run, merge, check, publish.",
)

OUT = "collected"
RESTARTS = "PERFMODEL_COLLECT_RESTARTS"
"""Environment variable that counts how often a run has started itself anew without a new row."""

RESTARTS_MAX = 3

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan of `collect plan`.")]
Out = Annotated[
    str, typer.Option(help="Folder, or an fsspec address such as s3://bucket/run, for the rows.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeviceAddress = Annotated[
    str,
    typer.Option(
        "--device",
        help="cuda, cuda:1, or replay:TABLE.parquet to rehearse on recorded times "
        "(?sleep_ms=20 takes its time).",
    ),
]


@app.command("plan")
def plan_command(
    gpu: Annotated[str, typer.Option(help="The device to plan for; see `perfmodel gpus`.")],
    out: Annotated[Path, typer.Option(help="The plan to write.")] = Path("plan.json"),
    minutes: Annotated[float, typer.Option(help="GPU minutes to fill at most.")] = 10.0,
    problems: Annotated[
        int | None, typer.Option(help="Problems at most.", show_default=False)
    ] = None,
    configs: Annotated[int, typer.Option(help="Configurations of each problem at most.")] = 40,
    all_configs: Annotated[
        bool,
        typer.Option("--all-configs", help="All configurations worth trying instead."),
    ] = False,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="Data type; may be repeated. 8-bit: scaled gemm, cache of decode. "
                     "Default: bf16."),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(help="gemm, attention, attention-backward, decode or moe; may be repeated. "
                     "Default: gemm."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same plan.")] = 0,
    samples: Annotated[int, typer.Option(help="Samples of each configuration at most.")] = 30,
    limit: Annotated[float, typer.Option(help="Seconds for one configuration at most.")] = 10.0,
    model: Annotated[
        Path | None, typer.Option(help="A model file in place of the shipped one.")
    ] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Choose problems and configurations for a device and a time; needs no GPU."""
    from perfmodel.hardware.catalog import load_gpu  # noqa: PLC0415 - start-up time
    from perfmodel.predictor import Predictor  # noqa: PLC0415 - as above
    from tuner.collect.families import family_of  # noqa: PLC0415 - as above
    from tuner.collect.plan import Budget, make_plan  # noqa: PLC0415 - as above
    from tuner.collect.plan_file import Settings  # noqa: PLC0415 - as above

    plan = make_plan(
        load_gpu(gpu),
        [family_of(name) for name in dict.fromkeys(family or ["gemm"])],
        list(dict.fromkeys(dtype or ["bf16"])),
        budget=Budget(minutes, problems, None if all_configs else configs),
        seed=seed,
        settings=Settings(samples, limit),
        predictor=Predictor(model),
    )
    plan.save(out)
    if as_json:
        typer.echo(json.dumps(_plan_record(plan, out), indent=2))
    else:
        _print_plan(plan, out)


@app.command("compile")
def compile_command(
    plan: PlanFile,
    out: Out = OUT,
    processes: Annotated[
        int | None, typer.Option(help="At once. Default: the cores.", show_default=False)
    ] = None,
) -> None:
    """Compile everything in a plan ahead, on CPUs, into Triton's cache; needs no GPU."""
    from tuner.collect.ahead import compile_plan  # noqa: PLC0415 - start-up time
    from tuner.collect.output import Output  # noqa: PLC0415 - as above
    from tuner.collect.plan_file import load_plan  # noqa: PLC0415 - as above

    with _bar("compiling") as advance:
        done = compile_plan(load_plan(plan), Output(out).folder, processes=processes, tell=advance)
    typer.echo(
        f"{done.binaries:,} binaries: {done.compiled:,} compiled, {done.cached:,} were in Triton's "
        f"cache, {done.failed + done.failed_before:,} do not compile "
        f"({done.failed_before:,} known before)"
    )
    for what, reason in done.reasons[:5]:
        typer.echo(f"  {what}: {reason}")
    if len(done.reasons) > 5:
        typer.echo(f"  and {len(done.reasons) - 5:,} more")


@app.command("run")
def run_command(
    plan: PlanFile,
    out: Out = OUT,
    shard: Annotated[str, typer.Option(help="i/n: the i-th of n parts, from 1.")] = "1/1",
    device: DeviceAddress = "cuda",
    on: Annotated[
        str | None,
        typer.Option(help="ray or slurm: run all parts on a fleet instead.", show_default=False),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="With --on: GPUs to use. Default: ray: all; slurm: 1.",
                     show_default=False),
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option("--slurm", metavar="NAME=VALUE",
                     help="With --on slurm: a submitit parameter, e.g. slurm_partition=gpu."),
    ] = None,
    cluster: Annotated[
        str, typer.Option(help="With --on slurm: submitit's executor; local runs here.")
    ] = "slurm",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be measured on what; measure nothing.")
    ] = False,
) -> None:  # fmt: skip
    """Measure a plan. The same command goes on after any interruption."""
    from tuner.collect.plan_file import load_plan, parse_shard  # noqa: PLC0415 - start-up time

    loaded = load_plan(plan)
    index, count = parse_shard(shard)
    if on is not None:
        _run_fleet(loaded, plan, out, on, device, workers, cluster, slurm or [])
        return
    items = loaded.shard(index, count)
    if dry_run:
        _dry_run(loaded, device, out, len(items))
        return
    _run_here(loaded, out, index, count, device)


@app.command("merge")
def merge_command(
    plan: PlanFile,
    out: Out = OUT,
    table: Annotated[Path, typer.Option(help="The measurement table to write.")] = Path(
        "collected.parquet"
    ),
    partial: Annotated[
        bool, typer.Option("--partial", help="Also where measurements are missing.")
    ] = False,
) -> None:
    """Merge the shards of a plan into one table, gated, each measurement once."""
    from perfmodel.dataset import schema  # noqa: PLC0415 - start-up time
    from tuner.collect.merge import table_of  # noqa: PLC0415 - as above

    merged = _gathered(plan, out)
    frame, info = table_of(merged, partial=partial)
    schema.write(frame, table, info)
    ok = int((frame["outcome"] == "ok").sum())
    typer.echo(
        f"wrote {table}: {counted(len(frame), 'row')} of {counted(len(merged.shards), 'shard')}, "
        f"{ok:,} that ran; {merged.duplicates:,} measured twice, {len(merged.missing):,} missing"
    )


@app.command("check")
def check_command(plan: PlanFile, out: Out = OUT, as_json: AsJson = False) -> None:
    """Say whether a collection is whole and sound; exit code 1 if it is not."""
    from tuner.collect.check import check  # noqa: PLC0415 - start-up time

    report = check(_gathered(plan, out))
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _print_check(report)
    if not report.sound:
        raise typer.Exit(1)


@app.command("publish")
def publish_command(
    table: Annotated[Path, typer.Argument(help="A table of `collect merge`.")],
    to: Annotated[str, typer.Option(help="Folder or fsspec address to copy it to.")],
    name: Annotated[
        str | None, typer.Option(help="Make a registry entry of that name.", show_default=False)
    ] = None,
    repository: Annotated[
        str, typer.Option(help="With --name: https://github.com/OWNER/REPO it will lie in.")
    ] = "",
    commit: Annotated[str, typer.Option(help="With --name: the commit that holds it.")] = "",
    path: Annotated[str, typer.Option(help="With --name: where in the repository.")] = "",
    licence: Annotated[str, typer.Option(help="With --name: its licence.")] = "Apache-2.0",
    title: Annotated[str, typer.Option(help="With --name: what it is, in words.")] = "",
    registry: Annotated[
        Path | None,
        typer.Option(help="With --name: the registry.toml to add the entry to.",
                     show_default=False),
    ] = None,
) -> None:  # fmt: skip
    """Put a table where others find it, and make its registry entry."""
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from tuner.collect.publish import Entry, publish  # noqa: PLC0415 - as above

    entry = None
    if name is not None:
        given = {"--repository": repository, "--commit": commit, "--path": path, "--title": title}
        absent = [option for option, value in given.items() if not value]
        if absent:
            raise UsageError(f"a registry entry also needs {' and '.join(absent)}")
        entry = Entry(name, title, repository, commit, path, licence)
    elif registry is not None:
        raise UsageError("--registry needs the entry's --name")
    done = publish(table, to, entry=entry, registry=registry)
    typer.echo(f"wrote {done.where}: {counted(done.rows, 'row')}, {done.size_bytes / 1e6:.1f} MB, "
               f"sha256 {done.sha256}")  # fmt: skip
    if done.entry is not None and registry is None:
        typer.echo(done.entry)


def _run_here(plan: Plan, out: str, index: int, count: int, device: str) -> None:
    from perfmodel.errors import DeviceLostError  # noqa: PLC0415 - start-up time
    from tuner.collect.bench import open_bench  # noqa: PLC0415 - as above
    from tuner.collect.heartbeat import duration  # noqa: PLC0415 - as above
    from tuner.collect.output import Output  # noqa: PLC0415 - as above
    from tuner.collect.run import run_shard  # noqa: PLC0415 - as above

    bench = open_bench(device, plan)
    done_before = _Remembered()
    try:
        with _progress(done_before) as tell:
            done = run_shard(plan, bench, Output(out), index=index, count=count, tell=tell)
    except DeviceLostError as error:
        _start_anew(error, moved=done_before.moved)
        raise
    finally:
        bench.close()
    typer.echo(
        f"{done.shard}: {counted(done.total, 'row')}, {done.measured:,} measured now in "
        f"{duration(done.seconds)}, {done.failed:,} of them failed"
    )


class _Remembered:
    """Whether a run has got anywhere."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.moved = False

    def see(self, done: int) -> None:
        self.moved = self.moved or (self.first is not None and done > self.first)
        self.first = done if self.first is None else self.first


def _start_anew(error: Exception, *, moved: bool) -> None:
    """Replace this process by a new one, which has a CUDA context of its own.

    It keeps its number, so that whatever waits for it goes on waiting. A run that loses its device
    again and again without a new row ends instead.
    """
    restarts = 0 if moved else int(os.environ.get(RESTARTS, "0")) + 1
    if restarts >= RESTARTS_MAX or not sys.argv[0]:
        return
    os.environ[RESTARTS] = str(restarts)
    typer.echo(f"{error}; starting anew", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "perfmodel", *sys.argv[1:]])


def _run_fleet(
    plan: Plan, path: Path, out: str, on: str, device: str, workers: int | None, cluster: str,
    slurm: list[str],
) -> None:  # fmt: skip
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time

    if on == "ray":
        from tuner.collect.fleet_ray import run_on_ray  # noqa: PLC0415 - as above

        with _progress(_Remembered()) as tell:
            fleet = run_on_ray(plan, out, device=device, workers=workers, tell=tell)
        typer.echo(
            f"{out}: {counted(fleet.total, 'row')}, {fleet.measured:,} measured now by "
            f"{counted(fleet.workers, 'worker')}; {counted(fleet.lost, 'worker')} lost, "
            f"{counted(fleet.requeued, 'piece')} given out again"
        )
    elif on == "slurm":
        from tuner.collect.fleet_slurm import submit  # noqa: PLC0415 - as above

        jobs = submit(plan, path, out, device=device, shards=workers or 1, cluster=cluster,
                      parameters=slurm)  # fmt: skip
        for job in jobs:
            typer.echo(f"submitted {job}")
        typer.echo("a job that is preempted or times out is queued again and goes on; then: "
                   f"perfmodel collect merge {path} --out {out}")  # fmt: skip
    else:
        raise UsageError(f"--on is {on!r}; use ray or slurm")


def _dry_run(plan: Plan, device: str, out: str, items: int) -> None:
    from tuner.collect.bench import open_bench  # noqa: PLC0415 - start-up time

    bench = open_bench(device, plan)
    bench.require_for(plan)
    record = {
        "plan": plan.digest, "measurements": items, "out": out,
        "protocol": bench.device.protocol, "compiler": bench.compiler,
        "device": dict(bench.manifest),
    }  # fmt: skip
    typer.echo(json.dumps(record, indent=2))
    bench.close()


def _gathered(plan: Path, out: str) -> Any:
    from tuner.collect.merge import gather  # noqa: PLC0415 - start-up time
    from tuner.collect.output import Output  # noqa: PLC0415 - as above
    from tuner.collect.plan_file import load_plan  # noqa: PLC0415 - as above

    loaded, output = load_plan(plan), Output(out)
    output.fetch_all()
    return gather(loaded, output.folder)


def _plan_record(plan: Plan, out: Path) -> dict[str, Any]:
    from tuner.collect.plan import counts  # noqa: PLC0415 - start-up time

    return {
        "plan": str(out), "sha256": plan.digest, "gpu": plan.gpu, "seed": plan.seed,
        "problems": len(plan.problems), "measurements": len(plan.items),
        "gpu_minutes": plan.seconds / 60, "model": plan.model,
        **{f"by_{kind}": dict(found) for kind, found in counts(plan).items()},
    }  # fmt: skip


def _print_plan(plan: Plan, out: Path) -> None:
    from tuner.collect.plan import counts  # noqa: PLC0415 - start-up time

    found = counts(plan)
    origin, why = found["origin"], found["why"]
    typer.echo(
        f"{plan.gpu}: {counted(len(plan.problems), 'problem')}, "
        f"{counted(len(plan.items), 'measurement')}, about {plan.seconds / 60:.1f} GPU minutes"
    )
    if set(found["kernel"]) != {"gemm"}:
        typer.echo(f"  kernels:  {_counted(found['kernel'])}")
    typer.echo(f"  problems: {_counted(origin)}")
    typer.echo(f"  configs:  {_counted(why)}")
    if "uncertain" in why and (plan.model is None or set(found["family"]) != {"gemm"}):
        unlearned = "this device" if plan.model is None else "other kernels than gemm"
        typer.echo(f"  no learned model for {unlearned}: uncertain are those whose estimate rests "
                   "most on overlap")  # fmt: skip
    typer.echo(f"wrote {out} (sha256 {plan.digest[:12]}, seed {plan.seed})")


def _counted(found: Any) -> str:
    words = {"model": "predicted to be fast", "stratum": "stratified"}
    return ", ".join(f"{n:,} {words.get(name, name)}" for name, n in sorted(found.items()))


def _print_check(report: CheckReport) -> None:
    def percent(share: float | None) -> str:
        return "unknown" if share is None else f"{100 * share:.1f} %"

    state = "whole and sound" if report.sound else "not whole" if report.missing else "not sound"
    typer.echo(f"{state}: {report.measured:,} of {report.planned:,} measured, "
               f"{report.duplicates:,} twice, {report.torn_shards:,} torn at the end")  # fmt: skip
    typer.echo("outcomes: " + ", ".join(f"{k} {v:,}" for k, v in report.outcomes.items()))
    for reason, rows in report.reasons.items():
        typer.echo(f"  {rows:,} x {reason}")
    for gate, rows in report.gates.items():
        if rows:
            typer.echo(f"  {counted(rows, 'row')} dropped by {gate}")
    typer.echo(
        f"spread: median {percent(report.spread_median)}, p90 {percent(report.spread_p90)}; "
        f"{counted(report.noisy, 'row')} above 10 %"
    )
    typer.echo(f"clocks: known of {report.clocks_known:,} rows, {report.throttled:,} throttled")
    if report.flags:
        typer.echo("flags: " + ", ".join(f"{n:,} {name}" for name, n in report.flags.items()))
    if report.drift is not None:
        typer.echo(f"drift of the reference kernel: {100 * report.drift:+.1f} % at most")
    typer.echo(f"the plan's predictions: median error {percent(report.error_median)}")
    if len(report.drivers) > 1:
        typer.echo(f"drivers: {', '.join(report.drivers)}")


@contextmanager
def _progress(seen: _Remembered) -> Iterator[Callable[[Progress], None]]:
    """Show a bar on a terminal, and a line every few seconds in a log."""
    from perfmodel.cli.progress import show_progress  # noqa: PLC0415 - start-up time

    if not sys.stderr.isatty():

        def say(state: Progress) -> None:
            seen.see(state.done)
            typer.echo(state.line(), err=True)

        yield say
        return
    with show_progress() as (advance, _):

        def show(state: Progress) -> None:
            seen.see(state.done)
            advance(state.line(), state.share)

        yield show


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    from perfmodel.cli.progress import show_progress  # noqa: PLC0415 - start-up time

    with show_progress() as (advance, _):
        yield lambda done, total, _: advance(
            f"{what} {done:,} of {total:,}", done / total if total else 1.0
        )
