"""Inputs of the mixture-of-experts kernels, and their float64 reference.

No row is made up: every routed row is a token that exists, a token goes to an expert once at most
and to ``top_k`` of them in all, and experts get the loads that the problem says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from perfmodel.problems.dtypes import DType, parse_dtype
from perfmodel.problems.grouped_gemm import GroupedGemm
from tuner.kernels.execution import ROUNDING, Tensors, Tolerance, tolerance_of
from tuner.kernels.inputs import Source, starts

if TYPE_CHECKING:
    import torch

INT8_ROUNDING = 0.125 / 8
"""Rounding a row to 255 steps of its largest number, about 8 times the typical one."""


def moe_inputs(problem: GroupedGemm, seed: int = 0, device: str = "cpu") -> Tensors:
    """Tokens, weights, their scales, and which rows are whose.

    ``tokens`` [rows] is the token of each row, rows sorted by expert and then by token;
    ``expert_starts`` where each expert's rows begin; ``token_rows`` [tokens, top_k] the rows of a
    token, -1 where it went to experts of other ranks; ``route`` [rows] the experts' shares.
    """
    import torch  # noqa: PLC0415 - optional extra

    source = Source(seed, device)
    loads = [int(load) for load in problem.loads]
    rows, experts = sum(loads), len(loads)
    count = max(min(rows, problem.tokens), 1)
    # Row after row takes the next token: no expert gets one twice, none goes to more than top_k.
    order = torch.arange(rows, device=device) % count
    names = source.permutation(count).long()
    pieces = [names[piece].sort().values for piece in torch.split(order, loads)]
    tokens = torch.cat(pieces).to(torch.int32)
    inner, weight = problem.intermediate // problem.tp, parse_dtype(problem.weight_dtype or "")
    tensors = {
        "tokens": tokens,
        "expert_starts": starts(loads, device),
        "token_rows": _rows_of(tokens, count, problem.top_k),
        "route": source.positive((rows,), 1.0 / problem.top_k),
    }
    width = inner if problem.projection == "down" else problem.hidden
    tensors |= _scaled(source, "x", (rows if problem.projection == "down" else count, width),
                       problem.dtype, 1.0)  # fmt: skip
    if problem.projection != "down":
        shape = (experts, problem.up_columns, problem.hidden)
        tensors |= _scaled(source, "w_up", shape, weight, _unit(problem.hidden))
    if problem.projection != "up":
        shape = (experts, problem.hidden, inner)
        tensors |= _scaled(source, "w_down", shape, weight, _unit(inner))
    return tensors


def _unit(depth: int) -> float:
    """The size of weights that keeps sums over ``depth`` near one."""
    return 1.0 / math.sqrt(max(depth, 1))


def _rows_of(tokens: torch.Tensor, count: int, top_k: int) -> torch.Tensor:
    import torch  # noqa: PLC0415 - optional extra

    table = torch.full((count, top_k), -1, dtype=torch.int32, device=tokens.device)
    order = tokens.long().argsort(stable=True)
    sorted_tokens = tokens.long()[order]
    begin = torch.searchsorted(sorted_tokens, torch.arange(count, device=tokens.device))
    place = torch.arange(len(order), device=tokens.device) - begin[sorted_tokens]
    table[sorted_tokens, place] = order.to(torch.int32)
    return table


def _scaled(
    source: Source, name: str, shape: tuple[int, ...], dtype: DType, size: float
) -> Tensors:
    """Numbers of about ``size``; 8-bit ones with a scale per row, over the last axis."""
    if dtype.bits != 8:
        return {name: source.normal(shape, dtype, size)}
    typical = 73.0 if dtype.name == "int8" else 1.0  # whole range, or standard normal
    return {
        name: source.normal(shape, dtype),
        f"{name}_scale": source.positive(shape[:-1], size / typical),
    }


def moe_reference(problem: GroupedGemm, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """The projections asked for, expert by expert, with nothing rounded in between."""
    import torch  # noqa: PLC0415 - optional extra

    rows = _real(inputs, "x")
    if problem.projection != "down":
        rows = _multiply(inputs, rows[inputs["tokens"].long()], "w_up")
    if problem.projection == "up":
        return {"out": rows}
    if problem.projection == "both":
        inner = problem.intermediate // problem.tp
        gate = torch.nn.functional.silu(rows[:, :inner])
        rows = gate * rows[:, inner:] if problem.gated else gate
    rows = _multiply(inputs, rows, "w_down") * inputs["route"].double()[:, None]
    if problem.projection == "down":
        return {"out": rows}
    shape = (min(len(rows), problem.tokens), problem.hidden)
    out = torch.zeros(shape, dtype=torch.float64, device=rows.device)
    return {"out": out.index_add(0, inputs["tokens"].long(), rows)}


def _real(inputs: Mapping[str, torch.Tensor], name: str, index: int | None = None) -> torch.Tensor:
    """The numbers that a tensor stands for, its scales applied; of one expert, if asked."""
    pick = slice(None) if index is None else index
    values = inputs[name][pick].double()
    if f"{name}_scale" in inputs:
        values = values * inputs[f"{name}_scale"][pick].double()[..., None]
    return values


def _multiply(inputs: Mapping[str, torch.Tensor], rows: torch.Tensor, weights: str) -> torch.Tensor:
    import torch  # noqa: PLC0415 - optional extra

    bounds = inputs["expert_starts"].tolist()
    pieces = [
        rows[begin:end] @ _real(inputs, weights, expert).T
        for expert, (begin, end) in enumerate(pairwise(bounds))
    ]
    return torch.cat(pieces)


def moe_tolerance(problem: GroupedGemm) -> Tolerance:
    """Both projections round twice in between: what comes up, and what goes down."""
    roundings = 2 if problem.projection == "both" else 0
    out = parse_dtype(problem.out_dtype or "")
    plain = tolerance_of(problem.dtype, out, roundings)
    if problem.dtype.name != "int8" or not roundings:
        return plain
    return Tolerance(plain.relative, plain.of_typical + 8 * (INT8_ROUNDING + ROUNDING[out.name]))


__all__ = ["moe_inputs", "moe_reference", "moe_tolerance"]
