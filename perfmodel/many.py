"""Many launches at once: problems and configurations paired row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import InvalidConfigError
from perfmodel.families import TileProblem, family_of
from perfmodel.families.library import require_tile
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems import Problem
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import NUMBER_FIELDS, GemmTable
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.legality import legal_mask

if TYPE_CHECKING:
    from perfmodel.predictor import Predictor

Array = NDArray[np.float64]


def latencies_us(
    predictor: Predictor, problems: Sequence[Problem], gpu: Gpu, configs: ConfigTable | None
) -> Array:
    """Predict each problem, microseconds, shape (N,); see `Predictor.latency_us`."""
    if configs is None:
        return np.array([predictor.predict(p, gpu).latency_us for p in problems])
    for problem in problems:
        require_tile(problem)
    out = np.empty(paired(len(problems), len(configs)))
    for kind, at in _by_kind(problems).items():
        rows = np.array(at) if len(problems) > 1 else np.arange(len(out))
        part = configs.take(rows) if len(configs) > 1 else configs
        if kind[0] == "gemm":
            same = GemmTable.of_problems([problems[i] for i in at])  # type: ignore[misc]  # by kind
            out[rows] = table_latencies_us(predictor, same, part, gpu)
        else:
            out[rows] = _of_one(predictor, problems[at[0]], part, gpu)  # type: ignore[arg-type]
    return out


def table_latencies_us(
    predictor: Predictor, problems: GemmTable, configs: ConfigTable, gpu: Gpu
) -> Array:
    """Predict matrix products given as arrays, microseconds, ``inf`` for what cannot run."""
    size = max(np.size(getattr(problems, name)) for name in NUMBER_FIELDS)
    rows = paired(size, len(configs))
    if len(configs) != rows:
        configs = configs.take(np.zeros(rows, dtype=np.intp))
    found = predictor.launches(problems, configs, gpu)
    legal = legal_mask(problems, configs, gpu, found.work.resources)
    return np.where(legal, np.exp(predictor.log_seconds(found)) * 1e6, np.inf)


def paired(problems: int, configs: int) -> int:
    """Return the number of pairs; one of either goes with all of the other.

    Raises:
        InvalidConfigError: neither is one, and the numbers differ.
    """
    if problems == configs or 1 in (problems, configs):
        return max(problems, configs) if 0 not in (problems, configs) else 0
    raise InvalidConfigError(
        f"{problems} problems and {configs} configs do not pair up; give equal numbers, or one of "
        "either"
    )


def _by_kind(problems: Sequence[Problem]) -> dict[tuple[object, ...], list[int]]:
    """Rows that are worked out together: products of equal types, anything else by problem."""
    rows: dict[tuple[object, ...], list[int]] = {}
    for at, p in enumerate(problems):
        kind: tuple[object, ...] = (p.family, p)
        if isinstance(p, Gemm):
            kind = (p.family, p.a_dtype, p.b_dtype, p.out_dtype)
        rows.setdefault(kind, []).append(at)
    return rows


def _of_one(predictor: Predictor, problem: TileProblem, configs: ConfigTable, gpu: Gpu) -> Array:
    found = predictor.launches_of(problem, configs, gpu)
    legal = family_of(problem).legal(problem, configs, found)
    return np.where(legal, np.exp(predictor.log_seconds(found)) * 1e6, np.inf)
