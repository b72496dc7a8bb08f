from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from perfmodel.evaluate import metrics

TWO_PROBLEMS = np.array([7, 7, 7, 3, 3])
TIMES = np.array([10.0, 20.0, 12.5, 4.0, 5.0])


def order_of(score: list[float]) -> metrics.Order:
    return metrics.in_order(TWO_PROBLEMS, np.array(score), TIMES)


def test_errors_of_known_predictions() -> None:
    error = metrics.relative_error(np.array([1.0, 1.1, 0.5, 2.0]), np.ones(4))
    assert error == pytest.approx([0.0, 0.1, 0.5, 1.0])
    found = metrics.error_metrics(error)
    assert found["error_mean"] == pytest.approx(0.4)
    assert found["error_median"] == pytest.approx(0.3)
    assert found["error_p90"] == pytest.approx(0.85)
    assert found["error_under10"] == pytest.approx(0.25)


def test_quality_is_the_best_time_over_the_best_among_the_first_k() -> None:
    # Problem 3 (rows 3, 4) comes first; each is ordered slowest first.
    order = order_of([3.0, 1.0, 2.0, 2.0, 1.0])
    assert order.pick(1) == pytest.approx([4 / 5, 10 / 20])
    assert order.pick(2) == pytest.approx([1.0, 10 / 12.5])
    assert order.pick(9) == pytest.approx([1.0, 1.0])


def test_trials_count_the_rows_tried_until_one_is_as_good_as_asked() -> None:
    order = order_of([3.0, 1.0, 2.0, 1.0, 2.0])
    assert order.trials(0.99).tolist() == [1, 3]
    assert order.trials(0.8).tolist() == [1, 2]
    found = metrics.trials_metrics(order)
    assert found["trials99"] == pytest.approx(2.0)
    assert found["trials99_max"] == 3.0


def test_a_hit_is_a_member_of_the_set_among_the_first_k() -> None:
    order = order_of([3.0, 1.0, 2.0, 1.0, 2.0])
    member = np.array([False, False, True, False, True])
    assert order.hit(member, 1).tolist() == [False, False]
    assert order.hit(member, 2).tolist() == [True, True]


def test_pick_metrics_of_known_qualities() -> None:
    found = metrics.pick_metrics(np.array([1.0, 0.25, 0.995, 0.5]))
    assert found["pick_mean"] == pytest.approx(0.68625)
    assert found["pick_geomean"] == pytest.approx((0.25 * 0.995 * 0.5) ** 0.25)
    assert found["pick_min"] == 0.25
    assert found["pick_share99"] == 0.5
    assert found["pick_p5"] == pytest.approx(0.25 + 0.15 * 0.25)


def test_rows_sorted_by_time_in_their_source_do_not_help_one_who_cannot_tell_them_apart() -> None:
    times = np.linspace(1.0, 50.0, 1000)
    order = metrics.in_order(np.zeros(1000, dtype=int), np.zeros(1000), times)
    assert order.pick(1)[0] < 1.0
    assert order.trials(1.0)[0] > 10


def test_equal_scores_are_ordered_alike_in_every_run() -> None:
    first, second = (order_of([0.0] * 5) for _ in range(2))
    assert first.rows.tolist() == second.rows.tolist()


def test_a_row_without_a_score_is_tried_last() -> None:
    order = order_of([np.nan, 5.0, 6.0, 1.0, 2.0])
    assert order.trials(0.99).tolist() == [1, 3]


def test_expectation_of_random_picks_is_the_mean_over_all_draws() -> None:
    draws = metrics.random_pick(TWO_PROBLEMS, TIMES, 1)
    by_hand = np.mean([np.mean([1.0, 4 / 5]), np.mean([1.0, 0.5, 0.8])])
    assert draws["pick_mean"] == pytest.approx(by_hand)
    two = metrics.random_pick(TWO_PROBLEMS, TIMES, 2)
    assert two["pick_mean"] == pytest.approx(np.mean([1.0, np.mean([1.0, 1.0, 0.8])]))
    assert metrics.random_pick(TWO_PROBLEMS, TIMES, 5)["pick_mean"] == pytest.approx(1.0)


def test_expected_trials_of_a_random_order() -> None:
    found = metrics.random_trials(TWO_PROBLEMS, TIMES)
    assert found["trials99"] == pytest.approx(np.mean([3 / 2, 4 / 2]))


def test_coverage_and_width_of_known_intervals() -> None:
    ones = np.ones(4)
    low, high = np.array([0.9, 0.9, 0.5, 1.1]), np.array([1.1, 1.3, 1.5, 1.2])
    found = metrics.interval_metrics(ones, low, high, ones)
    assert found["coverage90"] == 0.75
    assert found["width90"] == pytest.approx(0.3)


sizes = st.integers(1, 40)
tables = sizes.flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.int64, n, elements=st.integers(0, 4)),
        hnp.arrays(np.float64, n, elements=st.floats(-5, 5)),
        hnp.arrays(np.float64, n, elements=st.floats(1e-3, 1e3)),
    )
)


@given(tables)
def test_quality_lies_in_0_to_1_and_grows_with_k(table: tuple[np.ndarray, ...]) -> None:
    problem, score, times = table
    order = metrics.in_order(problem, score, times)
    before = np.zeros(len(order.start))
    for k in range(1, len(problem) + 1):
        quality = order.pick(k)
        assert ((quality > 0) & (quality <= 1)).all()
        assert (quality >= before).all()
        before = quality
    assert before == pytest.approx(1.0)


@given(tables)
def test_trials_lie_between_1_and_the_number_of_rows(table: tuple[np.ndarray, ...]) -> None:
    problem, score, times = table
    order = metrics.in_order(problem, score, times)
    for quality in (0.5, 0.98, 0.99, 1.0):
        trials = order.trials(quality)
        assert ((trials >= 1) & (trials <= order.count)).all()
        # After that many tries the pick is as good as asked, and not one try earlier.
        for p in range(len(trials)):
            assert order.pick(int(trials[p]))[p] >= quality
            if trials[p] > 1:
                assert order.pick(int(trials[p]) - 1)[p] < quality


@given(tables)
def test_a_perfect_order_picks_the_best_at_once(table: tuple[np.ndarray, ...]) -> None:
    problem, _, times = table
    order = metrics.in_order(problem, times, times)
    assert order.pick(1) == pytest.approx(1.0)
    assert (order.trials(1.0) == 1).all()


@given(tables, st.integers(1, 12))
def test_a_random_pick_is_no_better_than_the_best_and_no_worse_than_the_worst(
    table: tuple[np.ndarray, ...], k: int
) -> None:
    problem, _, times = table
    best, worst = (metrics.in_order(problem, s * times, times).pick(k).mean() for s in (1, -1))
    found = metrics.random_pick(problem, times, k)["pick_mean"]
    assert worst - 1e-9 <= found <= best + 1e-9


def test_a_whole_table_is_scored_within_a_second() -> None:
    rng = np.random.default_rng(0)
    problem, times = rng.integers(0, 5341, 150_000), rng.lognormal(size=150_000)
    begun = time.perf_counter()
    order = metrics.in_order(problem, rng.normal(size=150_000), times)
    for k in (1, 3, 5, 10):
        metrics.pick_metrics(order.pick(k))
    metrics.trials_metrics(order)
    assert time.perf_counter() - begun < 1.0
