"""The predictor against imported measurements, where there are any on this machine."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfmodel.dataset import store
from perfmodel.dataset.splits import label_table
from perfmodel.errors import PerfmodelError
from perfmodel.learned.artifact import load_model
from perfmodel.learned.feature_table import launch_groups
from perfmodel.predictor import Predictor
from perfmodel.uncertainty import ANALYTIC_LOG_INTERVAL


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    try:
        frame = label_table(store.load("autoheuristic-mm"))
    except PerfmodelError as error:
        pytest.skip(f"autoheuristic-mm is not imported: {error}")
    ran = frame[(frame["outcome"] == "ok") & frame["config_known"].astype(bool)]
    return ran.sample(20_000, random_state=0)


def log_error(predictor: Predictor, rows: pd.DataFrame) -> np.ndarray:
    """log(measured / predicted) of the rows, through the arrays that users call."""
    predicted = np.empty(len(rows))
    for group in launch_groups(rows):
        found = predictor.latency_us(group.problems, group.gpu, group.configs)
        predicted[group.rows] = found
    return np.log(rows["latency_us"].to_numpy()) - np.log(predicted)


def test_the_analytic_interval_holds_what_it_says(rows: pd.DataFrame) -> None:
    low, high = ANALYTIC_LOG_INTERVAL
    error = log_error(Predictor(analytic_only=True), rows)
    ran = np.isfinite(error)
    assert ran.mean() > 0.999  # an older Triton ran some TF32 tiles that today's cannot
    error = error[ran]
    assert 0.85 < np.mean((error >= low) & (error <= high)) < 0.95


def test_the_shipped_model_serves_what_it_was_trained_on(rows: pd.DataFrame) -> None:
    try:
        model = load_model()
    except PerfmodelError as error:
        pytest.skip(f"no shipped model: {error}")
    error = log_error(Predictor(model), rows)
    assert np.abs(np.expm1(-error[np.isfinite(error)])).mean() < 0.06
