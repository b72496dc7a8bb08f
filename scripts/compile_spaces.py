"""Compile the default config spaces of all reference kernels for all architectures, with no GPU.

python scripts/compile_spaces.py [--kernel NAME] [--target sm_90] [--limit N] [--out FILE.csv]

Hours on a few cores. It may be stopped and started again at any time: what was compiled is
remembered in the cache folder. What fails is listed with its reason, and written to --out.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from perfmodel.errors import PerfmodelError
from perfmodel.files import atomic_path
from tuner.compile import CompiledKernel
from tuner.compiling.compile_cache import CompileCache
from tuner.compiling.compile_job import CompileJob
from tuner.compiling.compile_pool import LIMIT_S, compile_all
from tuner.kernels.ahead import DEVICES, SpaceJob, failures, outcomes, space_jobs
from tuner.kernels.catalog import KERNELS, find

LISTED = 20


def main() -> int:
    """Compile, show the outcomes, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernel", action="append", help="of these alone; may be repeated")
    parser.add_argument("--target", action="append", help="for these alone; may be repeated")
    parser.add_argument("--limit", type=int, help="the first N, drawn evenly from all")
    parser.add_argument("--workers", type=int, help="processes; default: CPUs")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds a compilation")
    parser.add_argument("--cache", help="folder of results; default: the user's cache folder")
    parser.add_argument("--out", type=Path, help="failures as CSV")
    asked = parser.parse_args()
    console = Console(stderr=True)
    try:
        kernels = [find(name) for name in asked.kernel] if asked.kernel else KERNELS
        with console.status("listing configurations"):
            jobs = space_jobs(kernels, asked.target or DEVICES)[: asked.limit]
        started = time.perf_counter()
        results = compile_jobs(jobs, asked.workers, asked.limit_s, asked.cache, console)
    except PerfmodelError as error:
        console.print(f"error: {error}", highlight=False)
        return error.exit_code
    except KeyboardInterrupt:
        console.print("stopped; start it again to go on")
        return 130
    show(jobs, results, time.perf_counter() - started)
    if asked.out is not None:
        write_failures(jobs, results, asked.out)
    return 0


def compile_jobs(
    jobs: list[SpaceJob], workers: int | None, limit_s: float, cache: str | None, console: Console
) -> list[CompiledKernel]:
    """Compile with a progress bar; failures are counted as they come."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    failed: Counter[str] = Counter()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("compiling", total=len(jobs))

        def tell(_job: CompileJob, result: CompiledKernel, done: int, _all: int) -> None:
            failed.update([] if result.ok else [result.outcome.value])
            words = ", ".join(f"{count} {name}" for name, count in failed.items())
            bar.update(task, completed=done, description=f"compiling {words}".strip())

        return compile_all(
            [job.job for job in jobs],
            workers=workers, limit_s=limit_s, cache=CompileCache(cache), tell=tell,
        )  # fmt: skip


def show(jobs: list[SpaceJob], results: list[CompiledKernel], seconds: float) -> None:
    """Print the outcomes by kernel and target, and the most frequent reasons of failure."""
    counted = outcomes(jobs, results)
    targets = [target for target in DEVICES if any(t == target for _, t in counted)]
    table = Table("kernel", *targets, title="fit to run / all")
    for name in dict.fromkeys(kernel for kernel, _ in counted):
        ends = [counted.get((name, target), Counter()) for target in targets]
        table.add_row(name, *(f"{end['ok']} / {end.total()}" for end in ends))
    console = Console()
    console.print(table)
    reasons = Counter(str(result.reason) for _, result in failures(jobs, results))
    for reason, count in reasons.most_common(LISTED):
        console.print(f"{count:6d}  {reason}", highlight=False, soft_wrap=True)
    console.print(f"{len(jobs)} binaries in {seconds:.0f} s, {reasons.total()} do not run")


def write_failures(jobs: list[SpaceJob], results: list[CompiledKernel], path: Path) -> None:
    """Write what cannot run, a line each."""
    with atomic_path(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["kernel", "target", "problem", "config", "outcome", "reason"])
        for job, result in failures(jobs, results):
            problem = json.dumps(job.problem.to_dict())
            rows.writerow(
                [job.kernel, job.target, problem, str(job.config), result.outcome.value,
                 result.reason]
            )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
