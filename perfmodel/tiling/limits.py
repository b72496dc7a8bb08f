"""Limits on tile configurations as data: what one needs, what there is, and what to change.

A family lists its limits over a table of configurations; which hold, why the others do not, and
which configuration nearby fits all follow from the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import (
    CLUSTER_CTAS_MAX,
    MAXNREG_MIN,
    POWER_OF_TWO,
    TENSOR_ELEMENTS_MAX,
    Rejection,
)

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Limit:
    """Holds where ``needed <= available``; arrays over the configurations, or one value."""

    name: str
    needed: Array | float
    available: Array | float
    change: str


def within(limits: Sequence[Limit], count: int) -> Mask:
    """Return which of ``count`` configurations break no limit."""
    legal = np.ones(count, dtype=np.bool_)
    for limit in limits:
        legal &= np.asarray(limit.needed) <= np.asarray(limit.available)
    return legal


def rejections(limits: Sequence[Limit], count: int) -> list[tuple[Rejection, ...]]:
    """Return the limits that each of ``count`` configurations breaks."""
    reasons: list[list[Rejection]] = [[] for _ in range(count)]
    for limit in limits:
        needed = np.broadcast_to(limit.needed, count)
        available = np.broadcast_to(limit.available, count)
        for row in np.flatnonzero(needed > available):
            reasons[row].append(
                Rejection(limit.name, float(needed[row]), float(available[row]), limit.change)
            )
    return [tuple(found) for found in reasons]


def launch_limits(
    configs: ConfigTable, gpu: Gpu, *, names: Sequence[str], largest_tile: Array, grid: Array
) -> list[Limit]:
    """Limits of every tiled kernel: powers of two, threads, block tensors, clusters, the grid.

    Args:
        configs, gpu: what is launched where.
        names: parameters that are powers of two.
        largest_tile: elements of the largest block tensor, (N,).
        grid: CTAs along the grid's first axis, (N,).
    """
    powers = [
        Limit(
            f"{name}{POWER_OF_TWO}", values, 2.0 ** np.floor(np.log2(values)),
            f"set {name} to a power of two",
        )
        for name in names
        for values in [getattr(configs, name)]
    ]  # fmt: skip
    return [
        *powers,
        Limit(
            "threads per block",
            configs.num_warps * gpu.warp_size,
            float(gpu.threads_per_block_max),
            "lower num_warps",
        ),
        Limit(
            "elements of one block tensor",
            largest_tile,
            float(TENSOR_ELEMENTS_MAX),
            "lower block_m or block_n",
        ),
        Limit(
            "CTAs per cluster (num_ctas)",
            configs.num_ctas,
            float(CLUSTER_CTAS_MAX if gpu.can("clusters") else 1),
            "set num_ctas to 1, or lower it",
        ),
        Limit(
            "registers per thread (maxnreg)",
            np.where(configs.maxnreg > 0, float(MAXNREG_MIN), 0.0),
            configs.maxnreg,
            "raise maxnreg",
        ),
        Limit(
            "blocks of the grid",
            grid,
            float(gpu.grid_x_max),
            "raise block_m or block_n, or lower split_k",
        ),
    ]


STEPS = {
    "block_m": (1.5, range(5)),
    "block_n": (1.5, range(5)),
    "num_warps": (1.2, range(-2, 3)),
    "split_k": (1.0, range(0, 7, 2)),
}
"""What a halving of each parameter costs, and how many are tried; doublings are negative."""


def nearest_within(
    config: TileConfig, fits: Callable[[ConfigTable], Mask], gpu: Gpu
) -> TileConfig | None:
    """Return the closest configuration that ``fits``, ``None`` where none is near.

    A stage less costs 1, other parameters change by halving; among equals the larger tile wins.
    """
    start: dict[str, Any] = {name: 1 << (getattr(config, name).bit_length() - 1) for name in STEPS}
    if not gpu.can("clusters"):
        start["num_ctas"] = 1
    maxnreg = None if config.maxnreg is None else max(config.maxnreg, MAXNREG_MIN)
    base = replace(config, maxnreg=maxnreg, **start)
    found: list[tuple[float, TileConfig]] = []
    for steps in product(*(choices for _, choices in STEPS.values()), range(config.num_stages)):
        values: dict[str, Any] = {
            name: max(int(getattr(base, name) / 2.0**step), 1)
            for name, step in zip(STEPS, steps, strict=False)
        }
        cost = float(steps[-1]) + sum(
            weight * abs(step) for (weight, _), step in zip(STEPS.values(), steps, strict=False)
        )
        found.append((cost, replace(base, **values, num_stages=config.num_stages - steps[-1])))
    found.sort(key=lambda entry: (entry[0], -entry[1].block_m * entry[1].block_n))
    ordered = list(dict.fromkeys(entry[1] for entry in found))
    mask = fits(ConfigTable.of(ordered))
    return ordered[int(mask.argmax())] if mask.any() else None
