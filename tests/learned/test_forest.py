"""Flat trees: the walker against trees walked by hand and against xgboost; bad ones refused."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import ModelFileError
from perfmodel.learned.engine import NODES_MAX, ROWS_ALONE, ROWS_MAX
from perfmodel.learned.forest import FEATURES_MAX, Forest
from perfmodel.learned.tree_layout import left_of_breadth_first

quick = settings(max_examples=40, deadline=None)


def grow(seed: int, trees: int = 5, nodes: int = 40, features: int = 6) -> Forest:
    """Trees of random shape: leaves of a tree are split until it has about ``nodes`` nodes."""
    rng = np.random.default_rng(seed)
    threshold, feature, left, roots = [], [], [], []
    for _ in range(trees):
        root = len(threshold)
        roots.append(root)
        threshold.append(0.0)
        feature.append(-1)
        left.append(-1)
        waiting = [root]
        while waiting:
            node = waiting.pop(int(rng.integers(len(waiting))))
            if len(threshold) - root + 2 > rng.integers(1, nodes + 2):
                threshold[node] = float(rng.normal())
                continue
            threshold[node], feature[node] = float(rng.normal()), int(rng.integers(features))
            left[node] = len(threshold)
            waiting += [len(threshold), len(threshold) + 1]
            threshold += [0.0, 0.0]
            feature += [-1, -1]
            left += [-1, -1]
    return build(threshold, feature, left, roots, features=features, base=float(rng.normal()))


def build(
    threshold: Any, feature: Any, left: Any, roots: Any = (0,), *, features: int, base: float = 0.0
) -> Forest:
    values = np.asarray(threshold, dtype=np.float32)
    split, child = np.asarray(feature), np.asarray(left)
    expected = np.where(split < 0, values, 0.0)
    for node in np.flatnonzero(split >= 0)[::-1]:
        expected[node] = (expected[child[node]] + expected[child[node] + 1]) / 2
    return Forest(
        threshold=values,
        feature=split.astype(np.int16),
        left=child.astype(np.int32),
        expected=np.where(split < 0, values, expected.astype(np.float16)).astype(np.float32),
        roots=np.asarray(roots, dtype=np.int32),
        base=base,
        features=features,
    )


def by_hand(forest: Forest, rows: np.ndarray) -> np.ndarray:
    out = np.full(len(rows), forest.base)
    for root in forest.roots:
        node = np.full(len(rows), root, dtype=np.int64)
        for _ in range(len(forest.threshold)):
            feature = forest.feature[node].astype(np.int64)
            value = rows[np.arange(len(rows)), np.maximum(feature, 0)]
            child = forest.left[node] + (value >= forest.threshold[node])
            moved = np.where(feature >= 0, child, node)
            if (moved == node).all():
                break
            node = moved
        out += forest.threshold[node]
    return out


def rows_for(forest: Forest, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, forest.features)).astype(np.float32)


# --- answers ----------------------------------------------------------------------------------


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 80), st.integers(1, FEATURES_MAX)
)
@quick
def test_the_walker_ends_at_the_leaves_that_a_walk_by_hand_ends_at(
    seed: int, trees: int, nodes: int, features: int
) -> None:
    forest = grow(seed, trees, nodes, features)
    rows = rows_for(forest, 1 + seed % 11, seed)
    np.testing.assert_allclose(forest.predict(rows), by_hand(forest, rows), atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, ROWS_MAX - 1, ROWS_MAX, ROWS_MAX + 1, 2500])
def test_any_number_of_rows(count: int) -> None:
    forest = grow(1)
    rows = rows_for(forest, count)
    found = forest.predict(rows)
    assert found.shape == (count,)
    np.testing.assert_allclose(found, by_hand(forest, rows), atol=1e-5)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 30))
@quick
def test_a_row_alone_is_answered_to_the_last_bit_as_among_others(
    seed: int, trees: int, count: int
) -> None:
    """Alone it walks a dozen trees at once, among others a tree at a time."""
    forest = grow(seed, trees)
    rows = rows_for(forest, ROWS_ALONE + count, seed)
    alone = [forest.predict(row[None])[0] for row in rows]
    few = forest.predict(rows[:ROWS_ALONE])
    np.testing.assert_array_equal(forest.predict(rows), alone)
    np.testing.assert_array_equal(few, alone[:ROWS_ALONE])


def test_a_value_equal_to_the_threshold_goes_right() -> None:
    forest = build([0.5, 1.0, 2.0], [0, -1, -1], [1, -1, -1], features=1)
    rows = np.array([[0.49999997], [0.5], [0.50000006]], dtype=np.float32)
    assert forest.predict(rows).tolist() == [1, 2, 2]


def test_extreme_finite_values_are_walked() -> None:
    forest = build([0.0, 1.0, 2.0], [0, -1, -1], [1, -1, -1], features=1)
    largest = np.finfo(np.float32).max
    assert forest.predict(np.array([[-largest], [largest]], dtype=np.float32)).tolist() == [1, 2]


def test_a_tree_of_one_leaf_is_a_constant() -> None:
    forest = build([0.25], [-1], [-1], features=3, base=1.0)
    assert forest.predict(np.zeros((2, 3), dtype=np.float32)).tolist() == [1.25, 1.25]
    assert not forest.contributions(np.zeros(3, dtype=np.float32)).any()


def test_a_tree_as_deep_as_it_has_splits() -> None:
    """Every split sends all but one value on to the next."""
    depth = 3000
    split = np.arange(2 * depth + 1)
    inner = (split % 2 == 0) & (split < 2 * depth)  # left child a leaf, right child the next split
    threshold = np.where(inner, split / 2, -split)
    left = np.where(inner, split + 1, -1)
    forest = build(threshold, np.where(inner, 0, -1), left, features=1)
    rows = np.array([[-1], [0], [17], [2998], [1e9]], dtype=np.float32)
    assert forest.predict(rows).tolist() == [-1, -3, -37, -5999, -6000]


def complete(nodes: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A tree as shallow as an odd number of nodes can be."""
    inner = np.arange(nodes) < nodes // 2
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=nodes),
        np.where(inner, rng.integers(4, size=nodes), -1),
        np.where(inner, 2 * np.arange(nodes) + 1, -1),
    )


def test_a_forest_too_large_for_one_machine_is_spread_over_several() -> None:
    size = 2**16 - 1
    trees = [complete(size, seed) for seed in range(9)]
    assert len(trees) * size > NODES_MAX
    forest = Forest(
        threshold=np.concatenate([t[0] for t in trees]).astype(np.float32),
        feature=np.concatenate([t[1] for t in trees]).astype(np.int16),
        left=np.concatenate(
            [np.where(t[2] < 0, -1, t[2] + i * size) for i, t in enumerate(trees)]
        ).astype(np.int32),
        expected=np.zeros(len(trees) * size, dtype=np.float32),
        roots=np.arange(0, len(trees) * size, size, dtype=np.int32),
        base=0.5,
        features=4,
    )
    rows = rows_for(forest, 40)
    np.testing.assert_allclose(forest.predict(rows), by_hand(forest, rows), atol=1e-5)


def test_a_single_tree_may_have_as_many_nodes_as_can_be_addressed_and_no_more() -> None:
    def grown(nodes: int) -> Forest:
        threshold, feature, left = complete(nodes, 0)
        return Forest(
            threshold=threshold.astype(np.float32), feature=feature.astype(np.int16),
            left=left.astype(np.int32), expected=np.zeros(nodes, dtype=np.float32),
            roots=np.zeros(1, dtype=np.int32), base=0.0, features=4,
        )  # fmt: skip

    largest = NODES_MAX - 1 + NODES_MAX % 2
    forest = grown(largest)
    rows = rows_for(forest, 3000)
    np.testing.assert_allclose(forest.predict(rows), by_hand(forest, rows), atol=1e-5)
    with pytest.raises(ModelFileError, match=str(NODES_MAX)):
        grown(largest + 2).predict(np.zeros((1, 4), dtype=np.float32))


@pytest.mark.parametrize(("rounds", "depth"), [(1, 1), (40, 3), (60, 8)])
def test_answers_are_those_of_xgboost(rounds: int, depth: int) -> None:
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(depth)
    rows = rng.normal(size=(800, 12)).astype(np.float32)
    rows[:, 3] = rng.integers(3, size=800)  # ties with thresholds
    target = rows[:, 0] * 2 + np.sin(3 * rows[:, 1]) + 0.1 * rows[:, 3] + 5
    data = xgboost.DMatrix(rows, target, weight=rng.uniform(0.2, 1, 800), nthread=1)
    parameters = {"max_depth": depth, "base_score": 4.75, "nthread": 1, "eta": 0.2}
    booster = xgboost.train(parameters, data, rounds)
    forest = Forest.from_xgboost(bytes(booster.save_raw("json")))
    np.testing.assert_allclose(forest.predict(rows), booster.predict(data), atol=1e-5)
    contributions = booster.predict(data, pred_contribs=True, approx_contribs=True)
    for row in range(0, 800, 100):  # the same attribution, and half its digits
        found = forest.contributions(rows[row])
        np.testing.assert_allclose(found, contributions[row, :-1], atol=2e-3 * rounds**0.5)


def test_a_constant_target_makes_single_leaves() -> None:
    xgboost = pytest.importorskip("xgboost")
    rows = np.zeros((50, 2), dtype=np.float32)
    data = xgboost.DMatrix(rows, np.full(50, 3.0), nthread=1)
    booster = xgboost.train({"nthread": 1, "base_score": 1.0}, data, 5)
    forest = Forest.from_xgboost(bytes(booster.save_raw("json")))
    np.testing.assert_allclose(forest.predict(rows[:1]), booster.predict(data)[:1], atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(bad: float) -> None:
    forest = grow(2)
    rows = rows_for(forest, 7)
    rows[5, 3] = bad
    with pytest.raises(ValueError, match="feature 3 of row 5 is not finite"):
        forest.predict(rows)
    with pytest.raises(ValueError, match="feature 3 of row 0 is not finite"):
        forest.contributions(rows[5])


@pytest.mark.parametrize("shape", [(6,), (2, 5), (2, 7), (2, 6, 1), ()])
def test_rows_of_another_width_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"takes \(n, 6\)"):
        grow(2).predict(np.zeros(shape, dtype=np.float32))


@given(st.integers(0, 2**32 - 1))
@quick
def test_contributions_sum_to_the_prediction_less_its_expectation(seed: int) -> None:
    forest = grow(seed, trees=1 + seed % 7)
    (row,) = rows_for(forest, 1, seed)
    expectation = forest.base + forest.expected[forest.roots].sum()
    found = forest.contributions(row)
    assert found.shape == (forest.features,)
    leaves = forest.predict(row[None])[0]
    assert found.sum() == pytest.approx(leaves - expectation, abs=2e-3 * len(forest.roots))


@given(st.integers(0, 2**32 - 1), st.integers(1, 7))
@quick
def test_a_forest_is_its_first_trees_and_the_rest(seed: int, first: int) -> None:
    forest = grow(seed, trees=8)
    rows = rows_for(forest, 9, seed)
    start = forest.first(first)
    rest = forest.beyond(start)
    np.testing.assert_allclose(
        start.predict(rows) + rest.predict(rows), forest.predict(rows), atol=1e-5
    )
    np.testing.assert_allclose(start.plus(rest).predict(rows), forest.predict(rows), atol=1e-5)


# --- several at once --------------------------------------------------------------------------


def test_threads_that_share_a_forest_get_their_own_answers() -> None:
    forest = grow(3, trees=60, nodes=200)
    parts = [rows_for(forest, 300 + 7 * i, seed=i) for i in range(8)]
    expected = [by_hand(forest, rows) for rows in parts]
    together = threading.Barrier(8)

    def ask(i: int) -> list[np.ndarray]:
        together.wait()  # the first answers, which start the engine, are asked at the same time
        return [forest.predict(parts[i]) for _ in range(10)]

    with ThreadPoolExecutor(8) as pool:
        for i, answers in enumerate(pool.map(ask, range(8))):
            for answer in answers:
                np.testing.assert_allclose(answer, expected[i], atol=1e-4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_answers_even_if_a_thread_was_in_the_middle_of_one() -> None:
    forest = grow(4, trees=60, nodes=200)
    rows = rows_for(forest, 1000)
    expected = forest.predict(rows)
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            forest.predict(rows)

    def answer(end: Any) -> None:
        end.send(forest.predict(rows))

    threads = [threading.Thread(target=keep_asking) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        fork = multiprocessing.get_context("fork")
        for _ in range(4):
            receiver, sender = fork.Pipe(duplex=False)
            child = fork.Process(target=answer, args=(sender,), daemon=True)
            child.start()
            assert receiver.poll(60), "the child hangs"
            np.testing.assert_array_equal(receiver.recv(), expected)
            child.join(60)
            assert child.exitcode == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_copies_answer_alike() -> None:
    forest = grow(5)
    rows = rows_for(forest, 20)
    expected = forest.predict(rows)  # the engine runs, and does not travel
    for twin in (pickle.loads(pickle.dumps(forest)), copy.deepcopy(forest)):
        np.testing.assert_array_equal(twin.predict(rows), expected)


def test_nothing_is_printed_when_python_exits() -> None:
    """Also where something keeps the main module alive until wasmtime's own modules are gone."""
    script = """
import os
import numpy as np
from perfmodel.learned.forest import Forest
forest = Forest(
    threshold=np.float32([0, 1, 2]), feature=np.int16([0, -1, -1]), left=np.int32([1, -1, -1]),
    expected=np.float32([0, 1, 2]), roots=np.int32([0]), base=0.0, features=1,
)
os.kept = lambda: forest
print(forest.predict(np.float32([[1]]))[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "2.0", "")


# --- trees that are none -----------------------------------------------------------------------

SOUND: dict[str, Any] = {
    "threshold": [0.0, 1.0, 0.5, 2.0, 3.0, 7.0],
    "feature": [0, -1, 1, -1, -1, -1],
    "left": [1, -1, 3, -1, -1, -1],
    "expected": [1.0, 1.0, 2.5, 2.0, 3.0, 7.0],
    "roots": [0, 5],
    "base": 0.0,
    "features": 2,
}


def forest_from(**changed: Any) -> Forest:
    found = SOUND | changed
    types = {"threshold": "f4", "feature": "i2", "left": "i4", "expected": "f4", "roots": "i4"}
    arrays = {name: np.asarray(found[name], dtype=kind) for name, kind in types.items()}
    return Forest(**arrays, base=found["base"], features=found["features"])


def test_the_sound_example_is_sound() -> None:
    assert forest_from().predict(np.array([[1, 1]], dtype=np.float32)).tolist() == [10]


@pytest.mark.parametrize(
    "changed",
    [
        {"left": [0, -1, 3, -1, -1, -1]},  # its own child
        {"left": [1, -1, 1, -1, -1, -1]},  # a child that lies before it
        {"left": [2, -1, 3, -1, -1, -1]},  # two parents: as many walks as paths
        {"left": [1, -1, 4, -1, -1, -1]},  # into the next tree
        {"left": [1, -1, 5, -1, -1, -1]},  # past the end
        {"left": [1, -1, 2**31 - 1, -1, -1, -1]},
        {"left": [-5, -1, 3, -1, -1, -1]},
        {"feature": [2, -1, 1, -1, -1, -1]},  # a column that rows do not have
        {"feature": [0, -1, -2, -1, -1, -1]},
        {"feature": [-1, -1, 1, -1, -1, -1]},  # nodes that no walk reaches
        {"threshold": [np.nan, 1.0, 0.5, 2.0, 3.0, 7.0]},
        {"threshold": [0.0, np.inf, 0.5, 2.0, 3.0, 7.0]},
        {"threshold": [0.0, 1.0, 0.5]},  # cut short
        {"threshold": [[0.0], [1.0], [0.5], [2.0], [3.0], [7.0]]},
        {"expected": [np.nan, 1.0, 2.5, 2.0, 3.0, 7.0]},
        {"roots": []},
        {"roots": [0]},
        {"roots": [1, 5]},
        {"roots": [5, 0]},
        {"roots": [0, 0]},
        {"roots": [0, 6]},
        {"roots": [0, -1]},
        {"roots": 0},
        {"base": np.nan},
        {"features": 0},
        {"features": FEATURES_MAX + 1},
        {"threshold": [], "feature": [], "left": [], "expected": [], "roots": []},
    ],
    ids=str,
)
def test_trees_that_are_not_well_formed_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match="trees of this model file"):
        forest_from(**changed)


def test_children_follow_from_the_splits_of_trees_that_lie_breadth_first() -> None:
    # Two trees: 0 -> (1, 2), 1 -> (3, 4); 5 -> (6, 7).
    feature = np.array([0, 1, -1, -1, -1, 2, -1, -1], dtype=np.int16)
    left = left_of_breadth_first(feature, np.array([0, 5], dtype=np.int32))
    assert list(left) == [1, 3, -1, -1, -1, 6, -1, -1]


def test_children_shared_at_every_level_are_refused_at_once() -> None:
    """Sixty nodes, each with the next two as children, have more paths than can be walked."""
    n = 60
    left = np.arange(1, n + 1)
    feature = np.zeros(n)
    feature[-2:] = left[-2:] = -1
    zeros = np.zeros(n)
    with pytest.raises(ModelFileError):
        forest_from(threshold=zeros, feature=feature, left=left, expected=zeros, roots=[0])


def test_short_leaves_change_a_correction_by_no_more_than_a_two_thousandth_of_each() -> None:
    forest = grow(3, trees=40)
    rows, short = rows_for(forest, 50), forest.with_short_leaves()
    bound = np.abs(forest.threshold[forest.feature < 0]).max() * 40 / 2**11
    assert np.abs(short.predict(rows) - forest.predict(rows)).max() <= bound
    inner = forest.feature >= 0
    np.testing.assert_array_equal(short.threshold[inner], forest.threshold[inner])


def test_sums_of_different_widths_are_refused() -> None:
    with pytest.raises(ModelFileError, match="6 features"):
        grow(1, features=5).plus(replace(grow(2), base=0.0))


def test_the_mean_of_forests_answers_their_mean_and_its_first_trees_are_of_all() -> None:
    one, other = grow(1, trees=6), grow(2, trees=6)
    both = Forest.mean_of([one, other])
    rows = rows_for(one, 33)
    wanted = (one.predict(rows) + other.predict(rows)) / 2
    np.testing.assert_allclose(both.predict(rows), wanted, rtol=1e-5, atol=1e-5)
    rough = (one.first(3).predict(rows) + other.first(3).predict(rows)) / 2
    np.testing.assert_allclose(both.first(6).predict(rows), rough, rtol=1e-5, atol=1e-5)
    parts = one.contributions(rows[0]) + other.contributions(rows[0])
    np.testing.assert_allclose(both.contributions(rows[0]), parts / 2, rtol=1e-3, atol=1e-3)
