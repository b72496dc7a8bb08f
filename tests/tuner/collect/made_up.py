"""Plans of any family, and times for them that nobody measured: for tests alone."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd

from perfmodel.dataset import schema
from perfmodel.dataset.outcome import Outcome
from perfmodel.hardware.catalog import load_gpu
from perfmodel.predictor import Predictor
from tuner.collect.families import family_of
from tuner.collect.plan import Budget, make_plan
from tuner.collect.plan_file import Plan, Settings


def family_plan(
    name: str, problems: int = 6, configs: int | None = 5, dtype: str = "bf16", seed: int = 0
) -> Plan:
    """Plan a few problems of one family for an H100."""
    return make_plan(
        load_gpu("h100-sxm5"),
        [family_of(name)],
        [dtype],
        budget=Budget(None, problems, configs),
        seed=seed,
        settings=Settings(samples=5, limit_s=1.0),
        predictor=Predictor(analytic_only=True),
    )


def made_up_times(plan: Plan) -> dict[str, float | Outcome]:
    """A time for each item, the seventh of each ten a failure."""
    draw = random.Random(0)
    return {
        item.text: Outcome.OUT_OF_RESOURCES
        if item.number % 10 == 7
        else item.config.expected_us * draw.uniform(1.05, 1.5)
        for item in plan.items
    }


def made_up_table(plan: Plan, path: Path) -> Path:
    """The same times as a measurement table, which names itself made up."""
    times, rows = made_up_times(plan), []
    for item in plan.items:
        found = times[item.text]
        failed = isinstance(found, Outcome)
        rows.append({
            "family": item.problem.family, **item.problem.values, **item.config.values,
            "config_known": True, "backend": "triton", "is_library": False, "selection": "full",
            "gpu": plan.gpu, "latency_us": None if failed else found, "timing_method": "events",
            "outcome": found.value if isinstance(found, Outcome) else "ok", "source": "made up",
        })  # fmt: skip
    schema.write(pd.DataFrame(rows), path, schema.TableInfo("made up", {}, "made up", 1))
    return path
