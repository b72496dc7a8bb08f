"""Trees as arrays of a file: the same trees come back, in few bytes; altered ones are refused."""

from __future__ import annotations

import zlib
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import ModelFileError
from perfmodel.learned.forest import Forest
from perfmodel.learned.shape_artifact import load_shape_model
from perfmodel.learned.tree_file import LEAF, forest_arrays, forest_of

SOUND: dict[str, Any] = {
    "feature": np.uint8([0, LEAF, 1, LEAF, LEAF, LEAF]),
    "cuts": np.float32([0.0, 0.5]),
    "cut_counts": np.int32([1, 1]),
    "cut": np.uint8([0, 0]),
    "leaf": np.float32([1.0, 2.0, 3.0, 7.0]),
    "expected": np.float16([1.0, 2.5]),
    "roots": np.int32([0, 5]),
    "base": np.array(0.0),
}


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Return forests of complete trees, each of its own depth, whose splits share points."""
    features = draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    points = rng.normal(size=draw(st.sampled_from([1, 7, 400]))).astype(np.float32)
    threshold, feature, left, roots = [], [], [], []
    for _ in range(draw(st.integers(1, 6))):
        inner = 2 ** draw(st.integers(0, 6)) - 1
        start = len(threshold)
        roots.append(start)
        threshold += [*rng.choice(points, inner), *rng.normal(size=inner + 1)]
        feature += [*rng.integers(features, size=inner), *([-1] * (inner + 1))]
        left += [*(start + 1 + 2 * np.arange(inner)), *([-1] * (inner + 1))]
    values, split = np.float32(threshold), np.int16(feature)
    means = rng.normal(size=len(values)).astype(np.float16)
    return Forest(
        threshold=values,
        feature=split,
        left=np.int32(left),
        expected=np.where(split < 0, values, means).astype(np.float32),
        roots=np.int32(roots),
        base=float(rng.normal()),
        features=features,
    )


@given(forests(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_same_forest_comes_back(forest: Forest, short: bool) -> None:
    forest = forest.with_short_leaves() if short else forest
    arrays = forest_arrays(forest)
    assert arrays["leaf"].dtype == (np.float16 if short else np.float32)
    again = forest_of(arrays)
    for field in fields(Forest):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(forest, field.name))


def test_trees_that_do_not_lie_breadth_first_keep_their_children() -> None:
    found = forest_of(SOUND | {"left": np.int32([1, -1, 3, -1, -1, -1])})
    assert "left" not in forest_arrays(found)  # they do
    feature = np.uint8([0, 0, 0, LEAF, LEAF, LEAF, LEAF])
    other = {
        "feature": feature, "cut": np.uint8([0, 0, 0]), "leaf": np.float32([1, 2, 3, 4]),
        "expected": np.float16([1, 2, 3]), "roots": np.int32([0]),
        "left": np.int32([1, 5, 3, -1, -1, -1, -1]),
    }  # fmt: skip
    swapped = forest_of(SOUND | other)
    np.testing.assert_array_equal(forest_arrays(swapped)["left"], other["left"])


def test_a_shipped_model_takes_five_bytes_a_node() -> None:
    """In memory it takes fourteen; a file that held those compressed to eight."""
    model = load_shape_model("decode")
    forests = [model.any_device, *model.devices.values()]
    arrays = [array for forest in forests for array in forest_arrays(forest).values()]
    size = sum(len(zlib.compress(array.tobytes())) for array in arrays)
    assert size < 5 * sum(len(forest.threshold) for forest in forests)


def test_the_sound_example_is_sound() -> None:
    assert forest_of(SOUND).predict(np.array([[1, 1]], dtype=np.float32)).tolist() == [10]


@pytest.mark.parametrize(
    "changed",
    [
        {"feature": np.uint8([2, LEAF, 1, LEAF, LEAF, LEAF])},  # a column that rows do not have
        {"feature": np.int16([0, -1, 1, -1, -1, -1])},  # counted from another leaf mark
        {"feature": np.uint8([LEAF, LEAF, 1, LEAF, LEAF, LEAF])},  # nodes that no walk reaches
        {"feature": np.uint8([0, LEAF, 1, LEAF, LEAF, 1])},  # a split without children
        {"feature": np.uint8([[0, LEAF, 1], [LEAF, LEAF, LEAF]])},
        {"feature": np.float32([0, 255, 1, 255, 255, 255])},
        {"feature": np.uint8([])},
        {"cuts": np.float32([0.0])},
        {"cuts": np.float32([np.nan, 0.5])},
        {"cuts": np.float32([np.inf, 0.5])},
        {"cut_counts": np.int32([2, 0])},
        {"cut_counts": np.int32([3, -1])},
        {"cut_counts": np.int32([])},
        {"cut": np.uint8([0, 1])},  # a point of another column
        {"cut": np.int8([0, -1])},
        {"cut": np.uint8([0])},
        {"cut": np.float32([0, 0])},
        {"leaf": np.float32([1.0])},
        {"leaf": np.float32(1.0)},
        {"leaf": np.float32([1.0, 2.0, 3.0, np.nan])},
        {"leaf": np.array(["a", "b", "c", "d"])},
        {"expected": np.float16([1.0, np.inf])},
        {"expected": np.float16([1.0])},
        {"roots": np.int32([0])},
        {"roots": np.int32([0, 9])},
        {"roots": np.int32(0)},
        {"roots": np.int64([0, 2**40])},
        {"base": np.array(np.nan)},
        {"base": np.array([1.0, 2.0])},
        {"base": np.array("half")},
        {"left": np.int32([0, -1, 3, -1, -1, -1])},  # its own child
        {"left": np.int32([1, -1, 3])},
    ],
    ids=str,
)
def test_arrays_that_are_no_trees_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match="trees of this model file"):
        forest_of(SOUND | changed)


@pytest.mark.parametrize("missing", SOUND)
def test_a_missing_array_is_named(missing: str) -> None:
    with pytest.raises(ModelFileError, match=f"no '{missing}'"):
        forest_of({k: v for k, v in SOUND.items() if k != missing})


@given(forests(), st.data())
@settings(max_examples=60, deadline=None)
def test_altered_trees_are_refused_or_walked_to_an_end(forest: Forest, data: st.DataObject) -> None:
    arrays = {k: np.array(v) for k, v in forest_arrays(forest).items()}
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(["feature", "cut", "cut_counts", "roots"]))
        if not arrays[name].size:
            continue
        at = data.draw(st.integers(0, arrays[name].size - 1))
        arrays[name][at] = data.draw(st.integers(0, 255))
    try:
        altered = forest_of(arrays)
    except ModelFileError:
        return
    rows = np.random.default_rng(0).normal(size=(5, altered.features)).astype(np.float32)
    assert np.isfinite(altered.predict(rows)).all()
