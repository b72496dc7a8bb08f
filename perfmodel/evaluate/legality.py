"""Rules against compilers: what failed on the full grid must be rejected, what ran must not be.

Rejected means that `perfmodel.tiling.legality` calls a configuration illegal or flags it as too
slow to compile (the grid cut compilations off after 6 s). A cell is a size.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.dataset import splits
from perfmodel.dataset.outcome import Outcome
from perfmodel.evaluate.records import OURS, Record, with_all
from perfmodel.evaluate.run import GRID, Run
from perfmodel.learned.feature_table import launch_groups
from perfmodel.tiling.legality import legal_mask, slow_to_compile_mask

Mask = NDArray[np.bool_]

RULES_ALONE = "perfmodel-without-compile-time"
ALL_STAGES = "all-stages-in-shared-memory"
"""Triton's old ``early_config_prune``: stages x (A + B) at most the limit of a block."""


def legality(run: Run) -> list[Record]:
    """The full grid's failures and successes against the rules: which are rejected."""
    labels = run.tables.labels(GRID)
    wanted = np.array([run.wanted(gpu) for gpu in labels["gpu"]], dtype=bool)
    labels = labels[wanted & labels["config_known"].to_numpy(dtype=bool)].reset_index(drop=True)
    records: list[Record] = []
    failed = (labels["outcome"] != Outcome.OK.value).to_numpy()
    for who, rejected in _rejections(labels).items():
        for split in splits.leave_one_size_out(labels):
            for metric, rows in (
                ("illegal_rejected", split.test & failed),
                ("legal_rejected", split.test & ~failed),
            ):
                if rows.any():
                    share, n = float(rejected[rows].mean()), int(rows.sum())
                    cell = split.name
                    records.append(Record("legality", who, metric, share, cell=cell, n=n))
    return with_all(records) + run.gates("legality", GRID)


PROTOCOLS = {"legality": legality}


def _rejections(labels: pd.DataFrame) -> dict[str, Mask]:
    found = {who: np.zeros(len(labels), dtype=bool) for who in (OURS, RULES_ALONE, ALL_STAGES)}
    for group in launch_groups(labels):
        gpu, problems, configs, rows = group.gpu, group.problems, group.configs, group.rows
        illegal = ~legal_mask(problems, configs, gpu)
        found[RULES_ALONE][rows] = illegal
        found[OURS][rows] = illegal | slow_to_compile_mask(problems, configs, gpu)
        tiles = configs.block_m * problems.a_dtype.bytes + configs.block_n * problems.b_dtype.bytes
        staged = tiles * configs.block_k * configs.num_stages
        found[ALL_STAGES][rows] = staged > gpu.smem_per_block_optin_bytes
    return found
