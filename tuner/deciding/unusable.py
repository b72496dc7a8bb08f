"""Why configurations cannot be used, and what to change: worked out when somebody asks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.errors import NoUsableConfigError
from perfmodel.tiling.config import ConfigTable
from tuner.deciding.accounting import Fate
from tuner.deciding.decision import View
from tuner.deciding.legality import reasons_of, shared_memory_advice, suggestion

if TYPE_CHECKING:
    from tuner.autotuner.decorator import Autotuner

Fates = dict[int, tuple[Fate, str | None]]


def explain_illegal(kernel: Autotuner, fates: Fates, view: View) -> None:
    """Give the reasons of configurations that the model's rules found illegal."""
    waiting = [i for i in view.kept if fates.get(i) == (Fate.ILLEGAL, None)]
    if not waiting or view.known is None:
        return
    assert view.gpu is not None
    assert view.table is not None
    assert kernel.tile_names is not None
    places = {position: row for row, position in enumerate(view.kept)}
    tiles = [view.table.configs[places[i]] for i in waiting]
    reasons = reasons_of(view.known, ConfigTable.of(tiles), view.gpu, kernel.tile_names)
    for i, broken in zip(waiting, reasons, strict=True):
        fates[i] = (Fate.ILLEGAL, "; ".join(broken))


def advice(kernel: Autotuner, view: View, config: Any, position: int, reason: str) -> str:
    """Return what to change in a configuration that does not fit, where the reason says it."""
    if view.table is not None and position in view.kept and view.known is not None:
        assert view.gpu is not None
        assert kernel.tile_names is not None
        tile = view.table.configs[view.kept.index(position)]
        near = suggestion(view.known, tile, view.gpu, kernel.tile_names)
        return "" if near is None else f"; one that fits: {near}"
    found = re.search(r"Required: (\d+), Hardware limit: (\d+)", reason)
    if found is None:
        return ""
    return f"; {shared_memory_advice(config, float(found[1]), float(found[2]))}"


def none_usable(
    kernel: Autotuner, candidates: Sequence[Any], fates: Fates, view: View
) -> NoUsableConfigError:
    """Return the error that gives each configuration's own reason, and what to change."""
    lines = []
    for i, (fate, reason) in sorted(fates.items()):
        told = f"{candidates[i]}: {fate}"
        if reason:
            told += f" ({reason}{advice(kernel, view, candidates[i], i, reason)})"
        lines.append(told)
    return NoUsableConfigError(
        f"no usable config for {kernel.name} among {len(candidates)}:\n  "
        + "\n  ".join([*lines, *how_to_release(fates)])
    )


def how_to_release(fates: Fates) -> list[str]:
    """Return what to do about configurations in quarantine; empty where there are none."""
    if not any(fate is Fate.QUARANTINED for fate, _ in fates.values()):
        return []
    return ["what is quarantined is tried again after: perfmodel cache release"]
