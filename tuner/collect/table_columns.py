"""Problems by the columns of the measurement table, and back.

The columns are those that imported tables have; what has none (latent attention's shared cache,
experts without a gate) cannot be told apart in a table, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfmodel.errors import InvalidProblemError, UsageError
from perfmodel.problems.attention import Attention
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.grouped_gemm import GroupedGemm

Columns = dict[str, Any]

_PROJECTIONS = {"both": "both", "up": "w13", "down": "w2"}


def of_gemm(problem: Gemm) -> Columns:
    """Return a matrix product's sizes, types, layouts and leading strides."""
    return problem.to_dict()


def of_attention(problem: Attention) -> Columns:
    """Return the columns of attention.

    Raises:
        InvalidProblemError: its values are a part of its keys, for which there is no column.
    """
    if problem.shared_kv:
        raise InvalidProblemError(
            f"{problem} shares K and V, for which the measurement table has no column; "
            "leave shared_kv out"
        )
    columns: Columns = {
        "phase": _phase(problem),
        "direction": "backward" if problem.backward else "forward",
        "batch": problem.batch,
        "q_heads": problem.q_heads,
        "kv_heads": problem.kv_heads,
        "head_dim": problem.head_dim,
        "v_head_dim": problem.v_head_dim,
        "causal": problem.causal,
        "q_dtype": str(problem.dtype),
        "kv_dtype": str(problem.kv_dtype),
        "out_dtype": str(problem.out_dtype),
        "paged": problem.page_size is not None,
        "has_bias": False,
    }
    if problem.window is not None:
        columns["window_size"] = problem.window
    if problem.page_size is not None:
        columns["page_size"] = problem.page_size
    q_len, kv_len = problem.q_len, problem.kv_len
    if isinstance(q_len, int) and isinstance(kv_len, int):
        return columns | {"q_len": q_len, "kv_len": kv_len, "prefix_len": kv_len - q_len}
    queries, keys = zip(*problem.items, strict=True)
    return columns | {"q_lens": list(queries), "kv_lens": list(keys)}


def of_grouped_gemm(problem: GroupedGemm) -> Columns:
    """Return the columns of a mixture-of-experts layer.

    Raises:
        InvalidProblemError: it has no gate, or counted loads over several ranks: no columns.
    """
    if not problem.gated:
        raise InvalidProblemError(
            f"{problem} has no gate, for which the measurement table has no column; "
            "use gated experts"
        )
    counted = not isinstance(problem.routing, str)
    if counted and problem.ep > 1:
        raise InvalidProblemError(
            f"{problem} counts the tokens of all experts, and the measurement table those of one "
            "rank; use a named routing, or ep=1"
        )
    routing: Columns = {"routing": problem.routing}
    if counted:
        routing = {"routing_histogram": list(problem.routing)}
    return routing | {
        "tokens": problem.tokens,
        "experts": problem.experts,
        "top_k": problem.top_k,
        "hidden_size": problem.hidden,
        "intermediate_size": problem.intermediate,
        "expert_parallel": problem.ep,
        "tensor_parallel": problem.tp,
        "projection": _PROJECTIONS[problem.projection],
        "a_dtype": str(problem.dtype),
        "b_dtype": str(problem.weight_dtype),
        "out_dtype": str(problem.out_dtype),
    }


def problem_of(table: str, columns: Mapping[str, Any]) -> Gemm | Attention | GroupedGemm:
    """Return the problem that columns of a family of rows described; nulls may be left out.

    Raises:
        UsageError: no such family.
        InvalidProblemError: columns that make no sense together.
    """
    make = _MAKE.get(table)
    if make is None:
        raise UsageError(f"rows of family {table!r} are not measured; use {', '.join(_MAKE)}")
    return make({name: value for name, value in columns.items() if value is not None})


def _gemm(columns: Columns) -> Gemm:
    return Gemm(**columns)


def _attention(columns: Columns) -> Attention:
    lists = "q_lens" in columns
    return Attention(
        columns.get("batch"),
        columns["q_lens"] if lists else columns["q_len"],
        columns["kv_lens"] if lists else columns["kv_len"],
        columns["q_heads"],
        columns["kv_heads"],
        columns["head_dim"],
        columns["v_head_dim"],
        causal=columns["causal"],
        window=columns.get("window_size"),
        dtype=columns["q_dtype"],
        kv_dtype=columns["kv_dtype"],
        out_dtype=columns["out_dtype"],
        page_size=columns.get("page_size"),
        backward=columns["direction"] == "backward",
    )


def _grouped_gemm(columns: Columns) -> GroupedGemm:
    ours = {theirs: ours for ours, theirs in _PROJECTIONS.items()}
    return GroupedGemm(
        columns["tokens"],
        columns["experts"],
        columns["top_k"],
        columns["hidden_size"],
        columns["intermediate_size"],
        ep=columns["expert_parallel"],
        tp=columns["tensor_parallel"],
        routing=columns["routing_histogram"] if "routing_histogram" in columns
        else columns["routing"],
        projection=ours[columns["projection"]],  # type: ignore[arg-type]  # one of the three
        dtype=columns["a_dtype"],
        weight_dtype=columns["b_dtype"],
        out_dtype=columns["out_dtype"],
    )  # fmt: skip


def _phase(problem: Attention) -> str:
    steps = {q == 1 for q, _ in problem.items}
    return "mixed" if len(steps) > 1 else "decode" if steps == {True} else "prefill"


_MAKE: Mapping[str, Callable[[Columns], Gemm | Attention | GroupedGemm]] = {
    "gemm": _gemm,
    "attention": _attention,
    "grouped_gemm": _grouped_gemm,
}
