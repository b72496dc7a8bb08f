"""The score that configurations are ordered by: lower is better."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.learned.ranking import rank_score

values = st.lists(st.floats(-20, 5), min_size=2, max_size=20)
quick = settings(max_examples=60)


@given(values)
@quick
def test_without_a_preference_the_predicted_time_orders(log_seconds: list[float]) -> None:
    times = np.array(log_seconds)
    score = rank_score(np.zeros_like(times), times, np.zeros_like(times))
    assert (np.argsort(score, kind="stable") == np.argsort(times, kind="stable")).all()


def test_among_equal_times_the_preferred_one_is_first() -> None:
    times, preference = np.full(3, -9.0), np.array([0.1, 2.0, -1.0])
    for known in (True, False):
        assert rank_score(times, times, preference, known).argmin() == 1


@given(values, st.floats(-5, 5))
@quick
def test_the_scale_of_a_problem_does_not_change_its_order(
    log_seconds: list[float], shift: float
) -> None:
    times = np.array(log_seconds)
    analytic, preference = times[::-1] - 0.2, np.sin(times)
    for known in (True, False):
        before = rank_score(analytic, times, preference, known)
        after = rank_score(analytic + shift, times + shift, preference + shift, known)
        np.testing.assert_allclose(np.diff(after), np.diff(before), atol=1e-9)


@given(values)
@quick
def test_where_nothing_was_measured_physics_has_a_say(log_seconds: list[float]) -> None:
    times = np.array(log_seconds)
    analytic, none = times[::-1].copy(), np.zeros_like(times)
    score = rank_score(analytic, times, none, known=False)
    low, high = np.minimum(analytic, times), np.maximum(analytic, times)
    assert ((low - 1e-9 <= score) & (score <= high + 1e-9)).all()
    differ = high - low > 1e-6
    assert (score[differ] != times[differ]).all()


def test_rows_of_known_and_unknown_kinds_may_be_mixed() -> None:
    analytic, times, none = np.zeros(2), np.full(2, 1.0), np.zeros(2)
    score = rank_score(analytic, times, none, np.array([True, False]))
    assert score[0] == 1.0 > score[1] > 0.0
