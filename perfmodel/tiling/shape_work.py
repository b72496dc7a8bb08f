"""What a kernel of unknown tile does: its exact work, and the ways in which it may be cut up.

A library picks its tile by rules of its own. A few plausible tilings, each with its CTAs and what
the mean and the longest of them do, bracket what it can have picked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.gemm_table import GemmTable

Array = NDArray[np.float64]

SPLIT_PARTIAL_BYTES = 4.0
"""Partial sums of a split reduction are kept in fp32."""


@dataclass(frozen=True)
class Tilings:
    """T ways to cut N problems up, arrays (T, N); per CTA, padding of tiles included.

    What is the same for all ways or all problems may have one row or one column. All ways at once:
    for a single problem a call of numpy costs more than its sums.

    ``mean_*`` times ``ctas`` is the whole; ``longest_share`` is the longest CTA's work over the
    mean's. ``occupancy`` CTAs share an SM. ``partial_bytes`` are written and read again where a
    reduction is split, by ``extra_launches`` further launches.
    """

    names: tuple[str, ...]
    ctas: Array
    mean_flops: Array
    mean_sfu_ops: Array
    mean_fma_flops: Array
    mean_load_bytes: Array
    longest_share: Array
    occupancy: Array
    partial_bytes: Array
    extra_launches: Array


@dataclass(frozen=True)
class ShapeWork:
    """One problem a row: exact operations and compulsory bytes, arrays (N,), and tilings.

    ``sfu_ops`` counts exponentials and the like, ``fma_flops`` what ordinary lanes do beside the
    products. ``footprint_bytes`` is the memory that the problem touches, ``launches`` how many
    kernels it takes at least (0 without work).
    """

    compute_dtype: str
    flops: Array
    sfu_ops: Array
    fma_flops: Array
    read_bytes: Array
    write_bytes: Array
    footprint_bytes: Array
    launches: Array
    tilings: Tilings

    @property
    def compulsory_bytes(self) -> Array:
        """Bytes that any implementation must move, (N,)."""
        return self.read_bytes + self.write_bytes


def joined_works(works: Sequence[ShapeWork]) -> ShapeWork:
    """Return works of the same N problems, types and ways to cut them, one after the other."""
    first, count = works[0], len(works[0].flops)
    if len(works) == 1:
        return first
    names = [f.name for f in fields(ShapeWork) if f.name not in ("compute_dtype", "tilings")]
    arrays = {name: np.concatenate([getattr(w, name) for w in works]) for name in names}
    ways = {}
    for name in (f.name for f in fields(Tilings) if f.name != "names"):
        values = [getattr(w.tilings, name) for w in works]
        same = all(value is values[0] for value in values) and values[0].shape[1] == 1
        ways[name] = values[0] if same else np.concatenate([_wide(v, count) for v in values], 1)
    tilings = Tilings(names=first.tilings.names, **ways)
    return ShapeWork(compute_dtype=first.compute_dtype, tilings=tilings, **arrays)


def _wide(values: Array, count: int) -> Array:
    return values if values.shape[1] == count else np.repeat(values, count, axis=1)


GEMM_TILES = (
    (128, 128), (256, 128), (128, 256), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64),
    (64, 16), (16, 64),
)  # fmt: skip
"""Tiles that libraries ship for every device: block_m x block_n, the last ones for thin matrices
(an instruction's smallest side is 8 or 16, its largest at least 64, and operands may be swapped).
"""

PAIRED_TILE_MIN = 128 * 128
"""From this tile up, libraries let pairs of CTAs share an operand where the device has clusters."""

SPLIT_DEPTH_MIN = 256.0
"""A part of a split reduction is at least this deep: less costs more to add up than it saves."""


def in_pairs(one: Array, other: Array) -> Array:
    """Return rows of both, (T, N) each, in turn: a tile, then the same with a split reduction."""
    return np.stack([one, other], axis=1).reshape(-1, one.shape[1])


_TILES = np.array(GEMM_TILES, dtype=np.float64)
_TILE_M, _TILE_N = _TILES[:, :1], _TILES[:, 1:]
_TILE_AREA = _TILE_M * _TILE_N
_FLOPS = in_pairs(2.0 * _TILE_AREA, 2.0 * _TILE_AREA)
_OCCUPANCY = np.clip(2.0 * 128.0 * 128.0 / _FLOPS, 1.0, 4.0)
_NAMES = tuple(f"{m}x{n}{kind}" for m, n in GEMM_TILES for kind in ("", "split"))
NOTHING = np.zeros((1, 1))
ONE = np.ones((1, 1))


def gemm_shape_work(p: GemmTable, gpu: Gpu) -> ShapeWork:
    """Describe matrix products whose tile is unknown, one problem a row."""
    m, n, k, batch = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(v, np.float64)) for v in (p.m, p.n, p.k, p.batch))
    )
    results = batch * m * n
    some = (results > 0).astype(np.float64)  # without a result nothing is read either
    a, b = p.a_dtype.bytes, p.b_dtype.bytes
    read = some * batch * (m * k * a + k * n * b)
    write = results * p.out_dtype.bytes
    rows = np.ceil(m / _TILE_M)
    tiles = rows * np.ceil(n / _TILE_N) * batch
    room = np.floor(gpu.sm_count / np.maximum(tiles, 1.0))
    split = np.maximum(np.minimum(room, np.floor(k / SPLIT_DEPTH_MIN)), 1.0)
    depth = in_pairs(np.broadcast_to(k, split.shape), np.ceil(k / split))
    edge_m, edge_n = np.minimum(_TILE_M, m), np.minimum(_TILE_N, n)
    if gpu.can("clusters"):
        # Two CTAs with the same columns each fetch half of B and share it.
        shared = (rows > 1) & (_TILE_AREA >= PAIRED_TILE_MIN)
        edge_n = np.where(shared, edge_n / 2.0, edge_n)
    loads = edge_m * a + edge_n * b
    is_split = (split > 1).astype(np.float64)
    partial = is_split * split * (2.0 * SPLIT_PARTIAL_BYTES * results)
    whole = np.zeros_like(split)
    tilings = Tilings(
        names=_NAMES,
        ctas=in_pairs(tiles, tiles * split),
        mean_flops=_FLOPS * depth,
        mean_sfu_ops=NOTHING,
        mean_fma_flops=NOTHING,
        mean_load_bytes=in_pairs(loads, loads) * depth,
        longest_share=ONE,
        occupancy=_OCCUPANCY,
        partial_bytes=in_pairs(whole, partial),
        extra_launches=in_pairs(whole, is_split),
    )
    zero = np.zeros_like(some)
    return ShapeWork(
        compute_dtype=p.compute_dtype.name,
        flops=2.0 * results * k,
        sfu_ops=zero,
        fma_flops=zero,
        read_bytes=read,
        write_bytes=write,
        footprint_bytes=read + write,
        launches=some,
        tilings=tilings,
    )
