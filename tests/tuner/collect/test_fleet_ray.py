"""A local Ray with two pretended GPUs: an actor that is killed costs nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.errors import NoDeviceError, ResumeMismatchError, UsageError
from tuner.collect.fleet_ray import pieces_of, run_on_ray
from tuner.collect.merge import gather
from tuner.collect.plan_file import Plan

ray = pytest.importorskip("ray", reason="the fleet on Ray needs ray")


def test_pieces_keep_to_one_problem_and_to_their_time(plan: Plan) -> None:
    pieces = pieces_of(plan.items, 0.5)
    assert [n for piece in pieces for n in piece.items] == list(range(len(plan.items)))
    for piece in pieces:
        assert len({id(plan.items[n].problem) for n in piece.items}) == 1
        assert piece.seconds <= 0.5 or len(piece.items) == 1


@pytest.fixture(scope="module")
def cluster() -> object:
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False,
             configure_logging=False)  # fmt: skip
    yield
    ray.shutdown()


def test_a_fleet_survives_the_loss_of_an_actor_and_measures_everything_once(
    cluster: object, plan: Plan, table: Path, tmp_path: Path
) -> None:
    def kill_soon(pid: int) -> None:
        if not killed:
            killed.append(pid)
            threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()

    killed: list[int] = []
    done = run_on_ray(
        plan, str(tmp_path), device=f"replay:{table}?sleep_ms=150", workers=2, piece_seconds=0.5,
        seen=kill_soon,
    )  # fmt: skip
    merged = gather(plan, tmp_path)
    assert done.lost == 1
    assert done.requeued >= 1
    assert not merged.missing
    assert merged.duplicates == 0
    assert len(merged.shards) >= 2
    again = run_on_ray(plan, str(tmp_path), device=f"replay:{table}", workers=2)
    assert again.measured == 0


def test_what_is_wrong_everywhere_ends_the_fleet_at_once(
    cluster: object, plan: Plan, table: Path, tmp_path: Path
) -> None:
    other = replace(plan, gpu="a100-sxm4-80gb")
    started = time.monotonic()
    with pytest.raises(UsageError, match="has no row of a100-sxm4-80gb"):
        run_on_ray(other, str(tmp_path / "a"), device=f"replay:{table}", workers=1)
    with pytest.raises(NoDeviceError, match="the Ray cluster has no GPU"):
        run_on_ray(plan, str(tmp_path / "b"))
    with pytest.raises(UsageError, match="workers is 0"):
        run_on_ray(plan, str(tmp_path / "c"), device=f"replay:{table}", workers=0)
    assert time.monotonic() - started < 60


def test_a_fleet_refuses_rows_of_another_plan(
    cluster: object, plan: Plan, table: Path, tmp_path: Path
) -> None:
    run_on_ray(plan, str(tmp_path), device=f"replay:{table}", workers=1)
    with pytest.raises(ResumeMismatchError, match="belongs to plan"):
        run_on_ray(replace(plan, seed=9), str(tmp_path), device=f"replay:{table}", workers=1)
