"""The shipped order of a family's tiles, learned from which of them won."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import ModelFileError, SchemaMismatchError
from perfmodel.hardware.gpu import Gpu
from perfmodel.learned.tile_preference import TilePreference, load_tile_preference
from perfmodel.problems.dtypes import DType


@dataclass(frozen=True)
class TileOrder:
    """What N tiles of one problem are ordered by, the least first, and who says so."""

    score: NDArray[np.float64]
    model: TilePreference
    gpu: str

    @property
    def leaders(self) -> int:
        """How many first places hold the best one nine times in ten, as far as was checked."""
        return self.model.leaders(self.gpu)

    @property
    def note(self) -> str:
        """What a user should know of an order that says nothing of times."""
        gpus = self.model.manifest.gpus
        told = (
            f"tiles come in the order that winners on {', '.join(gpus)} taught "
            f"({self.model.version}); their times are the estimate's"
        )
        return told if self.gpu in gpus else f"{told}; none is known on {self.gpu}"


def preference_for(family: str, gpu: Gpu, dtype: DType) -> TilePreference | None:
    """Return the trees that know such devices and types, ``None`` where none do."""
    model = shipped_tile_preference(family)
    if model is None or not model.answers_for(gpu, dtype.name):
        return None
    return model


@lru_cache(maxsize=4)
def shipped_tile_preference(family: str) -> TilePreference | None:
    """Return the shipped trees of a family, ``None`` where there are none that can be used."""
    try:
        return load_tile_preference(family)
    except (ModelFileError, SchemaMismatchError):
        return None
