"""Many attention problems of one set of data types as arrays: what the vectorised physics reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import InvalidProblemError
from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import DType, parse_dtype

Array = NDArray[np.float64]

LSE_BYTES = 4.0
"""The log of a row's sum, kept in fp32 for the backward pass."""


@dataclass(frozen=True, eq=False)
class AttentionTable:
    """N problems and the M groups of equal sequences they are made of.

    A table is equal to itself alone, so that what was worked out for it can be kept.

    ``q_len``, ``kv_len`` and ``count`` (sequences of those lengths) have shape (M,); ``owner`` is
    the problem each group belongs to, ascending, ``None`` where every problem is one group. All
    else has shape (N,). ``window`` is infinite where there is none, ``page_size`` 0 where K and V
    are contiguous, flags are 0.0 or 1.0.
    """

    q_len: Array
    kv_len: Array
    count: Array
    owner: NDArray[np.intp] | None
    q_heads: Array
    kv_heads: Array
    head_dim: Array
    v_head_dim: Array
    causal: Array
    window: Array
    page_size: Array
    shared_kv: Array
    backward: Array
    dtype: DType
    kv_dtype: DType
    out_dtype: DType

    @classmethod
    def of(cls, problem: Attention) -> AttentionTable:
        """Describe one problem; asked again for the same one, it is the same table."""
        return _table_of(problem)

    @classmethod
    def of_problems(cls, problems: Sequence[Attention]) -> AttentionTable:
        """Describe several problems of the same data types, one row each.

        Raises:
            InvalidProblemError: the data types differ, or there is no problem.
        """
        kinds = {(p.dtype, p.kv_dtype, p.out_dtype) for p in problems}
        if len(kinds) != 1:
            raise InvalidProblemError(
                "a table needs problems of one set of data types; group first"
            )
        groups = [list(Counter(p.items).items()) or [((0, 0), 0)] for p in problems]
        rows = [(q, kv, n, i) for i, group in enumerate(groups) for (q, kv), n in group]
        q_len, kv_len, count, owner = np.array(rows, dtype=np.float64).T
        numbers = np.array(
            [
                (
                    p.q_heads, p.kv_heads, p.head_dim, p.v_head_dim, p.causal,
                    np.inf if p.window is None else p.window,
                    p.page_size or 0, p.shared_kv, p.backward,
                )
                for p in problems
            ],
            dtype=np.float64,
        ).T  # fmt: skip
        first = problems[0]
        single = len(rows) == len(problems)
        return cls(
            q_len=q_len,
            kv_len=kv_len,
            count=count,
            owner=None if single else owner.astype(np.intp),
            **dict(zip(_BY_PROBLEM, numbers, strict=True)),
            dtype=first.dtype,
            kv_dtype=parse_dtype(first.kv_dtype or first.dtype),
            out_dtype=parse_dtype(first.out_dtype or first.dtype),
        )

    @classmethod
    def of_columns(
        cls,
        *,
        batch: ArrayLike,
        q_len: ArrayLike,
        kv_len: ArrayLike,
        q_heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: ArrayLike,
        dtypes: tuple[DType, DType, DType],
        v_head_dim: ArrayLike | None = None,
        causal: ArrayLike = 1.0,
        window: ArrayLike = 0.0,
        page_size: ArrayLike = 0.0,
        shared_kv: ArrayLike = 0.0,
        backward: ArrayLike = 0.0,
    ) -> AttentionTable:
        """Describe the rows of a measurement table, equal lengths within a row.

        ``kv_len`` counts all keys, the prefix included. A ``window`` of 0 is none, one longer than
        ``kv_len`` hides nothing. ``dtypes`` are those of Q, of K and V, and of the result.
        """
        v_dim = head_dim if v_head_dim is None else v_head_dim
        given = (
            q_len, kv_len, batch, q_heads, kv_heads, head_dim, v_dim, causal, window, page_size,
            shared_kv, backward,
        )  # fmt: skip
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, np.float64)) for v in given))
        q, kv, n, hq, hkv, d, dv, is_causal, w, page, shared, back = arrays
        unlimited = np.where(w > 0, w, np.inf)
        return cls(
            q, kv, n, None, hq, hkv, d, dv, is_causal, unlimited, page, shared, back, *dtypes
        )

    def __len__(self) -> int:
        return len(self.q_heads)

    def rows(self, rows: slice) -> AttentionTable:
        """Return some of the problems; every problem must be one group."""
        if self.owner is not None:
            raise InvalidProblemError("problems of several groups cannot be cut by row")
        names = ("q_len", "kv_len", "count", *_BY_PROBLEM)
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    @property
    def compute_dtype(self) -> DType:
        """Type in which the products are formed: the wider of the queries' and the cache's."""
        return self.dtype if self.dtype.bits >= self.kv_dtype.bits else self.kv_dtype

    def per_group(self, values: Array) -> Array:
        """Return the problems' ``values`` (..., N) for each group, (..., M)."""
        return values if self.owner is None else values[..., self.owner]

    def total(self, values: Array) -> Array:
        """Sum the groups' ``values`` (M,) or (T, M) by problem, (N,) or (T, N)."""
        if self.owner is None:
            return values
        if values.ndim == 2:
            return np.stack([self.total(row) for row in values])
        return np.bincount(self.owner, weights=values, minlength=len(self)).astype(np.float64)

    def largest(self, values: Array) -> Array:
        """Return the largest of the groups' non-negative ``values`` by problem, as `total` does."""
        if self.owner is None:
            return values
        if values.ndim == 2:
            return np.stack([self.largest(row) for row in values])
        found = np.zeros(len(self))
        np.maximum.at(found, self.owner, values)
        return found

    @cached_property
    def group_pairs(self) -> Array:
        """Visible (query, key) pairs of one sequence and head of each group, exact, (M,)."""
        return visible_pairs(
            self.q_len, self.kv_len, self.per_group(self.causal), self.per_group(self.window)
        )

    @cached_property
    def group_keys(self) -> Array:
        """Keys of one sequence of each group that at least one query sees, (M,)."""
        # The last query stands at the last key, so only the first one's window cuts keys off.
        reach = self.q_len + self.per_group(self.window) - 1.0
        return np.where(self.q_len > 0, np.minimum(self.kv_len, reach), 0.0)

    @cached_property
    def pairs(self) -> Array:
        """Visible (query, key) pairs over all sequences and query heads, (N,)."""
        return self.total(self.count * self.group_pairs) * self.q_heads

    @cached_property
    def queries(self) -> Array:
        """Query rows over all sequences, of one head, (N,)."""
        return self.total(self.count * self.q_len)

    @cached_property
    def keys(self) -> Array:
        """Keys that are read, over all sequences, of one KV head, (N,)."""
        return self.total(self.count * self.group_keys)

    @cached_property
    def flops(self) -> Array:
        """Useful operations: 2 (d + dv) a pair forward, 2 (3 d + 2 dv) backward, (N,)."""
        forward = self.head_dim + self.v_head_dim
        # Scores once more, then the gradients of the weights, V, Q and K.
        back = 3.0 * self.head_dim + 2.0 * self.v_head_dim
        return 2.0 * self.pairs * np.where(self.backward > 0, back, forward)

    @property
    def row_bytes(self) -> tuple[Array, Array, Array, Array]:
        """Bytes of one row of Q, K, V (0 where it is part of K) and the result, of one head."""
        kv = self.kv_dtype.bytes
        v = self.v_head_dim * kv * (1.0 - self.shared_kv)
        return (
            self.head_dim * self.dtype.bytes,
            self.head_dim * kv,
            v,
            self.v_head_dim * self.out_dtype.bytes,
        )

    @cached_property
    def read_bytes(self) -> Array:
        """Compulsory reads: Q, and visible K and V once per KV head (backward: dO, O and sums)."""
        q, k, v, out = self.row_bytes
        rows = self.queries * self.q_heads
        base = rows * q + self.keys * self.kv_heads * (k + v)
        return base + self.backward * rows * (2.0 * out + LSE_BYTES)

    @cached_property
    def write_bytes(self) -> Array:
        """Compulsory writes: the result, or the three gradients, (N,)."""
        q, k, v, out = self.row_bytes
        rows = self.queries * self.q_heads
        gradients = rows * q + self.keys * self.kv_heads * (k + v)
        return np.where(self.backward > 0, gradients, rows * out)

    @property
    def compulsory_bytes(self) -> Array:
        """Bytes that any implementation must move, (N,)."""
        return self.read_bytes + self.write_bytes


_BY_PROBLEM = (
    "q_heads", "kv_heads", "head_dim", "v_head_dim", "causal", "window", "page_size",
    "shared_kv", "backward",
)  # fmt: skip


def visible_pairs(q_len: Array, kv_len: Array, causal: Array, window: Array) -> Array:
    """Count the (query, key) pairs that the mask leaves, exact for any lengths, arrays (M,).

    Query i (from 1) stands at position p + i with p = kv - q and sees keys from
    ``max(0, p + i - window)`` up to p + i (causal) or ``min(kv, p + i + window - 1)``.
    """
    prefix = kv_len - q_len
    reach = np.where(np.isfinite(window), window, kv_len + q_len)
    top_shift = np.where(causal > 0, 0.0, reach - 1.0)
    # Ends: sum of min(kv, p + i + shift), never below 0. Starts: sum of max(0, p + i - window).
    ends = _positive_ramp(prefix + top_shift, q_len) - _positive_ramp(top_shift - q_len, q_len)
    starts = _positive_ramp(prefix - reach, q_len)
    return np.maximum(ends - starts, 0.0)


def _positive_ramp(start: Array, count: Array) -> Array:
    """Return the sum of ``max(0, start + i)`` for i = 1 .. count."""
    first = np.maximum(start + 1.0, 0.0)
    last = start + count
    terms = np.where(last >= first, last - first + 1.0, 0.0)
    return np.where(last > 0, terms * (first + last) / 2.0, 0.0)


@lru_cache(maxsize=64)
def _table_of(problem: Attention) -> AttentionTable:
    return AttentionTable.of_problems([problem])
