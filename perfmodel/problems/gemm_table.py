"""Many matrix products of one operand type as arrays: what the vectorised physics reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import InvalidProblemError
from perfmodel.problems.dtypes import DType, parse_dtype
from perfmodel.problems.gemm import VECTOR_BYTES_MAX, Gemm

Numbers = float | NDArray[np.float64]
"""One value for every row, or one value a row."""


@dataclass(frozen=True)
class GemmTable:
    """Sizes and layouts of matrix products that share their data types.

    Every number is a scalar (one problem, many configurations) or an array with one value a row.
    Layout flags are 1.0 for ``row`` and 0.0 for ``col``; vector widths and the
    distance from one row (or column) in memory to the next, the pitch, are in bytes.
    """

    m: Numbers
    n: Numbers
    k: Numbers
    batch: Numbers
    a_row: Numbers
    b_row: Numbers
    a_packed: Numbers
    b_packed: Numbers
    a_vector_bytes: Numbers
    b_vector_bytes: Numbers
    a_pitch_bytes: Numbers
    b_pitch_bytes: Numbers
    a_dtype: DType
    b_dtype: DType
    out_dtype: DType

    @property
    def compute_dtype(self) -> DType:
        """Type in which the products are formed: the wider operand."""
        return self.a_dtype if self.a_dtype.bits >= self.b_dtype.bits else self.b_dtype

    @property
    def kind(self) -> tuple[object, ...] | None:
        """What a tile has to know of one problem, sizes aside; ``None`` for a problem a row."""
        known = (self.a_row, self.b_row, self.a_vector_bytes, self.b_vector_bytes)
        if not all(isinstance(value, float) for value in known):
            return None
        return (self.a_dtype, self.b_dtype, self.out_dtype, *known)

    def without_sizes(self) -> GemmTable:
        """Return the same kind of problem with sizes that spoil whatever depends on them."""
        nan = np.nan
        return replace(
            self, m=nan, n=nan, k=nan, batch=nan, a_packed=nan, b_packed=nan,
            a_pitch_bytes=nan, b_pitch_bytes=nan,
        )  # fmt: skip

    def rows(self, rows: slice) -> GemmTable:
        """Return some of the rows; scalars stay what they are."""
        numbers = {
            name: value[rows] if np.ndim(value := getattr(self, name)) else value
            for name in NUMBER_FIELDS
        }
        return replace(self, **numbers)

    @classmethod
    def of(cls, problem: Gemm) -> GemmTable:
        """Describe one problem."""
        packed_a = problem.k if problem.a_layout == "row" else problem.m
        packed_b = problem.n if problem.b_layout == "row" else problem.k
        return cls(
            m=float(problem.m),
            n=float(problem.n),
            k=float(problem.k),
            batch=float(problem.batch),
            a_row=float(problem.a_layout == "row"),
            b_row=float(problem.b_layout == "row"),
            a_packed=float(problem.lda == packed_a),
            b_packed=float(problem.ldb == packed_b),
            a_vector_bytes=float(problem.a_vector_bytes),
            b_vector_bytes=float(problem.b_vector_bytes),
            a_pitch_bytes=float(problem.lda or 0) * problem.a_dtype.bytes,
            b_pitch_bytes=float(problem.ldb or 0)
            * parse_dtype(problem.b_dtype or problem.a_dtype).bytes,
            a_dtype=problem.a_dtype,
            b_dtype=parse_dtype(problem.b_dtype or problem.a_dtype),
            out_dtype=parse_dtype(problem.out_dtype or problem.a_dtype),
        )

    @classmethod
    def of_problems(cls, problems: Sequence[Gemm]) -> GemmTable:
        """Describe several problems of the same data types, one row each.

        Raises:
            InvalidProblemError: the data types differ, or there is no problem.
        """
        rows = [cls.of(p) for p in problems]
        if len({(r.a_dtype, r.b_dtype, r.out_dtype) for r in rows}) != 1:
            raise InvalidProblemError(
                "a table needs problems of one set of data types; group first"
            )
        numbers = {name: np.array([getattr(r, name) for r in rows]) for name in NUMBER_FIELDS}
        first = rows[0]
        return cls(
            **numbers, a_dtype=first.a_dtype, b_dtype=first.b_dtype, out_dtype=first.out_dtype
        )

    @classmethod
    def of_columns(
        cls,
        *,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        batch: ArrayLike,
        a_row: ArrayLike,
        b_row: ArrayLike,
        lda: ArrayLike,
        ldb: ArrayLike,
        dtypes: tuple[DType, DType, DType],
    ) -> GemmTable:
        """Describe the rows of a measurement table; ``dtypes`` are those of A, B and C."""
        m_, n_, k_ = (np.asarray(v, dtype=np.float64) for v in (m, n, k))
        row_a, row_b = (np.asarray(v, dtype=bool) for v in (a_row, b_row))
        stride_a, stride_b = (np.asarray(v, dtype=np.float64) for v in (lda, ldb))
        length_a, length_b = np.where(row_a, k_, m_), np.where(row_b, n_, k_)
        a_dtype, b_dtype, out_dtype = dtypes
        return cls(
            m=m_,
            n=n_,
            k=k_,
            batch=np.asarray(batch, dtype=np.float64),
            a_row=row_a.astype(np.float64),
            b_row=row_b.astype(np.float64),
            a_packed=(stride_a == length_a).astype(np.float64),
            b_packed=(stride_b == length_b).astype(np.float64),
            a_vector_bytes=_vector_bytes(stride_a, length_a, a_dtype),
            b_vector_bytes=_vector_bytes(stride_b, length_b, b_dtype),
            a_pitch_bytes=stride_a * a_dtype.bytes,
            b_pitch_bytes=stride_b * b_dtype.bytes,
            a_dtype=a_dtype,
            b_dtype=b_dtype,
            out_dtype=out_dtype,
        )


NUMBER_FIELDS = (
    "m", "n", "k", "batch", "a_row", "b_row", "a_packed", "b_packed",
    "a_vector_bytes", "b_vector_bytes", "a_pitch_bytes", "b_pitch_bytes",
)  # fmt: skip


def _vector_bytes(
    stride: NDArray[np.float64], length: NDArray[np.float64], dtype: DType
) -> NDArray[np.float64]:
    if dtype.bits < 8:
        return np.full(stride.shape, float(VECTOR_BYTES_MAX))
    pitch, row = (stride * dtype.bytes).astype(np.int64), (length * dtype.bytes).astype(np.int64)
    return np.gcd(np.gcd(pitch, row), VECTOR_BYTES_MAX).astype(np.float64)
