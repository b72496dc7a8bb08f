"""The file pair that holds a model: ``NAME.json``, to read, and ``NAME.npz``, the trees as arrays.

The manifest carries the trees' checksum; neither file can run code. An adaptation is such a pair
too, small, with the added trees of each device and the checksum of the model they belong to.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import ModelFileError, SchemaMismatchError
from perfmodel.files import atomic_path
from perfmodel.learned.features import GEMM_SCHEMA
from perfmodel.learned.forest import Forest
from perfmodel.learned.intervals import Calibration
from perfmodel.learned.model import DeviceDelta, GemmModel, Manifest
from perfmodel.learned.tree_file import forest_arrays, forest_of

FORMAT = 2
HEADS = ("time", "rank", "spread", "ceiling")
DELTA_HEADS = ("time", "rank")
SHIPPED_GEMM = "gemm.json"

NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a JSON file of another kind may raise."""

_Arrays = Mapping[str, NDArray[Any]]
_ReadBeside = Callable[[str], bytes]


def save_model(model: GemmModel, manifest_path: Path) -> None:
    """Write ``manifest_path`` (``NAME.json``) and the trees beside it, each whole or not at all.

    Deltas are not part of it; `save_adaptation` writes those.
    """
    arrays = {
        f"{head}/{key}": value
        for head in HEADS
        for key, value in forest_arrays(getattr(model, head)).items()
    }
    write_pair({"kind": "model"} | _to_json(model.manifest), arrays, manifest_path)


def save_adaptation(model: GemmModel, manifest_path: Path) -> None:
    """Write the deltas of ``model`` alone, to be loaded beside the model they belong to.

    Raises:
        ModelFileError: the model was never written or loaded, so nothing could name it.
    """
    if model.trees_sha256 is None:
        raise ModelFileError("save the model before its adaptation, which names it by checksum")
    arrays = {
        f"{gpu}/{head}/{key}": value
        for gpu, delta in model.deltas.items()
        for head in DELTA_HEADS
        for key, value in forest_arrays(getattr(delta, head)).items()
    }
    devices = {
        gpu: {f.name: getattr(d, f.name) for f in fields(d) if f.name not in DELTA_HEADS}
        for gpu, d in model.deltas.items()
    }
    text = {
        "kind": "adaptation",
        "schema": model.schema,
        "base_version": model.manifest.version,
        "base_trees_sha256": model.trees_sha256,
        "devices": devices,
    }
    write_pair(text, arrays, manifest_path)


def load_model(path: Path | None = None) -> GemmModel:
    """Load a model, or an adaptation with its model; ``None`` loads the one in the package.

    The model of an adaptation is the shipped one, or else one that lies beside it.

    Raises:
        ModelFileError: a file is missing, truncated, altered, or no model.
        SchemaMismatchError: trained on other features than this version computes.
    """
    if path is None:
        folder = files("perfmodel") / "models"
        return _load(SHIPPED_GEMM, lambda name: read_file(folder / name))
    path = Path(path)

    def read_beside(name: str) -> bytes:
        return read_file(path.parent / name)

    text, arrays, digest = read_pair(path.name, read_beside, str(path))
    if text.get("kind") != "adaptation":
        return _model(text, arrays, digest, str(path))
    return replace(_base_of(text, path), deltas=_deltas(text, arrays, str(path)))


def _load(name: str, read_beside: _ReadBeside) -> GemmModel:
    return _model(*read_pair(name, read_beside, name), name)


def _base_of(text: Mapping[str, Any], path: Path) -> GemmModel:
    wanted = text.get("base_trees_sha256")
    candidates: list[Path | None] = [None]
    candidates += sorted(p for p in path.parent.glob("*.json") if p.name != path.name)
    for candidate in candidates:
        try:
            if candidate is not None and json.loads(candidate.read_bytes())["kind"] != "model":
                continue
            base = load_model(candidate)
        except (ModelFileError, SchemaMismatchError, ValueError, KeyError, TypeError, OSError):
            continue
        if base.trees_sha256 == wanted:
            return base
    raise ModelFileError(
        f"adaptation {path} belongs to model {text.get('base_version')!r}, which is neither the "
        "shipped one nor beside it; put its .json and .npz in the same folder, or adapt again"
    )


def _model(text: Mapping[str, Any], arrays: _Arrays, digest: str, name: str) -> GemmModel:
    try:
        manifest = _from_json(text)
    except NOT_OURS as error:
        raise _no_manifest(name, error) from None
    forests: dict[str, Any] = {head: forest_from(arrays, head, name) for head in HEADS}
    for head, forest in forests.items():
        if forest.features != len(manifest.features):
            raise ModelFileError(
                f"the {head} trees of {name} take {forest.features} features, "
                f"its manifest lists {len(manifest.features)}"
            )
    return GemmModel(manifest, **forests, trees_sha256=digest)


def _deltas(text: Mapping[str, Any], arrays: _Arrays, name: str) -> dict[str, DeviceDelta]:
    try:
        return {
            str(gpu): DeviceDelta(
                time=forest_from(arrays, f"{gpu}/time", name),
                rank=forest_from(arrays, f"{gpu}/rank", name),
                dtypes=tuple(map(str, about["dtypes"])),
                seen=float(about["seen"]),
                error_mean=float(about["error_mean"]),
                problems=int(about["problems"]),
            )
            for gpu, about in text["devices"].items()
        }
    except NOT_OURS as error:
        raise _no_manifest(name, error) from None


def forest_from(arrays: _Arrays, prefix: str, name: str) -> Forest:
    """Build one of the forests of a file called ``name``.

    Raises:
        ModelFileError: it is missing or not well formed.
    """
    own = {k.removeprefix(f"{prefix}/"): v for k, v in arrays.items() if k.startswith(f"{prefix}/")}
    if not own:
        raise ModelFileError(f"the trees beside {name} hold no {prefix!r}")
    try:
        return forest_of(own)
    except ModelFileError as error:
        raise ModelFileError(f"the trees beside {name}: {error}") from None


def write_pair(text: Mapping[str, Any], arrays: _Arrays, path: Path) -> None:
    """Write manifest and trees, each whole or not at all; the former has the latter's checksum."""
    trees = _npz(arrays)
    trees_path = path.with_suffix(".npz")
    whole = {
        "format": FORMAT,
        **text,
        "trees": trees_path.name,
        "trees_sha256": hashlib.sha256(trees).hexdigest(),
    }
    with atomic_path(trees_path) as part:
        part.write_bytes(trees)
    with atomic_path(path) as part:
        part.write_text(json.dumps(whole, indent=1) + "\n")


def read_pair(
    manifest_name: str,
    read_beside: _ReadBeside,
    shown: str,
    wanted: str = GEMM_SCHEMA,
    command: str = "perfmodel train gemm",
) -> tuple[Mapping[str, Any], _Arrays, str]:
    """Return manifest, arrays and their checksum of a pair whose features are ``wanted``.

    Raises:
        ModelFileError: a file is missing, truncated, altered, or no model.
        SchemaMismatchError: trained on other features than this version computes.
    """
    raw = read_beside(manifest_name)
    try:
        text = json.loads(raw)
        if text["format"] != FORMAT:
            raise SchemaMismatchError(
                f"model file {shown} has format {text['format']!r}, this version reads {FORMAT}; "
                f"train it again: {command}"
            )
        trees_name, digest, schema = (str(text[k]) for k in ("trees", "trees_sha256", "schema"))
    except NOT_OURS as error:
        raise _no_manifest(shown, error) from None
    if Path(trees_name).name != trees_name:
        raise ModelFileError(f"{shown} names trees outside its own folder: {trees_name!r}")
    if schema != wanted:
        raise SchemaMismatchError(
            f"model {shown} was trained on features {schema!r}, this version computes "
            f"{wanted!r}; train it again: {command}"
        )
    trees = read_beside(trees_name)
    found = hashlib.sha256(trees).hexdigest()
    if found != digest:
        raise ModelFileError(
            f"{trees_name} beside {shown} is truncated or altered: sha256 {found[:12]}..., "
            f"the manifest says {digest[:12]}...; train or fetch the model again"
        )
    try:
        with np.load(BytesIO(trees), allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
    except Exception as error:  # a file of another kind can fail anywhere in numpy and zipfile
        raise ModelFileError(f"{trees_name} beside {shown} holds no trees ({error})") from None
    return text, arrays, found


@dataclass(frozen=True)
class Named:
    """A model of one family: its manifest, arrays and checksum, and what messages call it."""

    text: Mapping[str, Any]
    arrays: _Arrays
    sha256: str
    shown: str


def read_named(
    kind: str, family: str, path: Path | None, *, prefix: str, schema: str, command: str
) -> Named:
    """Read the model ``PREFIX-FAMILY.json`` of the package, or the one at ``path``.

    Raises:
        ModelFileError: a file is missing, truncated, altered, or a model of something else.
        SchemaMismatchError: trained on other features than this version computes.
    """
    folder: Any = files("perfmodel") / "models" if path is None else Path(path).parent
    name = f"{prefix}-{family}.json" if path is None else Path(path).name
    shown = name if path is None else str(path)
    text, arrays, digest = read_pair(
        name, lambda beside: read_file(folder / beside), shown, schema, f"{command} {family}"
    )
    found = text.get("kind"), text.get("family")
    if found != (kind, family):
        raise ModelFileError(f"{shown} is a {found[0]} of {found[1]}, not a {kind} of {family}")
    return Named(text, arrays, digest, shown)


def no_manifest(shown: str, kind: str, error: Exception) -> ModelFileError:
    """Return the error of a manifest whose values are not of the known form."""
    return ModelFileError(f"{shown} is not a {kind} manifest ({type(error).__name__}: {error})")


def read_file(path: Any) -> bytes:
    """Return the bytes of a model file.

    Raises:
        ModelFileError: it cannot be read.
    """
    try:
        return bytes(path.read_bytes())
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise ModelFileError(
            f"cannot read model file {path}: {getattr(error, 'strerror', None) or error}; "
            "give the .json manifest that perfmodel train wrote, with its .npz beside it"
        ) from None


def _no_manifest(name: str, error: Exception) -> ModelFileError:
    return ModelFileError(
        f"{name} is not a perfmodel model manifest ({type(error).__name__}: {error})"
    )


def _npz(arrays: _Arrays) -> bytes:
    """Pack arrays with fixed dates and order, so that equal trees make equal files."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in sorted(arrays):
            data = BytesIO()
            np.lib.format.write_array(data, np.asarray(arrays[name]), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data.getvalue())
    return out.getvalue()


def _to_json(manifest: Manifest) -> dict[str, Any]:
    text = {f.name: getattr(manifest, f.name) for f in fields(manifest)}
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
        tiles=tuple(map(int, text["tiles"])),
        probes=tuple(tuple(map(float, row)) for row in text["probes"]),
        accuracy={str(g): dict(v) for g, v in text["accuracy"].items()},
        libraries=dict(text["libraries"]),
        spec=dict(text["spec"]),
    )
