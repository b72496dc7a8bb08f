"""How a kernel is cut up: tile sizes, warps, pipeline stages."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import InvalidConfigError, closest

_ALIASES = {
    "block_size_m": "block_m",
    "block_size_n": "block_n",
    "block_size_k": "block_k",
    "bm": "block_m",
    "bn": "block_n",
    "bk": "block_k",
    "group_size_m": "group_m",
    "warps": "num_warps",
    "stages": "num_stages",
}


@dataclass(frozen=True, slots=True)
class TileConfig:
    """The launch parameters of one tiled kernel, in Triton's words.

    Sizes are in elements. ``extras`` holds parameters of a user's own kernel that no formula
    knows; they are kept, compared and written out, never dropped.
    """

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    group_m: int = 8
    num_warps: int = 4
    num_stages: int = 3
    split_k: int = 1
    num_ctas: int = 1
    maxnreg: int | None = None
    extras: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for name in PARAMETERS:
            value = getattr(self, name)
            if name == "maxnreg" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise InvalidConfigError(f"{name} is {value!r}; use a whole number of at least 1")
            object.__setattr__(self, name, int(value))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, keep_unknown: bool = False) -> TileConfig:
        """Build from names in any common spelling (``BLOCK_M``, ``BLOCK_SIZE_M``, ``block_m``).

        Args:
            values: parameter values by name.
            keep_unknown: keep names that are not tile parameters as ``extras``; otherwise
                such a name is an error that offers the closest valid one.

        Raises:
            InvalidConfigError: unknown or doubled name, or a value that is not a positive integer.
        """
        known: dict[str, Any] = {}
        extras: list[tuple[str, Any]] = []
        for name, value in values.items():
            key = name.strip().lower()
            key = _ALIASES.get(key, key)
            if key in known:
                raise InvalidConfigError(f"config parameter {key} is given twice")
            if key in PARAMETERS:
                known[key] = value
            elif keep_unknown:
                extras.append((name, value))
            else:
                raise InvalidConfigError(
                    f"unknown config key {name!r}{closest(key, [*PARAMETERS, *_ALIASES])}; "
                    f"use: {', '.join(PARAMETERS)}"
                )
        return cls(**known, extras=tuple(sorted(extras)))

    @classmethod
    def parse(cls, text: str) -> TileConfig:
        """Build from ``block_m=128,num_warps=8``; what is left out takes its default."""
        values: dict[str, int] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, equals, value = part.partition("=")
            if not equals:
                raise InvalidConfigError(f"config part {part!r} is not name=value")
            if name.strip() in values:
                raise InvalidConfigError(f"config parameter {name.strip()} is given twice")
            try:
                values[name.strip()] = int(value)
            except ValueError:
                raise InvalidConfigError(
                    f"{name.strip()} is {value.strip()!r}; use a whole number of at least 1"
                ) from None
        return cls.from_mapping(values)

    def to_dict(self) -> dict[str, Any]:
        """Return every parameter by name, extras last."""
        return {name: getattr(self, name) for name in PARAMETERS} | dict(self.extras)

    def __str__(self) -> str:
        text = f"{self.block_m}x{self.block_n}x{self.block_k}"
        text += f" g{self.group_m} w{self.num_warps} s{self.num_stages}"
        if self.split_k > 1:
            text += f" split{self.split_k}"
        if self.num_ctas > 1:
            text += f" ctas{self.num_ctas}"
        if self.maxnreg is not None:
            text += f" maxnreg{self.maxnreg}"
        return text + "".join(f" {name}={value}" for name, value in self.extras)


PARAMETERS: tuple[str, ...] = tuple(f.name for f in fields(TileConfig) if f.name != "extras")


def parameter_of(name: str) -> str | None:
    """Return the tile parameter that ``name`` is a spelling of, ``None`` for no parameter."""
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    return key if key in PARAMETERS else None


@dataclass(frozen=True)
class ConfigTable:
    """Many configurations: an array a parameter, each of length ``n`` (float64, in elements).

    ``maxnreg`` is 0 where it is not set.
    """

    block_m: NDArray[np.float64]
    block_n: NDArray[np.float64]
    block_k: NDArray[np.float64]
    group_m: NDArray[np.float64]
    num_warps: NDArray[np.float64]
    num_stages: NDArray[np.float64]
    split_k: NDArray[np.float64]
    num_ctas: NDArray[np.float64]
    maxnreg: NDArray[np.float64]
    source: Sequence[TileConfig] | None = field(default=None, repr=False, kw_only=True)

    @classmethod
    def of(cls, configs: Iterable[TileConfig]) -> ConfigTable:
        """Gather ``configs`` into arrays; ``source`` keeps them in order.

        Raises:
            InvalidConfigError: one is not a `TileConfig`.
        """
        listed = tuple(configs)
        for config in listed:
            if not isinstance(config, TileConfig):
                raise InvalidConfigError(
                    f"config {config!r} is not a TileConfig; use TileConfig(block_m=128, ...), "
                    "TileConfig.from_mapping({...}) or TileConfig.parse('block_m=128,...')"
                )
        rows = np.array(
            [[float(getattr(c, name) or 0) for name in PARAMETERS] for c in listed],
            dtype=np.float64,
        ).reshape(len(listed), len(PARAMETERS))
        columns = np.ascontiguousarray(rows.T)
        return cls(*columns, source=listed)

    @cached_property
    def configs(self) -> tuple[TileConfig, ...]:
        """The configurations one by one."""
        if self.source is not None:
            return tuple(self.source)
        columns = [getattr(self, name).astype(int).tolist() for name in PARAMETERS]
        rows: Iterator[dict[str, Any]] = (
            dict(zip(PARAMETERS, row, strict=True)) for row in zip(*columns, strict=True)
        )
        return tuple(TileConfig(**row | {"maxnreg": row["maxnreg"] or None}) for row in rows)

    @cached_property
    def memo(self) -> dict[Hashable, Any]:
        """What has been worked out of these configurations alone; whoever adds to it owns the key.

        A tuner asks about one list of configurations for problem after problem.
        """
        return {}

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> ConfigTable:
        """Return the rows at ``index``."""
        picked = None
        if self.source is not None:
            rows = np.flatnonzero(index) if index.dtype == np.bool_ else index
            picked = tuple(self.source[i] for i in rows)
        return ConfigTable(*(getattr(self, name)[index] for name in PARAMETERS), source=picked)

    def __len__(self) -> int:
        return len(self.block_m)
