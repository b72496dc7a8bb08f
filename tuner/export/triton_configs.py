"""Picks as the arguments of ``triton.Config``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfmodel.families import family_of
from perfmodel.tiling.config import TileConfig
from tuner.export.pick import Pick

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""What ``triton.Config`` takes beside the kernel's own parameters."""


def config_arguments(config: TileConfig, parameters: Sequence[str]) -> dict[str, Any]:
    """Return what ``triton.Config(**arguments)`` takes; the kernel's names are in upper case."""
    own = {name: getattr(config, name) for name in parameters if name not in OPTIONS}
    kwargs = {name.upper(): value for name, value in own.items()} | dict(config.extras)
    return {"kwargs": kwargs} | {name: getattr(config, name) for name in OPTIONS}


def to_triton(picks: Sequence[Pick]) -> list[dict[str, Any]]:
    """Return one entry a problem: ``problem``, ``gpu`` and ``config`` for ``triton.Config``."""
    return [
        {
            "family": found.problem.family,
            "problem": found.problem.to_dict(),
            "gpu": found.gpu,
            "config": config_arguments(found.config, family_of(found.problem).parameters),
        }
        for found in picks
    ]
