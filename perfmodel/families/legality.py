"""Errors for configurations that cannot be launched, with their reasons and one that can."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.errors import IllegalConfigError
from perfmodel.families.base import TileFamily, TileProblem
from perfmodel.hardware.gpu import Gpu
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import Rejection, differences, require_dtype

TOLD_EACH = 5
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
    """Say that no configuration can run: a handful each with its reasons, more by what they break.

    Of more, the one nearest to running is told besides.
    """
    reasons = family.check(problem, configs, gpu)
    head = f"no usable config: none of {len(configs):,} can run on {gpu.name}"
    if len(configs) <= TOLD_EACH:
        each = [
            f"{tile_text(config, family.parameters)} ({'; '.join(map(str, why))})"
            for config, why in zip(configs.configs, reasons, strict=True)
        ]
        return f"{head}: {', '.join(each)}"
    broken: dict[str, list[Rejection]] = {}
    for rejection in (r for why in reasons for r in why):
        broken.setdefault(rejection.limit, []).append(rejection)
    lines = [
        f"{len(found):,} break {limit}: the least needs {least.needed:,.0f}, "
        f"limit {least.available:,.0f}"
        for limit, found in sorted(broken.items(), key=lambda item: -len(item[1]))
        for least in [min(found, key=_excess)]
    ]
    nearest = min(
        range(len(configs)), key=lambda at: [len(reasons[at]), *map(_excess, reasons[at])]
    )
    told = tile_text(configs.configs[nearest], family.parameters)
    lines.append(f"the nearest is {told} ({'; '.join(map(str, reasons[nearest]))})")
    return "\n  ".join([f"{head}:", *lines])


def _excess(rejection: Rejection) -> float:
    return rejection.needed / max(rejection.available, 1.0)
