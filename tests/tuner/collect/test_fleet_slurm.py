"""Jobs through submitit, on its local executor: one a shard, queued again when preempted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from perfmodel.errors import UsageError
from tuner.collect.fleet_slurm import ShardJob, submit
from tuner.collect.merge import gather
from tuner.collect.plan_file import Plan

submitit = pytest.importorskip("submitit", reason="the fleet on Slurm needs submitit")
LocalJobEnvironment = submitit.local.local.LocalJobEnvironment


@pytest.fixture
def path(plan: Plan, tmp_path: Path) -> Path:
    plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_jobs_measure_their_shards(plan: Plan, path: Path, table: Path, tmp_path: Path) -> None:
    jobs = submit(plan, path, str(tmp_path / "out"), device=f"replay:{table}", shards=2,
                  cluster="local")  # fmt: skip
    said = [job.result() for job in jobs]
    assert said[0].startswith("shard-1-of-2.jsonl: ")
    merged = gather(plan, tmp_path / "out")
    assert not merged.missing
    assert merged.duplicates == 0


def test_a_preempted_job_is_queued_again_and_goes_on(
    plan: Plan, path: Path, table: Path, tmp_path: Path
) -> None:
    """Slurm preempts by a signal to the task; submitit's local executor then starts it again."""
    (job,) = submit(plan, path, str(tmp_path / "out"), device=f"replay:{table}?sleep_ms=150",
                    cluster="local")  # fmt: skip
    shard = tmp_path / "out" / "shard-1-of-1.jsonl"
    for _ in range(600):
        if shard.exists() and shard.read_bytes().count(b'"row"') >= 2:
            break
        job.done()
        time.sleep(0.05)
    controller = job._process.pid
    (task,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    os.kill(int(task), LocalJobEnvironment._usr_sig())
    assert "shard-1-of-1.jsonl" in job.result()
    merged = gather(plan, tmp_path / "out")
    assert not merged.missing
    assert merged.duplicates == 0
    logs = "".join(p.read_text() for p in (tmp_path / "slurm-logs").glob("*_log.*"))
    assert "Calling checkpoint method" in logs


def test_a_checkpoint_is_the_same_job() -> None:
    job = ShardJob("plan.json", "out", "cuda", 1, 4)
    again = job.checkpoint()
    assert (again.function, again.args, again.kwargs) == (job, (), {})


def test_bad_parameters_are_errors(plan: Plan, path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"use NAME=VALUE, e.g. slurm_partition=gpu"):
        submit(plan, path, "out", cluster="local", parameters=["gpu"])
    with pytest.raises(UsageError, match="cluster is 'pbs'; use one of: slurm, local"):
        submit(plan, path, "out", cluster="pbs")
    with pytest.raises(UsageError, match="submitit refuses: "):
        submit(plan, path, "out", cluster="local", parameters=["colour=red"])
