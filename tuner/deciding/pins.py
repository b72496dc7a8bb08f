"""Configurations fixed from outside: in code, in a file, or in the environment."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfmodel.errors import DataError, UnknownNameError, closest
from tuner import triton_api

VARIABLE = "PERFMODEL_PINS"
"""Names a ``.toml`` or ``.json`` file, or holds the JSON itself: ``{"kernel": {"BLOCK": 64}}``."""


def pinned_outside(kernel: str, module: str) -> Mapping[str, Any] | None:
    """Return what the environment pins for a kernel, ``None`` for nothing.

    A kernel goes by its name, or by ``module.name``, which comes first.

    Raises:
        DataError: the file or the JSON cannot be used.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    pins = _inline(text) if text.startswith("{") else _file(text, _stamp(text))
    found = pins.get(f"{module}.{kernel}", pins.get(kernel))
    if found is not None and not isinstance(found, Mapping):
        raise DataError(
            f"{VARIABLE}: the pin of {kernel} is {found!r}; write its parameters by name"
        )
    return found


def config_of_pin(
    kernel: str,
    arg_names: Sequence[str],
    configs: Sequence[Any],
    pin: Mapping[str, Any],
    has_default: Callable[[str], bool] | None = None,
) -> Any:
    """Return a pin as a configuration, used verbatim.

    Raises:
        UnknownNameError: a key that is neither an argument nor an option, or one that is missing.
    """
    options = {*triton_api.CONFIG_OPTIONS, *triton_api.backend_options()}
    for name in pin:
        if name not in arg_names and name not in options:
            raise UnknownNameError(
                f"the pin of {kernel} has {name!r}{closest(name, [*arg_names, *options])}; use its "
                f"arguments ({', '.join(arg_names)}) or {', '.join(triton_api.CONFIG_OPTIONS)}"
            )
    needed = set.intersection(*(set(c.kwargs) for c in configs)) if configs else set()
    missing = sorted(
        name for name in needed if name not in pin and not (has_default and has_default(name))
    )
    if missing:
        raise UnknownNameError(
            f"the pin of {kernel} lacks {', '.join(missing)}, which each of its configs sets"
        )
    for name, value in pin.items():
        for config in configs:
            theirs = config.all_kwargs().get(name)
            # A file, or JSON, may hold "64" for 64: the kernel would be compiled with text.
            if isinstance(value, str) and isinstance(theirs, int | float):
                raise UnknownNameError(
                    f"the pin of {kernel} has {name}={value!r}, which is text; its configs have "
                    f"numbers such as {theirs!r}"
                )
    fields = {name: pin[name] for name in triton_api.CONFIG_OPTIONS if name in pin}
    kwargs = {name: value for name, value in pin.items() if name not in fields}
    return triton_api.Config(kwargs, **fields)


@lru_cache(maxsize=8)
def _inline(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(f"{VARIABLE} starts like JSON and is none: {error}") from None
    return _table(found, VARIABLE)


@lru_cache(maxsize=8)
def _file(name: str, stamp: int) -> Mapping[str, Any]:  # noqa: ARG001 - a changed file is read again
    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise DataError(f"{VARIABLE}: {path} cannot be used: {error}") from None
    return _table(found, str(path))


def _stamp(name: str) -> int:
    try:
        return Path(name).expanduser().stat().st_mtime_ns
    except OSError:
        return 0


def _table(found: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise DataError(f"{where} holds {type(found).__name__}; write parameters by kernel name")
    return found
