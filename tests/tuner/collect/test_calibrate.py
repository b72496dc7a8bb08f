"""Calibrating: problems that say much, and a model that fits the device better afterwards."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import ModelFileError, UsageError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.artifact import load_model
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from tuner.collect.bench import Bench, NamedTrials
from tuner.collect.calibrate import (
    calibrate,
    calibration_plan,
    recorded_pool,
    representatives,
)
from tuner.collect.families import family_of
from tuner.collect.output import Output
from tuner.collect.plan_file import Plan, Settings
from tuner.collect.table_columns import problem_of
from tuner.measure.device import DeviceIdentity

from .conftest import Watched

FACTOR = 1.5
"""How much slower than the analytic estimate the made-up device is."""


def slower_device(plan: Plan) -> Watched:
    """Runs everything ``FACTOR`` slower than the analytic estimate says."""
    gpu, family = load_gpu(plan.gpu), family_of("gemm")
    table = {}
    for planned in plan.problems:
        problem = problem_of("gemm", planned.values)
        configs = family.configs(problem, gpu)
        us = family.score(problem, gpu, configs, Predictor(analytic_only=True)).latency_us
        known = {tuple(c.to_dict().values()): t for c, t in zip(configs.configs, us, strict=True)}
        for item in plan.items:
            if item.problem is planned:
                values = tuple({**item.config.values, "maxnreg": None}.values())
                table[item.text] = FACTOR * float(known[values])
    return Watched(table, DeviceIdentity("H", "sm_90", gpu=plan.gpu))


def test_a_calibrated_model_fits_the_device_better(model_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("xgboost", reason="adapting needs xgboost")
    predictor = Predictor(load_model(model_file))
    gpu = load_gpu("h100-sxm5")
    plan = calibration_plan(gpu, predictor, problems=6, configs=12, settings=Settings(3, 1.0))
    bench = Bench(slower_device(plan), NamedTrials())
    done = calibrate(plan, bench, Output(tmp_path), predictor)
    assert done.gain.problems == 6
    assert done.gain.error_after < 0.7 * done.gain.error_before
    problem = problem_of("gemm", plan.problems[0].values)
    before, after = (p.predict(problem, gpu).latency_us for p in (predictor, done.predictor))
    assert after > 1.1 * before
    again = calibrate(plan, bench, Output(tmp_path), predictor)
    assert again.gain == done.gain
    device = bench.device
    assert isinstance(device, Watched)
    assert set(device.calls.values()) == {1}


def test_without_a_trained_model_nothing_is_measured(bench: Bench, tmp_path: Path) -> None:
    predictor = Predictor(analytic_only=True)
    plan = calibration_plan(load_gpu("h100-sxm5"), predictor, problems=2, configs=2)
    with pytest.raises(ModelFileError, match="no trained model to calibrate"):
        calibrate(plan, bench, Output(tmp_path), predictor)
    assert not list(tmp_path.iterdir())


@given(st.integers(2, 40), st.integers(0, 1000), st.integers(40, 90))
def test_problems_of_every_amount_of_work_are_chosen_each_once(
    count: int, seed: int, pool: int
) -> None:
    draw = random.Random(seed)
    problems = [Gemm(*(2 ** draw.randint(4, 13) for _ in range(3))) for _ in range(pool)]
    chosen = representatives(problems, count, seed)
    assert len(set(chosen)) == count
    assert chosen == representatives(problems, count, seed)
    ranks = np.argsort(np.argsort([p.flops for p in problems], kind="stable"), kind="stable")
    bands = round(math.sqrt(count))
    for band in np.array_split(np.arange(pool), bands):
        assert any(ranks[row] in band for row in chosen)


def test_calibration_problems_differ_in_size_and_shape() -> None:
    plan = calibration_plan(
        load_gpu("h100-sxm5"), Predictor(analytic_only=True), problems=20, configs=4
    )
    assert len(plan.problems) == 20
    for name in ("m", "n", "k"):
        assert np.ptp(np.log2([p.values[name] for p in plan.problems])) > 8
    assert plan.seconds < 5 * 60


def test_a_recorded_table_offers_its_own_problems_and_configurations(
    plan: Plan, table: Path
) -> None:
    pool = recorded_pool(table, "h100-sxm5")
    assert len(pool) == len(plan.problems)
    chosen = calibration_plan(
        load_gpu("h100-sxm5"), Predictor(analytic_only=True), problems=3, configs=4, pool=pool
    )
    assert {i.key for i in chosen.items} <= {i.key for i in plan.items}
    with pytest.raises(UsageError, match="has no GEMM of b200"):
        recorded_pool(table, "b200")


@pytest.mark.parametrize(("problems", "configs"), [(1, 30), (20, 1)])
def test_too_little_to_learn_from_is_an_error(problems: int, configs: int) -> None:
    with pytest.raises(UsageError, match="at least 2 problems with 2 configs each"):
        calibration_plan(
            load_gpu("h100-sxm5"), Predictor(analytic_only=True), problems=problems, configs=configs
        )
