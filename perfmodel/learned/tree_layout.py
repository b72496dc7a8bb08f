"""Trees node by node: siblings side by side, children after parents, breadth first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def left_of_breadth_first(
    feature: NDArray[np.int16], roots: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the left children of trees that lie breadth first, -1 at leaves, (nodes,).

    The inner nodes of such a tree have their children in turn: the first two nodes after the root
    are its own, the next two those of the second inner node, and so on.
    """
    inner = np.asarray(feature) >= 0
    before = np.concatenate([[0], np.cumsum(inner)])[:-1]  # inner nodes ahead of each node
    starts = np.clip(np.asarray(roots, dtype=np.int64), 0, max(len(inner) - 1, 0))
    tree = np.searchsorted(starts, np.arange(len(inner)), side="right") - 1
    children = starts[tree] + 1 + 2 * (before - before[starts[tree]])
    return np.where(inner, children, -1).astype(np.int32)


def breadth_first(tree: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Renumber one xgboost tree so that siblings are neighbours and children follow parents."""
    left, right = np.array(tree["left_children"]), np.array(tree["right_children"])
    order, i = [0], 0
    while i < len(order):
        node = order[i]
        if left[node] >= 0:
            order += [int(left[node]), int(right[node])]
        i += 1
    index = np.array(order)
    place = np.empty(len(left), dtype=np.int64)
    place[index] = np.arange(len(index))
    leaf = left[index] < 0
    value = np.array(tree["split_conditions"], dtype=np.float32)[index]
    weight = np.array(tree["sum_hessian"], dtype=np.float64)[index]
    expected = np.where(leaf, value, 0.0).astype(np.float64)
    child = np.where(leaf, -1, place[np.where(leaf, 0, left[index])])
    # Plain numbers, children first: a call into numpy a node would take longer than training.
    mean, share, first = expected.tolist(), np.maximum(weight, 1e-12).tolist(), child.tolist()
    for node in range(len(first) - 1, -1, -1):
        left_child = first[node]
        if left_child >= 0:
            one, other = share[left_child], share[left_child + 1]
            total = one * mean[left_child] + other * mean[left_child + 1]
            mean[node] = total / (one + other)
    expected = np.array(mean)
    return {
        "threshold": value,
        "feature": np.where(leaf, -1, np.array(tree["split_indices"])[index]),
        "left": child,
        "expected": expected,
    }
