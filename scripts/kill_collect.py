"""Kill a collection every two seconds until it is done; its table must be an undisturbed run's.

python scripts/kill_collect.py [--rows 20000] [--every 2] [--sleep-ms 1] [--folder DIR]

Measures on a replay device, through the command line, with SIGKILL at random moments: most while
it measures, after that many seconds on average, a few while it starts.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from perfmodel.dataset import schema
from perfmodel.hardware.catalog import load_gpu
from tuner.collect.families import FAMILIES, family_of
from tuner.collect.plan import Budget, make_plan
from tuner.collect.plan_file import Plan, load_plan
from tuner.collect.shard import read_shard

GPU = "h100-sxm5"
CONFIGS = 50
COST_MAX_MS = 2.0


def make_table(plan: Plan, path: Path) -> None:
    """Record a time for all of a plan: its predictions with noise, and a failure now and then."""
    draw = random.Random(0)
    rows = []
    for item in plan.items:
        failed = draw.random() < 0.02
        us = item.config.expected_us * max(1 + 0.1 * draw.gauss(0, 1), 0.9)
        rows.append({
            "family": item.problem.family, **item.problem.values, **item.config.values,
            "config_known": True, "backend": "triton", "is_library": False, "selection": "full",
            "latency_us": None if failed else us, "timing_method": "events", "gpu": plan.gpu,
            "outcome": "out_of_resources" if failed else "ok", "source": "made up",
        })  # fmt: skip
    schema.write(pd.DataFrame(rows), path, schema.TableInfo("made up", {}, "made up", 1))


def command(folder: Path, *words: str) -> list[str]:
    """Return a ``perfmodel collect`` command on the plan of ``folder``."""
    verb, *rest = words
    return [sys.executable, "-m", "perfmodel", "collect", verb, str(folder / "plan.json"), *rest]


def merged(folder: Path, out: str) -> pd.DataFrame:
    """Merge a collection and return its table."""
    table = folder / f"{out}.parquet"
    subprocess.run(
        command(folder, "merge", "--out", str(folder / out), "--table", str(table)),
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return schema.read(table)


def wait_for_rows(process: subprocess.Popen[bytes], shard: Path) -> None:
    """Wait until a run has written something, or has ended."""
    before = shard.stat().st_size if shard.exists() else 0
    while process.poll() is None:
        size = shard.stat().st_size if shard.exists() else 0
        if size not in (0, before):
            return
        time.sleep(0.02)


def main() -> int:
    """Run the demonstration; 0 if the tables are equal and a measurement costs little enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--every", type=float, default=2.0)
    parser.add_argument("--sleep-ms", type=float, default=1.0)
    parser.add_argument("--family", default="gemm", choices=list(FAMILIES))
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="kill_collect-"))
    folder.mkdir(parents=True, exist_ok=True)
    problems = round(1.015 * given.rows / CONFIGS)  # the smallest have fewer tiles
    plan = make_plan(
        load_gpu(GPU), [family_of(given.family)], ["bf16", "fp16"],
        budget=Budget(None, problems, CONFIGS),
    )  # fmt: skip
    plan.save(folder / "plan.json")
    plan = load_plan(folder / "plan.json")
    print(f"plan: {len(plan.problems):,} problems, {len(plan.items):,} measurements")
    make_table(plan, folder / "recorded.parquet")
    replay = f"replay:{folder / 'recorded.parquet'}"

    started = time.monotonic()
    done = subprocess.run(
        command(folder, "run", "--out", str(folder / "calm"), "--device", replay),
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    whole = time.monotonic() - started
    print(f"undisturbed, device at once: {done.stdout.strip()}; {whole:.1f} s with start-up")
    cost_ms = 1e3 * whole / len(plan.items)
    print(f"orchestration: {cost_ms:.3f} ms a measurement, start-up included")

    draw, kills, started = random.Random(1), 0, time.monotonic()
    run = command(
        folder, "run", "--out", str(folder / "killed"), "--device",
        f"{replay}?sleep_ms={given.sleep_ms}",
    )  # fmt: skip
    shard = folder / "killed" / "shard-1-of-1.jsonl"
    while True:
        process = subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if draw.random() < 0.9:  # the others die while they start
            wait_for_rows(process, shard)
        try:
            code = process.wait(timeout=given.every * draw.uniform(0.1, 1.9))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            rows = read_shard(shard)
            if kills % 5 == 0:
                print(f"  kill {kills}: {len(rows.rows):,} rows, {rows.torn} torn bytes")
            continue
        if code:
            print(f"the run ended with code {code}")
            return 1
        break
    print(f"killed {kills} times in {time.monotonic() - started:.0f} s, then done")
    calm, killed = merged(folder, "calm"), merged(folder, "killed")
    same = calm.drop(columns="distinct_us").equals(killed.drop(columns="distinct_us")) and all(
        list(a) == list(b) for a, b in zip(calm.distinct_us, killed.distinct_us, strict=True)
    )
    keys = [row.key for row in read_shard(shard).rows]
    print(f"rows {len(killed):,}, duplicates {len(keys) - len(set(keys))}, tables equal: {same}")
    return 0 if same and len(keys) == len(set(keys)) and cost_ms <= COST_MAX_MS else 1


if __name__ == "__main__":
    sys.exit(main())
