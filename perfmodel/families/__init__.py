"""Kernel families: what the predictor has to know of each, one module a family.

A new family is a module here and a line in `FAMILIES`; no other family is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.errors import InvalidProblemError
from perfmodel.families.attention import AttentionFamily
from perfmodel.families.base import TileFamily, TileProblem
from perfmodel.families.gemm import GemmFamily
from perfmodel.families.grouped_gemm import GroupedGemmFamily
from perfmodel.problems.attention import Attention
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.grouped_gemm import GroupedGemm

FAMILIES: Mapping[type, Any] = {
    Gemm: GemmFamily(),
    Attention: AttentionFamily(),
    GroupedGemm: GroupedGemmFamily(),
}
"""The family of each type of problem whose tiles are known."""

__all__ = ["FAMILIES", "TileFamily", "TileProblem", "family_of"]


def family_of(problem: TileProblem) -> TileFamily[TileProblem]:
    """Return the family of ``problem``.

    Raises:
        InvalidProblemError: it is no problem, or one whose kernels have no tiles to choose.
    """
    found: TileFamily[TileProblem] | None = FAMILIES.get(type(problem))
    if found is None:
        names = ", ".join(known.__name__ for known in FAMILIES)
        raise InvalidProblemError(
            f"a {type(problem).__name__} has no tiles to choose from; give one of: {names}"
        )
    return found
