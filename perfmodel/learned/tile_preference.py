"""Trees that put the tiles of one problem in order, learned from which tiles won.

An autotuner's winners have no rivals' times beside them: they say which tile was best, not by how
much. So these trees answer with an order alone; times stay the estimate's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import ModelFileError
from perfmodel.hardware.gpu import Gpu
from perfmodel.learned.artifact import NOT_OURS, forest_from, no_manifest, read_named, write_pair
from perfmodel.learned.forest import Forest
from perfmodel.learned.tile_columns import OVER_BEST, TILE_SCHEMA
from perfmodel.learned.tree_file import forest_arrays
from perfmodel.tiling.config import ConfigTable

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Features = NDArray[np.float32]

KIND = "tile-preference"
SURE = 0.9


@dataclass(frozen=True)
class PlaceRule:
    """What comes last whatever the trees say.

    Args:
        reach: how far, in the log, a tile's estimate may lie above the least: winners lie within.
            Beyond the sizes that were learned from, physics keeps the trees from the absurd.
        per_tile: so many of one block_m x block_n x block_k come before others (0: any number).
            Configurations of a tile succeed and fail together; several picks are worth more apart.
    """

    reach: float = np.inf
    per_tile: int = 0


@dataclass(frozen=True)
class TileManifest:
    """What such trees are; every field goes to their JSON file.

    ``gpus`` are the devices whose winners were learned from, ``architectures`` theirs, ``dtypes``
    the types that are computed in. ``vendors`` are those whose other architectures they answer for
    too, since GPUs left out were answered better than by the estimate alone.
    """

    family: str
    schema: str
    version: str
    features: tuple[str, ...]
    sources: tuple[Mapping[str, Any], ...]
    gpus: tuple[str, ...]
    architectures: tuple[str, ...]
    dtypes: tuple[str, ...]
    vendors: tuple[str, ...] = ()
    rule: PlaceRule = PlaceRule()
    accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TilePreference:
    """An order of tiles. Features are (N, F) float32 in the order of ``manifest.features``."""

    manifest: TileManifest
    trees: Forest

    @property
    def version(self) -> str:
        """Name of the trees and their training."""
        return self.manifest.version

    def leaders(self, gpu_name: str) -> int:
        """How many first places held the best `SURE` of the time on held-out problems.

        The most that was checked, where that many did not either, and on other devices.
        """
        hits = self.manifest.accuracy["hit"]
        places = sorted((int(k), share) for k, share in hits.items())
        sure = [k for k, share in places if share >= SURE and gpu_name in self.manifest.gpus]
        return sure[0] if sure else places[-1][0]

    def answers_for(self, gpu: Gpu, dtype: str) -> bool:
        """Whether it was learned from devices and types such as these."""
        about = self.manifest
        alike = gpu.architecture in about.architectures or gpu.vendor in about.vendors
        return alike and dtype in about.dtypes

    def score(self, features: Features, configs: ConfigTable) -> Floats:
        """Return what tiles are ordered by, the least first, (N,)."""
        rule = self.manifest.rule
        over_best = features[:, self.manifest.features.index(OVER_BEST)]
        return places(-self.trees.predict(features), over_best, configs, rule)


def places(
    disliked: Floats, over_best: NDArray[Any], configs: ConfigTable, rule: PlaceRule
) -> Floats:
    """Return the place of each tile (N,), the least first: the trees' order within ``rule``.

    Args:
        disliked: the trees' order, the least first.
        over_best: log of the estimate over the least of the problem's.
        configs: the tiles.
        rule: what comes last whatever the trees say.
    """
    far = np.asarray(over_best) > rule.reach
    order = np.lexsort((disliked, far))
    place = np.empty(len(order))
    place[order] = np.arange(len(order)) + len(order) * (
        _overflow(order, configs, rule.per_tile) + 2 * far[order]
    )
    return place


def _overflow(order: NDArray[np.intp], configs: ConfigTable, per_tile: int) -> NDArray[np.bool_]:
    """Which of the tiles, in ``order``, come after ``per_tile`` of the same blocks."""
    if not per_tile:
        return np.zeros(len(order), dtype=np.bool_)
    tiles = np.stack([configs.block_m, configs.block_n, configs.block_k], axis=1)[order]
    tile = np.unique(tiles, axis=0, return_inverse=True)[1].ravel()
    grouped = np.argsort(tile, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(tile))[:-1]])
    nth = np.empty(len(order), dtype=np.int64)
    nth[grouped] = np.arange(len(order)) - starts[tile[grouped]]
    return np.asarray(nth >= per_tile)


def save_tile_preference(model: TilePreference, manifest_path: Path) -> None:
    """Write ``manifest_path`` (``NAME.json``) and the trees beside it, each whole or not at all."""
    text = {f.name: getattr(model.manifest, f.name) for f in fields(model.manifest)}
    text["rule"] = asdict(model.manifest.rule)
    arrays = {f"order/{key}": value for key, value in forest_arrays(model.trees).items()}
    write_pair(text | {"kind": KIND}, arrays, manifest_path)


def load_tile_preference(family: str, path: Path | None = None) -> TilePreference:
    """Load the trees of ``attention`` or ``moe``, by default ours.

    Raises:
        ModelFileError: a file is missing, truncated, altered, or a model of something else.
        SchemaMismatchError: trained on other features than this version computes.
    """
    found = read_named(
        KIND, family, path, prefix="tiles", schema=TILE_SCHEMA, command="perfmodel train tiles"
    )
    try:
        manifest = _manifest(found.text)
    except NOT_OURS as error:
        raise no_manifest(found.shown, KIND, error) from None
    trees = forest_from(found.arrays, "order", found.shown)
    if trees.features != len(manifest.features):
        raise ModelFileError(
            f"the trees of {found.shown} take {trees.features} features, "
            f"its manifest lists {len(manifest.features)}"
        )
    return TilePreference(manifest, trees)


def _manifest(text: Mapping[str, Any]) -> TileManifest:
    def words(name: str) -> tuple[str, ...]:
        values: Sequence[Any] = text[name]
        return tuple(map(str, values))

    return TileManifest(
        family=str(text["family"]),
        schema=str(text["schema"]),
        version=str(text["version"]),
        features=words("features"),
        sources=tuple(text["sources"]),
        gpus=words("gpus"),
        architectures=words("architectures"),
        dtypes=words("dtypes"),
        vendors=words("vendors"),
        rule=PlaceRule(float(text["rule"]["reach"]), int(text["rule"]["per_tile"])),
        accuracy=text["accuracy"],
        libraries=text["libraries"],
        spec=text["spec"],
    )
