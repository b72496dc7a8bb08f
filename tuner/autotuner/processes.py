"""A kernel in other processes: pickled by its name, and its locks after a fork."""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tuner import triton_api

if TYPE_CHECKING:
    from tuner.autotuner.decorator import Autotuner

alive: weakref.WeakSet[Autotuner] = weakref.WeakSet()
"""Every kernel of this process."""


def reduced(kernel: Autotuner) -> tuple[Any, ...]:
    """Return what ``__reduce__`` returns for a kernel.

    Raises:
        TypeError: the kernel cannot be found by its name.
    """
    plain = triton_api.base_function(kernel.fn)
    qualified = getattr(plain, "__qualname__", kernel.name)
    found = None
    with suppress(ImportError, AttributeError):
        found = _by_name(kernel.module, qualified)
    if found is not kernel:
        raise TypeError(
            f"kernel {kernel.module}.{qualified} cannot be found by its name; define it at the "
            "top level of a module to send it to another process"
        )
    return _restored, (kernel.module, qualified, list(kernel.cache.items()))


def _by_name(module: str, qualified: str) -> Any:
    """The tuner's object of that name, also where other decorators lie above it."""
    found: Any = importlib.import_module(module)
    for part in qualified.split("."):
        found = getattr(found, part)
    return triton_api.tuned(found, alive)


def _restored(module: str, qualified: str, decided: Sequence[tuple[Any, Any]]) -> Any:
    """Find a kernel by its name and give it what another process decided."""
    kernel = _by_name(module, qualified)
    for key, config in decided:
        kernel.cache.setdefault(key, config)
    return kernel


def _reset_after_fork() -> None:
    for kernel in list(alive):
        kernel.reset_after_fork()
    for name in ("tuner.deciding.timing", "tuner.measure.isolation"):
        module = sys.modules.get(name)
        if module is not None:
            module.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
