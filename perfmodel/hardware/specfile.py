"""Reading and checking one device file.

A device file is TOML and holds the fields of `fields.FIELDS`. Limits that belong to a whole
architecture come from ``architectures/<name>.toml`` and need not be repeated. A user's own device
takes one of three forms::

    # 1. A new device of a known architecture: what the data sheet says is enough.
    product = "NVIDIA H100 SXM5 64GB"
    architecture = "sm_90"
    sm_count = 124
    boost_clock_mhz = 1755
    memory_bytes = 68_719_476_736
    dram_bandwidth_gb_per_s = 2020
    l2_bytes = 52_428_800

    # 2. A known device with something changed (a MIG slice, a power cap). Peaks follow the number
    #    of SMs and the clock unless they are given.
    base = "h100-sxm5"
    sm_count = 16
    memory_bytes = 10_737_418_240
    dram_bandwidth_gb_per_s = 419
    l2_bytes = 6_553_600

    # 3. A device of an unknown architecture: every required field must be given.

``tensor_tflops`` holds dense peaks only. Where it is left out, or lacks a data type, the peak is
sm_count x tensor_flops_per_clock_per_sm x boost_clock_mhz. A ``..._per_clock_per_sm`` table
replaces that of the architecture or base as a whole; other tables are merged entry by entry.
``name`` is the file's stem unless given. A ``[sources]`` table maps a citation to the list of
fields that it covers; it is optional in a user's file. What is unknown is left out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfmodel.errors import InvalidGpuSpecError, closest
from perfmodel.hardware.fields import CAPABILITIES, FIELDS, VENDORS, Field
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.dtypes import ALL as ALL_DTYPES

_FOLDER = Path(__file__).resolve().parent
SPECS = _FOLDER / "specs"
ARCHITECTURES = _FOLDER / "architectures"

_LARGEST_FILE_BYTES = 1 << 20
# Makers print rounded clocks and peaks, and nothing honest is off by more than this; a sparse peak
# or a half-rate part is off by two.
_PEAK_TOLERANCE = 0.25
_DTYPES = tuple(d.name for d in ALL_DTYPES)
_EXTRA_KEYS = ("name", "base")
# What a file may not take over from its base: they are the names of another device.
_OF_ONE_DEVICE = ("name", "product", "driver_names", "aliases")
_PINS = ("memory_bus_bits", "memory_clock_mhz")
_RATES = {
    "tensor_tflops": "tensor_flops_per_clock_per_sm",
    "plain_tflops": "plain_flops_per_clock_per_sm",
}


def read_spec(path: Path, *, base: Mapping[str, Any] | None = None, name: str | None = None) -> Gpu:
    """Read the device file at ``path``.

    Args:
        path: a TOML file.
        base: merged fields of the device that the file's ``base`` names (see `read_fields`).
        name: the device's name; by default what the file says, or else the file's stem.

    Raises:
        InvalidGpuSpecError: names the file, the field, its value, what is allowed and the fix.
    """
    values = read_fields(path, base=base)
    given = values.pop("name", None)
    values["name"] = name or given or path.stem
    values.setdefault("product", values["name"])
    for item in FIELDS.values():
        if item.kind in ("peaks", "flags", "sources"):
            values.setdefault(item.name, {})
        elif not item.required:
            values.setdefault(item.name, () if item.kind == "names" else None)
    return Gpu(**values)


def read_fields(path: Path, *, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the checked fields of a device file, its architecture's limits merged in."""
    raw = read_toml(path)
    raw.pop("base", None)
    own = _check_values(raw, path)
    merged = _inherit(own, base, path)
    _require(merged, path)
    _fill_peaks(merged, own, base)
    _check_together(merged, path)
    return merged


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a small TOML file, turning every failure into one clear error."""
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise InvalidGpuSpecError(f"{path}: larger than 1 MiB, so not a device file")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidGpuSpecError(f"{path}: no such device file; check the path") from None
    except OSError as error:
        reason = error.strerror or error
        raise InvalidGpuSpecError(f"{path}: cannot read the device file: {reason}") from error
    except UnicodeDecodeError as error:
        raise InvalidGpuSpecError(f"{path}: not a text file (UTF-8 is needed)") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidGpuSpecError(f"{path}: not valid TOML: {error}") from error


@lru_cache(maxsize=32)
def architecture_fields(name: str) -> Mapping[str, Any]:
    """Return the limits shared by every device of an architecture; empty if it is unknown."""
    if name not in architecture_names():
        return {}
    path = ARCHITECTURES / f"{name}.toml"
    values = _check_values(read_toml(path), path)
    values["architecture"] = name
    return values


@lru_cache(maxsize=1)
def architecture_names() -> tuple[str, ...]:
    """Return the architectures whose limits are known, sorted."""
    return tuple(sorted(p.stem for p in ARCHITECTURES.glob("*.toml")))


def _check_values(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for key, value in raw.items():
        if key == "name":
            checked[key] = _text(key, value, path)
            continue
        item = FIELDS.get(key)
        if item is None:
            raise InvalidGpuSpecError(
                f"{path}: unknown field {key!r}{closest(key, (*FIELDS, *_EXTRA_KEYS))}; "
                f"use the field names of `perfmodel gpus show NAME`"
            )
        checked[key] = _check_value(item, value, path)
    return checked


def _check_value(item: Field, value: Any, path: Path) -> Any:
    if item.kind == "text":
        text = _text(item.name, value, path)
        if item.name == "vendor" and text not in VENDORS:
            raise _wrong(path, item.name, value, f"one of {', '.join(VENDORS)}")
        return text
    if item.kind in ("int", "float"):
        return _number(item, item.name, value, path)
    if item.kind == "names":
        if not isinstance(value, list):
            raise _wrong(path, item.name, value, "a list of names")
        return tuple(_text(item.name, entry, path) for entry in value)
    if not isinstance(value, dict):
        raise _wrong(path, item.name, value, f"a table: [{item.name}]")
    if item.kind == "peaks":
        _known_keys(item.name, value, _DTYPES, path)
        return {k: _number(item, f"{item.name}.{k}", v, path) for k, v in value.items()}
    if item.kind == "flags":
        _known_keys(item.name, value, CAPABILITIES, path)
        for key, flag in value.items():
            if not isinstance(flag, bool):
                raise _wrong(path, f"{item.name}.{key}", flag, "true or false")
        return dict(value)
    return _sources(value, path)


def _text(name: str, value: Any, path: Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(path, name, value, "a text that is not empty")
    return value.strip()


def _number(item: Field, name: str, value: Any, path: Path) -> int | float:
    whole = item.kind == "int"
    unit = f" {item.unit}" if item.unit else ""
    noun = "a whole number" if whole else "a number"
    allowed = f"{noun} from {item.low:.12g} to {item.high:.12g}{unit}"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise _wrong(path, name, value, allowed)
    if not item.low <= value <= item.high:  # NaN fails every comparison
        raise _wrong(path, name, value, allowed)
    return value if whole else float(value)


def _known_keys(name: str, table: Mapping[str, Any], known: Iterable[str], path: Path) -> None:
    names = tuple(known)
    for key in table:
        if key not in names:
            raise InvalidGpuSpecError(
                f"{path}: {name} has an unknown entry {key!r}{closest(key, names)}; "
                f"use one of: {', '.join(names)}"
            )


def _sources(table: Mapping[str, Any], path: Path) -> dict[str, str]:
    by_field: dict[str, str] = {}
    for citation, covered in table.items():
        if not isinstance(covered, list) or not all(isinstance(f, str) for f in covered):
            raise _wrong(path, f"sources.{citation!r}", covered, "a list of field names")
        for name in covered:
            if name.partition(".")[0] not in FIELDS:
                raise InvalidGpuSpecError(
                    f"{path}: sources cites {citation!r} for an unknown field "
                    f"{name!r}{closest(name, FIELDS)}"
                )
            by_field[name] = citation
    return by_field


def _inherit(own: dict[str, Any], base: Mapping[str, Any] | None, path: Path) -> dict[str, Any]:
    """Lay the file's own values over its base, or over its architecture's limits."""
    if base is None:
        below: Mapping[str, Any] = architecture_fields(own.get("architecture", ""))
    elif own.get("architecture", base["architecture"]) != base["architecture"]:
        raise _wrong(
            path, "architecture", own["architecture"],
            f"{base['architecture']!r}, that of its base, or no base",
        )  # fmt: skip
    else:
        below = {k: v for k, v in base.items() if k not in _OF_ONE_DEVICE}
        if "dram_bandwidth_gb_per_s" in own:  # another bandwidth, so not the base's pins
            below = {k: v for k, v in below.items() if k not in _PINS}
    merged = dict(below)
    for key, value in own.items():
        merges = isinstance(value, dict) and key in merged and key not in _RATES.values()
        merged[key] = {**merged[key], **value} if merges else value
    cited = own.get("sources", {})
    stated = [k for k in own if k not in ("sources", "name")]
    merged["sources"] = {
        **{k: v for k, v in below.get("sources", {}).items() if k.partition(".")[0] not in stated},
        **(dict.fromkeys(stated, f"given in {path.name}") if path.parent != SPECS else {}),
        **cited,
    }
    return merged


def _require(values: Mapping[str, Any], path: Path) -> None:
    missing = [f.name for f in FIELDS.values() if f.required and f.name not in values]
    if not missing:
        return
    architecture = values.get("architecture")
    known = ", ".join(architecture_names())
    if architecture is None:
        fix = f"say architecture = one of {known}, or base = a name of `perfmodel gpus`"
    elif architecture not in architecture_names():
        fix = (
            f"nothing is known of architecture {architecture!r}"
            f"{closest(architecture, architecture_names())} (known: {known}), so give them all"
        )
    else:
        fix = "add them; `perfmodel gpus show NAME` shows a complete device"
    raise InvalidGpuSpecError(f"{path}: missing {', '.join(missing)}; {fix}")


def _fill_peaks(
    values: dict[str, Any], own: Mapping[str, Any], base: Mapping[str, Any] | None
) -> None:
    """State the peaks that follow from units, operations per clock, and clock."""
    clock = values["boost_clock_mhz"]
    sources = values["sources"]
    for peaks, rates in _RATES.items():
        stated = dict(own.get(peaks, {}))
        if base is not None and rates not in own:
            scale = values["sm_count"] * clock / (base["sm_count"] * base["boost_clock_mhz"])
            base_sources = base["sources"]
            for dtype, peak in base.get(peaks, {}).items():
                if dtype not in stated:
                    stated[dtype] = peak * scale
                    was = base_sources.get(f"{peaks}.{dtype}") or base_sources.get(peaks, "base")
                    how = "" if scale == 1 else "; scaled by sm_count x boost_clock_mhz"
                    sources[f"{peaks}.{dtype}"] = was + how
        for dtype, per_clock in values.get(rates, {}).items():
            if dtype not in stated:
                stated[dtype] = round(values["sm_count"] * per_clock * clock * 1e-6, 4)
                sources[f"{peaks}.{dtype}"] = f"sm_count x {rates} x boost_clock_mhz"
        values[peaks] = stated


def _check_together(values: Mapping[str, Any], path: Path) -> None:
    """Refuse values that are fine alone and impossible side by side."""

    def refuse(name: str, allowed: str) -> InvalidGpuSpecError:
        return _wrong(path, name, values[name], allowed)

    boost = values["boost_clock_mhz"]
    base_clock, max_clock = values.get("base_clock_mhz"), values.get("max_clock_mhz")
    if base_clock is not None and base_clock > boost:
        raise refuse("base_clock_mhz", f"at most boost_clock_mhz = {boost:g}")
    if max_clock is not None and max_clock < boost:
        raise refuse("max_clock_mhz", f"at least boost_clock_mhz = {boost:g}")
    optin = values["smem_per_block_optin_bytes"]
    if values["smem_per_block_bytes"] > optin:
        raise refuse("smem_per_block_bytes", f"at most smem_per_block_optin_bytes = {optin}")
    if optin > values["smem_per_sm_bytes"]:
        raise refuse(
            "smem_per_block_optin_bytes",
            f"at most smem_per_sm_bytes = {values['smem_per_sm_bytes']}",
        )
    threads = values["warps_per_sm"] * values["warp_size"]
    if values["threads_per_sm"] != threads:
        raise refuse("threads_per_sm", f"warps_per_sm x warp_size = {threads}")
    if values["threads_per_block_max"] > threads:
        raise refuse("threads_per_block_max", f"at most threads_per_sm = {threads}")
    _check_bandwidth(values, path)
    for dtype, peak in values["tensor_tflops"].items():
        ops = values.get("tensor_flops_per_clock_per_sm", {}).get(dtype)
        if ops is None:
            continue
        computed = values["sm_count"] * ops * boost * 1e-6
        if abs(peak / computed - 1) > _PEAK_TOLERANCE:
            raise _wrong(
                path, f"tensor_tflops.{dtype}", peak,
                f"near sm_count x tensor_flops_per_clock_per_sm.{dtype} x boost_clock_mhz = "
                f"{computed:.4g} TFLOP/s (a dense peak, not a sparse one; for a part with slower "
                f"matrix units give tensor_flops_per_clock_per_sm too)",
            )  # fmt: skip


def _check_bandwidth(values: Mapping[str, Any], path: Path) -> None:
    bus, clock = values.get("memory_bus_bits"), values.get("memory_clock_mhz")
    if bus is None or clock is None:
        return
    pins = bus / 8 * 2 * clock * 1e-3
    bandwidth = values["dram_bandwidth_gb_per_s"]
    if abs(bandwidth / pins - 1) > _PEAK_TOLERANCE:
        raise _wrong(
            path, "dram_bandwidth_gb_per_s", bandwidth,
            f"near memory_bus_bits / 8 x 2 x memory_clock_mhz = {pins:.4g} GB/s, or change those",
        )  # fmt: skip


def _wrong(path: Path, name: str, value: Any, allowed: str) -> InvalidGpuSpecError:
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    return InvalidGpuSpecError(f"{path}: {name} is {shown}; use {allowed}")
