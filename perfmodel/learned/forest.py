"""Boosted trees as flat arrays, walked by a few dozen lines of WebAssembly.

Measured against xgboost's own predictor, ONNX Runtime, treelite and numpy (README, "Inference
engine"): the fastest of them at 30 and at 1,000 rows, 20 MB installed, no scipy, no OpenMP
threads in the caller's process, and 30 ms to import.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import ModelFileError
from perfmodel.learned.walker import ARGUMENTS, ROWS_TOGETHER, module_text

NODE = np.dtype([("value", "<f4"), ("packed", "<u4")])
"""A threshold (or a leaf's value), then the left child's byte address and the feature's offset."""

FEATURES_MAX = 255
HEAD_NODES = 4
"""Nodes' worth of room at the start of memory: the walker's arguments, and the node before the
first, which a leaf at a root points back at."""

NODES_MAX = 2**19 - HEAD_NODES - 1
"""Nodes one machine addresses with 22 bits of bytes; larger forests take several machines."""

ROWS_MAX = 960


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

    def __reduce__(self) -> tuple[Callable[..., Forest], tuple[dict[str, NDArray[Any]]]]:
        return Forest.from_arrays, (self.arrays(),)  # the engine stays where it runs

    @classmethod
    def from_xgboost(cls, raw: bytes) -> Forest:
        """Convert ``Booster.save_raw("json")`` of a single-output regression booster."""
        learner = json.loads(raw)["learner"]
        model = learner["gradient_booster"]["model"]
        parts = [_breadth_first(tree) for tree in model["trees"]]
        sizes = np.array([len(p["threshold"]) for p in parts], dtype=np.int64)
        roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
        for part, root in zip(parts, roots, strict=True):
            part["left"] = np.where(part["feature"] < 0, -1, part["left"] + root)
        joined = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
        base = float(str(learner["learner_model_param"]["base_score"]).strip("[]"))
        return cls(
            threshold=joined["threshold"].astype(np.float32),
            feature=joined["feature"].astype(np.int16),
            left=joined["left"].astype(np.int32),
            # Only explanations use it; half the digits are plenty, in memory as in the file.
            expected=joined["expected"].astype(np.float16).astype(np.float32),
            roots=roots,
            base=base,
            features=int(learner["learner_model_param"]["num_feature"]),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything needed to build the forest again, as arrays."""
        return {
            "threshold": self.threshold, "feature": self.feature, "left": self.left,
            "expected": self.expected.astype(np.float16), "roots": self.roots,
            "base": np.array(self.base), "features": np.array(self.features),
        }  # fmt: skip

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Forest:
        """Build from `arrays`.

        Raises:
            ModelFileError: an array is missing, or the trees are not well formed.
        """
        try:
            return cls(
                threshold=np.asarray(arrays["threshold"], dtype=np.float32),
                feature=np.asarray(arrays["feature"], dtype=np.int16),
                left=np.asarray(arrays["left"], dtype=np.int32),
                expected=np.asarray(arrays["expected"], dtype=np.float32),
                roots=np.asarray(arrays["roots"], dtype=np.int32),
                base=float(arrays["base"]),
                features=int(arrays["features"]),
            )
        except KeyError as missing:
            raise ModelFileError(f"this model file has no {missing.args[0]!r}") from None
        except (ValueError, TypeError, OverflowError) as error:
            raise ModelFileError(f"the trees of this model file are no numbers: {error}") from None

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
    def _running(self) -> _Engine:
        """This process's engine. Threads that start it at the same time keep one of theirs."""
        engine: _Engine | None = self.__dict__.get("_engine")
        if engine is None or engine.process != os.getpid() or not engine.machines:
            engine = self.__dict__["_engine"] = _Engine(self._machines())
        return engine

    def _machines(self) -> list[_Machine]:
        ends = np.append(self.roots[1:], len(self.threshold)).astype(np.int64)
        machines, first = [], 0
        while first < len(self.roots):
            base = int(self.roots[first])
            last = int(np.searchsorted(ends, base + NODES_MAX, side="right"))
            if last <= first:
                raise ModelFileError(f"a tree of this model has more than {NODES_MAX} nodes")
            machines.append(_Machine(self._part(first, last)))
            first = last
        return machines

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


class _Engine:
    """A forest's walkers in one process, one call at a time.

    A fork copies them along with a lock that another thread may have held at that moment, so a
    child process starts its own.
    """

    def __init__(self, machines: list[_Machine]) -> None:
        self.process, self.lock, self.machines = os.getpid(), threading.Lock(), machines
        # At exit before modules are taken apart, or wasmtime's destructors print tracebacks.
        weakref.finalize(self, _close, machines, self.lock)


def _close(machines: list[_Machine], lock: threading.Lock) -> None:
    if lock.acquire(timeout=1.0):  # a thread that exit does not wait for may still predict
        while machines:
            machines.pop().close()
        lock.release()


class _Machine:
    """The compiled walker and its memory: nodes, roots, depths, rows, sums."""

    def __init__(self, forest: Forest) -> None:
        # Imported here: reading a manifest or a GPU's data sheet needs no engine.
        import wasmtime  # noqa: PLC0415

        self._features = forest.features
        nodes, roots, depths = _pack(forest)
        self._stride = (forest.features + 1) * 4
        config = wasmtime.Config()
        config.parallel_compilation = False  # no thread pool in the caller's process
        self._engine = wasmtime.Engine(config)
        self._store = wasmtime.Store(self._engine)
        module = wasmtime.Module(self._engine, module_text())
        exports: Any = wasmtime.Instance(self._store, module, []).exports(self._store)
        self._memory, self._walk = exports["memory"], exports["walk"]
        at, end = [], 0
        for size in (
            nodes.nbytes,
            roots.nbytes,
            depths.nbytes,
            ROWS_MAX * self._stride,
            4 * ROWS_MAX,
        ):
            at.append(end)
            end += -(-size // 64) * 64
        self._memory.grow(self._store, end // 65536 + 1)
        pointer = ctypes.addressof(self._memory.data_ptr(self._store).contents)
        memory: Any = (ctypes.c_ubyte * end).from_address(pointer)
        buffer: NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)
        for start, array in zip(at, (nodes, roots, depths), strict=False):
            buffer[start : start + array.nbytes] = array.view(np.uint8)
        self._rows = buffer[at[3] : at[3] + ROWS_MAX * self._stride].view(np.float32)
        self._rows = self._rows.reshape(ROWS_MAX, forest.features + 1)
        self._rows[:, forest.features] = np.inf  # what a leaf compares, to stay where it is
        self._sums = buffer[at[4] : at[4] + 4 * ROWS_MAX].view(np.float32)
        arguments = buffer[: 4 * len(ARGUMENTS)].view(np.uint32)
        arguments[:] = (at[3], 0, self._stride, at[1], at[2], len(forest.roots), at[4])
        self._count = arguments[ARGUMENTS.index("count") :]

    def close(self) -> None:
        """Free the machine's memory; it answers no more."""
        del self._rows, self._sums, self._count
        self._store.close()
        self._engine.close()

    def __call__(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        n = len(rows)
        padded = -(-n // ROWS_TOGETHER) * ROWS_TOGETHER
        self._rows[:n, : self._features] = rows
        self._sums[:padded] = 0.0
        self._count[0] = padded
        self._walk(self._store)
        return np.asarray(self._sums[:n])


def _pack(
    forest: Forest,
) -> tuple[NDArray[np.void], NDArray[np.uint32], NDArray[np.uint32]]:
    """Lay nodes out for the walker, behind the room for its arguments."""
    n, head = len(forest.threshold), HEAD_NODES
    leaf = forest.feature < 0
    own = np.arange(head, n + head, dtype=np.int64)
    # A leaf's comparison always says "right", so its left child is the node before it.
    left = np.where(leaf, own - 1, forest.left.astype(np.int64) + head)
    column = np.where(leaf, forest.features, forest.feature).astype(np.uint32)
    nodes = np.zeros(n + head, dtype=NODE)
    nodes["value"][head:] = forest.threshold
    nodes["packed"][head:] = (left.astype(np.uint32) * 8) << np.uint32(10) | column * np.uint32(4)
    # Two more: the walker looks one tree ahead, from its root to the next one's.
    roots = np.append(forest.roots.astype(np.uint32), np.full(2, n, dtype=np.uint32))
    return nodes, (roots + np.uint32(head)) * 8, _depths(forest)


def _depths(forest: Forest) -> NDArray[np.uint32]:
    n = len(forest.threshold)
    depth = np.zeros(n, dtype=np.uint32)
    frontier = forest.roots.astype(np.int64)
    level = 0
    while len(frontier):
        depth[frontier] = level
        inner = frontier[forest.feature[frontier] >= 0]
        frontier = np.concatenate([forest.left[inner], forest.left[inner] + 1]).astype(np.int64)
        level += 1
    ends = np.append(forest.roots[1:], n)
    return np.array(
        [depth[a:b].max() for a, b in zip(forest.roots, ends, strict=True)], dtype=np.uint32
    )


def _breadth_first(tree: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
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
