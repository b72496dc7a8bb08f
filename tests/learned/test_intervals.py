"""Intervals: what is promised to be inside is inside, in log units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.learned.intervals import (
    SPREAD_MIN,
    Calibration,
    conformal_quantile,
    difficulty,
    log_error_target,
)
from perfmodel.learned.training import calibrate

pytest.importorskip("xgboost")


def hard_and_easy(seed: int, problems: int, rows: int = 10) -> tuple[np.ndarray, ...]:
    """Rows whose errors range from 1 to 20 %, in a way that one feature tells."""
    rng = np.random.default_rng(seed)
    problem = np.repeat(np.arange(problems), rows)
    features = rng.uniform(-1, 1, (len(problem), 4)).astype(np.float32)
    sigma = 0.01 * 20 ** ((features[:, 0] + 1) / 2)
    return features, np.abs(rng.normal(size=len(problem)) * sigma), problem


def test_nine_in_ten_of_new_measurements_are_inside_and_hard_ones_get_wider_intervals() -> None:
    features, errors, problem = hard_and_easy(0, 500)
    spread, seen = calibrate(features, errors, problem)
    calibration = Calibration(0.9, seen, 4 * seen)
    new, new_errors, _ = hard_and_easy(1, 1500)
    low, high = calibration.bounds(spread.predict(new), known=True)
    inside = new_errors <= high
    assert 0.88 <= inside.mean() <= 0.92
    for half in (new[:, 0] < 0, new[:, 0] >= 0):  # on easy and on hard ones alike
        assert 0.85 <= inside[half].mean() <= 0.95
    assert (low == -high).all()
    easy, hard = high[new[:, 0] < -0.5], high[new[:, 0] > 0.5]
    assert np.median(hard) > 4 * np.median(easy)


@pytest.mark.parametrize("problems", [1, 2, 3])
def test_few_problems_still_give_a_finite_multiple(problems: int) -> None:
    spread, seen = calibrate(*hard_and_easy(2, problems))
    assert 0 < seen < np.inf
    assert np.isfinite(spread.predict(np.zeros((1, 4), dtype=np.float32))).all()


def test_what_was_measured_gets_narrower_intervals_than_what_was_not() -> None:
    calibration = Calibration(0.9, seen=2.0, unseen=8.0)
    spread = np.log(np.array([0.01, 0.05, 0.3]))
    for side in (0, 1):
        known = np.abs(calibration.bounds(spread, known=True)[side])
        unknown = np.abs(calibration.bounds(spread, known=False)[side])
        assert (known < unknown).all()


def test_no_interval_is_narrower_than_the_noise_of_measuring() -> None:
    assert difficulty(np.array([-50.0]))[0] == SPREAD_MIN
    assert log_error_target(np.array([0.0]))[0] == np.log(SPREAD_MIN)


errors_ = st.lists(st.floats(0, 10), min_size=1, max_size=60)


@given(errors_, st.integers(1, 10))
@settings(max_examples=60)
def test_the_multiple_covers_at_least_its_share_of_what_it_was_taken_from(
    errors: list[float], groups: int
) -> None:
    sizes = np.array(errors)
    problem = np.arange(len(sizes)) % groups
    spread = np.zeros(len(sizes))  # a difficulty of one
    multiple = conformal_quantile(sizes, spread, problem)
    # An interpolated quantile may stop short of one row.
    assert (sizes <= multiple + 1e-9).sum() >= np.floor(0.9 * len(sizes))
    assert multiple <= sizes.max()


def test_fewer_problems_call_for_a_larger_multiple() -> None:
    """Rows of one problem err together: a thousand rows of five problems count as five."""
    errors = np.linspace(0, 1, 1000)
    spread = np.zeros(1000)
    one, five, many = (
        conformal_quantile(errors, spread, np.arange(1000) % n) for n in (1, 5, 1000)
    )
    assert one == 1.0
    assert one >= five > many > 0.9 - 1e-3


def test_a_calibration_survives_being_written_down() -> None:
    calibration = Calibration(0.9, 1.5, 6.0)
    assert Calibration.from_dict(calibration.to_dict()) == calibration
