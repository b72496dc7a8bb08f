"""A kernel's configurations as the tiles that the model knows, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.errors import InvalidConfigError, UnknownNameError, closest
from perfmodel.tiling.config import PARAMETERS, ConfigTable, TileConfig, parameter_of
from tuner import triton_api

_BLOCKS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("block_m", "block_n", "block_k"),
    "attention": ("block_m", "block_n"),
    "moe": ("block_m", "block_n", "block_k"),
}
"""The blocks that a family's kernels are cut into."""

_NEUTRAL = {"group_m": 1, "split_k": 1}
"""What a kernel without such a parameter does: tiles row by row, K in one piece."""

_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


class TileNames:
    """Which of a kernel's names is which tile parameter.

    Args:
        kernel: its name, for messages.
        arg_names: its arguments.
        configs: the user's configurations, empty where they are to be made.
        names: tile parameters to this kernel's own names, where they differ.
        family: of the kernel.

    Raises:
        UnknownNameError: a block size has no name, or ``names`` has one that is nowhere.
    """

    def __init__(
        self,
        kernel: str,
        arg_names: Sequence[str],
        configs: Sequence[Any],
        names: Mapping[str, str],
        family: str = "gemm",
    ) -> None:
        self._blocks = blocks = _BLOCKS[family]
        known = list(dict.fromkeys([*(n for c in configs for n in c.kwargs), *arg_names]))
        self.of_parameter: dict[str, str] = {}
        for parameter in (*blocks, *_NEUTRAL):
            given = names.get(parameter)
            if given is not None and given not in known:
                raise UnknownNameError(
                    f"names says that {parameter} is {given!r}, which neither {kernel} nor its "
                    f"configs have{closest(given, known)}; they have: {', '.join(known)}"
                )
            found = given or next((n for n in known if parameter_of(n) == parameter), None)
            if found is not None:
                self.of_parameter[parameter] = found
            elif parameter in blocks:
                near = closest(parameter, known) or closest(parameter.upper(), known)
                raise UnknownNameError(
                    f"family {family!r} needs a config name for {parameter} (such as "
                    f"{parameter.upper()} or BLOCK_SIZE_{parameter[-1].upper()}) and {kernel} has "
                    f"none{near}; rename it or say names={{{parameter!r}: ...}}; "
                    f"it has: {', '.join(known)}"
                )
        for position, config in enumerate(configs):
            for parameter in blocks:
                name = self.of_parameter[parameter]
                if name not in config.kwargs and name not in arg_names:
                    raise UnknownNameError(
                        f"configs[{position}] of {kernel} lacks {name!r} ({parameter}); "
                        f"it has: {', '.join(config.kwargs) or 'nothing'}"
                    )
        self.from_call = tuple(
            name
            for name in self.of_parameter.values()
            if name in arg_names and not all(name in c.kwargs for c in configs)
        )
        """Names whose values the call gives, at least for some configurations."""

    def tile(self, config: Any, call: Mapping[str, Any]) -> TileConfig:
        """Return a configuration as a tile; ``call`` gives what the configuration leaves out.

        Raises:
            InvalidConfigError: a value is missing or no positive integer.
        """
        values: dict[str, Any] = {}
        for parameter in (*self._blocks, *_NEUTRAL):
            name = self.of_parameter.get(parameter)
            value = None if name is None else config.kwargs.get(name, call.get(name))
            if value is None and parameter in _NEUTRAL:
                value = _NEUTRAL[parameter]
            if value is None:
                raise InvalidConfigError(f"{name} has no value in {config}")
            values[parameter] = value
        for option in _OPTIONS:
            value = getattr(config, option, None)
            if value is not None:
                values[option] = value
        mine = set(self.of_parameter.values())
        extras = tuple(sorted((n, v) for n, v in config.kwargs.items() if n not in mine))
        return TileConfig(**values, extras=extras)

    def can_take(self, tile: TileConfig) -> bool:
        """Whether this kernel has what a tile asks for: without ``split_k`` it splits nothing."""
        return tile.split_k == 1 or "split_k" in self.of_parameter

    def config(self, tile: TileConfig) -> Any:
        """Return a tile as a Triton configuration in this kernel's names."""
        kwargs = {name: getattr(tile, p) for p, name in self.of_parameter.items()}
        options = {name: getattr(tile, name) for name in _OPTIONS}
        return triton_api.Config(kwargs | dict(tile.extras), **options)

    def spoken(self, text: str) -> str:
        """Return a message about tile parameters with this kernel's names in their place."""
        for parameter in PARAMETERS:
            name = self.of_parameter.get(parameter)
            if name is not None:
                text = text.replace(parameter, name)
        return text


class TileSet:
    """The tiles of one list of configurations, made once for each set of values that calls give."""

    def __init__(self, names: TileNames, configs: Sequence[Any]) -> None:
        self.names = names
        self._configs = configs
        self._made: dict[Any, tuple[ConfigTable, tuple[int, ...], dict[int, str]]] = {}

    def table(
        self, positions: tuple[int, ...], call: Mapping[str, Any]
    ) -> tuple[ConfigTable, tuple[int, ...], dict[int, str]]:
        """Return the tiles at ``positions``, the positions they have, and why others have none."""
        given = tuple(call.get(name) for name in self.names.from_call)
        key = (positions, given)
        made = self._made.get(key)
        if made is None:
            tiles, kept, broken = [], [], {}
            for position in positions:
                try:
                    tiles.append(self.names.tile(self._configs[position], call))
                    kept.append(position)
                except InvalidConfigError as error:
                    broken[position] = str(error)
            made = self._made[key] = (ConfigTable.of(tiles), tuple(kept), broken)
        return made
