"""The matrix product ``C[m, n] = A[m, k] @ B[k, n]``, its operands' types, layouts and strides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from perfmodel.errors import InvalidProblemError
from perfmodel.problems.dtypes import (
    BF16,
    FP16,
    FP32,
    INT4,
    INT8,
    INT32,
    TF32,
    UINT8,
    DType,
    parse_dtype,
)
from perfmodel.problems.library import LibraryKernel, as_library_kernel
from perfmodel.problems.sizes import whole_size

Layout = Literal["row", "col"]
"""``row``: the last index is contiguous in memory; ``col``: the first one is."""

VECTOR_BYTES_MAX = 16
"""The widest load one thread can issue."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """One (batched) matrix product.

    Args:
        m, n, k: logical sizes; zero is a normal input (an empty rank), negative is an error.
        batch: independent products of the same sizes.
        a_dtype, b_dtype: operand types; they differ for weight-only quantisation.
        out_dtype: type of C; by default fp32 for fp32/tf32, int32 for int8 x int8, else the
            16-bit operand type (bf16 for fp8).
        a_layout, b_layout: which index of A[m, k] and B[k, n] is contiguous.
        lda, ldb: leading strides in elements; by default the operands are packed.
        backend: the library kernel that computes it, its tile unknown; by default Triton's.

    Raises:
        InvalidProblemError: a size or stride is negative, fractional, absurd or too small.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a_dtype: DType = BF16
    b_dtype: DType | None = None
    out_dtype: DType | None = None
    a_layout: Layout = "row"
    b_layout: Layout = "row"
    lda: int | None = None
    ldb: int | None = None
    backend: LibraryKernel | None = None
    family: str = field(default="gemm", init=False, repr=False)

    if TYPE_CHECKING:  # the types are also taken by name

        def __init__(
            self,
            m: int,
            n: int,
            k: int,
            batch: int = 1,
            a_dtype: DType | str = BF16,
            b_dtype: DType | str | None = None,
            out_dtype: DType | str | None = None,
            a_layout: Layout = "row",
            b_layout: Layout = "row",
            lda: int | None = None,
            ldb: int | None = None,
            backend: LibraryKernel | str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            object.__setattr__(self, name, whole_size(name, getattr(self, name)))
        a_dtype = parse_dtype(self.a_dtype)
        b_dtype = a_dtype if self.b_dtype is None else parse_dtype(self.b_dtype)
        out = _default_out(a_dtype, b_dtype) if self.out_dtype is None else self.out_dtype
        object.__setattr__(self, "a_dtype", a_dtype)
        object.__setattr__(self, "b_dtype", b_dtype)
        object.__setattr__(self, "out_dtype", parse_dtype(out))
        object.__setattr__(self, "backend", as_library_kernel(self.backend))
        _check_pair(a_dtype, b_dtype)
        for name in ("a_layout", "b_layout"):
            if getattr(self, name) not in get_args(Layout):
                raise InvalidProblemError(
                    f"{name} is {getattr(self, name)!r}; use 'row' (last index contiguous) or 'col'"
                )
        packed_a = self.k if self.a_layout == "row" else self.m
        packed_b = self.n if self.b_layout == "row" else self.k
        object.__setattr__(self, "lda", _stride("lda", self.lda, packed_a))
        object.__setattr__(self, "ldb", _stride("ldb", self.ldb, packed_b))

    @property
    def compute_dtype(self) -> DType:
        """Type in which the products are formed: the wider operand (weights are dequantised)."""
        b_dtype = parse_dtype(self.b_dtype or self.a_dtype)
        return self.a_dtype if self.a_dtype.bits >= b_dtype.bits else b_dtype

    @property
    def flops(self) -> float:
        """Multiplications and additions, 2 m n k batch."""
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def compulsory_bytes(self) -> float:
        """Bytes that any implementation must move: each operand and the result once.

        Without a result nothing is read either.
        """
        if not (self.m and self.n):
            return 0.0
        a, b, out = self.a_dtype, parse_dtype(self.b_dtype or ""), parse_dtype(self.out_dtype or "")
        return float(self.batch) * (
            float(self.m) * self.k * a.bytes
            + float(self.k) * self.n * b.bytes
            + float(self.m) * self.n * out.bytes
        )

    @property
    def write_bytes(self) -> float:
        """Bytes of the result."""
        out = parse_dtype(self.out_dtype or self.a_dtype)
        return float(self.batch) * self.m * self.n * out.bytes

    @property
    def a_vector_bytes(self) -> int:
        """Widest aligned load of A in bytes, assuming a 256-byte-aligned base: 1 to 16."""
        return vector_bytes(
            self.lda or 0, self.m if self.a_layout == "col" else self.k, self.a_dtype
        )

    @property
    def b_vector_bytes(self) -> int:
        """Widest aligned load of B in bytes, assuming a 256-byte-aligned base: 1 to 16."""
        b_dtype = parse_dtype(self.b_dtype or self.a_dtype)
        return vector_bytes(self.ldb or 0, self.n if self.b_layout == "row" else self.k, b_dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, dtypes by short names; ``Gemm(**d)`` gives the problem back."""
        values = {
            "m": self.m, "n": self.n, "k": self.k, "batch": self.batch,
            "a_dtype": str(self.a_dtype), "b_dtype": str(self.b_dtype),
            "out_dtype": str(self.out_dtype),
            "a_layout": self.a_layout, "b_layout": self.b_layout,
            "lda": self.lda, "ldb": self.ldb,
        }  # fmt: skip
        return values if self.backend is None else values | {"backend": str(self.backend)}


def vector_bytes(leading_stride: int, contiguous: int, dtype: DType) -> int:
    """Return the largest power of two, at most 16, that divides the row pitch and the row in bytes.

    A row pitch that is odd in elements forces 2-byte loads of 16-bit data, however wide the tile.
    """
    if dtype.bits < 8:
        return VECTOR_BYTES_MAX
    return math.gcd(
        int(leading_stride * dtype.bytes), int(contiguous * dtype.bytes), VECTOR_BYTES_MAX
    )


def _default_out(a: DType, b: DType) -> DType:
    wide = a if a.bits >= b.bits else b
    if wide in (FP32, TF32):
        return FP32
    if wide in (INT8, UINT8):
        return INT32
    return wide if wide.bits >= 16 else BF16


def _check_pair(a: DType, b: DType) -> None:
    # Triton multiplies no 4-bit integers; they are weights that become 16-bit on the way.
    same = (a == b and a is not INT4) or (
        a.bits == 8 and b.bits == 8 and a.name.startswith("fp8") == b.name.startswith("fp8")
    )
    weight_only = a in (FP16, BF16) and b in (INT8, UINT8, INT4)
    if not (same or weight_only):
        raise InvalidProblemError(
            f"operands {a} x {b} are not a supported pair; use equal types, two fp8 types, "
            "or fp16/bf16 activations with int8/int4 weights"
        )


def _stride(name: str, value: Any, packed: int) -> int:
    if value is None:
        return packed
    stride = whole_size(name, value)
    if stride < packed:
        raise InvalidProblemError(
            f"{name} is {stride}, less than the {packed} elements of a packed row; "
            f"use at least {packed}, or leave it out for a packed operand"
        )
    return stride
