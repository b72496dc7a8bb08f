"""Which configurations a device can run, why the others cannot, and what to change.

Where it is unsure a rule keeps the configuration and lets the compiler decide: wrongly rejecting
a fast one costs more than compiling one that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import IllegalConfigError, UnsupportedDtypeError
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.dtypes import DType
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import PARAMETERS, ConfigTable, TileConfig
from perfmodel.tiling.resources import Resources, gemm_resources

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

TENSOR_ELEMENTS_MAX = 2**20
"""Triton's limit on the elements of one block tensor (``TRITON_MAX_TENSOR_NUMEL``)."""

ACCUMULATORS_PER_THREAD_MAX = 511
"""Twice the 255 registers of a thread and more never came to run in 1,550 tries on an A100."""

DOT_DEPTH_MIN = 16
"""Triton's least block_k of a product on NVIDIA, doubled for 8-bit operands (``min_dot_size``)."""

TENSOR_MEMORY_COLUMNS = 512
"""Columns of an SM's tensor memory (PTX ISA, tcgen05: 128 lanes by 512 columns of 32 bits)."""

MAXNREG_MIN = 28
"""ptxas: "insufficient registers (24) to compile; try a register target of 28 or higher"."""

CLUSTER_CTAS_MAX = 16
"""The largest cluster that any device takes (CUDA guide: 8 portable, 16 on request)."""

COMPILE_COST_MAX = 2400
"""Threshold of `slow_to_compile_mask`, from the compile times of a full grid on an A100."""

POWER_OF_TWO = " as a power of two"
"""Ends the names of limits whose ``available`` is the next lower power of two."""

LOAD_BYTES = 16
"""The widest load of one thread."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One limit that a configuration breaks: what it needs, what there is, what to change."""

    limit: str
    needed: float
    available: float
    change: str

    def __str__(self) -> str:
        if self.limit.endswith(POWER_OF_TWO):
            name = self.limit.removesuffix(POWER_OF_TWO)
            below = self.available
            return f"{name} is {self.needed:g}, no power of two; use {below:g} or {2 * below:g}"
        return f"{self.limit}: needs {self.needed:,.0f}, limit {self.available:,.0f}; {self.change}"


@dataclass(frozen=True, slots=True)
class _Case:
    """What a rule may look at."""

    problems: GemmTable
    configs: ConfigTable
    gpu: Gpu
    resources: Resources


@dataclass(frozen=True, slots=True)
class _Rule:
    """A limit that holds where ``needed <= available``; both are broadcast over configurations."""

    limit: str
    change: str
    needed: Callable[[_Case], Array | float]
    available: Callable[[_Case], Array | float]


def fits_shared_memory(bytes_needed: Array | float, gpu: Gpu) -> Mask:
    """Whether a block that asks for ``bytes_needed`` can be launched; exactly the limit can."""
    return np.asarray(bytes_needed) <= gpu.smem_per_block_optin_bytes


def legal_mask(
    problems: Gemm | GemmTable,
    configs: ConfigTable,
    gpu: Gpu,
    resources: Resources | None = None,
) -> Mask:
    """Return which configurations can be launched, shape (n,).

    ``resources`` may be given where they are at hand already.
    """
    case = _case(problems, configs, gpu, resources)
    return _tile_mask(case) & _holds(_GRID_RULE, case)


def check(
    problems: Gemm | GemmTable, configs: ConfigTable | Iterable[TileConfig], gpu: Gpu
) -> list[tuple[Rejection, ...]]:
    """Return why each configuration cannot be launched: an empty tuple for one that can."""
    table = configs if isinstance(configs, ConfigTable) else ConfigTable.of(configs)
    case = _case(problems, table, gpu, None)
    reasons: list[list[Rejection]] = [[] for _ in range(len(table))]
    for rule in _RULES:
        needed = np.broadcast_to(rule.needed(case), len(table))
        available = np.broadcast_to(rule.available(case), len(table))
        for row in np.flatnonzero(needed > available):
            reasons[row].append(
                Rejection(rule.limit, float(needed[row]), float(available[row]), rule.change)
            )
    return [tuple(rejections) for rejections in reasons]


def require_legal(problem: Gemm, config: TileConfig, gpu: Gpu) -> None:
    """Do nothing for a configuration that can be launched.

    Raises:
        IllegalConfigError: it cannot; the message says why and offers one nearby that can.
        UnsupportedDtypeError: the device has no arithmetic for the problem's type.
    """
    require_dtype(problem.compute_dtype, gpu)
    (reasons,) = check(problem, [config], gpu)
    if not reasons:
        return
    near = nearest_legal(problem, config, gpu)
    fix = f"nearest that fits: {differences(config, near)}" if near else "no nearby config fits"
    raise IllegalConfigError(
        f"config {config} cannot run on {gpu.name}: {'; '.join(map(str, reasons))}; {fix}"
    )


def require_dtype(dtype: DType, gpu: Gpu) -> None:
    """Do nothing where the device can multiply ``dtype``.

    Raises:
        UnsupportedDtypeError: it cannot; the message lists the types it has.
    """
    known = {*gpu.tensor_tflops, *gpu.plain_tflops}
    if dtype.name not in known:
        raise UnsupportedDtypeError(
            f"{gpu.name} has no arithmetic for {dtype}; it has: {', '.join(sorted(known))}"
        )


def slow_to_compile_mask(problems: Gemm | GemmTable, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Return which configurations would take the compiler longer than about 6 s, shape (n,).

    Each thread's loads of a tile are unrolled, once in the loop and once per pipeline stage
    filled ahead of it, and the time of instruction scheduling grows faster than their number. The
    power 1.6 and the threshold separate the compilations cut off at 6 s in the A100 full grid (47
    of 62 configurations flagged) from those that ran (none flagged).
    """
    return np.asarray(compile_cost(problems, configs, gpu) > COMPILE_COST_MAX)


def compile_cost(problems: Gemm | GemmTable, configs: ConfigTable, gpu: Gpu) -> Array:
    """Return what `slow_to_compile_mask` compares with `COMPILE_COST_MAX`, shape (n,)."""
    table = problems if isinstance(problems, GemmTable) else GemmTable.of(problems)
    tiles = configs.block_k * (
        configs.block_m * table.a_dtype.bytes + configs.block_n * table.b_dtype.bytes
    )
    loads = tiles / (configs.num_warps * gpu.warp_size * LOAD_BYTES)
    copies = np.where(configs.num_stages >= 3, configs.num_stages, 1)
    return np.asarray(loads**1.6 * copies)


def nearest_legal(problem: Gemm, config: TileConfig, gpu: Gpu) -> TileConfig | None:
    """Return the closest configuration that the device can launch, ``None`` where none is near.

    Close means few steps: a stage or a halving of block_k costs least, then a change of warps,
    then a halving of block_m or block_n. Among equals the one that spills least wins.
    """
    if not check(problem, [config], gpu)[0]:
        return config
    rounded = config.to_dict() | {
        name: 1 << (getattr(config, name).bit_length() - 1) for name in _POWERS_OF_TWO
    }
    if not gpu.can("clusters"):
        rounded["num_ctas"] = 1
    if config.maxnreg is not None:
        rounded["maxnreg"] = max(config.maxnreg, MAXNREG_MIN)
    ranges = [*_HALVINGS.values(), np.arange(config.num_stages)]
    steps = np.array([axis.ravel() for axis in np.meshgrid(*ranges, indexing="ij")], dtype=float)
    cost = np.abs(steps).T @ np.array(_STEP_COSTS)
    columns = {name: np.full(len(cost), float(rounded[name] or 0)) for name in PARAMETERS}
    for name, step in zip(_HALVINGS, steps, strict=False):
        columns[name] = columns[name] / 2.0**step
    columns["num_stages"] = columns["num_stages"] - steps[-1]
    whole = np.all([columns[name] >= 1 for name in _HALVINGS], axis=0)
    table = ConfigTable(*(columns[name][whole] for name in PARAMETERS))
    resources = gemm_resources(GemmTable.of(problem), table, gpu)
    fits = legal_mask(problem, table, gpu, resources) & ~slow_to_compile_mask(problem, table, gpu)
    if not fits.any():
        return None
    best = int(np.lexsort((resources.spill_bytes_per_thread, cost[whole], ~fits))[0])
    near = table.take(np.array([best])).configs[0]
    return replace(near, extras=config.extras)


_POWERS_OF_TWO = ("block_m", "block_n", "block_k", "num_warps", "num_ctas")
_HALVINGS = {
    "block_m": np.arange(0, 5),
    "block_n": np.arange(0, 5),
    "block_k": np.arange(-1, 5),
    "num_warps": np.arange(-2, 3),
}
_STEP_COSTS = (1.5, 1.5, 1.0, 1.2, 1.0)


def _case(
    problems: Gemm | GemmTable, configs: ConfigTable, gpu: Gpu, resources: Resources | None
) -> _Case:
    table = problems if isinstance(problems, GemmTable) else GemmTable.of(problems)
    return _Case(table, configs, gpu, resources or gemm_resources(table, configs, gpu))


def _tile_mask(case: _Case) -> Mask:
    """Which configurations break no limit of the tile's own, remembered by kind of problem."""
    kind, memo = case.problems.kind, case.configs.memo
    key = ("legal", kind, id(case.gpu))
    known = memo.get(key) if kind is not None else None
    if known is not None and known[0] is case.gpu:
        found: Mask = known[1]
        return found
    legal = np.ones(len(case.configs), dtype=np.bool_)
    for rule in _TILE_RULES:
        legal &= _holds(rule, case)
    if kind is not None:
        memo[key] = (case.gpu, legal)
    return legal


def _holds(rule: _Rule, case: _Case) -> Mask:
    return np.asarray(rule.needed(case)) <= np.asarray(rule.available(case))


def differences(config: TileConfig, near: TileConfig) -> str:
    """Return what has to change of ``config``, as it would be typed."""
    before, after = config.to_dict(), near.to_dict()
    return ",".join(f"{name}={after[name]}" for name in after if before.get(name) != after[name])


def _floor_power_of_two(values: Array) -> Array:
    return np.asarray(2.0 ** np.floor(np.log2(values)))


def _power_of_two_rule(name: str) -> _Rule:
    return _Rule(
        f"{name}{POWER_OF_TWO}",
        f"set {name} to a power of two",
        lambda case: np.asarray(getattr(case.configs, name)),
        lambda case: _floor_power_of_two(getattr(case.configs, name)),
    )


def _grid(case: _Case) -> Array:
    rows = np.ceil(case.problems.m / case.configs.block_m)
    return np.asarray(rows * np.ceil(case.problems.n / case.configs.block_n) * case.configs.split_k)


def _largest_tile(case: _Case) -> Array:
    m, n, k = case.configs.block_m, case.configs.block_n, case.configs.block_k
    return np.maximum(np.maximum(m * k, k * n), m * n)


def _dot_depth(case: _Case) -> float:
    if case.gpu.vendor != "nvidia":
        return 1.0
    return 2.0 * DOT_DEPTH_MIN if case.problems.compute_dtype.bits <= 8 else float(DOT_DEPTH_MIN)


def _sure_smem_bytes(case: _Case) -> Array:
    """Shared memory that every version of Triton takes.

    Not the epilogue's: how many parts it is cut into changes from version to version. Nor more
    than one buffer of a 32-bit operand that warp group instructions cannot read in place (not
    along k): TF32 configurations on an H100 ran that today's pipelining would not fit.
    """
    loop, p, c = case.resources.smem_loop_bytes, case.problems, case.configs
    if not case.gpu.can("wgmma") or p.compute_dtype.name != "tf32":
        return loop
    turned = c.block_m * (1.0 - p.a_row) * p.a_dtype.bytes + c.block_n * p.b_row * p.b_dtype.bytes
    group_level = (c.num_warps % 4 == 0) & (c.block_m >= 64)
    spared = group_level * np.maximum(c.num_stages - 1.0, 0.0) * turned * c.block_k
    return np.asarray(loop - spared, dtype=np.float64)


_GRID_RULE = _Rule(
    "blocks of the grid",
    "raise block_m or block_n, or lower split_k",
    _grid,
    lambda case: float(case.gpu.grid_x_max),
)

_TILE_RULES: tuple[_Rule, ...] = (
    *(_power_of_two_rule(name) for name in _POWERS_OF_TWO),
    _Rule(
        "threads per block",
        "lower num_warps",
        lambda case: case.resources.threads,
        lambda case: float(case.gpu.threads_per_block_max),
    ),
    _Rule(
        "shared memory per block in bytes",
        "lower num_stages, block_k, block_m or block_n",
        _sure_smem_bytes,
        lambda case: float(case.gpu.smem_per_block_optin_bytes),
    ),
    _Rule(
        "accumulators per thread",
        "raise num_warps, or lower block_m or block_n",
        lambda case: case.resources.accumulators_per_thread,
        lambda _: float(ACCUMULATORS_PER_THREAD_MAX),
    ),
    _Rule(
        "tensor memory columns",
        "lower block_m or block_n",
        lambda case: case.resources.tensor_memory_columns,
        lambda _: float(TENSOR_MEMORY_COLUMNS),
    ),
    _Rule(
        "elements of one block tensor",
        "lower block_m, block_n or block_k",
        _largest_tile,
        lambda _: float(TENSOR_ELEMENTS_MAX),
    ),
    _Rule(
        "depth of one product (block_k)",
        "raise block_k",
        _dot_depth,
        lambda case: case.configs.block_k,
    ),
    _Rule(
        "CTAs per cluster (num_ctas)",
        "set num_ctas to 1, or lower it",
        lambda case: case.configs.num_ctas,
        lambda case: float(CLUSTER_CTAS_MAX if case.gpu.can("clusters") else 1),
    ),
    _Rule(
        "registers per thread (maxnreg)",
        "raise maxnreg",
        lambda case: np.where(case.configs.maxnreg > 0, float(MAXNREG_MIN), 0.0),
        lambda case: case.configs.maxnreg,
    ),
)

_RULES = (*_TILE_RULES, _GRID_RULE)
