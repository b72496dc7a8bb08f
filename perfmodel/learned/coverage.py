"""Whether launches, and their tiles, lie within what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfmodel.learned.feature_table import FeatureTable

Mask = NDArray[np.bool_]
Features = NDArray[np.float32]
Codes = NDArray[np.int64]

RANGE_STEP = 1.0

SCALE_COLUMNS = (
    "seconds_over_launch", "footprint_over_l2", "a_over_l2", "b_over_l2", "waves", "ctas_per_sm",
    "iterations", "tiles_m", "tiles_n", "bands", "aspect",
)  # fmt: skip
"""Features, binary logarithms, that grow without bound with a problem's size."""

TRUST_PER_STEP = 0.78
"""What of the correction is left a factor of two beyond the trained range. Set where two of the
three source files predict the third's larger problems; from 0.6 to 0.9 the errors hardly change."""
FAMILIAR_PROBLEMS = 20
SHARE_FAMILIAR = 0.5

TILE_COLUMNS = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
_DIGIT = 32
"""Each of the tile's columns is a small whole number: a power of two's logarithm, or stages."""


@dataclass(frozen=True)
class Coverage:
    """The trained range of every feature, arrays (F,), and the codes of the tiles seen often."""

    names: tuple[str, ...]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    tiles: Codes  # ascending

    @classmethod
    def of(cls, table: FeatureTable) -> Coverage:
        """Return what the rows of ``table`` cover; a tile needs twenty problems to be familiar."""
        codes = tile_codes(table.features, table.names)
        pairs = np.unique(np.stack([codes, table.problem]), axis=1)
        tile, problems = np.unique(pairs[0], return_counts=True)
        low, high = table.features.min(axis=0), table.features.max(axis=0)
        return cls(
            table.names,
            low.astype(np.float64),
            high.astype(np.float64),
            tile[problems >= FAMILIAR_PROBLEMS],
        )

    def covers(self, features: Features) -> Mask:
        """Whether each row lies within the range of every feature, give or take a step.

        Most features are binary logarithms, so a step is a factor of two. Beyond, trees are flat.
        """
        inside = (features >= self.low - RANGE_STEP) & (features <= self.high + RANGE_STEP)
        return np.asarray(inside.all(axis=1))

    def trust(self, features: Features) -> NDArray[np.float64]:
        """Return how much of a correction counts, 1 within the trained sizes, less beyond, (N,).

        Trees are flat outside their data: what they learned at the edge fades with the distance,
        and far out the analytic estimate stands alone.
        """
        where, low, high = self._scale
        if not len(where):
            return np.ones(len(features))
        scale = features[:, where]
        beyond = np.maximum(low - scale, scale - high).max(axis=1)
        return np.asarray(TRUST_PER_STEP ** np.maximum(beyond, 0.0))

    @cached_property
    def _scale(self) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
        known = [self.names.index(name) for name in SCALE_COLUMNS if name in self.names]
        where = np.array(known, dtype=np.intp)
        return where, self.low[where], self.high[where]

    def familiar(self, features: Features) -> Mask:
        """Whether each row's tile was seen in many problems."""
        if not len(self.tiles):
            return np.zeros(len(features), dtype=np.bool_)
        codes = tile_codes(features, self.names)
        at = np.minimum(np.searchsorted(self.tiles, codes), len(self.tiles) - 1)
        return np.asarray(self.tiles[at] == codes)


def tile_codes(features: Features, names: tuple[str, ...]) -> Codes:
    """Return one whole number a tile, equal where block sizes, warps and stages are."""
    code = np.zeros(len(features), dtype=np.int64)
    for name in (name for name in TILE_COLUMNS if name in names):
        code = code * _DIGIT + np.rint(features[:, names.index(name)]).astype(np.int64)
    return code


def comparable(familiar: Mask, problem: NDArray[np.int64]) -> Mask:
    """Whether, of each row's problem, half of the tiles are familiar.

    Trees that compare pairs favour the tiles that they saw in many problems over those that were
    candidates in few, however good; where many such tiles compete, preferences are left out.
    """
    _, number = np.unique(problem, return_inverse=True)
    share = np.bincount(number, weights=familiar) / np.bincount(number)
    return np.asarray(share[number] >= SHARE_FAMILIAR)
