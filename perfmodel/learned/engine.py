"""Trees laid out in the memory of a WebAssembly machine, and walked there."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.learned.walker import ARGUMENTS, LANES, module_text

if TYPE_CHECKING:
    from perfmodel.learned.forest import Forest

NODE = np.dtype([("value", "<f4"), ("packed", "<u4")])
"""A threshold (or a leaf's value), then the left child's byte address and the feature's offset."""

HEAD_NODES = 4
"""Nodes' worth of room at the start of memory: the walker's arguments, and the node before the
first, which a leaf at a root points back at."""

NODES_MAX = 2**19 - HEAD_NODES - 2
"""Nodes one machine addresses with 22 bits of bytes; larger forests take several machines."""

ROWS_MAX = 960

ROWS_ALONE = 3
"""Up to so many rows, one after the other, are walked sooner than a dozen side by side."""


class Engine:
    """A forest's walkers in one process, one call at a time.

    A fork copies them along with a lock that another thread may have held at that moment, so a
    child process starts its own.
    """

    def __init__(self, machines: list[Machine]) -> None:
        self.process, self.lock, self.machines = os.getpid(), threading.Lock(), machines
        # At exit before modules are taken apart, or wasmtime's destructors print tracebacks.
        weakref.finalize(self, _close, machines, self.lock)


def _close(machines: list[Machine], lock: threading.Lock) -> None:
    if lock.acquire(timeout=1.0):  # a thread that exit does not wait for may still predict
        while machines:
            machines.pop().close()
        lock.release()


class Machine:
    """The compiled walker and its memory: nodes, roots, depths, rows, sums."""

    def __init__(self, forest: Forest) -> None:
        # Imported here: reading a manifest or a GPU's data sheet needs no engine.
        import wasmtime  # noqa: PLC0415

        self._features = forest.features
        nodes, roots, depths = _pack(forest)
        self._stride = (forest.features + 1) * 4
        engine, module = _compiled(os.getpid())
        self._store = wasmtime.Store(engine)
        exports: Any = wasmtime.Instance(self._store, module, []).exports(self._store)
        self._memory = exports["memory"]
        self._walk, self._walk_alone = exports["walk"], exports["walk_alone"]
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

    def __call__(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the sum of the trees for at most `ROWS_MAX` rows."""
        n = len(rows)
        self._rows[:n, : self._features] = rows
        if n <= ROWS_ALONE:
            self._count[0] = n
            self._walk_alone(self._store)
            return np.asarray(self._sums[:n])
        padded = -(-n // LANES) * LANES
        self._sums[:padded] = 0.0
        self._count[0] = padded
        self._walk(self._store)
        return np.asarray(self._sums[:n])


@lru_cache(maxsize=1)
def _compiled(_process: int) -> tuple[Any, Any]:
    """Return this process's wasmtime engine and the walker, compiled once for all forests."""
    import wasmtime  # noqa: PLC0415 - as above

    config = wasmtime.Config()
    config.parallel_compilation = False  # no thread pool in the caller's process
    engine = wasmtime.Engine(config)
    module = wasmtime.Module(engine, module_text())
    for made in (engine, module):  # before modules are taken apart, as `Engine` closes its machines
        atexit.register(made.close)
    return engine, module


def _pack(
    forest: Forest,
) -> tuple[NDArray[np.void], NDArray[np.uint32], NDArray[np.uint32]]:
    """Lay nodes out for the walker, between the room for its arguments and a leaf of 0."""
    n, head = len(forest.threshold), HEAD_NODES
    leaf = forest.feature < 0
    # A leaf's comparison always says "right", so its left child is the node before it.
    left = np.arange(head - 1, n + head, dtype=np.int64)
    left[:-1][~leaf] = forest.left[~leaf] + head
    column = np.full(n + 1, forest.features, dtype=np.uint32)
    column[:-1][~leaf] = forest.feature[~leaf]
    nodes = np.zeros(n + head + 1, dtype=NODE)
    nodes["value"][head:-1] = forest.threshold
    nodes["packed"][head:] = (left.astype(np.uint32) * 8) << np.uint32(10) | column * np.uint32(4)
    more = np.full(LANES, n, dtype=np.uint32)
    roots = np.concatenate([forest.roots.astype(np.uint32), more])
    depths = np.concatenate([_depths(forest), np.zeros(LANES, dtype=np.uint32)])
    return nodes, (roots + np.uint32(head)) * 8, depths


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
