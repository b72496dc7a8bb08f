"""Matrix products as the predictor sees them."""

from __future__ import annotations

from perfmodel.families.base import Mask
from perfmodel.families.tile_model import TileOrder
from perfmodel.hardware.gpu import Gpu
from perfmodel.launches import Launches, gemm_launches
from perfmodel.notes import launch_notes
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import PARAMETERS, ConfigTable, TileConfig
from perfmodel.tiling.legality import Rejection, check, legal_mask, nearest_legal
from perfmodel.tiling.space import candidate_configs, rejected_configs


class GemmFamily:
    """``C = A B`` in Triton; see `TileFamily`."""

    name = "gemm"
    parameters = PARAMETERS
    varied = ("block_m", "block_n", "block_k", "num_warps", "num_stages")

    def candidates(self, problem: Gemm, gpu: Gpu) -> ConfigTable:
        """Return the tiles worth ranking."""
        return candidate_configs(problem, gpu)

    def rejected(self, problem: Gemm, gpu: Gpu) -> list[tuple[TileConfig, tuple[Rejection, ...]]]:
        """Return the tiles left out, and why."""
        return rejected_configs(problem, gpu)

    def check(self, problem: Gemm, configs: ConfigTable, gpu: Gpu) -> list[tuple[Rejection, ...]]:
        """Return why each configuration cannot be launched."""
        return check(problem, configs, gpu)

    def legal(self, problem: Gemm, configs: ConfigTable, found: Launches) -> Mask:
        """Return which configurations can be launched."""
        return legal_mask(problem, configs, found.gpu, found.work.resources)

    def nearest(self, problem: Gemm, config: TileConfig, gpu: Gpu) -> TileConfig | None:
        """Return the closest configuration that can be launched."""
        return nearest_legal(problem, config, gpu)

    def launches(
        self, problem: Gemm, configs: ConfigTable, gpu: Gpu, *, with_features: bool
    ) -> Launches:
        """Describe the launch of each configuration."""
        return gemm_launches(GemmTable.of(problem), configs, gpu, with_features=with_features)

    def order(
        self,
        problem: Gemm,  # noqa: ARG002 - the model of times has an order of its own
        configs: ConfigTable,  # noqa: ARG002 - as above
        found: Launches,  # noqa: ARG002 - as above
        legal: Mask,  # noqa: ARG002 - as above
    ) -> TileOrder | None:
        """Return nothing: the model of times orders them."""
        return None

    def notes(self, problem: Gemm, config: TileConfig, found: Launches) -> tuple[str, ...]:
        """Return the notes on the single launch of ``found``."""
        return launch_notes(problem, config, found)
