"""Trees laid out in the memory of a WebAssembly machine, and walked there."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.learned.walker import ARGUMENTS, ROWS_TOGETHER, module_text

if TYPE_CHECKING:
    from perfmodel.learned.forest import Forest

NODE = np.dtype([("value", "<f4"), ("packed", "<u4")])
"""A threshold (or a leaf's value), then the left child's byte address and the feature's offset."""

HEAD_NODES = 4
"""Nodes' worth of room at the start of memory: the walker's arguments, and the node before the
first, which a leaf at a root points back at."""

NODES_MAX = 2**19 - HEAD_NODES - 1
"""Nodes one machine addresses with 22 bits of bytes; larger forests take several machines."""

ROWS_MAX = 960


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
        """Return the sum of the trees for at most `ROWS_MAX` rows."""
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
