"""A plan on a Slurm cluster: an array of jobs, one a shard, queued again when preempted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import NotInstalledError, UsageError
from perfmodel.wording import counted
from tuner.collect.bench import absolute_address
from tuner.collect.plan_file import Plan, load_plan

DEFAULTS: Mapping[str, Any] = {
    "timeout_min": 240,
    "gpus_per_node": 1,
    "cpus_per_task": 8,
}
"""Of a job; ``--slurm NAME=VALUE`` overrides them."""

CLUSTERS = ("slurm", "local")


@dataclass(frozen=True)
class ShardJob:
    """One job: run a shard to its end. A job that is queued again goes on where it was."""

    plan: str
    out: str
    device: str
    index: int
    count: int

    def __call__(self) -> str:
        """Measure what is left of the shard, and say how it went."""
        from tuner.collect.bench import open_bench  # noqa: PLC0415 - in the job alone
        from tuner.collect.output import Output  # noqa: PLC0415 - as above
        from tuner.collect.run import run_shard  # noqa: PLC0415 - as above

        plan = load_plan(Path(self.plan))
        bench = open_bench(self.device, plan)
        try:
            done = run_shard(
                plan, bench, Output(self.out), index=self.index, count=self.count,
                tell=lambda state: print(state.line(), flush=True),
            )  # fmt: skip
        finally:
            bench.close()
        return f"{done.shard.name}: {counted(done.total, 'row')}, {done.measured:,} measured now"

    def checkpoint(self, *_: Any, **__: Any) -> Any:
        """Return what submitit queues when the job is preempted or out of time: the same again."""
        import submitit  # noqa: PLC0415 - an extra

        return submitit.helpers.DelayedSubmission(self)


def submit(
    plan: Plan,
    plan_path: Path,
    out: str,
    *,
    device: str = "cuda",
    shards: int = 1,
    cluster: str = "slurm",
    parameters: Sequence[str] = (),
    logs: Path | None = None,
) -> list[Any]:
    """Submit one job a shard, and return submitit's jobs.

    Args:
        plan: what to measure; ``plan_path`` and ``out`` must be there for the jobs, too.
        device: the address of each job's device.
        shards: jobs.
        cluster: ``slurm``, or ``local`` for processes of this machine.
        parameters: ``NAME=VALUE`` of submitit's executor.
        logs: where submitit writes; by default ``slurm-logs`` beside the plan.

    Raises:
        NotInstalledError: submitit is absent. UsageError: no such cluster, shard or parameter.
    """
    try:
        import submitit  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotInstalledError(
            "--on slurm needs submitit; install it with: pip install 'perfmodel[fleet]'"
        ) from error
    if cluster not in CLUSTERS:
        raise UsageError(f"cluster is {cluster!r}; use one of: {', '.join(CLUSTERS)}")
    plan.shard(1, shards)
    plan_path = plan_path.resolve()
    folder = logs or plan_path.parent / "slurm-logs"
    try:
        executor = submitit.AutoExecutor(folder=str(folder), cluster=cluster)
        executor.update_parameters(**_parameters(parameters, cluster))
    except (RuntimeError, TypeError, NameError) as error:  # no srun; an unknown parameter
        raise UsageError(f"submitit refuses: {error}") from error
    address = absolute_address(device)
    where = out if "://" in out else str(Path(out).resolve())
    jobs = [ShardJob(str(plan_path), where, address, i + 1, shards) for i in range(shards)]
    with executor.batch():
        return [executor.submit(job) for job in jobs]


def _parameters(given: Sequence[str], cluster: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(DEFAULTS)
    if cluster == "local":
        found = {"timeout_min": DEFAULTS["timeout_min"]}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--slurm is {text!r}; use NAME=VALUE, e.g. slurm_partition=gpu")
        found[name] = int(value) if value.isdigit() else value
    return found
