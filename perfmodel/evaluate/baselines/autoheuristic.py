"""Inductor's learned heuristic for matrix products, from an installed torch.

``torch._inductor.autoheuristic.artifacts`` holds a decision tree each for A100 and H100 whose
leaves rank Triton configurations. It was trained on the AutoHeuristic tables themselves, so what it
reaches on them is in-sample. Configurations that a leaf does not list come after those it does,
in no particular order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.errors import NotInstalledError
from perfmodel.evaluate.answers import Answer
from perfmodel.evaluate.rows import GemmRows

RANKERS = {"a100-sxm4-80gb": ("_MMRankingA100", "MMRankingA100"),
           "h100-sxm5": ("_MMRankingH100", "MMRankingH100")}  # fmt: skip
_PROBLEM = {
    "m": "m", "n": "n", "k": "k", "a_stride_0": "mat1_stride_0", "a_stride_1": "mat1_stride_1",
    "b_stride_0": "mat2_stride_0", "b_stride_1": "mat2_stride_1",
}  # fmt: skip
"""Our columns, and what torch calls them."""

_CHOICE = re.compile(r"BLOCK-M=(\d+)_BLOCK-K=(\d+)_BLOCK-N=(\d+)_numstages=(\d+)_numwarps=(\d+)")


@dataclass(frozen=True)
class AutoHeuristic:
    """Ranks for the devices that torch has a tree for; equal operand types only."""

    name: str = "autoheuristic-in-sample"

    def answer(self, train: GemmRows, test: GemmRows) -> Answer | None:  # noqa: ARG002 - trained already
        """Return each row's place in the ranking of its problem.

        Raises:
            NotInstalledError: torch is missing.
        """
        if not set(test.gpu) <= set(RANKERS) or any("x" in d for d in set(test.dtype)):
            return None
        columns = ["block_m", "block_k", "block_n", "num_stages", "num_warps"]
        configs = test.labels[columns].to_numpy(dtype=np.int64)
        score = np.full(len(test), np.inf)
        order = np.argsort(test.problem, kind="stable")
        starts = np.flatnonzero(np.diff(test.problem[order], prepend=-1))
        problems = test.labels[list(_PROBLEM)].to_numpy(dtype=np.float64)
        for rows in np.split(order, starts[1:]):
            first = rows[0]
            place = _places(str(test.gpu[first]), str(test.dtype[first]), *problems[first].tolist())
            score[rows] = [place.get(tuple(config), np.inf) for config in configs[rows]]
        return Answer(score=score)


@lru_cache(maxsize=20_000)
def _places(gpu: str, dtype: str, *numbers: float) -> dict[tuple[int, ...], int]:
    """Return the place of each configuration that the leaf of a problem lists."""
    ranker, context_type = _ranker(gpu)
    context = context_type()
    known = dict(zip(_PROBLEM.values(), numbers, strict=True))
    m, n, k = known["m"], known["n"], known["k"]
    known |= {"m*k": m * k, "m*n": m * n, "k*n": k * n}
    known["arith_intensity"] = m * n * k / (m * k + k * n + m * n)
    for name, value in known.items():
        context.add_feature(name, value)
    tf32 = {"tf32": True, "fp32": False}.get(dtype, "not_float_32")
    context.add_feature("using_tf32", tf32, is_categorical=True)
    found = [_CHOICE.search(choice) for choice in ranker.get_decisions_ranked(context) or []]
    return {tuple(map(int, match.groups())): place for place, match in enumerate(found) if match}


@lru_cache
def _ranker(gpu: str) -> tuple[Any, Any]:
    module, name = RANKERS[gpu]
    try:
        from importlib import import_module  # noqa: PLC0415 - torch is heavy and optional

        found = import_module(f"torch._inductor.autoheuristic.artifacts.{module}")
        context = import_module("torch._inductor.autoheuristic.autoheuristic_utils").AHContext
    except ImportError as error:
        raise NotInstalledError(
            f"the AutoHeuristic baseline needs torch ({error}); install it with: pip install torch"
        ) from error
    return getattr(found, name)(), context
