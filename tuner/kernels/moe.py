"""Fused mixture of experts: each expert's rows times its weights, in one launch per projection.

Rows are routed tokens sorted by expert, so that an expert's rows lie side by side and a tile has
the weights of one expert. ``both`` projections run as: up, activation, down, sum over a token's
experts.
"""

# A kernel's arguments are Triton values: annotations on them would be read as Triton types, and
# by Triton's custom compile-time ones are in capitals.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - as said above
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.problems.dtypes import FP32, INT8, INT32, DType, parse_dtype
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels.gemm import tile_at
from tuner.kernels.language import jit, tl, triton_dtype
from tuner.kernels.launch import Buffer, Launch, Plan, ceil_div, launch_options

ROW_WARPS = 8
SUM_BLOCK = 1024
SUM_WARPS = 4

QUANTISED_MAX = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "int8": 127.0}
"""Largest number of each 8-bit type (OCP OFP8 specification, table 1)."""


@jit
def grouped_matmul_kernel(
    x_ptr,
    w_ptr,
    out_ptr,
    tokens_ptr,
    starts_ptr,
    route_ptr,
    x_scale_ptr,
    w_scale_ptr,
    experts,
    row_tiles,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EXPERTS: tl.constexpr,
    EVEN_K: tl.constexpr,
    GATHER: tl.constexpr,
    ROUTED: tl.constexpr,
    SCALED_X: tl.constexpr,
    SCALED_W: tl.constexpr,
    ACC_DTYPE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """out[r, n] = sum over k of X[r, k] W[e, n, k], e being the expert of row r.

    ``starts`` says where each expert's rows begin; EXPERTS is their number, padded. GATHER takes
    row r of X from ``tokens[r]``. ROUTED multiplies a row by the weight that its token gives the
    expert. Scales are one per row of X and one per expert and column of W.
    """
    tile_m, tile_n = tile_at(tl.program_id(0), row_tiles * BLOCK_M, N, BLOCK_M, BLOCK_N, GROUP_M)
    every = tl.arange(0, EXPERTS)
    begins = tl.load(starts_ptr + every, mask=every < experts, other=0)
    ends = tl.load(starts_ptr + every + 1, mask=every < experts, other=0)
    tiles = tl.cdiv(ends - begins, BLOCK_M)
    before = tl.cumsum(tiles, 0) <= tile_m
    expert = tl.sum(before.to(tl.int32), 0)
    first = tile_m - tl.sum(tl.where(before, tiles, 0), 0)
    begin = tl.load(starts_ptr + expert)
    end = tl.load(starts_ptr + expert + 1)

    rows = begin + first * BLOCK_M + tl.arange(0, BLOCK_M)
    there = rows < end
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    w_cols = (cols % N).to(tl.int64)
    depth = tl.arange(0, BLOCK_K)
    x_rows = rows
    if GATHER:
        x_rows = tl.load(tokens_ptr + rows, mask=there, other=0)
    x_ptrs = x_ptr + x_rows.to(tl.int64)[:, None] * K + depth[None, :]
    w_ptrs = w_ptr + (expert.to(tl.int64) * N + w_cols)[None, :] * K + depth[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_DTYPE)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        if EVEN_K:
            x = tl.load(x_ptrs, mask=there[:, None], other=0.0)
            w = tl.load(w_ptrs)
        else:
            left = K - step * BLOCK_K
            x = tl.load(x_ptrs, mask=there[:, None] & (depth[None, :] < left), other=0.0)
            w = tl.load(w_ptrs, mask=depth[:, None] < left, other=0.0)
        acc = tl.dot(x.to(COMPUTE), w.to(COMPUTE), acc, out_dtype=ACC_DTYPE)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K

    values = acc.to(tl.float32)
    if SCALED_X:
        values *= tl.load(x_scale_ptr + x_rows, mask=there, other=0.0)[:, None]
    if SCALED_W:
        values *= tl.load(w_scale_ptr + expert * N + w_cols)[None, :]
    if ROUTED:
        values *= tl.load(route_ptr + rows, mask=there, other=0.0)[:, None]
    tl.store(
        out_ptr + rows.to(tl.int64)[:, None] * N + cols[None, :],
        values.to(out_ptr.dtype.element_ty),
        mask=there[:, None] & (cols[None, :] < N),
    )


@jit
def activation_kernel(
    up_ptr,
    act_ptr,
    act_scale_ptr,
    columns,
    width,
    BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    QUANTISED_MAX: tl.constexpr,
    ROUND: tl.constexpr,
):
    """act = silu(gate) * up of one row, gate and up side by side; without a gate silu(up).

    QUANTISED_MAX > 0 scales the row so that its largest number is that one, and keeps the scale;
    ROUND then rounds to whole numbers.
    """
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    gate = tl.load(up_ptr + row * width + cols, mask=inside, other=0.0).to(tl.float32)
    values = gate / (1.0 + tl.exp(-gate))
    if GATED:
        values *= tl.load(up_ptr + row * width + columns + cols, mask=inside, other=0.0)
    if QUANTISED_MAX > 0:
        scale = tl.maximum(tl.max(tl.abs(values), 0), 1e-12) / QUANTISED_MAX
        values = values / scale
        if ROUND:
            values = tl.floor(values + 0.5)
        tl.store(act_scale_ptr + row, scale)
    tl.store(act_ptr + row * columns + cols, values.to(act_ptr.dtype.element_ty), mask=inside)


@jit
def sum_experts_kernel(
    down_ptr, out_ptr, token_rows_ptr, N, TOP_K: tl.constexpr, BLOCK: tl.constexpr
):
    """out[t] = sum of the rows of token t, listed in ``token_rows`` (-1: none)."""
    token = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for place in tl.static_range(TOP_K):
        row = tl.load(token_rows_ptr + token * TOP_K + place).to(tl.int64)
        # One comparison of blocks: Triton 3.9's interpreter takes no mask that a scalar is part of.
        inside = tl.where(row >= 0, cols, N) < N
        total += tl.load(down_ptr + row * N + cols, mask=inside, other=0.0)
    tl.store(out_ptr + token * N + cols, total.to(out_ptr.dtype.element_ty), mask=cols < N)


@dataclass(frozen=True)
class Side:
    """One projection: what it reads and writes, its columns and its depth."""

    x: str
    w: str
    out: str
    columns: int
    depth: int


def refuses(problem: GroupedGemm) -> str | None:
    """Return why these kernels do not compute ``problem``, or ``None`` where they do."""
    if problem.backend is not None:
        return f"the problem is the library kernel {problem.backend}'s"
    tokens, weights = problem.dtype, parse_dtype(problem.weight_dtype or "")
    allowed = ("fp16", "bf16", *QUANTISED_MAX)
    for dtype in (tokens, weights):
        if dtype.name not in allowed:
            return f"{dtype} is not a type of its operands; they are {', '.join(allowed)}"
    wider = weights.bits > tokens.bits or (tokens.bits == weights.bits == 16 and tokens != weights)
    mixed = tokens.bits == 8 and (tokens == INT8) != (weights == INT8)
    if wider or mixed:
        return f"{tokens} tokens and {weights} weights are not multiplied with one another"
    if parse_dtype(problem.out_dtype or "").bits < 16:
        return f"{problem.out_dtype} is not a type of its results"
    return None


def plan(problem: GroupedGemm, config: TileConfig) -> Plan:
    """Return the launches of the projections asked for; both have the same tile."""
    rows, inner = int(problem.loads.sum()), problem.intermediate // problem.tp
    out_type = parse_dtype(problem.out_dtype or "")
    up = Side("x", "w_up", "out", problem.up_columns, problem.hidden)
    down = Side("x", "w_down", "out", problem.hidden, inner)
    unused = {"none": Buffer((1,), FP32)}  # a pointer must point somewhere
    if problem.projection == "up":
        buffers = {"out": Buffer((rows, up.columns), out_type)}
        launch = _project(problem, config, up, gather=True, routed=False)
        return Plan((launch,), buffers | unused, ("out",))
    if problem.projection == "down":
        buffers = {"out": Buffer((rows, down.columns), out_type)}
        launch = _project(problem, config, down, gather=False, routed=True)
        return Plan((launch,), buffers | unused, ("out",))
    up = Side("x", "w_up", "up", up.columns, up.depth)
    down = Side("act", "w_down", "down", down.columns, down.depth)
    tokens = min(rows, problem.tokens)
    buffers = {
        "up": Buffer((rows, up.columns), out_type),
        "act": Buffer((rows, inner), problem.dtype),
        "act_scale": Buffer((rows,), FP32),
        "down": Buffer((rows, down.columns), out_type),
        "out": Buffer((tokens, down.columns), out_type),
    }
    launches = (
        _project(problem, config, up, gather=True, routed=False),
        _activate(problem, rows, inner),
        _project(problem, config, down, gather=False, routed=True),
        Launch(
            sum_experts_kernel,
            grid=(tokens, ceil_div(down.columns, SUM_BLOCK)),
            pointers={"down_ptr": out_type, "out_ptr": out_type, "token_rows_ptr": INT32},
            integers={"N": down.columns},
            constexprs={"TOP_K": problem.top_k, "BLOCK": SUM_BLOCK},
            options={"num_warps": SUM_WARPS},
        ),
    )
    return Plan(launches, buffers | unused, ("out",))


def _project(
    problem: GroupedGemm, config: TileConfig, side: Side, *, gather: bool, routed: bool
) -> Launch:
    loads, compute = problem.loads, problem.compute_dtype
    row_tiles = sum(ceil_div(int(load), config.block_m) for load in loads)
    weight = parse_dtype(problem.weight_dtype or "")
    scaled_x, scaled_w = problem.dtype.bits == 8, weight.bits == 8
    tensors = {"x_ptr": side.x, "w_ptr": side.w, "out_ptr": side.out, "starts_ptr": "expert_starts"}
    names = {
        "tokens_ptr": "tokens" if gather else "expert_starts",
        "route_ptr": "route" if routed else "none",
        "x_scale_ptr": f"{side.x}_scale" if scaled_x else "none",
        "w_scale_ptr": f"{side.w}_scale" if scaled_w else "none",
    }
    constexprs: dict[str, Any] = {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m, "EXPERTS": _power_of_two(len(loads)),
        "EVEN_K": side.depth % config.block_k == 0, "GATHER": gather, "ROUTED": routed,
        "SCALED_X": scaled_x, "SCALED_W": scaled_w,
        "ACC_DTYPE": triton_dtype(INT32 if compute == INT8 else FP32),
        "COMPUTE": triton_dtype(_multiplied(problem.dtype, weight)),
    }  # fmt: skip
    return Launch(
        grouped_matmul_kernel,
        grid=(row_tiles * ceil_div(side.columns, config.block_n),),
        pointers={
            "x_ptr": problem.dtype, "w_ptr": weight,
            "out_ptr": parse_dtype(problem.out_dtype or ""),
            "tokens_ptr": INT32, "starts_ptr": INT32, "route_ptr": FP32,
            "x_scale_ptr": FP32, "w_scale_ptr": FP32,
        },
        integers={
            "experts": len(loads), "row_tiles": row_tiles, "N": side.columns, "K": side.depth,
        },
        constexprs=constexprs,
        options=launch_options(config),
        tensors=tensors | names,
    )  # fmt: skip


def _activate(problem: GroupedGemm, rows: int, inner: int) -> Launch:
    return Launch(
        activation_kernel,
        grid=(rows,),
        pointers={
            "up_ptr": parse_dtype(problem.out_dtype or ""), "act_ptr": problem.dtype,
            "act_scale_ptr": FP32,
        },
        integers={"columns": inner, "width": problem.up_columns},
        constexprs={
            "BLOCK": _power_of_two(inner), "GATED": problem.gated,
            "QUANTISED_MAX": QUANTISED_MAX.get(problem.dtype.name, 0.0),
            "ROUND": problem.dtype == INT8,
        },
        options={"num_warps": ROW_WARPS},
    )  # fmt: skip


def _multiplied(tokens: DType, weights: DType) -> DType:
    """The type in which products are formed: narrow weights are widened."""
    return tokens if tokens.bits > weights.bits else weights


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


__all__ = ["QUANTISED_MAX", "activation_kernel", "grouped_matmul_kernel", "plan", "refuses"]
