"""The first line of an answer: what is computed where; what has its default value is left out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.problems import Problem
    from perfmodel.problems.attention import Attention
    from perfmodel.problems.gemm import Gemm
    from perfmodel.problems.grouped_gemm import GroupedGemm
    from perfmodel.problems.memory_bound import MemoryBound


def title(problem: Problem, gpu: str) -> str:
    """Say what is computed where."""
    from perfmodel.problems import Attention, Gemm, GroupedGemm  # noqa: PLC0415 - start-up time

    if isinstance(problem, Gemm):
        text = _gemm(problem)
    elif isinstance(problem, Attention):
        text = _attention(problem)
    elif isinstance(problem, GroupedGemm):
        text = _moe(problem)
    else:
        text = _memory(problem)
    by = "" if problem.backend is None else f" by {problem.backend}"
    return f"{text}{by} on {gpu}"


def _gemm(problem: Gemm) -> str:
    a, b, out = str(problem.a_dtype), str(problem.b_dtype), str(problem.out_dtype)
    text = f"gemm m={problem.m} n={problem.n} k={problem.k}"
    text += f" batch={problem.batch}" if problem.batch != 1 else ""
    text += f" {a}" if a == b else f" {a} x {b}"
    text += f" -> {out}" if out != a else ""
    for name, layout in (("A", problem.a_layout), ("B", problem.b_layout)):
        text += f" {name}:col" if layout == "col" else ""
    text += f" lda={problem.lda}" if problem.lda != _packed(problem, "a") else ""
    text += f" ldb={problem.ldb}" if problem.ldb != _packed(problem, "b") else ""
    return text


def _packed(problem: Gemm, operand: str) -> int:
    if operand == "a":
        return problem.k if problem.a_layout == "row" else problem.m
    return problem.n if problem.b_layout == "row" else problem.k


def _attention(problem: Attention) -> str:
    text = "attention backward" if problem.backward else "attention"
    if isinstance(problem.q_len, int) and isinstance(problem.kv_len, int):
        text += f" batch={problem.batch} q_len={problem.q_len} kv_len={problem.kv_len}"
    else:
        counts = Counter(problem.items).most_common()
        shown = [f"{n} x ({q}, {kv})" if n > 1 else f"({q}, {kv})" for (q, kv), n in counts[:4]]
        more = f" and {len(counts) - 4} other lengths" if len(counts) > 4 else ""
        text += f" batch={problem.batch} (q_len, kv_len)={', '.join(shown)}{more}"
    text += f" heads={problem.q_heads}/{problem.kv_heads} head_dim={problem.head_dim}"
    text += f"/{problem.v_head_dim}" if problem.v_head_dim != problem.head_dim else ""
    text += " causal" if problem.causal else ""
    text += f" window={problem.window}" if problem.window else ""
    text += f" {problem.dtype}"
    text += f" kv:{problem.kv_dtype}" if problem.kv_dtype != problem.dtype else ""
    text += f" -> {problem.out_dtype}" if problem.out_dtype != problem.dtype else ""
    text += f" page={problem.page_size}" if problem.page_size else ""
    return text + (" shared KV" if problem.shared_kv else "")


def _moe(problem: GroupedGemm) -> str:
    text = f"moe {problem.projection} " if problem.projection != "both" else "moe "
    text += f"tokens={problem.tokens} experts={problem.experts} top_k={problem.top_k}"
    text += f" hidden={problem.hidden} intermediate={problem.intermediate}"
    text += f" ep={problem.ep}" if problem.ep > 1 else ""
    text += f" tp={problem.tp}" if problem.tp > 1 else ""
    named = isinstance(problem.routing, str)
    text += f" routing={problem.routing}" if named else " routing=given"
    weights = problem.weight_dtype
    text += f" {problem.dtype}" if weights == problem.dtype else f" {problem.dtype} x {weights}"
    return text + (f" -> {problem.out_dtype}" if problem.out_dtype != problem.dtype else "")


def _memory(problem: MemoryBound) -> str:
    text = f"{problem.kernel} rows={problem.rows} columns={problem.columns} {problem.dtype}"
    return text + (f" -> {problem.out_dtype}" if problem.out_dtype != problem.dtype else "")
