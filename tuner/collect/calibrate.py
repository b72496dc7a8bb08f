"""Correct the shipped model for a GPU by a few well-chosen problems, measured there."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import ModelFileError, UsageError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.hardware.gpu import Gpu
from perfmodel.learned.model import GemmModel
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import ConfigTable, TileConfig
from tuner.collect.bench import Bench
from tuner.collect.families import FAMILIES, Family
from tuner.collect.heartbeat import Tell
from tuner.collect.merge import gather, table_of
from tuner.collect.output import Output
from tuner.collect.plan import Budget, plan_of, plan_problem
from tuner.collect.plan_file import Plan, Settings
from tuner.collect.run import run_shard
from tuner.collect.table_columns import problem_of

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.learned.adapt import Gain

POOL = 400
"""Problems to choose from, half of known models, half space-filling."""


@dataclass(frozen=True)
class Choice:
    """One problem that could be measured; ``configs`` are what can be, by default all worth it."""

    origin: str
    problem: Gemm
    configs: ConfigTable | None = None


@dataclass(frozen=True)
class Calibration:
    """A corrected predictor, the rows behind it, and what they gained with each held out."""

    predictor: Predictor
    gain: Gain
    table: pd.DataFrame
    failed: int


def calibration_plan(
    gpu: Gpu,
    predictor: Predictor,
    *,
    problems: int = 20,
    configs: int = 30,
    dtypes: Sequence[str] = ("bf16",),
    seed: int = 0,
    settings: Settings | None = None,
    pool: Sequence[Choice] | None = None,
) -> Plan:
    """Plan the problems whose measurement says most about a GPU.

    They stand for all in work and reuse (see `representatives`). Of each, the model's best
    configurations, its uncertain ones and a spread of the others are measured.

    Raises:
        UsageError: fewer than two problems or configurations, or fewer to choose from.
        UnsupportedDtypeError: the device has no arithmetic for a type.
    """
    settings = settings or Settings()
    if problems < 2 or configs < 2:
        raise UsageError(
            f"calibrating takes at least 2 problems with 2 configs each, not {problems} with "
            f"{configs}; 20 with 30 are a few minutes"
        )
    family = FAMILIES["gemm"]
    if pool is None:
        wanted = islice(family.problems(gpu, dtypes, seed), POOL)
        pool = [Choice(origin, problem) for origin, problem in wanted]
    if len(pool) < problems:
        raise UsageError(f"there are {len(pool)} problems to choose from, not {problems}")
    chosen = [pool[at] for at in representatives([c.problem for c in pool], problems, seed)]
    planned = [
        plan_problem(family, c.origin, c.problem, gpu, configs, seed, settings, predictor,
                     c.configs)
        for c in chosen
    ]  # fmt: skip
    return plan_of(gpu, planned, Budget(None, problems, configs), seed, settings, predictor)


def calibrate(
    plan: Plan, bench: Bench, output: Output, predictor: Predictor, tell: Tell | None = None
) -> Calibration:
    """Measure a plan, and correct ``predictor`` by it. A second call goes on where one stopped.

    Raises:
        ModelFileError: there is no model of ours to correct. DataError: too little of it ran.
        As `run_shard`.
    """
    require_adaptable(predictor)
    run_shard(plan, bench, output, tell=tell)
    table, _ = table_of(gather(plan, output.folder))
    adapted, gains = predictor.adapt(table)
    failed = int((table["outcome"] != "ok").sum())
    return Calibration(adapted, gains[plan.gpu], table, failed)


def require_adaptable(predictor: Predictor) -> None:
    """Refuse, before anything is measured, a predictor that cannot be corrected.

    Raises:
        ModelFileError: it has no model of ours.
    """
    if not isinstance(predictor.model, GemmModel):
        raise ModelFileError(
            "there is no trained model to calibrate; give one with --model FILE, or train it "
            "first: perfmodel train gemm"
        )


def recorded_pool(table: Path, gpu: str) -> list[Choice]:
    """Return the problems of ``gpu`` that a recorded table can answer for.

    Raises:
        MissingDataError, CorruptFileError, SchemaMismatchError: the table cannot be read.
        UsageError: it has no Triton GEMM of that device.
    """
    from perfmodel.dataset import schema  # noqa: PLC0415 - pandas loads only here

    frame = schema.read(table)
    rows = frame[
        (frame["family"] == "gemm") & (frame["gpu"] == gpu)
        & ~frame["is_library"] & frame["config_known"]
    ]  # fmt: skip
    family = FAMILIES["gemm"]
    if not len(rows):
        raise UsageError(f"{table} has no GEMM of {gpu} with known configurations to replay")
    names = ["m", "n", "k", "batch", "a_dtype", "b_dtype", "out_dtype", "a_layout", "b_layout",
             "lda", "ldb"]  # fmt: skip
    columns = [*names, *_CONFIG]
    found: dict[tuple[Any, ...], list[TileConfig]] = {}
    for values in rows[columns].drop_duplicates().itertuples(index=False, name=None):
        row = dict(zip(columns, values, strict=True))
        found.setdefault(tuple(row[n] for n in names), []).append(_config(row))
    device = load_gpu(gpu)
    return [
        choice
        for values, configs in found.items()
        if (choice := _recorded(family, dict(zip(names, values, strict=True)), configs, device))
    ]


def representatives(problems: Sequence[Gemm], count: int, seed: int) -> list[int]:
    """Return the positions of ``count`` problems that stand for all.

    One is drawn from each of ``count`` strata of equal size: by operations, and within these by
    operations per compulsory byte. Strata keep the pool's own density. On recorded H100 problems,
    20 drawn so gave better picks than 20 at random, and far better ones than the 20 farthest apart
    or the middles of 20 clusters: the odd ones out say little of the others.
    """
    draw = random.Random(f"{seed} calibration")
    work = np.array([p.flops for p in problems])
    reuse = np.array([p.flops / max(p.compulsory_bytes, 1.0) for p in problems])
    bands = max(round(math.sqrt(count)), 1)
    cells = [len(part) for part in np.array_split(np.arange(count), bands)]
    by_work = np.array_split(np.argsort(work, kind="stable"), bands)
    chosen: list[int] = []
    for rows, parts in zip(by_work, cells, strict=True):
        ordered = rows[np.argsort(reuse[rows], kind="stable")]
        chosen += [int(draw.choice(cell)) for cell in np.array_split(ordered, parts)]
    return chosen


_CONFIG = ("block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages", "split_k",
           "num_ctas", "maxnreg")  # fmt: skip


def _config(row: Mapping[str, Any]) -> TileConfig:
    return TileConfig.from_mapping(
        {name: int(row[name]) for name in _CONFIG if not _is_null(row[name])}
    )


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _recorded(
    family: Family, values: dict[str, Any], configs: list[TileConfig], gpu: Gpu
) -> Choice | None:
    """A recorded problem, its configurations as the table writes them; none without legal ones."""
    from perfmodel.tiling.legality import legal_mask  # noqa: PLC0415 - only here

    sizes = {
        name: int(value) if isinstance(value, float) else value
        for name, value in values.items()
        if not _is_null(value)
    }
    problem = problem_of(family.table, sizes)
    assert isinstance(problem, Gemm)
    table = ConfigTable.of(configs)
    legal = legal_mask(problem, table, gpu)
    if not legal.any():
        return None
    return Choice(f"recorded {problem.m}x{problem.n}x{problem.k}", problem, table.take(legal))


def without(predictor: Predictor, gpu: str) -> Predictor:
    """Return the predictor without what was measured on ``gpu`` for it alone."""
    model = predictor.model
    if not isinstance(model, GemmModel):
        return predictor
    deltas = {name: delta for name, delta in model.deltas.items() if name != gpu}
    return Predictor(replace(model, deltas=deltas), measured=predictor.measured)
