"""Which configurations the device of a call can run, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.errors import PerfmodelError
from perfmodel.families import TileProblem, family_of
from perfmodel.hardware.gpu import Gpu
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import MAXNREG_MIN
from tuner.deciding.tiles import TileNames


def reasons_of(
    problem: TileProblem, table: ConfigTable, gpu: Gpu, names: TileNames
) -> list[tuple[str, ...]]:
    """Return every limit that each tile breaks, in the kernel's names; empty for a legal one."""
    return [
        tuple(names.spoken(str(reason)) for reason in reasons)
        for reasons in family_of(problem).check(problem, table, gpu)
    ]


def suggestion(problem: TileProblem, tile: TileConfig, gpu: Gpu, names: TileNames) -> str | None:
    """Return a configuration near ``tile`` that fits, as it would be typed; ``None`` for none."""
    try:
        near = family_of(problem).nearest(problem, tile, gpu)
    except PerfmodelError:
        return None
    return None if near is None else str(names.config(near))


def generic_reasons(configs: Sequence[Any], gpu: Gpu | None) -> dict[int, str]:
    """Return which configurations of any kernel break a limit of the device, by position.

    Only what no kernel changes: threads of a block, clusters, registers. Shared memory is the
    compiler's to say.
    """
    if gpu is None:
        return {}
    found: dict[int, str] = {}
    for position, config in enumerate(configs):
        threads = (getattr(config, "num_warps", None) or 4) * gpu.warp_size
        ctas = getattr(config, "num_ctas", None) or 1
        registers = getattr(config, "maxnreg", None)
        if threads > gpu.threads_per_block_max:
            found[position] = (
                f"threads per block: needs {threads:,}, limit {gpu.threads_per_block_max:,}; "
                "lower num_warps"
            )
        elif ctas > 1 and not gpu.can("clusters"):
            found[position] = f"CTAs per cluster (num_ctas): needs {ctas}, limit 1; set it to 1"
        elif registers is not None and registers < MAXNREG_MIN:
            found[position] = (
                f"registers per thread (maxnreg): needs {MAXNREG_MIN}, limit {registers}; raise it"
            )
    return found


def shared_memory_advice(config: Any, required: float, available: float) -> str:
    """Return which keywords of a configuration to lower for a kernel that nobody knows.

    Shared memory of a pipelined loop grows with its stages; where one stage less is not enough,
    blocks have to shrink.
    """
    stages = int(getattr(config, "num_stages", 1) or 1)
    fitting = int(stages * available / required) if required else stages
    blocks: Mapping[str, int] = {
        name: value
        for name, value in config.kwargs.items()
        if isinstance(value, int) and not isinstance(value, bool) and value >= 32
    }
    if fitting >= 1 and fitting < stages:
        return f"lower num_stages from {stages} to {fitting}"
    if blocks:
        largest = max(blocks, key=lambda name: blocks[name])
        return f"lower {largest} from {blocks[largest]} to {blocks[largest] // 2}"
    return "lower num_stages"
