"""Mixture-of-experts products as the predictor sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.model import FURTHER_LAUNCH_S, LIMITERS, Estimate, estimate
from perfmodel.analytic.shape import SHAPE_LIMITERS, work_estimate
from perfmodel.families.base import Mask
from perfmodel.families.tile_model import TileOrder, preference_for
from perfmodel.hardware.gpu import Gpu
from perfmodel.launches import Launches, compulsory_floor_s, launch_floor_s
from perfmodel.learned.tile_columns import grouped_gemm_tile_columns, tile_matrix
from perfmodel.notes import memory_notes, tile_notes
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.problems.grouped_gemm_table import GroupedGemmTable
from perfmodel.tiling.config import PARAMETERS, ConfigTable, TileConfig
from perfmodel.tiling.grouped_gemm_work import Side, expert_gemm, grouped_gemm_work, row_tiles
from perfmodel.tiling.legality import Rejection, check, legal_mask, nearest_legal, require_dtype
from perfmodel.tiling.shape_grouped_gemm import grouped_gemm_shape_works
from perfmodel.tiling.space import MOE_GRID, candidate_configs, rejected_configs
from perfmodel.tiling.work import Work

Array = NDArray[np.float64]


class GroupedGemmFamily:
    """A mixture-of-experts layer in Triton, one tile for both of its products.

    See `TileFamily`.
    """

    name = "grouped_gemm"
    parameters = PARAMETERS
    varied = ("block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages")

    def candidates(self, problem: GroupedGemm, gpu: Gpu) -> ConfigTable:
        """Return the tiles worth ranking: those of the busiest expert's product."""
        return candidate_configs(expert_gemm(problem, _sides(problem)[0]), gpu, MOE_GRID)

    def rejected(
        self, problem: GroupedGemm, gpu: Gpu
    ) -> list[tuple[TileConfig, tuple[Rejection, ...]]]:
        """Return the tiles left out, and why."""
        return rejected_configs(expert_gemm(problem, _sides(problem)[0]), gpu, MOE_GRID)

    def check(
        self, problem: GroupedGemm, configs: ConfigTable, gpu: Gpu
    ) -> list[tuple[Rejection, ...]]:
        """Return why each configuration cannot be launched."""
        return check(expert_gemm(problem, _sides(problem)[0]), configs, gpu)

    def legal(self, problem: GroupedGemm, configs: ConfigTable, found: Launches) -> Mask:
        """Return which configurations can be launched."""
        gemm = expert_gemm(problem, _sides(problem)[0])
        return legal_mask(gemm, configs, found.gpu, found.work.resources)

    def nearest(self, problem: GroupedGemm, config: TileConfig, gpu: Gpu) -> TileConfig | None:
        """Return the closest configuration that can be launched."""
        return nearest_legal(expert_gemm(problem, _sides(problem)[0]), config, gpu)

    def launches(
        self,
        problem: GroupedGemm,
        configs: ConfigTable,
        gpu: Gpu,
        *,
        with_features: bool,  # noqa: ARG002 - no model of these tiles asks for any
    ) -> Launches:
        """Describe the launches of each configuration as one: both products, and what is between.

        The schedule and resources are those of the first product.
        """
        require_dtype(problem.compute_dtype, gpu)
        overhead_s = launch_floor_s(gpu)
        works = [grouped_gemm_work(problem, side, configs, gpu) for side in _sides(problem)]
        parts = [
            estimate(work, gpu, launch_overhead_s=FURTHER_LAUNCH_S if at else overhead_s)
            for at, work in enumerate(works)
        ]
        found = parts[0] if len(parts) == 1 else _together(parts, problem, gpu)
        work = works[0] if len(works) == 1 else _both(works, problem)
        floor_s = compulsory_floor_s(
            gpu, problem.compute_dtype.name, flops=problem.flops,
            read_bytes=problem.read_bytes, write_bytes=problem.write_bytes,
        )  # fmt: skip
        floor = np.full(len(configs), floor_s)
        a, b = problem.dtype.name, (problem.weight_dtype or problem.dtype).name
        dtype = a if a == b else f"{a}x{b}"
        return Launches(gpu, dtype, work, found, None, floor, self.name)

    def order(
        self, problem: GroupedGemm, configs: ConfigTable, found: Launches, legal: Mask
    ) -> TileOrder | None:
        """Return the learned order, that of the first product: both take one tile."""
        model = preference_for("moe", found.gpu, problem.compute_dtype)
        if model is None or problem.projection == "down" or not problem.loads.any():
            return None
        if problem.projection != "up":
            up = replace(problem, projection="up")
            found = self.launches(up, configs, found.gpu, with_features=False)
        columns = grouped_gemm_tile_columns(
            problem, configs, found.gpu, found.work, found.estimate, legal
        )
        return TileOrder(
            model.score(tile_matrix(columns, len(configs)), configs), model, found.gpu.name
        )

    def notes(self, problem: GroupedGemm, config: TileConfig, found: Launches) -> tuple[str, ...]:
        """Return the notes on the single launch of ``found``."""
        if not found.work.ctas[0]:
            return ("no work: the time is the launch overhead alone",)
        notes = list(tile_notes(config, found))
        notes += memory_notes(problem.compulsory_bytes, "tokens, weights and results", found.gpu)
        tiles = float(row_tiles(problem, np.array([float(config.block_m)]))[0])
        share = float(problem.loads.sum()) / (tiles * config.block_m)
        if share < PADDING_NOTED:
            notes.append(
                f"{100 * (1 - share):.0f} % of the rows only pad experts to whole tiles: lower "
                f"block_m (now {config.block_m})"
            )
        return tuple(notes)


PADDING_NOTED = 0.5
"""Share of real rows in all tiles under which padding is worth a word."""


def _sides(problem: GroupedGemm) -> tuple[Side, ...]:
    return get_args(Side) if problem.projection == "both" else (problem.projection,)


def _together(parts: list[Estimate], problem: GroupedGemm, gpu: Gpu) -> Estimate:
    """Both products one after the other, with the sort, the activation and the final sum."""
    seconds = np.sum([p.seconds for p in parts], axis=0)
    limiter_s = np.sum([p.limiter_s for p in parts], axis=0)
    memory_wait_s = np.sum([p.memory_wait_s for p in parts], axis=0)
    if not problem.loads.any():  # nothing follows a launch without work
        return replace(parts[0], seconds=seconds - FURTHER_LAUNCH_S)
    for work in grouped_gemm_shape_works(GroupedGemmTable.of(problem), gpu)[1::2]:
        if not work.launches[0]:
            continue
        between = work_estimate(work, gpu, FURTHER_LAUNCH_S)
        seconds = seconds + between.seconds[0]
        for name in SHAPE_LIMITERS:
            limiter_s[LIMITERS.index(name)] += between.by_limiter[name][0]
        memory_wait_s += between.by_limiter["latency"][0]
    limiter_s[LIMITERS.index("launch")] += FURTHER_LAUNCH_S  # the sort by expert
    return replace(
        parts[0],
        seconds=seconds + FURTHER_LAUNCH_S,
        limiter_s=limiter_s,
        memory_wait_s=memory_wait_s,
    )


def _both(works: list[Work], problem: GroupedGemm) -> Work:
    first = works[0]
    return replace(
        first,
        flops=np.sum([w.flops for w in works], axis=0),
        dram_bytes=np.sum([w.dram_bytes for w in works], axis=0),
        compulsory_bytes=np.full_like(first.flops, problem.compulsory_bytes),
    )
