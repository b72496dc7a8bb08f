"""Boosted trees as flat arrays, walked by a few dozen lines of WebAssembly.

Measured against xgboost's own predictor, ONNX Runtime, treelite and numpy (README, "Inference
engine"): the fastest of them at 30 and at 1,000 rows, 20 MB installed, no scipy, no OpenMP
threads in the caller's process, and 30 ms to import.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import ModelFileError
from perfmodel.learned.engine import NODES_MAX, ROWS_MAX, Engine, Machine
from perfmodel.learned.tree_layout import breadth_first

FEATURES_MAX = 255


@dataclass(frozen=True, eq=False)
class Forest:
    """A sum of regression trees over ``features`` float32 columns.

    Nodes of all trees lie one after the other; a right child follows its left sibling. Threads may
    share a forest, and so may worker processes, forked or sent a copy.

    Args:
        threshold: (nodes,) float32, the split point (left if x < threshold) or the leaf's value.
        feature: (nodes,) int16 column of the split, -1 at a leaf.
        left: (nodes,) int32 index of the left child, -1 at a leaf.
        expected: (nodes,) float32 mean value of the leaves below, by training weight.
        roots: (trees,) int32 index of each tree's root.
        base: constant added to the sum.
        features: number of columns.
    """

    threshold: NDArray[np.float32]
    feature: NDArray[np.int16]
    left: NDArray[np.int32]
    expected: NDArray[np.float32]
    roots: NDArray[np.int32]
    base: float
    features: int

    def __post_init__(self) -> None:
        if not (self._sound_arrays() and self._sound_trees()):
            raise ModelFileError("the trees of this model file are not well formed; fetch it again")

    def _sound_arrays(self) -> bool:
        n = len(self.threshold)
        per_node = (self.threshold, self.feature, self.left, self.expected)
        return (
            all(values.shape == (n,) for values in per_node)
            and self.roots.ndim == 1
            and len(self.roots) > 0
            and 0 < self.features <= FEATURES_MAX
            and bool(np.isfinite(self.threshold).all() and np.isfinite(self.expected).all())
            and bool(np.isfinite(self.base))
            and bool(((self.feature >= -1) & (self.feature < self.features)).all())
        )

    def _sound_trees(self) -> bool:
        """Trees lie end to end, and every node but a root is the child of one node before it.

        So every walk ends, at a leaf of its own tree.
        """
        n, roots = len(self.threshold), self.roots.astype(np.int64)
        sizes = np.diff(roots, append=n)
        inner = np.flatnonzero(self.feature >= 0)
        left = self.left[inner].astype(np.int64)
        if roots[0] != 0 or (sizes < 1).any() or (left <= inner).any() or (left >= n - 1).any():
            return False
        tree = np.repeat(np.arange(len(roots)), sizes)
        parents = np.bincount(left, minlength=n) + np.bincount(left + 1, minlength=n)
        parents[roots] += 1
        return bool(
            (parents == 1).all()
            and (tree[left] == tree[inner]).all()
            and (tree[left + 1] == tree[inner]).all()
        )

    def __reduce__(self) -> tuple[type[Forest], tuple[Any, ...]]:
        return Forest, tuple(getattr(self, f.name) for f in fields(self))  # but for the engine

    @classmethod
    def from_xgboost(cls, raw: bytes) -> Forest:
        """Convert ``Booster.save_raw("json")`` of a single-output regression booster."""
        learner = json.loads(raw)["learner"]
        model = learner["gradient_booster"]["model"]
        parts = [breadth_first(tree) for tree in model["trees"]]
        sizes = np.array([len(p["threshold"]) for p in parts], dtype=np.int64)
        roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
        for part, root in zip(parts, roots, strict=True):
            part["left"] = np.where(part["feature"] < 0, -1, part["left"] + root)
        joined = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
        # Only explanations use it; half the digits are plenty, in memory as in the file.
        short = joined["expected"].astype(np.float16)
        expected = np.where(joined["feature"] < 0, joined["threshold"], short)
        base = float(str(learner["learner_model_param"]["base_score"]).strip("[]"))
        return cls(
            threshold=joined["threshold"].astype(np.float32),
            feature=joined["feature"].astype(np.int16),
            left=joined["left"].astype(np.int32),
            expected=expected.astype(np.float32),
            roots=roots,
            base=base,
            features=int(learner["learner_model_param"]["num_feature"]),
        )

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the sum of all trees for ``rows`` (N, features), finite float32; shape (N,).

        Raises:
            ValueError: wrong number of columns, or a value that is not finite.
        """
        self._check_rows(rows)
        out = np.empty(len(rows))
        engine = self._running
        with engine.lock:
            if not engine.machines:
                raise RuntimeError("no prediction: Python is shutting down")
            for start in range(0, len(rows), ROWS_MAX):
                part = rows[start : start + ROWS_MAX]
                sums = [machine(part) for machine in engine.machines]
                out[start : start + len(part)] = np.sum(sums, axis=0, dtype=np.float64)
        return out + self.base

    def contributions(self, row: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return what each feature adds to the prediction of one row; both of shape (features,).

        The change of the expected value at each split on the way down is credited to the split's
        feature; with the trees' own expectations they sum to the prediction.

        Raises:
            ValueError: wrong number of features, or a value that is not finite.
        """
        self._check_rows(row[None])
        out = np.zeros(self.features)
        node = self.roots.astype(np.int64)
        while True:
            feature = self.feature[node].astype(np.int64)
            inner = feature >= 0
            if not inner.any():
                return out
            node, feature = node[inner], feature[inner]
            child = self.left[node].astype(np.int64) + (row[feature] >= self.threshold[node])
            np.add.at(out, feature, self.expected[child].astype(np.float64) - self.expected[node])
            node = child

    def _check_rows(self, rows: NDArray[np.float32]) -> None:
        if rows.ndim != 2 or rows.shape[1] != self.features:
            raise ValueError(
                f"rows have shape {rows.shape}; this forest takes (n, {self.features})"
            )
        if not np.isfinite(rows).all():
            bad = np.argwhere(~np.isfinite(rows))[0]
            raise ValueError(f"feature {bad[1]} of row {bad[0]} is not finite")

    @property
    def _running(self) -> Engine:
        """This process's engine. Threads that start it at the same time keep one of theirs."""
        engine: Engine | None = self.__dict__.get("_engine")
        if engine is None or engine.process != os.getpid() or not engine.machines:
            engine = self.__dict__["_engine"] = Engine(self._machines())
        return engine

    def _machines(self) -> list[Machine]:
        ends = np.append(self.roots[1:], len(self.threshold)).astype(np.int64)
        machines, first = [], 0
        while first < len(self.roots):
            base = int(self.roots[first])
            last = int(np.searchsorted(ends, base + NODES_MAX, side="right"))
            if last <= first:
                raise ModelFileError(f"a tree of this model has more than {NODES_MAX} nodes")
            machines.append(Machine(self._part(first, last)))
            first = last
        return machines

    def with_short_leaves(self) -> Forest:
        """Return the trees with leaves of 11 significant bits, which a file holds in half the room.

        Corrections lose less than 0.05 % of themselves.
        """
        leaf = self.feature < 0
        short = self.threshold.astype(np.float16).astype(np.float32)
        return replace(
            self,
            threshold=np.where(leaf, short, self.threshold),
            expected=np.where(leaf, short, self.expected),
        )

    def first(self, trees: int) -> Forest:
        """Return the first ``trees`` trees as a forest: a cheaper, rougher answer."""
        return replace(self._part(0, min(trees, len(self.roots))), base=self.base)

    def beyond(self, start: Forest) -> Forest:
        """Return what was added to ``start``, of which this forest is a continuation."""
        rest = self._part(len(start.roots), len(self.roots))
        return replace(rest, base=self.base - start.base)

    def plus(self, other: Forest) -> Forest:
        """Return a forest that answers the sum of both.

        Raises:
            ModelFileError: they do not take the same number of features.
        """
        if other.features != self.features:
            raise ModelFileError(
                f"trees over {other.features} features cannot correct ones over {self.features}"
            )
        n = len(self.threshold)
        moved = np.where(other.feature < 0, -1, other.left + n).astype(np.int32)
        return Forest(
            threshold=np.concatenate([self.threshold, other.threshold]),
            feature=np.concatenate([self.feature, other.feature]),
            left=np.concatenate([self.left, moved]),
            expected=np.concatenate([self.expected, other.expected]),
            roots=np.concatenate([self.roots, (other.roots + n).astype(np.int32)]),
            base=self.base + other.base,
            features=self.features,
        )

    @classmethod
    def mean_of(cls, forests: Sequence[Forest]) -> Forest:
        """Return a forest that answers the mean of ``forests``, equally many trees each.

        Their trees take turns, so that the first ones are a rough answer of all.
        """
        if len(forests) == 1:
            return forests[0]
        share = np.float32(1.0 / len(forests))
        trees = len(forests[0].roots)
        parts = [f._part(i, i + 1) for i in range(trees) for f in forests]
        starts = np.cumsum([0, *(len(p.threshold) for p in parts)])[:-1].astype(np.int32)
        thresholds = [np.where(p.feature < 0, p.threshold * share, p.threshold) for p in parts]
        lefts = [
            np.where(p.feature < 0, -1, p.left + start)
            for p, start in zip(parts, starts, strict=True)
        ]
        return cls(
            threshold=np.concatenate(thresholds).astype(np.float32),
            feature=np.concatenate([p.feature for p in parts]),
            left=np.concatenate(lefts).astype(np.int32),
            expected=np.concatenate([p.expected * share for p in parts]),
            roots=starts,
            base=float(np.mean([f.base for f in forests])),
            features=forests[0].features,
        )

    def _part(self, first: int, last: int) -> Forest:
        """Return trees ``first`` to ``last`` (excluded) as a forest of their own."""
        base = int(self.roots[first])
        end = int(self.roots[last]) if last < len(self.roots) else len(self.threshold)
        nodes = slice(base, end)
        return replace(
            self,
            threshold=self.threshold[nodes],
            feature=self.feature[nodes],
            left=np.where(self.feature[nodes] < 0, -1, self.left[nodes] - base).astype(np.int32),
            expected=self.expected[nodes],
            roots=self.roots[first:last] - np.int32(base),
            base=0.0,
        )
