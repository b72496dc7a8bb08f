"""Finding a device by any name that people and drivers give it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from perfmodel.errors import AmbiguousGpuError, InvalidGpuSpecError, UnknownGpuError
from perfmodel.hardware.gpu import Gpu
from perfmodel.hardware.names import closest_names, name_key, tokens
from perfmodel.hardware.specfile import SPECS, read_fields, read_spec, read_toml

INDEX = SPECS.parent / "index.json"


def load_gpu(name: str | Path) -> Gpu:
    """Return the device called ``name``, or the one that a ``.toml`` file describes.

    Args:
        name: a canonical name (``h100-sxm5``), a driver's name (``NVIDIA H100 80GB HBM3``), another
            name that only one device goes by, or the path of a device file (see `specfile`).

    Raises:
        UnknownGpuError: no such device; the message names the closest ones.
        AmbiguousGpuError: several devices go by that name; the message lists them.
        InvalidGpuSpecError: the file cannot be used; the message names the field and the fix.
    """
    if isinstance(name, Path) or name.strip().lower().endswith(".toml"):
        return _load_file(Path(name.strip()) if isinstance(name, str) else name)
    return _load_known(resolve(name))


def resolve(name: str) -> str:
    """Return the canonical name of the one device called ``name``.

    Names are compared whole: case, separators and the maker's name do not matter, nothing else is
    forgiven.

    Raises:
        UnknownGpuError: no device goes by that name.
        AmbiguousGpuError: several do.
    """
    if name in _canonical():
        return name
    found = _index().get(name_key(name), ())
    if len(found) == 1:
        return found[0]
    if found:
        raise AmbiguousGpuError(
            f"GPU {name!r} may be any of {', '.join(found)}: they differ in speed, so say which"
        )
    raise UnknownGpuError(_unknown_message(name))


def gpu_names() -> tuple[str, ...]:
    """Return the canonical names of all known devices, sorted."""
    return tuple(sorted(_canonical()))


def list_gpus() -> list[Gpu]:
    """Return all known devices, by name. Parses every file: prefer `gpu_names` where it serves."""
    return [_load_known(name) for name in gpu_names()]


def build_index() -> dict[str, list[str]]:
    """Return key -> canonical names, read from the device files (`INDEX` is its stored form)."""
    index: dict[str, set[str]] = {}
    for path in sorted(SPECS.glob("*.toml")):
        raw = read_toml(path)
        for name in (path.stem, *raw.get("driver_names", ()), *raw.get("aliases", ())):
            index.setdefault(name_key(name), set()).add(path.stem)
    # A canonical name means its own device, whoever else claims it.
    for name in _canonical():
        index[name_key(name)] = {name}
    return {key: sorted(names) for key, names in sorted(index.items())}


@lru_cache(maxsize=1)
def _canonical() -> frozenset[str]:
    return frozenset(path.stem for path in SPECS.glob("*.toml"))


@lru_cache(maxsize=1)
def _index() -> Mapping[str, tuple[str, ...]]:
    stored = json.loads(INDEX.read_text(encoding="utf-8"))
    return {key: tuple(names) for key, names in stored.items()}


@lru_cache(maxsize=64)
def _load_known(name: str) -> Gpu:
    return read_spec(SPECS / f"{name}.toml", name=name)


def _load_file(path: Path) -> Gpu:
    if path.resolve().parent == SPECS:
        return _load_known(path.stem)
    raw = read_toml(path)
    base, name = raw.get("base"), raw.get("name", path.stem)
    if name in _canonical():
        raise InvalidGpuSpecError(
            f"{path}: name is {name!r}, which is a known device's; use a name of your own: "
            f'name = "my-{name}"'
        )
    if base is None:
        return read_spec(path)
    if not isinstance(base, str):
        raise InvalidGpuSpecError(f"{path}: base is {base!r}; use a name of `perfmodel gpus`")
    try:
        known = resolve(base)
    except (UnknownGpuError, AmbiguousGpuError) as error:
        raise InvalidGpuSpecError(f"{path}: base: {error}") from error
    return read_spec(path, base=read_fields(SPECS / f"{known}.toml"))


def _unknown_message(name: str) -> str:
    shown = repr(name if len(name) <= 80 else name[:77] + "...")
    known = ", ".join(gpu_names())
    if not name.strip():
        return f"the GPU's name is empty; use one of: {known}"
    near = closest_names(name, _index())
    hint = f" (closest: {', '.join(near)})" if near else ""
    if "mig" in tokens(name):
        whole = f'"{near[0]}"' if near else "the whole device's name"
        return (
            f"unknown GPU {shown}: a MIG slice has fewer SMs, less memory and less bandwidth than "
            f"the whole device, so describe it in a file of its own (base = {whole}, then "
            f"sm_count, memory_bytes, dram_bandwidth_gb_per_s, l2_bytes) and give --gpu FILE.toml"
        )
    return (
        f"unknown GPU {shown}{hint}; use one of: {known}; "
        f"or describe the device in a file and give --gpu FILE.toml"
    )
