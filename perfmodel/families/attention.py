"""Tiled attention as the predictor sees it."""

from __future__ import annotations

import numpy as np

from perfmodel.analytic.model import estimate
from perfmodel.families.base import Mask
from perfmodel.families.tile_model import TileOrder, preference_for
from perfmodel.hardware.gpu import Gpu
from perfmodel.launches import Launches, compulsory_floor_s, launch_floor_s
from perfmodel.learned.tile_columns import attention_tile_columns, tile_matrix
from perfmodel.notes import memory_notes, tile_notes
from perfmodel.problems.attention import Attention
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.tiling.attention_space import (
    attention_candidates,
    attention_limits,
    attention_rejected,
)
from perfmodel.tiling.attention_tile import padded_head_dim
from perfmodel.tiling.attention_work import attention_work
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import Rejection, require_dtype
from perfmodel.tiling.limits import nearest_within, rejections, within

SPLIT_LAST = 1e6
"""Added to the place of a tile that shares keys between CTAs: no winner of prefill did."""


class AttentionFamily:
    """``softmax(Q K^T) V`` in Triton; see `TileFamily`."""

    name = "attention"
    parameters = (
        "block_m", "block_n", "num_warps", "num_stages", "split_k", "num_ctas", "maxnreg",
    )  # fmt: skip
    varied = ("block_m", "block_n", "num_warps", "num_stages", "split_k")

    def candidates(self, problem: Attention, gpu: Gpu) -> ConfigTable:
        """Return the tiles worth ranking."""
        return attention_candidates(problem, gpu)

    def rejected(
        self, problem: Attention, gpu: Gpu
    ) -> list[tuple[TileConfig, tuple[Rejection, ...]]]:
        """Return the tiles left out, and why."""
        return attention_rejected(problem, gpu)

    def check(
        self, problem: Attention, configs: ConfigTable, gpu: Gpu
    ) -> list[tuple[Rejection, ...]]:
        """Return why each configuration cannot be launched."""
        table = AttentionTable.of(problem)
        return rejections(attention_limits(table, configs, gpu), len(configs))

    def legal(self, problem: Attention, configs: ConfigTable, found: Launches) -> Mask:
        """Return which configurations can be launched."""
        table = AttentionTable.of(problem)
        limits = attention_limits(table, configs, found.gpu, found.work.resources)
        return within(limits, len(configs))

    def nearest(self, problem: Attention, config: TileConfig, gpu: Gpu) -> TileConfig | None:
        """Return the closest configuration that can be launched."""
        table = AttentionTable.of(problem)

        def fits(configs: ConfigTable) -> Mask:
            return within(attention_limits(table, configs, gpu), len(configs))

        return nearest_within(config, fits, gpu)

    def launches(
        self,
        problem: Attention,
        configs: ConfigTable,
        gpu: Gpu,
        *,
        with_features: bool,  # noqa: ARG002 - no model of these tiles asks for any
    ) -> Launches:
        """Describe the launch of each configuration."""
        require_dtype(problem.compute_dtype, gpu)
        table = AttentionTable.of(problem)
        work = attention_work(table, configs, gpu)
        found = estimate(work, gpu, launch_overhead_s=launch_floor_s(gpu))
        floor_s = compulsory_floor_s(
            gpu, problem.compute_dtype.name, flops=float(table.flops[0]),
            read_bytes=float(table.read_bytes[0]), write_bytes=float(table.write_bytes[0]),
        )  # fmt: skip
        floor = np.full(len(configs), floor_s)
        return Launches(gpu, problem.compute_dtype.name, work, found, None, floor, self.name)

    def order(
        self, problem: Attention, configs: ConfigTable, found: Launches, legal: Mask
    ) -> TileOrder | None:
        """Return the learned order of forward tiles; of split keys it knows nothing."""
        model = preference_for("attention", found.gpu, problem.compute_dtype)
        decode = all(q <= 1 for q, _ in problem.items)
        if model is None or problem.backward or decode or not found.work.ctas.any():
            return None
        columns = attention_tile_columns(
            problem, configs, found.gpu, found.work, found.estimate, legal
        )
        score = model.score(tile_matrix(columns, len(configs)), configs)
        return TileOrder(
            np.where(configs.split_k > 1, score + SPLIT_LAST, score), model, found.gpu.name
        )

    def notes(self, problem: Attention, config: TileConfig, found: Launches) -> tuple[str, ...]:
        """Return the notes on the single launch of ``found``."""
        if not found.work.ctas[0]:
            return ("no work: the time is the launch overhead alone",)
        notes = list(tile_notes(config, found, self.parameters))
        notes += memory_notes(problem.compulsory_bytes, "Q, K, V and the result", found.gpu)
        for name, size in (("head_dim", problem.head_dim), ("v_head_dim", problem.v_head_dim or 0)):
            padded = padded_head_dim(size, problem.compute_dtype)
            if padded != size:
                notes.append(
                    f"{name} {size} is computed as {padded}: a tile's sides are powers of 2"
                )
        if config.split_k > 1 and not all(q <= 1 for q, _ in problem.items):
            notes.append("split_k shares the keys of prefill between CTAs, which seldom pays")
        return tuple(notes)
