"""One function builds a key, and every reader and writer of the store uses it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from perfmodel.tiling.config import TileConfig
from tuner.kernel_source import callable_text, kernel_hash
from tuner.measure.device import DeviceIdentity

__all__ = [
    "Key",
    "arguments_text",
    "config_text",
    "device_text",
    "kernel_hash",
    "space_text",
]

ALIGNMENT = 16
"""Triton compiles another kernel for pointers and integers that 16 divides."""

_GIB = 2**30
_MEMORY_CLASS_GIB = 4
_CLOCK_CLASS_MHZ = 100


@dataclass(frozen=True)
class Key:
    """What a decision is made for: a kernel, the arguments that matter to it, and a device.

    ``kernel`` is the hash of the kernel's source and callees (`kernel_hash`), ``arguments``
    canonical JSON of key values, dtypes and alignment classes (`arguments_text`).
    """

    kernel: str
    arguments: str
    device: DeviceIdentity


def config_text(config: Any) -> str:
    """Return the canonical JSON of a configuration: every field it has, unknown ones included.

    Fields are enumerated from the object, so one that a later Triton adds counts as well. A field
    of ``None`` is left out: versions of Triton without it mean the same. Hooks count by what they
    do.

    Args:
        config: a ``triton.Config``, a `TileConfig`, or a mapping of parameters.
    """
    if isinstance(config, TileConfig):
        fields: dict[str, Any] = config.to_dict()
    elif isinstance(config, Mapping):
        fields = dict(config)
    else:
        fields = dict(getattr(config, "__dict__", {}))
        for kind in type(config).__mro__:
            slots = getattr(kind, "__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(config, name):
                    fields[name] = getattr(config, name)
    return _json({name: value for name, value in fields.items() if value is not None})


def space_text(configs: Sequence[str]) -> str:
    """Return what tells one set of candidate configurations from another; order does not count.

    Args:
        configs: their canonical texts.
    """
    return _digest("\n".join(sorted(set(configs))))


def arguments_text(
    keys: Mapping[str, Any], operands: Mapping[str, Any] | None = None, **more: Any
) -> str:
    """Return the canonical JSON of the arguments that matter.

    Args:
        keys: arguments whose value tells one problem from another, by name.
        operands: the other arguments, of which only what the compiler specialises on counts: a
            tensor's dtype and alignment, whether an integer is 1 or a multiple of 16, any other
            constant's value.
        more: anything else that tells one from another, such as a bucket.
    """
    text: dict[str, Any] = {"keys": {name: _key_value(value) for name, value in keys.items()}}
    if operands:
        text["operands"] = {name: specialization(value) for name, value in operands.items()}
    return _json(text | more)


def specialization(value: Any) -> Any:  # noqa: PLR0911 - a case a line
    """Return what Triton's compiler takes note of in a run-time argument."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        wide = "" if -(2**31) <= value < 2**31 else ":64"
        return 1 if value == 1 else f"int{wide}:16" if value % ALIGNMENT == 0 else f"int{wide}"
    if isinstance(value, float):
        return "float"
    if isinstance(value, list | tuple):
        return [specialization(item) for item in value]
    if hasattr(value, "data_ptr"):
        aligned = int(value.data_ptr()) % ALIGNMENT == 0
        return f"{_dtype_name(value.dtype)}:16" if aligned else _dtype_name(value.dtype)
    if hasattr(value, "base"):  # a tensor descriptor, or a view of a tensor as another type
        shape = getattr(value, "block_shape", None)
        return [specialization(value.base), *(() if shape is None else (list(shape),))]
    return _key_value(value)


@lru_cache(maxsize=16)
def device_text(device: DeviceIdentity) -> str:
    """Return the canonical JSON of what makes timings of two devices the same device's.

    Drivers report total memory and clocks a little differently from version to version, so they
    count in classes of 4 GiB and 100 MHz. The driver's version does not count here: it is a soft
    field beside each row.
    """
    memory = device.memory_bytes
    clock = device.clock_mhz
    return _json(
        {
            "name": " ".join(device.name.split()),
            "architecture": device.architecture,
            "gpu": device.gpu,
            "sm_count": device.sm_count,
            "memory_gib": None if memory is None else _in_class(memory / _GIB, _MEMORY_CLASS_GIB),
            "clock_mhz": None if clock is None else _in_class(clock, _CLOCK_CLASS_MHZ),
        }
    )


def _in_class(value: float, width: int) -> int:
    """The nearest multiple of ``width``, halves up, never 0."""
    return max(math.floor(value / width + 0.5), 1) * width


def _key_value(value: Any) -> Any:
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return specialization(value)
    if isinstance(value, list | tuple):
        return [_key_value(item) for item in value]
    return value


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _json(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:  # noqa: PLR0911 - a case a line
    """JSON of anything that a configuration or a key may hold; two kinds never look the same."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if type(value).__name__ == "constexpr" and hasattr(value, "value"):
        return _plain(value.value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a numpy number
        return _plain(value.item())
    if callable(value) and not isinstance(value, type):
        where = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        return {"callable": where, "does": callable_text(value)}
    text = str(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    # An address says nothing that holds in another process.
    return {"type": kind} if " at 0x" in text else {"type": kind, "value": text}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
