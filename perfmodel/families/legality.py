"""Errors for configurations that cannot be launched, with their reasons and one that can."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.errors import IllegalConfigError
from perfmodel.families.base import TileFamily, TileProblem
from perfmodel.hardware.gpu import Gpu
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import differences, require_dtype

REASONS_SHOWN = 5
"""Configurations whose reasons an error message lists one by one."""


def tile_text(config: TileConfig, parameters: Sequence[str]) -> str:
    """Return a configuration in short, without what its family's kernels do not read."""
    text = str(config)
    if "block_k" not in parameters:
        text = text.replace(f"x{config.block_k} ", " ", 1)
    return text if "group_m" in parameters else text.replace(f" g{config.group_m}", "", 1)


def require_legal(
    family: TileFamily[TileProblem], problem: TileProblem, config: TileConfig, gpu: Gpu
) -> None:
    """Do nothing for a configuration that can be launched.

    Raises:
        IllegalConfigError: it cannot; the message says why and offers one nearby that can.
        UnsupportedDtypeError: the device has no arithmetic for the problem's type.
    """
    require_dtype(problem.compute_dtype, gpu)
    (reasons,) = family.check(problem, ConfigTable.of([config]), gpu)
    if not reasons:
        return
    near = family.nearest(problem, config, gpu)
    fix = f"nearest that fits: {differences(config, near)}" if near else "no nearby config fits"
    told = tile_text(config, family.parameters)
    raise IllegalConfigError(
        f"config {told} cannot run on {gpu.name}: {'; '.join(map(str, reasons))}; {fix}"
    )


def none_usable(
    family: TileFamily[TileProblem], problem: TileProblem, configs: ConfigTable, gpu: Gpu
) -> str:
    """Say that no configuration can run, each with its own reasons; past a handful, a count."""
    reasons = family.check(problem, configs, gpu)
    lines = [
        f"{tile_text(config, family.parameters)} ({'; '.join(map(str, why))})"
        for config, why in zip(configs.configs[:REASONS_SHOWN], reasons, strict=False)
    ]
    if len(configs) > REASONS_SHOWN:
        lines.append(f"and {len(configs) - REASONS_SHOWN:,} more")
    return f"no usable config: none of {len(configs):,} can run on {gpu.name}: {', '.join(lines)}"
