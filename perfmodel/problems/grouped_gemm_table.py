"""Many mixture-of-experts problems of one set of data types as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import InvalidProblemError
from perfmodel.problems.dtypes import DType, parse_dtype
from perfmodel.problems.grouped_gemm import GroupedGemm, rank_loads
from perfmodel.problems.routing import Routing

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GroupedGemmTable:
    """N problems and the R distinct ways in which their tokens are spread over experts.

    ``loads`` holds R arrays with the tokens of each expert of the rank; ``route`` (N,) says which
    of them a problem has. All else has shape (N,); sizes are those of one rank: ``columns`` of
    the first weights (gate and up), ``inner`` rows of the second. Flags are 0.0 or 1.0. ``top_k``
    and ``ep`` are those of the layer.
    """

    tokens: Array
    top_k: Array
    ep: Array
    hidden: Array
    columns: Array
    inner: Array
    gated: Array
    with_up: Array
    with_down: Array
    route: NDArray[np.intp]
    loads: tuple[Array, ...]
    dtype: DType
    weight_dtype: DType
    out_dtype: DType

    @classmethod
    def of(cls, problem: GroupedGemm) -> GroupedGemmTable:
        """Describe one problem."""
        return cls.of_problems([problem])

    @classmethod
    def of_problems(cls, problems: Sequence[GroupedGemm]) -> GroupedGemmTable:
        """Describe several problems of the same data types, one row each.

        Raises:
            InvalidProblemError: the data types differ, or there is no problem.
        """
        kinds = {(p.dtype, p.weight_dtype, p.out_dtype) for p in problems}
        if len(kinds) != 1:
            raise InvalidProblemError(
                "a table needs problems of one set of data types; group first"
            )
        routes = [(p.tokens, p.experts, p.top_k, p.ep, p.routing) for p in problems]
        numbers = np.array(
            [
                (
                    p.tokens, p.top_k, p.ep, p.hidden, p.up_columns, p.intermediate // p.tp,
                    p.gated, p.projection != "down", p.projection != "up",
                )
                for p in problems
            ],
            dtype=np.float64,
        ).T  # fmt: skip
        first = problems[0]
        route, loads = _distinct(routes)
        return cls(
            **dict(zip(_NUMBERS, numbers, strict=True)),
            route=route,
            loads=loads,
            dtype=first.dtype,
            weight_dtype=parse_dtype(first.weight_dtype or first.dtype),
            out_dtype=parse_dtype(first.out_dtype or first.dtype),
        )

    @classmethod
    def of_columns(
        cls,
        *,
        tokens: ArrayLike,
        experts: ArrayLike,
        top_k: ArrayLike,
        hidden: ArrayLike,
        intermediate: ArrayLike,
        routing: Sequence[Routing],
        dtypes: tuple[DType, DType, DType],
        ep: ArrayLike = 1,
        tp: ArrayLike = 1,
        gated: ArrayLike = 1.0,
        with_up: ArrayLike = 1.0,
        with_down: ArrayLike = 1.0,
    ) -> GroupedGemmTable:
        """Describe the rows of a measurement table; ``dtypes`` are of tokens, weights, result.

        ``routing`` is one a row, in the form that `parse_routing` returns.
        """
        given = (tokens, hidden, intermediate, tp, gated, with_up, with_down)
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, np.float64)) for v in given))
        token, wide, inner, ranks, gate, up, down = arrays
        whole = np.broadcast_arrays(token, *(np.asarray(v, np.int64) for v in (experts, top_k, ep)))
        keys = zip(*(v.astype(np.int64).tolist() for v in whole), routing, strict=True)
        route, loads = _distinct(list(keys))
        return cls(
            tokens=token,
            top_k=whole[2].astype(np.float64),
            ep=whole[3].astype(np.float64),
            hidden=wide,
            columns=(1.0 + gate) * inner / ranks,
            inner=inner / ranks,
            gated=gate,
            with_up=up,
            with_down=down,
            route=route,
            loads=loads,
            dtype=dtypes[0],
            weight_dtype=dtypes[1],
            out_dtype=dtypes[2],
        )

    def __len__(self) -> int:
        return len(self.route)

    def rows(self, rows: slice) -> GroupedGemmTable:
        """Return some of the problems."""
        names = (*_NUMBERS, "route")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    @property
    def compute_dtype(self) -> DType:
        """Type in which the products are formed: the wider operand."""
        return self.dtype if self.dtype.bits >= self.weight_dtype.bits else self.weight_dtype

    @cached_property
    def _flat(self) -> tuple[Array, NDArray[np.intp]]:
        """All loads end to end, and where each of the R begins."""
        starts = np.cumsum([0, *map(len, self.loads)])[:-1]
        return np.concatenate(self.loads), np.asarray(starts, dtype=np.intp)

    def _by_route(self, reduce: np.ufunc, values: Array) -> Array:
        """Return what ``reduce`` makes of each problem's part of `_flat`, (N,)."""
        return np.asarray(reduce.reduceat(values, self._flat[1])[self.route])

    @cached_property
    def routed(self) -> Array:
        """Rows of all products: tokens times the experts of this rank they went to, (N,)."""
        return self._by_route(np.add, self._flat[0])

    @cached_property
    def active(self) -> Array:
        """Experts of this rank that got a token, (N,)."""
        return self._by_route(np.add, (self._flat[0] > 0).astype(np.float64))

    @cached_property
    def busiest(self) -> Array:
        """Tokens of the busiest expert, (N,)."""
        return self._by_route(np.maximum, self._flat[0])

    @cached_property
    def held(self) -> Array:
        """Experts of this rank, (N,)."""
        return np.array([float(len(loads)) for loads in self.loads])[self.route]

    def row_tiles(self, block_m: float) -> Array:
        """Tiles of ``block_m`` rows, each expert padded on its own, (N,)."""
        return self._by_route(np.add, np.ceil(self._flat[0] / block_m))


_NUMBERS = (
    "tokens", "top_k", "ep", "hidden", "columns", "inner", "gated", "with_up", "with_down",
)  # fmt: skip

_Key = tuple[int, int, int, int, Routing]


def _distinct(keys: Sequence[_Key]) -> tuple[NDArray[np.intp], tuple[Array, ...]]:
    index: dict[_Key, int] = {}
    route = np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.intp)
    return route, tuple(rank_loads(*key) for key in index)
