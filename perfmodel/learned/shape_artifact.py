"""Shape-level models as file pairs: ``shape-FAMILY.json`` to read, ``.npz`` beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from perfmodel.errors import ModelFileError
from perfmodel.learned.artifact import NOT_OURS, forest_from, no_manifest, read_named, write_pair
from perfmodel.learned.intervals import Calibration
from perfmodel.learned.shape_features import SHAPE_SCHEMA
from perfmodel.learned.shape_model import ShapeManifest, ShapeModel

KIND = "shape-model"
HEADS = ("any_device", "spread", "unseen_spread")


def save_shape_model(model: ShapeModel, manifest_path: Path) -> None:
    """Write ``manifest_path`` (``NAME.json``) and the trees beside it, each whole or not at all."""
    forests = {head: getattr(model, head) for head in HEADS}
    forests |= {f"device/{gpu}": forest for gpu, forest in model.devices.items()}
    arrays = {
        f"{head}/{key}": value
        for head, forest in forests.items()
        for key, value in forest.arrays().items()
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
    heads: dict[str, Any] = {head: forest_from(arrays, head, shown) for head in HEADS}
    own = {gpu: forest_from(arrays, f"device/{gpu}", shown) for gpu in devices}
    for label, forest in {**heads, **own}.items():
        if forest.features != len(manifest.features):
            raise ModelFileError(
                f"the {label} trees of {shown} take {forest.features} features, "
                f"its manifest lists {len(manifest.features)}"
            )
    return ShapeModel(manifest, devices=own, trees_sha256=found.sha256, **heads)


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
