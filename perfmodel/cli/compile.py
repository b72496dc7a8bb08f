"""``perfmodel compile``: what a Triton kernel uses on a device, compiled here with no GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.gemm_options import AsJson, Device
from perfmodel.cli.options import CacheFolder
from perfmodel.cli.progress import show_progress

if TYPE_CHECKING:
    from perfmodel.hardware.gpu import Gpu
    from tuner.compile import CompiledKernel
    from tuner.compiling.compile_job import CompileJob

app = typer.Typer(add_completion=False)

_PIPE_WIDTH = 160
"""Columns of a table that is not shown on a terminal."""


@app.command()
def compile_kernel(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL.py:NAME", help="A Triton kernel.")],
    gpu: Device,
    args: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TYPE,...",
            help="Run-time arguments: *fp16, *fp16:unaligned, i32, fp32, or an integer. Default: "
            "the kernel's annotations. Repeatable.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,...",
            help="Compile-time arguments and num_warps, num_stages, num_ctas, maxnreg; repeat for "
            "more configurations. Default: those of the kernel's autotuner.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes. Default: the CPUs at hand.", show_default=False),
    ] = None,
    limit_s: Annotated[
        float, typer.Option("--limit", min=0.1, help="Seconds for one configuration.")
    ] = 60.0,
    cache: CacheFolder = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compile even what is stored; store nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile a kernel for a device: shared memory, registers and spills of each config."""
    from perfmodel.errors import NoUsableConfigError  # noqa: PLC0415 - start-up time
    from perfmodel.predictor import as_gpu  # noqa: PLC0415 - start-up time
    from tuner.compiling import kernel_file  # noqa: PLC0415 - start-up time
    from tuner.compiling.compile_cache import CompileCache  # noqa: PLC0415 - start-up time
    from tuner.compiling.compile_pool import compile_all  # noqa: PLC0415 - start-up time

    device = as_gpu(gpu)
    target = cuda_target(device)
    arguments = kernel_file.parse_pairs(",".join(args or []), "argument")
    configs = [
        {
            n: kernel_file.parse_constant(v)
            for n, v in kernel_file.parse_pairs(text, "config").items()
        }
        for text in config or []
    ]
    jobs = kernel_file.jobs_of(kernel_file.load_kernel(kernel), arguments, configs, target)
    with show_progress() as (tell, _say):

        def progress(job: CompileJob, _result: CompiledKernel, done: int, total: int) -> None:
            tell(f"{done} of {total}: {job.label}", done / total)

        stored = None if fresh else CompileCache(cache)
        found = compile_all(jobs, workers=workers, limit_s=limit_s, cache=stored, tell=progress)
    rows = [_row(job, result, device) for job, result in zip(jobs, found, strict=True)]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        _print(rows, device)
    if not any(row["outcome"] == "ok" for row in rows):
        raise NoUsableConfigError(f"none of {len(rows):,} configurations can run on {device.name}")


def cuda_target(gpu: Gpu) -> str:
    """Return the architecture to compile for.

    Raises:
        UsageError: it is none of CUDA's.
    """
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time

    if not gpu.architecture.startswith("sm_"):
        raise UsageError(
            f"{gpu.name} is {gpu.architecture}; kernels are compiled for NVIDIA devices alone here"
        )
    return gpu.architecture


def _row(job: CompileJob, result: CompiledKernel, gpu: Gpu) -> dict[str, Any]:
    """One line: a kernel that compiled may still ask for more than a block has."""
    outcome, reason = result.outcome.value, result.reason
    needed, limit = result.shared_bytes, gpu.smem_per_block_optin_bytes
    if needed is not None and needed > limit:
        outcome = "out_of_resources"
        reason = f"shared memory: needs {needed:,} bytes, limit {limit:,}"
    return {
        "config": job.label,
        "gpu": gpu.name,
        "target": job.target,
        "outcome": outcome,
        "reason": reason,
        "shared_bytes": needed,
        "shared_limit_bytes": limit,
        "registers": result.registers,
        "spill_bytes": result.stack_bytes,
        "tensor_memory_columns": result.tensor_memory_columns,
        "seconds": round(result.seconds, 3),
    }


def _print(rows: list[dict[str, Any]], gpu: Gpu) -> None:
    from rich.console import Console  # noqa: PLC0415 - start-up time
    from rich.table import Table  # noqa: PLC0415 - start-up time

    table = Table(
        title=f"{gpu.name} ({rows[0]['target']}), {gpu.smem_per_block_optin_bytes:,} bytes of "
        "shared memory a block",
        title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    table.add_column("config")
    for head in ("shared\nbytes", "registers\na thread", "spilled\nbytes", "s"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("outcome")
    for row in rows:
        numbers = (row["shared_bytes"], row["registers"], row["spill_bytes"])
        shown = ["" if v is None else f"{v:,}" for v in numbers]
        outcome = row["outcome"] if row["reason"] is None else f"{row['outcome']}: {row['reason']}"
        table.add_row(row["config"], *shown, f"{row['seconds']:.1f}", outcome)
    console = Console()
    (console if console.is_terminal else Console(width=_PIPE_WIDTH)).print(table)
