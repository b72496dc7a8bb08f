"""What runs a problem with a configuration: launches in order, and the memory that they use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.problems.dtypes import DType
from perfmodel.tiling.config import TileConfig


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel.

    ``pointers`` maps pointer arguments to their element types, ``integers`` the run-time sizes and
    strides to their values, ``floats`` likewise, ``constexprs`` the compile-time ones; ``options``
    are Triton's launch options and ``grid`` the number of programs along each axis. A pointer
    argument ``x_ptr`` takes the tensor called ``x``, unless ``tensors`` names another.
    """

    kernel: Any
    grid: tuple[int, ...]
    pointers: Mapping[str, DType]
    integers: Mapping[str, int] = field(default_factory=dict)
    floats: Mapping[str, float] = field(default_factory=dict)
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)

    @property
    def programs(self) -> int:
        """How many programs run; 0 where there is nothing to do."""
        return math.prod(self.grid)

    def tensor_of(self, argument: str) -> str:
        """Return the name of the tensor that a pointer argument takes."""
        return self.tensors.get(argument, argument.removesuffix("_ptr"))


@dataclass(frozen=True)
class Buffer:
    """Memory that a plan writes before it reads it: a result or work space."""

    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class Plan:
    """Launches that together compute one problem, in order.

    ``buffers`` are the tensors to allocate, uninitialised, beside the inputs; ``outputs`` names
    those that hold the results. Running a plan again gives the same results: nothing is added to.
    """

    launches: tuple[Launch, ...]
    buffers: Mapping[str, Buffer]
    outputs: tuple[str, ...]


def launch_options(config: TileConfig, *, pipelined: bool = True) -> dict[str, int]:
    """Return the options of Triton's launcher that ``config`` sets.

    Kernels without a loop to pipeline take ``pipelined=False``: they ignore ``num_stages``.
    """
    options = {"num_warps": config.num_warps}
    if pipelined:
        options["num_stages"] = config.num_stages
    if config.num_ctas > 1:
        options["num_ctas"] = config.num_ctas
    if config.maxnreg is not None:
        options["maxnreg"] = config.maxnreg
    return options


def ceil_div(size: int, block: int) -> int:
    """Return how many blocks cover ``size``."""
    return -(-size // block)


def padded_dim(size: int, dtype: DType) -> int:
    """Return the power of two that holds ``size`` and is not under the least depth of a product.

    That is 16 elements, 32 of 8 bits (Triton's ``min_dot_size`` on NVIDIA).
    """
    return max(16 if dtype.bits > 8 else 32, 1 << max(size - 1, 0).bit_length())


__all__ = ["Buffer", "Launch", "Plan", "ceil_div", "launch_options", "padded_dim"]
