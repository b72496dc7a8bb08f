"""What a family of tiled kernels answers for."""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.families.tile_model import TileOrder
from perfmodel.hardware.gpu import Gpu
from perfmodel.launches import Launches
from perfmodel.problems.attention import Attention
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import Rejection

Mask = NDArray[np.bool_]

TileProblem = Gemm | Attention | GroupedGemm
"""A problem whose kernel's tile can be chosen."""

P_contra = TypeVar("P_contra", contravariant=True)


class TileFamily(Protocol[P_contra]):
    """One family of tiled kernels; every method takes one problem and many configurations.

    ``parameters`` are those of a `TileConfig` that the family's kernels read, ``varied`` those
    that its candidates differ in.
    """

    name: str
    parameters: tuple[str, ...]
    varied: tuple[str, ...]

    def candidates(self, problem: P_contra, gpu: Gpu) -> ConfigTable:
        """Return the configurations worth ranking, at least one.

        Raises:
            UnsupportedDtypeError: the device has no arithmetic for the problem's type.
        """

    def rejected(
        self, problem: P_contra, gpu: Gpu
    ) -> list[tuple[TileConfig, tuple[Rejection, ...]]]:
        """Return what `candidates` leaves out of the grid of tiles, with the reasons of each."""

    def check(
        self, problem: P_contra, configs: ConfigTable, gpu: Gpu
    ) -> list[tuple[Rejection, ...]]:
        """Return why each configuration cannot be launched: an empty tuple for one that can."""

    def legal(self, problem: P_contra, configs: ConfigTable, found: Launches) -> Mask:
        """Return which configurations can be launched; ``found`` is what `launches` returned."""

    def nearest(self, problem: P_contra, config: TileConfig, gpu: Gpu) -> TileConfig | None:
        """Return the closest configuration that can be launched, ``None`` where none is near."""

    def launches(
        self, problem: P_contra, configs: ConfigTable, gpu: Gpu, *, with_features: bool
    ) -> Launches:
        """Describe the launch of each configuration."""

    def order(
        self, problem: P_contra, configs: ConfigTable, found: Launches, legal: Mask
    ) -> TileOrder | None:
        """Return what winners taught of the order of tiles, ``None`` where times alone decide."""

    def notes(self, problem: P_contra, config: TileConfig, found: Launches) -> tuple[str, ...]:
        """Return what a user should know of the single launch of ``found``."""
