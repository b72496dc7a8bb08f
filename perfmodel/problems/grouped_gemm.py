"""The matrix products of a mixture-of-experts layer: one per expert, of as many rows as it got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import InvalidProblemError
from perfmodel.problems.dtypes import BF16, DType, parse_dtype
from perfmodel.problems.library import LibraryKernel, as_library_kernel
from perfmodel.problems.routing import Routing, expert_loads, local_loads, parse_routing
from perfmodel.problems.sizes import whole_size

Projection = Literal["both", "up", "down"]


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """One rank's experts of one mixture-of-experts layer.

    ``up`` multiplies every routed token by its expert's [hidden, 2 x intermediate] weights (gate
    and up side by side), ``down`` by [intermediate, hidden]; ``both`` is one after the other.

    Args:
        tokens: tokens that the router spread, over all expert-parallel ranks.
        experts, top_k: experts of the whole layer, and how many each token goes to.
        hidden, intermediate: sizes of the model and of one expert.
        ep: expert-parallel ranks; each holds experts / ep, and the busiest is described.
        tp: tensor-parallel ranks; each holds intermediate / tp of every expert.
        routing: the tokens of each expert, or ``balanced``, ``uniform``, ``zipf:1.2``,
            ``power-law:1.2`` (`perfmodel.problems.routing`).
        projection: ``both``, ``up`` or ``down``.
        gated: ``up`` is twice as wide, for a gate that multiplies it.
        dtype, weight_dtype, out_dtype: of the tokens, the weights and the result; by default alike
            (a result of 8-bit tokens is bf16).
        backend: the library kernel that computes it, its tile unknown; by default Triton's.

    Raises:
        InvalidProblemError: sizes that do not divide, or a histogram that does not add up.
    """

    tokens: int
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    ep: int = 1
    tp: int = 1
    routing: Routing = "uniform"
    projection: Projection = "both"
    gated: bool = True
    dtype: DType = BF16
    weight_dtype: DType | None = None
    out_dtype: DType | None = None
    backend: LibraryKernel | None = None
    family: str = field(default="grouped_gemm", init=False, repr=False)

    if TYPE_CHECKING:  # histograms of any sequence, and types taken by name

        def __init__(
            self,
            tokens: int,
            experts: int,
            top_k: int,
            hidden: int,
            intermediate: int,
            ep: int = 1,
            tp: int = 1,
            routing: str | Sequence[int] = "uniform",
            projection: Projection = "both",
            gated: bool = True,
            dtype: DType | str = BF16,
            weight_dtype: DType | str | None = None,
            out_dtype: DType | str | None = None,
            backend: LibraryKernel | str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        least = {"tokens": 0, "hidden": 0, "intermediate": 0}
        for name in ("tokens", "experts", "top_k", "hidden", "intermediate", "ep", "tp"):
            whole = whole_size(name, getattr(self, name), least=least.get(name, 1))
            object.__setattr__(self, name, whole)
        if self.top_k > self.experts:
            raise InvalidProblemError(
                f"top_k is {self.top_k} of {self.experts} experts; use at most {self.experts}"
            )
        for share, name in (("ep", "experts"), ("tp", "intermediate")):
            ranks, size = getattr(self, share), getattr(self, name)
            if size % ranks:
                fits = max(r for r in range(1, ranks + 1) if size % r == 0)
                raise InvalidProblemError(
                    f"{name} is {size} and {share} {ranks}: each rank holds the same share; use an "
                    f"{share} that divides {size}, such as {fits}"
                )
        if self.projection not in get_args(Projection):
            raise InvalidProblemError(
                f"projection is {self.projection!r}; use both, up (gate and up) or down"
            )
        object.__setattr__(self, "gated", bool(self.gated))
        dtype = parse_dtype(self.dtype)
        weight = dtype if self.weight_dtype is None else parse_dtype(self.weight_dtype)
        out = (dtype if dtype.bits >= 16 else BF16) if self.out_dtype is None else self.out_dtype
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "weight_dtype", weight)
        object.__setattr__(self, "out_dtype", parse_dtype(out))
        object.__setattr__(self, "backend", as_library_kernel(self.backend))
        routing = parse_routing(self.routing, self.tokens, self.experts, self.top_k)
        object.__setattr__(self, "routing", routing)

    @property
    def loads(self) -> NDArray[np.float64]:
        """Tokens of each expert of the busiest rank, shape (experts / ep,)."""
        return rank_loads(self.tokens, self.experts, self.top_k, self.ep, self.routing)

    @property
    def up_columns(self) -> int:
        """Columns of one expert's first weights on one rank."""
        return (2 if self.gated else 1) * self.intermediate // self.tp

    @property
    def compute_dtype(self) -> DType:
        """Type in which the products are formed: the wider operand (weights are dequantised)."""
        weight = self.weight_dtype or self.dtype
        return self.dtype if self.dtype.bits >= weight.bits else weight

    @property
    def flops(self) -> float:
        """Multiplications and additions of the products asked for, on the busiest rank."""
        rows = float(self.loads.sum())
        up = 2.0 * rows * self.hidden * self.up_columns
        down = 2.0 * rows * (self.intermediate // self.tp) * self.hidden
        return {"both": up + down, "up": up, "down": down}[self.projection]

    @property
    def read_bytes(self) -> float:
        """Compulsory reads: the weights of experts that got tokens, and tokens in."""
        loads = self.loads
        rows, active = float(loads.sum()), float((loads > 0).sum())
        weight, token = (self.weight_dtype or self.dtype).bytes, self.dtype.bytes
        inner = self.intermediate // self.tp
        tokens_in = min(rows, float(self.tokens)) * self.hidden * token
        up = active * self.hidden * self.up_columns * weight
        down = active * inner * self.hidden * weight
        if self.projection == "up":
            return up + tokens_in
        return down + rows * inner * token if self.projection == "down" else up + down + tokens_in

    @property
    def write_bytes(self) -> float:
        """Compulsory writes: a row for each routed token, summed over top_k where both run."""
        rows = float(self.loads.sum())
        out = (self.out_dtype or self.dtype).bytes
        if self.projection == "up":
            return rows * self.up_columns * out
        rows = min(rows, float(self.tokens)) if self.projection == "both" else rows
        return rows * self.hidden * out

    @property
    def compulsory_bytes(self) -> float:
        """Bytes that any implementation must move; what passes from up to down is not counted."""
        return self.read_bytes + self.write_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, dtypes by short names; ``GroupedGemm(**d)`` gives it back."""
        plain = ("tokens", "experts", "top_k", "hidden", "intermediate", "ep", "tp")
        values: dict[str, Any] = {name: getattr(self, name) for name in plain}
        values["routing"] = self.routing if isinstance(self.routing, str) else list(self.routing)
        values |= {"projection": self.projection, "gated": self.gated}
        types = ("dtype", "weight_dtype", "out_dtype")
        values |= {name: str(getattr(self, name)) for name in types}
        return values | {"backend": None if self.backend is None else str(self.backend)}


@lru_cache(maxsize=8192)
def rank_loads(
    tokens: int, experts: int, top_k: int, ep: int, routing: Routing
) -> NDArray[np.float64]:
    """Return the tokens of each expert of the busiest rank; do not change the array."""
    loads = expert_loads(tokens, experts, top_k, routing)
    found = local_loads(loads, ep, named=isinstance(routing, str))
    found.setflags(write=False)
    return found
