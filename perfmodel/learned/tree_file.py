"""Trees as the arrays of a model file, each fact once: half of what the arrays in memory take.

=============  ======================  =========================================================
array          shape, type             what
=============  ======================  =========================================================
``feature``    (nodes,) uint8          column of the split, 255 at a leaf
``cuts``       (cuts,) float32         the split points in use, those of one column after another
``cut_counts`` (features,) int32       how many of them are each column's
``cut``        (inner,) uint8, uint16  which of its column's split points each inner node takes
``leaf``       (leaves,) float16, 32   values of the leaves; two bytes where those are exact
``expected``   (inner,) float16        mean value of the leaves below
``roots``      (trees,) int32          first node of each tree
``base``       () float64              constant added to the sum
``left``       (nodes,) int32          left children; absent where every tree lies breadth first
=============  ======================  =========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import ModelFileError
from perfmodel.learned.forest import Forest
from perfmodel.learned.tree_layout import left_of_breadth_first

Arrays = Mapping[str, NDArray[Any]]

LEAF = 255


def forest_arrays(forest: Forest) -> dict[str, NDArray[Any]]:
    """Return everything needed to build ``forest`` again, see the module's table."""
    inner = forest.feature >= 0
    cuts, counts, cut = _numbered(forest.feature[inner], forest.threshold[inner], forest.features)
    values = forest.threshold[~inner]
    short = values.astype(np.float16)
    found: dict[str, NDArray[Any]] = {
        "feature": np.where(inner, forest.feature, LEAF).astype(np.uint8),
        "cuts": cuts,
        "cut_counts": counts,
        "cut": cut,
        "leaf": short if np.array_equal(short, values) else values,
        "expected": forest.expected[inner].astype(np.float16),
        "roots": forest.roots,
        "base": np.array(forest.base),
    }
    if np.array_equal(forest.left, left_of_breadth_first(forest.feature, forest.roots)):
        return found
    return found | {"left": forest.left}


def _numbered(
    feature: NDArray[np.int16], threshold: NDArray[np.float32], features: int
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.unsignedinteger[Any]]]:
    """Return each column's distinct split points, how many, and the number of each split's."""
    cuts, number = [], np.zeros(len(feature), dtype=np.uint32)
    for column in range(features):
        here = feature == column
        points, number[here] = np.unique(threshold[here], return_inverse=True)
        cuts.append(points)
    counts = np.array([len(points) for points in cuts], dtype=np.int32)
    most = int(counts.max(initial=0))
    return np.concatenate(cuts), counts, number.astype(np.min_scalar_type(max(most - 1, 0)))


def forest_of(arrays: Arrays) -> Forest:
    """Build the forest of `forest_arrays`.

    Raises:
        ModelFileError: an array is missing, or the trees are not well formed.
    """
    try:
        column = _whole(arrays, "feature")
        inner = column != LEAF
        feature = np.where(inner, column, -1).astype(np.int16)
        roots = _whole(arrays, "roots").astype(np.int32)
        left = _whole(arrays, "left") if "left" in arrays else left_of_breadth_first(feature, roots)
        threshold = _thresholds(arrays, column, inner)
        expected = threshold.copy()
        expected[inner] = _numbers(arrays, "expected", int(inner.sum()))
        return Forest(
            threshold=threshold,
            feature=feature,
            left=left.astype(np.int32),
            expected=expected,
            roots=roots,
            base=float(arrays["base"]),
            features=len(arrays["cut_counts"]),
        )
    except KeyError as missing:
        raise ModelFileError(f"this model file has no {missing.args[0]!r}") from None
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        raise ModelFileError(f"the trees of this model file are no trees: {error}") from None


def _thresholds(
    arrays: Arrays, column: NDArray[np.int64], inner: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Return the split points and the leaves' values in the order of the nodes."""
    counts, cut, of = _whole(arrays, "cut_counts"), _whole(arrays, "cut"), column[inner]
    ends = np.cumsum(counts)
    cuts = _numbers(arrays, "cuts", int(ends[-1]))
    if len(cut) != len(of) or (cut < 0).any() or (counts < 0).any() or (cut >= counts[of]).any():
        raise ValueError("a split takes a point that its column does not have")
    threshold = np.empty(len(column), dtype=np.float32)
    threshold[inner] = cuts[ends[of] - counts[of] + cut]
    threshold[~inner] = _numbers(arrays, "leaf", int((~inner).sum()))
    return threshold


def _whole(arrays: Arrays, name: str) -> NDArray[np.int64]:
    found = np.asarray(arrays[name]).astype(np.int64, casting="safe")
    if found.ndim != 1:
        raise ValueError(f"{name} has {found.ndim} dimensions")
    return found


def _numbers(arrays: Arrays, name: str, count: int) -> NDArray[np.float32]:
    found = np.asarray(arrays[name]).astype(np.float32, casting="same_kind")
    if found.shape != (count,):
        raise ValueError(f"{name} has shape {found.shape}, its trees need ({count},)")
    return found
