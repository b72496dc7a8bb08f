"""Attention: ``softmax(Q K^T) V`` over a batch of sequences, item by item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.errors import InvalidProblemError
from perfmodel.problems.dtypes import BF16, FP4, INT4, INT8, DType, parse_dtype
from perfmodel.problems.library import LibraryKernel, as_library_kernel
from perfmodel.problems.sizes import whole_size

Lengths = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attention:
    """One launch of attention over ``batch`` sequences.

    Query i of a sequence stands at position ``kv_len - q_len + i``: keys before the queries are a
    prefix that was computed before. ``q_len`` 1 is a decode step; lengths may differ from item to
    item, so prefill, decode and a mix of both are one thing.

    Args:
        batch: sequences; with lists of lengths it is their number and may be left out.
        q_len, kv_len: new queries and all keys of a sequence, prefix included; one number, or
            one for each item. Zero is a normal input (an empty rank).
        q_heads, kv_heads: a KV head serves ``q_heads / kv_heads`` query heads (equal: MHA; fewer:
            GQA; 1: MQA). By default equal.
        head_dim, v_head_dim: logical sizes of a row of Q and K, and of V; any, a kernel pads them.
        causal: a query sees no key behind its own position.
        window: keys a query sees on its left, itself included (and on its right, if not causal).
        dtype, kv_dtype, out_dtype: of Q, of K and V, and of the result; by default alike (a result
            of 8-bit queries is bf16). Products are formed in the wider of the first two.
        page_size: tokens a page of the KV cache holds; ``None`` where K and V are contiguous.
        shared_kv: V is the first ``v_head_dim`` columns of K and is read once (latent attention).
        backward: the gradients of Q, K and V instead of the result.
        backend: the library kernel that computes it, its tile unknown; by default Triton's.

    Raises:
        InvalidProblemError: sizes that make no sense together.
    """

    batch: int | None = None
    q_len: Lengths = 1
    kv_len: Lengths | None = None
    q_heads: int = 1
    kv_heads: int | None = None
    head_dim: int = 128
    v_head_dim: int | None = None
    causal: bool = True
    window: int | None = None
    dtype: DType = BF16
    kv_dtype: DType | None = None
    out_dtype: DType | None = None
    page_size: int | None = None
    shared_kv: bool = False
    backward: bool = False
    backend: LibraryKernel | None = None
    family: str = field(default="attention", init=False, repr=False)

    if TYPE_CHECKING:  # lists of lengths, and types taken by name

        def __init__(
            self,
            batch: int | None = None,
            q_len: int | Sequence[int] = 1,
            kv_len: int | Sequence[int] | None = None,
            q_heads: int = 1,
            kv_heads: int | None = None,
            head_dim: int = 128,
            v_head_dim: int | None = None,
            causal: bool = True,
            window: int | None = None,
            dtype: DType | str = BF16,
            kv_dtype: DType | str | None = None,
            out_dtype: DType | str | None = None,
            page_size: int | None = None,
            shared_kv: bool = False,
            backward: bool = False,
            backend: LibraryKernel | str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        self._set_lengths()
        kv_heads = self.q_heads if self.kv_heads is None else self.kv_heads
        v_head_dim = self.head_dim if self.v_head_dim is None else self.v_head_dim
        for name, value in (
            ("q_heads", self.q_heads),
            ("kv_heads", kv_heads),
            ("head_dim", self.head_dim),
            ("v_head_dim", v_head_dim),
        ):
            object.__setattr__(self, name, whole_size(name, value, least=1))
        for name in ("causal", "shared_kv", "backward"):
            object.__setattr__(self, name, bool(getattr(self, name)))
        dtype = parse_dtype(self.dtype)
        kv_dtype = dtype if self.kv_dtype is None else parse_dtype(self.kv_dtype)
        out = (dtype if dtype.bits >= 16 else BF16) if self.out_dtype is None else self.out_dtype
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "kv_dtype", kv_dtype)
        object.__setattr__(self, "out_dtype", parse_dtype(out))
        object.__setattr__(self, "backend", as_library_kernel(self.backend))
        if self.page_size is not None:
            object.__setattr__(self, "page_size", whole_size("page_size", self.page_size, least=1))
        self._check()

    def _set_lengths(self) -> None:
        q_len: Any = self.q_len
        kv_len: Any = q_len if self.kv_len is None else self.kv_len
        counts = [len(v) for v in (q_len, kv_len) if not _is_number(v)]
        if self.batch is not None:
            counts.append(whole_size("batch", self.batch))
        batch = max(counts, default=1)
        if any(count != batch for count in counts):
            raise InvalidProblemError(
                f"q_len, kv_len and batch name {' and '.join(map(str, counts))} sequences; give "
                "one length for all, or one for each sequence, and the batch or nothing"
            )
        object.__setattr__(self, "batch", batch)
        object.__setattr__(self, "q_len", _lengths("q_len", q_len))
        object.__setattr__(self, "kv_len", _lengths("kv_len", kv_len))

    def _check(self) -> None:
        q_heads, kv_heads = self.q_heads, self.kv_heads or 1
        if q_heads % kv_heads:
            fits = [h for h in range(1, kv_heads + 1) if q_heads % h == 0]
            raise InvalidProblemError(
                f"q_heads is {q_heads} and kv_heads {kv_heads}: each KV head serves the same "
                f"number of query heads; use a kv_heads that divides {q_heads}, such as {fits[-1]}"
            )
        if self.shared_kv and (self.v_head_dim or 0) > self.head_dim:
            raise InvalidProblemError(
                f"v_head_dim is {self.v_head_dim}, but with shared_kv V is part of K; use at most "
                f"the head_dim of {self.head_dim}"
            )
        if self.causal:
            for q, kv in self.items:
                if kv < q:
                    raise InvalidProblemError(
                        f"kv_len is {kv} and q_len {q}: kv_len counts the queries' own keys too; "
                        f"under causal use at least {q}, or give causal=False"
                    )
        if self.window is not None:
            object.__setattr__(self, "window", whole_size("window", self.window, least=1))
            longest = max((kv for _, kv in self.items), default=0)
            if longest and self.window > longest:
                raise InvalidProblemError(
                    f"window is {self.window}, but no kv_len is longer than {longest}, so it hides "
                    f"nothing; use at most {longest}, or leave window out"
                )
        if self.backward and self.page_size is not None:
            raise InvalidProblemError(
                f"page_size is {self.page_size}, but gradients are taken of contiguous K and V; "
                "leave page_size or backward out"
            )
        for name in ("dtype", "kv_dtype"):
            if getattr(self, name) in (INT4, INT8, FP4) and self.backward:
                raise InvalidProblemError(
                    f"{name} is {getattr(self, name)}, but gradients need a floating type of at "
                    "least 8 bits; use bf16, fp16, fp8 or fp32"
                )

    @property
    def items(self) -> tuple[tuple[int, int], ...]:
        """The (q_len, kv_len) of every sequence, in order."""
        batch = self.batch or 0
        q = (self.q_len,) * batch if isinstance(self.q_len, int) else self.q_len
        kv_len = self.kv_len if self.kv_len is not None else 0
        kv = (kv_len,) * batch if isinstance(kv_len, int) else kv_len
        return tuple(zip(q, kv, strict=True))

    @property
    def group(self) -> int:
        """Query heads that one KV head serves."""
        return self.q_heads // (self.kv_heads or 1)

    @property
    def compute_dtype(self) -> DType:
        """Type in which the products are formed: the wider of the queries' and the cache's."""
        kv_dtype = self.kv_dtype or self.dtype
        return self.dtype if self.dtype.bits >= kv_dtype.bits else kv_dtype

    @property
    def flops(self) -> float:
        """Multiplications and additions of the two products (backward: five), masked pairs not."""
        from perfmodel.problems.attention_table import AttentionTable  # noqa: PLC0415 - it reads us

        return float(AttentionTable.of(self).flops[0])

    @property
    def compulsory_bytes(self) -> float:
        """Bytes that any implementation must move: K and V once per KV head, visible ones only."""
        from perfmodel.problems.attention_table import AttentionTable  # noqa: PLC0415 - it reads us

        return float(AttentionTable.of(self).compulsory_bytes[0])

    @property
    def write_bytes(self) -> float:
        """Bytes of the result, or of the gradients."""
        from perfmodel.problems.attention_table import AttentionTable  # noqa: PLC0415 - it reads us

        return float(AttentionTable.of(self).write_bytes[0])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, dtypes by short names; ``Attention(**d)`` gives the problem back."""
        plain = ("batch", "q_heads", "kv_heads", "head_dim", "v_head_dim", "causal", "window")
        values: dict[str, Any] = {name: getattr(self, name) for name in plain}
        for name in ("q_len", "kv_len"):
            length = getattr(self, name)
            values[name] = length if isinstance(length, int) else list(length)
        values |= {name: str(getattr(self, name)) for name in ("dtype", "kv_dtype", "out_dtype")}
        values |= {n: getattr(self, n) for n in ("page_size", "shared_kv", "backward")}
        return values | {"backend": None if self.backend is None else str(self.backend)}


def _is_number(value: Any) -> bool:
    return not hasattr(value, "__len__")


def _lengths(name: str, value: Any) -> Lengths:
    """One number, or a tuple where the items differ."""
    if isinstance(value, str):
        raise InvalidProblemError(f"{name} is {value!r}; give a whole number, or one an item")
    if _is_number(value):
        return whole_size(name, value)
    whole = tuple(whole_size(f"{name}[{i}]", v) for i, v in enumerate(value))
    return whole[0] if len(set(whole)) == 1 else whole
