"""Picks tile configurations of Triton kernels, safely."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.autotuner.ahead import config_for, resolve
    from tuner.autotuner.decorate import autotune
    from tuner.autotuner.decorator import Autotuner
    from tuner.autotuner.stock import early_config_prune, estimate_matmul_time, pruner
    from tuner.triton_api import Config

__all__ = [
    "Autotuner",
    "Config",
    "autotune",
    "config_for",
    "early_config_prune",
    "estimate_matmul_time",
    "pruner",
    "resolve",
]

# Loaded on first use: importing the package must load neither Triton nor torch.
_HOME = {
    "Autotuner": "tuner.autotuner.decorator",
    "Config": "tuner.triton_api",
    "autotune": "tuner.autotuner.decorate",
    "config_for": "tuner.autotuner.ahead",
    "early_config_prune": "tuner.autotuner.stock",
    "estimate_matmul_time": "tuner.autotuner.stock",
    "pruner": "tuner.autotuner.stock",
    "resolve": "tuner.autotuner.ahead",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
