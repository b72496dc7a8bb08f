"""A trained model: its trees, what it was trained on, and the file pair that holds both.

A model is two files side by side: ``NAME.json``, a manifest to read, and ``NAME.npz``, the trees
as plain arrays. The manifest carries the trees' checksum; neither file can run code.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import ModelFileError, SchemaMismatchError
from perfmodel.learned.features import GEMM_SCHEMA
from perfmodel.learned.forest import Forest
from perfmodel.learned.intervals import Calibration

Floats = NDArray[np.float64]

FORMAT = 1
HEADS = ("time", "rank", "spread")
SHIPPED_GEMM = "gemm"
RANGE_STEP = 1.0


@dataclass(frozen=True)
class Manifest:
    """What a model is, in words and numbers; every field is written to its JSON file."""

    family: str
    schema: str
    version: str
    features: tuple[str, ...]
    sources: tuple[Mapping[str, Any], ...]  # name, files with sha256, rows
    known: Mapping[str, tuple[str, ...]]  # dtypes measured on each device
    calibration: Calibration
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of each feature
    accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    adapted_from: str | None = None


@dataclass(frozen=True)
class GemmModel:
    """A boosted correction to the analytic estimate of tiled matrix products.

    Every method takes features (N, F) float32 in the order of ``manifest.features`` and answers in
    natural-log units, shape (N,).
    """

    manifest: Manifest
    time: Forest
    rank: Forest
    spread: Forest

    @property
    def version(self) -> str:
        """Name of the model and its training, for output and keys."""
        return self.manifest.version

    @property
    def schema(self) -> str:
        """Feature schema the trees were trained on."""
        return self.manifest.schema

    @property
    def accuracy(self) -> Mapping[str, Mapping[str, float]]:
        """Held-out figures by device, from the manifest."""
        return self.manifest.accuracy

    def knows(self, gpu_name: str, dtype_name: str) -> bool:
        """Whether the training data has that data type measured on that device."""
        return dtype_name in self.manifest.known.get(gpu_name, ())

    def covers(self, features: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether each row lies within the trained range of every feature, give or take a step.

        Most features are binary logarithms, so a step is a factor of two. Beyond, trees are flat.
        """
        whole = (-np.inf, np.inf)
        ranges = [self.manifest.ranges.get(name, whole) for name in self.manifest.features]
        low, high = np.array(ranges).T
        inside = (features >= low - RANGE_STEP) & (features <= high + RANGE_STEP)
        return np.asarray(inside.all(axis=1))

    def log_correction(self, features: NDArray[np.float32]) -> Floats:
        """Return log(measured / analytic)."""
        return self.time.predict(features)

    def log_relative(self, features: NDArray[np.float32]) -> Floats:
        """Return the predicted log of time over the problem's best, to order configurations by.

        `perfmodel.learned.ranking.rank_score` combines it with the predicted time.
        """
        return self.rank.predict(features)

    def log_interval(self, features: NDArray[np.float32], known: bool) -> tuple[Floats, Floats]:
        """Return lower and upper bounds to add to the log latency, at the nominal coverage."""
        return self.manifest.calibration.bounds(self.spread.predict(features), known=known)

    def contributions(self, row: NDArray[np.float32]) -> dict[str, float]:
        """Return what each feature of one row (F,) adds to `log_correction`, by name."""
        values = self.time.contributions(row)
        return dict(zip(self.manifest.features, values.tolist(), strict=True))

    @cached_property
    def megabytes(self) -> float:
        """Size of the trees as written, MB."""
        return len(_trees_file(self)) / 1e6


def save_model(model: GemmModel, manifest_path: Path) -> None:
    """Write ``manifest_path`` (``NAME.json``) and the trees beside it, each whole or not at all."""
    # Imported here: only writing needs it, and predicting must stay light.
    from perfmodel.dataset.atomic import atomic_path  # noqa: PLC0415

    trees = _trees_file(model)
    text = _to_json(model.manifest) | {
        "format": FORMAT,
        "trees": manifest_path.with_suffix(".npz").name,
        "trees_sha256": hashlib.sha256(trees).hexdigest(),
    }
    with atomic_path(manifest_path.with_suffix(".npz")) as part:
        part.write_bytes(trees)
    with atomic_path(manifest_path) as part:
        part.write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")


def load_model(path: Path | None = None) -> GemmModel:
    """Load a model from its manifest file; ``None`` loads the one shipped in the package.

    Raises:
        ModelFileError: a file is missing, truncated, altered, or no model.
        SchemaMismatchError: trained on other features than this version computes.
    """
    if path is None:
        folder = files("perfmodel") / "models"
        return _parse(
            _read(folder / f"{SHIPPED_GEMM}.json"),
            lambda name: _read(folder / name),
            f"{SHIPPED_GEMM}.json",
        )
    return _parse(_read(path), lambda name: _read(path.parent / name), str(path))


def _read(path: Any) -> bytes:
    try:
        return bytes(path.read_bytes())
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise ModelFileError(
            f"cannot read model file {path}: {getattr(error, 'strerror', None) or error}; "
            "give the .json manifest that perfmodel train wrote, with its .npz beside it"
        ) from None


def _parse(raw: bytes, read_trees: Any, name: str) -> GemmModel:
    try:
        text = json.loads(raw)
        if text["format"] != FORMAT:
            raise SchemaMismatchError(
                f"model file {name} has format {text['format']!r}, this version reads {FORMAT}; "
                "train it again: perfmodel train gemm"
            )
        manifest = _from_json(text)
        trees_name, digest = str(text["trees"]), str(text["trees_sha256"])
    except (
        ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        raise ModelFileError(
            f"{name} is not a perfmodel model manifest ({type(error).__name__}: {error})"
        ) from None
    if Path(trees_name).name != trees_name:
        raise ModelFileError(f"{name} names trees outside its own folder: {trees_name!r}")
    _check_schema(manifest, name)
    trees = read_trees(trees_name)
    found = hashlib.sha256(trees).hexdigest()
    if found != digest:
        raise ModelFileError(
            f"{trees_name} beside {name} is truncated or altered: sha256 {found[:12]}..., "
            f"the manifest says {digest[:12]}...; train or fetch the model again"
        )
    try:
        with np.load(BytesIO(trees), allow_pickle=False) as arrays:
            heads = {
                head: Forest.from_arrays(
                    {k.split("/")[1]: arrays[k] for k in arrays.files if k.startswith(f"{head}/")}
                )
                for head in HEADS
            }
    except ModelFileError as error:
        raise ModelFileError(f"{trees_name} beside {name}: {error}") from None
    except Exception as error:  # a file of another kind can fail anywhere in numpy and zipfile
        raise ModelFileError(f"{trees_name} beside {name} holds no trees ({error})") from None
    for head, forest in heads.items():
        if forest.features != len(manifest.features):
            raise ModelFileError(
                f"the {head} trees of {name} take {forest.features} features, "
                f"its manifest lists {len(manifest.features)}"
            )
    return GemmModel(manifest=manifest, **heads)


def _check_schema(manifest: Manifest, name: str) -> None:
    if manifest.schema != GEMM_SCHEMA:
        raise SchemaMismatchError(
            f"model {name} was trained on features {manifest.schema!r}, this version computes "
            f"{GEMM_SCHEMA!r}; train it again: perfmodel train gemm"
        )


def _trees_file(model: GemmModel) -> bytes:
    arrays = {
        f"{head}/{key}": value
        for head in HEADS
        for key, value in getattr(model, head).arrays().items()
    }
    buffer = BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return _without_times(buffer.getvalue())


def _without_times(archive: bytes) -> bytes:
    """Rewrite a zip with fixed dates, so that equal trees make equal files."""
    out = BytesIO()
    with zipfile.ZipFile(BytesIO(archive)) as old, zipfile.ZipFile(out, "w") as new:
        for name in sorted(old.namelist()):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(entry, old.read(name))
    return out.getvalue()


def _to_json(manifest: Manifest) -> dict[str, Any]:
    text = {name: getattr(manifest, name) for name in manifest.__dataclass_fields__}
    return text | {"calibration": manifest.calibration.to_dict()}


def _from_json(text: Mapping[str, Any]) -> Manifest:
    return Manifest(
        family=str(text["family"]),
        schema=str(text["schema"]),
        version=str(text["version"]),
        features=tuple(map(str, text["features"])),
        sources=tuple(dict(s) for s in text["sources"]),
        known={str(g): tuple(map(str, d)) for g, d in text["known"].items()},
        calibration=Calibration.from_dict(text["calibration"]),
        ranges={str(f): (float(lo), float(hi)) for f, (lo, hi) in text["ranges"].items()},
        accuracy={str(g): dict(v) for g, v in text["accuracy"].items()},
        libraries=dict(text["libraries"]),
        spec=dict(text["spec"]),
        adapted_from=text["adapted_from"],
    )
