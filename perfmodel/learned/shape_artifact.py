"""Shape-level models as file pairs: ``shape-FAMILY.json`` to read, ``.npz`` beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from perfmodel.errors import ModelFileError
from perfmodel.learned.artifact import NOT_OURS, forest_from, no_manifest, read_named, write_pair
from perfmodel.learned.forest import Forest
from perfmodel.learned.intervals import Calibration
from perfmodel.learned.shape_features import SHAPE_SCHEMA
from perfmodel.learned.shape_model import ShapeManifest, ShapeModel
from perfmodel.learned.tree_file import Arrays, forest_arrays

KIND = "shape-model"
HEADS = ("any_device", "spread", "unseen_spread")


def save_shape_model(model: ShapeModel, manifest_path: Path) -> None:
    """Write ``manifest_path`` (``NAME.json``) and the trees beside it, each whole or not at all."""
    forests = {head: getattr(model, head) for head in HEADS}
    forests |= {f"device/{gpu}": forest for gpu, forest in model.devices.items()}
    arrays = {
        f"{head}/{key}": value
        for head, forest in forests.items()
        for key, value in forest_arrays(forest).items()
    }
    manifest = model.manifest
    text = {f.name: getattr(manifest, f.name) for f in fields(manifest)}
    text |= {"kind": KIND, "calibration": manifest.calibration.to_dict()}
    write_pair(text | {"devices": sorted(model.devices)}, arrays, manifest_path)


def load_shape_model(family: str, path: Path | None = None) -> ShapeModel:
    """Load the model called ``gemm``, ``gemm-fp8``, ``prefill``, ``decode``, ``moe``, ``moe-fp8``.

    By default it is ours.

    Raises:
        ModelFileError: a file is missing, truncated, altered, or a model of something else.
        SchemaMismatchError: trained on other features than this version computes.
    """
    found = read_named(
        KIND, family, path, prefix="shape", schema=SHAPE_SCHEMA, command="perfmodel train shape"
    )
    arrays, shown = found.arrays, found.shown
    try:
        manifest = _manifest(found.text)
        devices = [str(gpu) for gpu in found.text["devices"]]
    except NOT_OURS as error:
        raise no_manifest(shown, KIND, error) from None
    width = len(manifest.features)
    heads: dict[str, Any] = {head: _trees(arrays, head, shown, width) for head in HEADS}
    own = DeviceTrees(devices, arrays, shown, width)
    return ShapeModel(manifest, devices=own, trees_sha256=found.sha256, **heads)


class DeviceTrees(Mapping[str, Forest]):
    """The trees of each device by its name, built when first asked for: a launch takes one of ten.

    Looking up raises `ModelFileError` where they are not well formed.
    """

    def __init__(self, names: Sequence[str], arrays: Arrays, shown: str, width: int) -> None:
        self._names, self._arrays, self._shown, self._width = tuple(names), arrays, shown, width
        self._built: dict[str, Forest] = {}

    def __getitem__(self, name: str) -> Forest:
        if name not in self._names:
            raise KeyError(name)
        found = self._built.get(name)
        if found is None:
            found = _trees(self._arrays, f"device/{name}", self._shown, self._width)
            self._built[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _trees(arrays: Arrays, head: str, shown: str, width: int) -> Forest:
    forest = forest_from(arrays, head, shown)
    if forest.features != width:
        raise ModelFileError(
            f"the {head} trees of {shown} take {forest.features} features, "
            f"its manifest lists {width}"
        )
    return forest


def _manifest(text: Mapping[str, Any]) -> ShapeManifest:
    return ShapeManifest(
        family=str(text["family"]),
        schema=str(text["schema"]),
        version=str(text["version"]),
        features=tuple(map(str, text["features"])),
        sources=tuple(text["sources"]),
        known={str(g): tuple(map(str, names)) for g, names in text["known"].items()},
        kernels={str(g): tuple(map(str, names)) for g, names in text["kernels"].items()},
        calibration=Calibration.from_dict(text["calibration"]),
        ranges={str(n): (float(a), float(b)) for n, (a, b) in text["ranges"].items()},
        accuracy=text["accuracy"],
        libraries=text["libraries"],
        spec=text["spec"],
        probes=tuple(tuple(map(float, row)) for row in text["probes"]),
    )
