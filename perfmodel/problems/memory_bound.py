"""Kernels on the way between products, which move memory and compute little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import InvalidProblemError, closest
from perfmodel.problems.dtypes import BF16, DType, parse_dtype
from perfmodel.problems.library import LibraryKernel, as_library_kernel
from perfmodel.problems.sizes import whole_size

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pass:
    """What a kernel does for each element of its result: elements read and written, operations.

    ``row_reads`` are elements read once for all rows (weights, tables), as multiples of the
    columns; ``flops`` are of ordinary lanes, ``sfu_ops`` exponentials, roots and reciprocals.
    """

    reads: float
    writes: float
    flops: float
    sfu_ops: float
    row_reads: float = 0.0
    about: str = ""


KERNELS: Mapping[str, Pass] = {
    "copy": Pass(1, 1, 0, 0, about="y = x, or a conversion to out_dtype"),
    "add": Pass(2, 1, 1, 0, about="y = a + b"),
    "scale": Pass(1, 1, 1, 0, about="y = c x"),
    "gelu": Pass(1, 1, 8, 1, about="y = gelu(x)"),
    "silu_mul": Pass(2, 1, 3, 2, about="y = silu(gate) * up; columns are those of y"),
    "rms_norm": Pass(1, 1, 4, 0, 1, about="y = x / rms(x) * w, a row at a time"),
    "add_rms_norm": Pass(2, 2, 5, 0, 1, about="r = x + r, y = r / rms(r) * w"),
    "layer_norm": Pass(1, 1, 7, 0, 2, about="y = (x - mean) / deviation * w + b"),
    "rotary": Pass(1, 1, 3, 0, about="pairs of a row turned by angles; their table stays in cache"),
    "softmax": Pass(1, 1, 5, 1, about="y = softmax of each row"),
}


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """One launch of an element-wise or row-wise kernel.

    Args:
        kernel: one of `KERNELS`: copy, add, silu_mul, rms_norm, softmax ...
        rows, columns: size of the result; zero is a normal input.
        dtype, out_dtype: of what is read and of the result; by default alike.
        backend: the library it comes from.

    Raises:
        InvalidProblemError: an unknown kernel, or an impossible size.
    """

    kernel: str
    rows: int
    columns: int
    dtype: DType = BF16
    out_dtype: DType | None = None
    backend: LibraryKernel | None = None
    family: str = field(default="memory_bound", init=False, repr=False)

    if TYPE_CHECKING:  # types are also taken by name

        def __init__(
            self,
            kernel: str,
            rows: int,
            columns: int,
            dtype: DType | str = BF16,
            out_dtype: DType | str | None = None,
            backend: LibraryKernel | str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        name = str(self.kernel).strip().lower().replace("-", "_")
        if name not in KERNELS:
            raise InvalidProblemError(
                f"kernel is {self.kernel!r}{closest(name, KERNELS)}; use one of: "
                f"{', '.join(KERNELS)}"
            )
        object.__setattr__(self, "kernel", name)
        for size in ("rows", "columns"):
            object.__setattr__(self, size, whole_size(size, getattr(self, size)))
        dtype = parse_dtype(self.dtype)
        object.__setattr__(self, "dtype", dtype)
        out = dtype if self.out_dtype is None else parse_dtype(self.out_dtype)
        object.__setattr__(self, "out_dtype", out)
        object.__setattr__(self, "backend", as_library_kernel(self.backend))

    @property
    def flops(self) -> float:
        """Operations of the ordinary lanes."""
        return float(self.rows) * self.columns * KERNELS[self.kernel].flops

    @property
    def compulsory_bytes(self) -> float:
        """Bytes that any implementation must move: everything read and written once."""
        table = MemoryBoundTable.of_problems([self])
        return float((table.read_bytes + table.write_bytes)[0])

    @property
    def write_bytes(self) -> float:
        """Bytes of what is written."""
        return float(MemoryBoundTable.of_problems([self]).write_bytes[0])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, dtypes by short names; ``MemoryBound(**d)`` gives it back."""
        return {
            "kernel": self.kernel, "rows": self.rows, "columns": self.columns,
            "dtype": str(self.dtype), "out_dtype": str(self.out_dtype),
            "backend": None if self.backend is None else str(self.backend),
        }  # fmt: skip


@dataclass(frozen=True)
class MemoryBoundTable:
    """Many such launches as arrays (N,); types may differ, since no product is formed."""

    row_count: Array
    columns: Array
    read_bytes: Array
    write_bytes: Array
    flops: Array
    sfu_ops: Array

    @classmethod
    def of_problems(cls, problems: Sequence[MemoryBound]) -> MemoryBoundTable:
        """Describe several launches, one a row."""
        return cls.of_columns(
            kernels=[p.kernel for p in problems],
            rows=[p.rows for p in problems],
            columns=[p.columns for p in problems],
            in_bytes=[p.dtype.bytes for p in problems],
            out_bytes=[(p.out_dtype or p.dtype).bytes for p in problems],
        )

    @classmethod
    def of_columns(
        cls,
        *,
        kernels: Sequence[str],
        rows: ArrayLike,
        columns: ArrayLike,
        in_bytes: ArrayLike,
        out_bytes: ArrayLike,
    ) -> MemoryBoundTable:
        """Describe the rows of a measurement table; ``in_bytes`` are those of one element."""
        row, column, inward, outward = (
            np.atleast_1d(np.asarray(v, np.float64)) for v in (rows, columns, in_bytes, out_bytes)
        )
        passes = [KERNELS[name] for name in kernels]
        elements = row * column

        def per_element(name: str) -> Array:
            return np.array([getattr(p, name) for p in passes], dtype=np.float64)

        shared = per_element("row_reads") * column * (row > 0)
        return cls(
            row_count=row,
            columns=column,
            read_bytes=(per_element("reads") * elements + shared) * inward,
            write_bytes=per_element("writes") * elements * outward,
            flops=per_element("flops") * elements,
            sfu_ops=per_element("sfu_ops") * elements,
        )

    def rows(self, rows: slice) -> MemoryBoundTable:
        """Return some of the launches."""
        names = ("row_count", "columns", "read_bytes", "write_bytes", "flops", "sfu_ops")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def __len__(self) -> int:
        return len(self.columns)
