"""A small plan, and a device that replays a time for all of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from perfmodel.dataset import schema
from perfmodel.dataset.outcome import Outcome
from perfmodel.hardware.catalog import load_gpu
from perfmodel.predictor import Predictor
from tuner.collect.bench import Bench, NamedTrials
from tuner.collect.families import family_of
from tuner.collect.plan import Budget, make_plan
from tuner.collect.plan_file import Plan, Settings
from tuner.measure.device import DeviceIdentity, Timing, Trial
from tuner.measure.replay import ReplayDevice

H100 = DeviceIdentity("NVIDIA H100 80GB HBM3", "sm_90", gpu="h100-sxm5", driver="570.86.15")

Recorded = dict[str, float | Outcome]


def make_small_plan(problems: int = 4, configs: int = 6, seed: int = 0) -> Plan:
    return make_plan(
        load_gpu("h100-sxm5"),
        [family_of("gemm")],
        ["bf16"],
        budget=Budget(None, problems, configs),
        seed=seed,
        settings=Settings(samples=5, limit_s=1.0),
        predictor=Predictor(analytic_only=True),
    )


@pytest.fixture(scope="session")
def plan() -> Plan:
    return make_small_plan()


@pytest.fixture(scope="session")
def recorded(plan: Plan) -> Recorded:
    """A time for each item, the seventh of each ten a failure."""
    draw = random.Random(0)
    return {
        item.text: Outcome.OUT_OF_RESOURCES
        if item.number % 10 == 7
        else item.config.expected_us * draw.uniform(1.05, 1.5)
        for item in plan.items
    }


class Watched(ReplayDevice):
    """A replay that runs something before its n-th answer."""

    def __init__(self, table: Recorded, identity: DeviceIdentity = H100) -> None:
        super().__init__(table, identity, "events-1")
        self.asked = 0
        self.before: dict[int, Callable[[], object]] = {}

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        self.asked += 1
        self.before.get(self.asked, lambda: None)()
        return super().time(trial, samples=samples, limit_s=limit_s)


@pytest.fixture
def device(recorded: Recorded) -> Watched:
    return Watched(recorded)


@pytest.fixture
def bench(device: Watched) -> Bench:
    return Bench(device, NamedTrials(), compiler="triton 0.0", kernels={"gemm": "abc"})


@pytest.fixture(scope="session")
def table(plan: Plan, recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same times as a measurement table."""
    rows = []
    for item in plan.items:
        found = recorded[item.text]
        failed = isinstance(found, Outcome)
        rows.append({
            "family": "gemm", **item.problem.values, **item.config.values, "config_known": True,
            "backend": "triton", "is_library": False, "selection": "full", "gpu": plan.gpu,
            "latency_us": None if failed else found, "timing_method": "events",
            "outcome": found.value if isinstance(found, Outcome) else "ok", "source": "made up",
        })  # fmt: skip
    path = tmp_path_factory.mktemp("recorded") / "table.parquet"
    schema.write(pd.DataFrame(rows), path, schema.TableInfo("made up", {}, "made up", 1))
    return path


def altered(path: Path, **changes: object) -> None:
    """Change fields of a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(content), encoding="utf-8")
