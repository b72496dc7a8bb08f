"""The predictor against published measurements, where a mirror of them is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfmodel.dataset import store
from perfmodel.dataset.pull import pull
from perfmodel.dataset.splits import label_table
from perfmodel.errors import PerfmodelError
from perfmodel.learned.artifact import load_model
from perfmodel.learned.feature_table import launch_groups
from perfmodel.predictor import Predictor
from perfmodel.uncertainty import ANALYTIC_LOG_INTERVAL

ROOT = Path(__file__).resolve().parents[1]
MIRROR = Path(os.environ.get("PERFMODEL_DATA_MIRROR") or ROOT.parent / "shared" / "data" / "mirror")

pytestmark = pytest.mark.skipif(
    not (MIRROR / "github.com").is_dir(),
    reason=f"the published files are not here: no mirror at {MIRROR} (PERFMODEL_DATA_MIRROR)",
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    cache = tmp_path_factory.mktemp("cache")
    pull("autoheuristic-mm", mirror=MIRROR, cache=cache)
    frame = label_table(store.load("autoheuristic-mm", cache))
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
