"""A fleet on a local Ray: actors killed, the driver restarted, and how throughput scales.

python scripts/kill_fleet.py [--rows 3000] [--every 3] [--folder DIR]

Two pretended GPUs are two actors on a replay device that sleeps 20 ms a measurement. Every few
seconds one actor's process is killed, and once the driver's. The table must be complete, free of
duplicates, and an undisturbed single run's. Then one actor and two are timed side by side.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from kill_collect import command, make_table, merged

from perfmodel.hardware.catalog import load_gpu
from tuner.collect.families import family_of
from tuner.collect.fleet_ray import run_on_ray
from tuner.collect.plan import Budget, make_plan
from tuner.collect.plan_file import Plan, load_plan
from tuner.collect.shard import read_shard, shard_files

SCALING_MIN = 1.8


def plan_of(rows: int, path: Path) -> Plan:
    """Write a plan of about ``rows`` measurements."""
    plan = make_plan(
        load_gpu("h100-sxm5"), [family_of("gemm")], ["bf16"],
        budget=Budget(None, max(rows // 50, 1), 50),
    )  # fmt: skip
    plan.save(path)
    return load_plan(path)


def drive(folder: Path, every: float) -> int:
    """Run as the driver, and kill an actor every few seconds."""
    plan, pids, draw = load_plan(folder / "plan.json"), [], random.Random(os.getpid())
    killed, over = [0], threading.Event()

    def killer() -> None:
        while not over.wait(every):
            alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
            if alive:
                os.kill(draw.choice(alive), signal.SIGKILL)
                killed[0] += 1

    threading.Thread(target=killer, daemon=True).start()
    done = run_on_ray(
        plan, str(folder / "fleet"), device=f"replay:{folder / 'recorded.parquet'}?sleep_ms=20",
        workers=2, seen=pids.append,
    )  # fmt: skip
    over.set()
    print(f"driver: {done.total:,} rows, {done.measured:,} left for it; it killed {killed[0]} "
          f"actors, {done.lost} were replaced, {done.requeued} pieces given out again")  # fmt: skip
    return 0


def scaling(folder: Path) -> float:
    """Return how much faster two actors are than one, from the moment that all are ready."""
    plan = plan_of(1500, folder / "scaling.json")
    make_table(plan, folder / "scaling.parquet")
    rates = {}
    for workers in (1, 2):
        out = folder / f"scaling-{workers}"
        ready: list[tuple[float, int]] = []

        def note(_: int, out: Path = out, ready: list[tuple[float, int]] = ready) -> None:
            rows = sum(len(read_shard(path).rows) for path in shard_files(out))
            ready.append((time.monotonic(), rows))

        run_on_ray(
            plan, str(out), workers=workers, seen=note, piece_seconds=20,
            device=f"replay:{folder / 'scaling.parquet'}?sleep_ms=20",
        )  # fmt: skip
        since, rows = ready[-1]
        left, taken = len(plan.items) - rows, time.monotonic() - since
        rates[workers] = left / taken
        print(f"{workers} actor(s): {left:,} rows in {taken:.1f} s, {rates[workers]:.1f}/s")
    return rates[2] / rates[1]


def main() -> int:
    """Run the demonstration; 0 if all of it holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--every", type=float, default=3.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        return drive(given.folder, given.every)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="kill_fleet-"))
    folder.mkdir(parents=True, exist_ok=True)
    plan = plan_of(given.rows, folder / "plan.json")
    make_table(plan, folder / "recorded.parquet")
    print(f"plan: {len(plan.problems):,} problems, {len(plan.items):,} measurements")
    again = [sys.executable, __file__, "--drive", "--folder", str(folder),
             "--every", str(given.every)]  # fmt: skip
    driver = subprocess.Popen(again)
    try:
        driver.wait(timeout=6 * given.every + 15)
        print("the driver was done before it could be killed; give more --rows")
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()
        print("killed the driver")
    if subprocess.run(again, check=False).returncode:
        return 1
    calm = command(folder, "run", "--out", str(folder / "calm"), "--device",
                   f"replay:{folder / 'recorded.parquet'}")  # fmt: skip
    subprocess.run(calm, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    one, fleet = merged(folder, "calm"), merged(folder, "fleet")
    columns = ["source_row", "latency_us", "outcome", "gates"]
    same = one[columns].equals(fleet[columns]) and len(fleet) == len(plan.items)
    twice = len(fleet) - fleet["source_row"].nunique()
    print(f"rows {len(fleet):,} of {len(plan.items):,}, duplicates {twice}, tables equal: {same}")
    faster = scaling(folder)
    print(f"two actors are {faster:.2f} times as fast as one")
    return 0 if same and not twice and faster >= SCALING_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
