"""What one row of a table asks: a problem in columns of plain values, a device, perhaps a tile.

A row names its family (``family``: gemm, attention, moe or memory), the arguments of the problem's
class by name, ``gpu`` and, if the tile is chosen already, ``config`` (``block_m=128,...``) or a
column for each tile parameter. ``kernel`` alone names a family or a memory-bound kernel. ``dtype``
is that of a product's operands, too. What is blank is not given.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any

from perfmodel.errors import InvalidConfigError, InvalidProblemError, closest
from perfmodel.problems import Attention, Gemm, GroupedGemm, MemoryBound, Problem
from perfmodel.problems.memory_bound import KERNELS
from perfmodel.problems.sizes import parse_lengths, parse_whole
from perfmodel.tiling.config import PARAMETERS, TileConfig

CLASSES: Mapping[str, type] = {
    "gemm": Gemm,
    "attention": Attention,
    "moe": GroupedGemm,
    "grouped_gemm": GroupedGemm,
    "memory": MemoryBound,
    "memory_bound": MemoryBound,
}
"""Names of families as a table may spell them."""

NAMES = ("gemm", "attention", "moe", "memory")
LENGTHS = frozenset({"q_len", "kv_len"})
FLAGS = frozenset({"causal", "shared_kv", "backward", "gated"})
TEXTS = frozenset({
    "dtype", "a_dtype", "b_dtype", "out_dtype", "kv_dtype", "weight_dtype", "a_layout", "b_layout",
    "backend", "projection", "kernel", "routing",
})  # fmt: skip
TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Request:
    """One question: a problem, where, and with which tile (``None``: the best one found)."""

    problem: Problem
    gpu: str
    config: TileConfig | None = None


def read_request(row: Mapping[str, Any], gpu: str | None = None) -> Request:
    """Return what a row asks; ``gpu`` answers for rows without one.

    Columns of no meaning here are left alone.

    Raises:
        UsageError: something is missing, foreign to the family, or impossible.
    """
    values = {name: value for name, value in row.items() if not is_blank(value)}
    device = values.pop("gpu", gpu)
    if device is None:
        raise InvalidProblemError("gpu is blank; name one in the row, or one for all rows")
    config = _config(values)
    return Request(read_problem(values, strict=False), str(device).strip(), config)


def read_request_strictly(values: Mapping[str, Any]) -> Request:
    """Return what values ask without a device, and refuse names that no family knows.

    Raises:
        UsageError: as `read_request`.
    """
    given = {name: value for name, value in values.items() if not is_blank(value)}
    config = _config(given)
    return Request(read_problem(given), "", config)


def read_problem(values: Mapping[str, Any], *, strict: bool = True) -> Problem:
    """Return the problem that plain values describe.

    Args:
        values: by name; blanks left out.
        strict: refuse names that no family knows, too.

    Raises:
        UsageError: as `read_request`.
    """
    name, cls = _family(values)
    known, required = _arguments(cls)
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key in known:
            given[key] = _value(key, value)
        elif key == "dtype" and cls is Gemm:
            given["a_dtype"] = _value("dtype", value)
        elif (strict or key in _all_arguments()) and key not in ("family", "kernel"):
            raise InvalidProblemError(
                f"{key} is {value!r}, but a {name} has no {key}{closest(key, known)}; it takes: "
                f"{', '.join(known)}"
            )
    missing = [_as_typed(cls, key) for key in required if key not in given]
    if missing:
        raise InvalidProblemError(
            f"{' and '.join(missing)} of the {name} {'is' if len(missing) == 1 else 'are'} "
            f"missing; it needs: {', '.join(_as_typed(cls, key) for key in required)}"
        )
    problem: Problem = cls(**given)
    return problem


def _as_typed(cls: type, argument: str) -> str:
    return "dtype" if cls is Gemm and argument == "a_dtype" else argument


def is_blank(value: Any) -> bool:
    """Whether a cell holds nothing: ``None``, NaN or empty text."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    return isinstance(value, float) and math.isnan(value)


def read_columns() -> frozenset[str]:
    """Return the names of all columns that a table's rows are read by."""
    return _all_arguments() | {"family", "dtype", "gpu", "config", *PARAMETERS}


def _family(values: Mapping[str, Any]) -> tuple[str, type]:
    named = values.get("family", values.get("kernel"))
    if named is None:
        raise InvalidProblemError(f"family is blank; use one of: {', '.join(NAMES)}")
    key = str(named).strip().lower().replace("-", "_")
    if "family" not in values and key in KERNELS:
        return f"{key} kernel", MemoryBound
    if key not in CLASSES:
        names = NAMES if "family" in values else (*NAMES[:3], *KERNELS)
        word = "family" if "family" in values else "kernel"
        raise InvalidProblemError(
            f"unknown {word} {named!r}{closest(key, names)}; use one of: {', '.join(names)}"
        )
    return key, CLASSES[key]


@lru_cache(maxsize=8)
def _arguments(cls: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All arguments of a problem's class, and those it needs; its data type is one of these."""
    own = [f for f in fields(cls) if f.init]
    required = [f.name for f in own if f.default is MISSING]
    if cls is Attention:
        required = ["q_len", "q_heads", "head_dim"]
    dtype = "a_dtype" if cls is Gemm else "dtype"
    return tuple(f.name for f in own), (*required, dtype)


@lru_cache(maxsize=1)
def _all_arguments() -> frozenset[str]:
    return frozenset(name for cls in CLASSES.values() for name in _arguments(cls)[0])


def _value(name: str, value: Any) -> Any:
    """Turn text into what the argument is; other values are the class's own to check."""
    if name in LENGTHS:
        return _listed(name, value)
    if name == "routing":
        text = isinstance(value, str)
        return _listed(name, value) if not text or value.strip()[:1].isdigit() or (
            value.strip().startswith("[")
        ) else value  # fmt: skip
    if name in FLAGS:
        return _flag(name, value)
    if name in TEXTS:
        return str(value).strip()
    if not isinstance(value, str):
        return value
    text_value = value.strip()
    whole = text_value.removesuffix(".0")  # a column with blanks is often written as fractions
    return parse_whole(name, whole)


def _listed(name: str, value: Any) -> Any:
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            raise InvalidProblemError(
                f"{name} is {value!r}; use a whole number, or several as 512,1,1"
            ) from None
    if isinstance(value, str):
        return parse_lengths(name, value.strip().removesuffix(".0"))
    return value.tolist() if hasattr(value, "tolist") else value


def _flag(name: str, value: Any) -> bool:
    key = str(value).strip().lower().removesuffix(".0")
    if key not in TRUTHS:
        raise InvalidProblemError(f"{name} is {value!r}; use true or false")
    return TRUTHS[key]


def _config(values: dict[str, Any]) -> TileConfig | None:
    """Take the tile out of a row, ``None`` if it has none."""
    text = values.pop("config", None)
    apart = {name: values.pop(name) for name in PARAMETERS if name in values}
    if text is not None and apart:
        raise InvalidConfigError(
            f"the tile is in config and in {', '.join(apart)}; leave one of them blank"
        )
    if text is not None:
        return TileConfig.parse(str(text))
    if not apart:
        return None
    return TileConfig.from_mapping({name: _value(name, value) for name, value in apart.items()})
