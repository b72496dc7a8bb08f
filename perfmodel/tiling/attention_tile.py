"""How attention is cut into CTAs: which query rows each takes, and how many key tiles it visits.

Tiles are ``block_m`` query rows by ``block_n`` keys; the whole head dim lies in one tile, padded to
a power of two. Where every sequence has one query (decode), the query heads of a KV head share a
tile and ``split_k`` CTAs share its keys; otherwise a CTA has one head. Under a causal mask or a
window CTAs differ in length. The backward pass walks over queries: a CTA keeps ``block_n`` keys of
one query head, and the loops that give dK, dV and dQ visit the same tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfmodel.problems.attention_table import AttentionTable
from perfmodel.problems.dtypes import DType
from perfmodel.tiling.config import ConfigTable

Array = NDArray[np.float64]

TILES_LISTED = 2048
"""Tiles of one sequence looked at one by one; of more, this many evenly spaced ones stand for all.
Trips change by whole key tiles at a steady pace, so that the mean is off by far less than one."""


@dataclass(frozen=True)
class CtaLengths:
    """CTAs of a launch by length, arrays (N,) over configurations.

    ``ctas`` of them make ``mean_trips`` each, the longest ``longest_trips``; ``row_tiles`` is the
    number of CTAs that read the same keys (all tiles of all query heads of a KV head, on average).
    """

    ctas: Array
    mean_trips: Array
    longest_trips: Array
    row_tiles: Array


def padded_head_dim(size: int, dtype: DType) -> int:
    """Return the head dim of a tile: a power of two, at least a product's least depth."""
    least = 32 if dtype.bits <= 8 else 16
    return max(least, 1 << max(size - 1, 0).bit_length())


def tile_dims(problem: AttentionTable) -> tuple[float, float]:
    """Padded head dims of Q and K, and of V, of a table with one problem."""
    compute = problem.compute_dtype
    return (
        float(padded_head_dim(int(problem.head_dim[0]), compute)),
        float(padded_head_dim(int(problem.v_head_dim[0]), compute)),
    )


def heads_share_tile(problem: AttentionTable) -> bool:
    """Whether the query heads of a KV head share a tile: where every sequence has one query."""
    working = problem.q_len[problem.count > 0]
    return bool((working <= 1).all()) and not problem.backward[0]


def cta_lengths(problem: AttentionTable, configs: ConfigTable) -> CtaLengths:
    """Return how many CTAs each configuration launches and how long they are."""
    pairs = np.stack([configs.block_m, configs.block_n], axis=1)
    kinds, at = np.unique(pairs, axis=0, return_inverse=True)
    rows = np.array([_lengths(problem, float(m), float(n)) for m, n in kinds]).reshape(-1, 4)
    ctas, visits, longest, row_tiles = rows[at.reshape(-1)].T
    # Keys are split between CTAs tile by tile; those without a tile have nothing to do.
    split = np.maximum(np.minimum(configs.split_k, longest), 1.0)
    return CtaLengths(
        ctas=ctas * configs.split_k,
        mean_trips=visits / np.maximum(ctas * split, 1.0),
        longest_trips=np.ceil(longest / split),
        row_tiles=row_tiles,
    )


@dataclass(frozen=True)
class _Tiles:
    """Tiles of all sequences in one row: lengths and mask of their sequence, first and last row."""

    q: Array
    kv: Array
    first: Array
    last: Array
    weight: Array  # tiles of all sequences alike that the entry stands for
    causal: bool
    window: float

    @property
    def prefix(self) -> Array:
        return self.kv - self.q


@lru_cache(maxsize=2048)
def _lengths(p: AttentionTable, block_m: float, block_n: float) -> tuple[float, ...]:
    """CTAs, key tiles that all of them visit, those of the longest, CTAs that share keys."""
    group = float(p.q_heads[0] / p.kv_heads[0])
    packed, backward = heads_share_tile(p), bool(p.backward[0])
    if backward:
        tiles = _tiles(p, p.kv_len, block_n)
        trips = _query_trips(tiles, block_m)
    else:
        tiles = _tiles(p, p.q_len, 1.0 if packed else block_m)
        trips = _key_trips(tiles, block_n)
    in_group = float(np.ceil(group / block_m)) if packed else group
    weight = tiles.weight * in_group
    heads = float(p.kv_heads[0])
    sequences = float(p.count[(p.q_len > 0) & (p.count > 0)].sum())
    return (
        heads * float(weight.sum()),
        heads * float((trips * weight).sum()),
        float(trips.max(initial=0.0)),
        float(weight.sum()) / max(sequences, 1.0),
    )


def _tiles(p: AttentionTable, lengths: Array, block: float) -> _Tiles:
    """Cut every sequence that has queries into tiles of ``block`` rows of ``lengths``."""
    works = (p.q_len > 0) & (p.count > 0)
    q, kv, count, length = (v[works] for v in (p.q_len, p.kv_len, p.count, lengths))
    tiles = np.ceil(length / block)
    listed = np.minimum(tiles, TILES_LISTED)
    owner = np.repeat(np.arange(len(q)), listed.astype(np.intp))
    entry = np.arange(len(owner)) - np.repeat(np.cumsum(listed) - listed, listed.astype(np.intp))
    stands_for = (tiles / np.maximum(listed, 1.0))[owner]
    place = np.floor((entry + 0.5) * stands_for)
    place = np.where(entry == listed[owner] - 1, tiles[owner] - 1, place)  # the last is the longest
    first = place * block
    return _Tiles(
        q=q[owner],
        kv=kv[owner],
        first=first,
        last=np.minimum(first + block, length[owner]) - 1.0,
        weight=stands_for * count[owner],
        causal=bool(p.causal[0]),
        window=float(p.window[0]),
    )


def _key_trips(t: _Tiles, block_n: float) -> Array:
    """Key tiles that each tile of queries visits."""
    high, low = t.kv, np.zeros_like(t.kv)
    if t.causal:
        high = np.minimum(t.kv, t.prefix + t.last + 1.0)
    elif np.isfinite(t.window):
        high = np.minimum(t.kv, t.prefix + t.last + t.window)
    if np.isfinite(t.window):
        low = np.maximum(t.prefix + t.first - t.window + 1.0, 0.0)
    return np.asarray(np.maximum(np.ceil(high / block_n) - np.floor(low / block_n), 0.0))


def _query_trips(t: _Tiles, block_m: float) -> Array:
    """Query tiles that see each tile of keys, in the backward pass."""
    high, low = t.q, np.zeros_like(t.q)
    if t.causal:
        low = np.maximum(t.first - t.prefix, 0.0)
    elif np.isfinite(t.window):
        low = np.maximum(t.first - t.window + 1.0 - t.prefix, 0.0)
    if np.isfinite(t.window):
        high = np.clip(t.last + t.window - t.prefix, 0.0, t.q)
    trips = np.ceil(high / block_m) - np.floor(low / block_m)
    return np.asarray(np.where(high > low, trips, 0.0))
