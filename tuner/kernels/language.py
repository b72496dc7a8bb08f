"""Triton where it is installed; elsewhere a stand-in, so that kernel modules import anywhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from perfmodel.errors import NotInstalledError
from perfmodel.problems.dtypes import DType

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
    tl = None

INSTALLED = triton is not None
"""Whether kernels of this process can be compiled."""


class MissingKernel:
    """Takes the place of a compiled kernel and says what to install on any use.

    Its function and argument names can be read: decorating it needs no Triton.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.arg_names = list(inspect.signature(function).parameters)
        self._name = function.__name__

    def __getitem__(self, grid: Any) -> NoReturn:
        self.fail()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # pickling, copying and inspection probe for these
            raise AttributeError(name)
        self.fail()

    def fail(self) -> NoReturn:
        """Raise the error that names the missing extra."""
        raise NotInstalledError(
            f"kernel {self._name!r} needs Triton, which is not installed; "
            "install it with: pip install 'perfmodel[triton]'"
        )


def jit(function: Callable[..., Any]) -> Any:
    """Decorate a kernel: ``triton.jit``, or a :class:`MissingKernel` where Triton is absent."""
    return MissingKernel(function) if triton is None else triton.jit(function)


_DTYPES = {
    "fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16",
    "bf16": "bfloat16", "fp8_e4m3": "float8e4nv", "fp8_e5m2": "float8e5",
    "int8": "int8", "uint8": "uint8", "int32": "int32",
}  # fmt: skip


def triton_dtype(dtype: DType) -> Any:
    """Return Triton's type object for ``dtype``.

    Raises:
        NotInstalledError: Triton is absent.
    """
    if tl is None:
        MissingKernel(triton_dtype).fail()
    return getattr(tl, _DTYPES[dtype.name])


__all__ = ["INSTALLED", "MissingKernel", "jit", "tl", "triton_dtype"]
