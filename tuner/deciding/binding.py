"""From a call's arguments to the problem that the model knows, by conventional names or a function.

Names are checked when the kernel is decorated; a call only looks values up.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from perfmodel.errors import (
    PerfmodelError,
    TuningWarning,
    UnknownNameError,
    UsageError,
    closest,
)
from perfmodel.families import TileProblem
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import FP32, TF32, DType, parse_dtype
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.grouped_gemm import GroupedGemm

FAMILIES: Mapping[str, type] = {"gemm": Gemm, "attention": Attention, "moe": GroupedGemm}
"""Kernel families that the model ranks, and what describes a problem of each."""

CONVENTIONAL = "gemm"
"""The family whose arguments go by conventional names; the others' problems take a function."""

_CONVENTIONS: Mapping[str, tuple[str, ...]] = {
    "m": ("M", "m", "size_m"),
    "n": ("N", "n", "size_n"),
    "k": ("K", "k", "size_k"),
    "a": ("a_ptr", "A", "a", "A_ptr", "x_ptr"),
    "b": ("b_ptr", "B", "b", "B_ptr", "w_ptr"),
    "c": ("c_ptr", "C", "c", "C_ptr", "out_ptr", "y_ptr"),
    "stride_am": ("stride_am",),
    "stride_ak": ("stride_ak",),
    "stride_bk": ("stride_bk",),
    "stride_bn": ("stride_bn",),
}
_REQUIRED = ("m", "n", "k", "a", "b")
_STRIDES = ("stride_am", "stride_ak", "stride_bk", "stride_bn")


@dataclass(frozen=True)
class NotKnown:
    """Why the model does not know the problem of a call."""

    reason: str


class Binding(Protocol):
    """How to read a problem from a call."""

    family: str

    keys: tuple[str, ...]
    """Arguments that tell one problem from another, for a kernel without a ``key``."""

    unit_strides: tuple[str, ...]
    """Strides whose being 1 tells the layout."""

    dimension: str | None
    """The argument that changes from call to call (rows of activations), if there is one."""

    def problem(self, arguments: Mapping[str, Any], gpu: Gpu | None) -> TileProblem | NotKnown:
        """Return the problem of a call with these arguments on ``gpu``."""


class GemmBinding:
    """C[M, N] = A[M, K] @ B[K, N], by conventional argument names.

    Without stride arguments the layouts are those of the tensors themselves.

    Args:
        arg_names: the kernel's.
        names: roles (``m``, ``a``, ``stride_am``) to this kernel's own names, where they differ.

    Raises:
        UnknownNameError: an argument for a role is missing, or a name is no argument.
    """

    family = "gemm"

    def __init__(self, kernel: str, arg_names: Sequence[str], names: Mapping[str, str]) -> None:
        self.roles: dict[str, str] = {}
        for role, conventional in _CONVENTIONS.items():
            given = names.get(role)
            if given is not None:
                if given not in arg_names:
                    raise UnknownNameError(
                        f"names says that {role} is {given!r}, which is no argument of {kernel}"
                        f"{closest(given, arg_names)}; its arguments: {', '.join(arg_names)}"
                    )
                self.roles[role] = given
                continue
            found = next((name for name in conventional if name in arg_names), None)
            if found is not None:
                self.roles[role] = found
            elif role in _REQUIRED:
                near = next((c for c in (closest(n, arg_names) for n in conventional) if c), "")
                raise UnknownNameError(
                    f"family 'gemm' needs an argument for {role} (one of "
                    f"{', '.join(conventional)}) and {kernel} has none{near}; rename it or say "
                    f"names={{{role!r}: ...}}; its arguments: {', '.join(arg_names)}"
                )
        self.unit_strides = tuple(self.roles[role] for role in _STRIDES if role in self.roles)
        self.keys = (self.roles["m"], self.roles["n"], self.roles["k"], *self.unit_strides)
        self.dimension: str | None = self.roles["m"]

    def problem(self, arguments: Mapping[str, Any], gpu: Gpu | None) -> Gemm | NotKnown:
        """Return the product that these arguments ask for."""
        try:
            m, n, k = (operator.index(arguments[self.roles[role]]) for role in ("m", "n", "k"))
            a, b = (arguments[self.roles[role]] for role in ("a", "b"))
            a_dtype, b_dtype = _operand(a, gpu), _operand(b, gpu)
            out_dtype = _out_dtype(arguments.get(self.roles.get("c", "")))
            a_layout, lda = self._layout(arguments, a, "stride_am", "stride_ak", (m, k), (0, 1))
            b_layout, ldb = self._layout(arguments, b, "stride_bk", "stride_bn", (k, n), (0, 1))
            return Gemm(
                m, n, k, a_dtype=a_dtype, b_dtype=b_dtype, out_dtype=out_dtype,
                a_layout=a_layout, b_layout=b_layout, lda=lda, ldb=ldb,  # type: ignore[arg-type]  # "row" or "col"
            )  # fmt: skip
        except KeyError as missing:
            return NotKnown(f"the call has no argument {missing}")
        except (PerfmodelError, TypeError, ValueError) as error:
            return NotKnown(str(error))

    def _layout(
        self,
        arguments: Mapping[str, Any],
        operand: Any,
        first: str,
        second: str,
        extents: tuple[int, int],
        axes: tuple[int, int],
    ) -> tuple[str, int]:
        """Which index is contiguous, and the leading stride in elements."""
        rows, columns = extents
        if first in self.roles and second in self.roles:
            outer, inner = arguments.get(self.roles[first]), arguments.get(self.roles[second])
        elif hasattr(operand, "stride") and len(getattr(operand, "shape", ())) == 2:
            outer, inner = operand.stride(axes[0]), operand.stride(axes[1])
        else:
            outer, inner = None, None
        if outer is None or inner is None:
            return "row", max(columns, 1)
        outer, inner = int(outer), int(inner)
        # With one row, or one column, its stride is never used.
        if inner == 1 or columns <= 1:
            return "row", max(outer, columns) if rows <= 1 else outer
        if outer == 1 or rows <= 1:
            return "col", max(inner, rows) if columns <= 1 else inner
        raise ValueError(f"strides {outer} and {inner}: neither index is contiguous")


class FunctionBinding:
    """The user's own function of the arguments.

    It takes arguments by their names (``lambda M, N, K, **_: Gemm(M, N, K)``), or one parameter
    that is none of them, which gets all arguments in a dict. It returns a problem, or ``None`` for
    one that the model does not know.

    Args:
        kernel, arg_names: the kernel's.
        function: the user's.
        keys: arguments that tell one problem from another.
        family: the kind of problem that it returns.

    Raises:
        UnknownNameError: a parameter is no argument of the kernel.
    """

    def __init__(
        self,
        kernel: str,
        arg_names: Sequence[str],
        function: Callable[..., Any],
        keys: Sequence[str],
        family: str = CONVENTIONAL,
    ) -> None:
        self._kernel = kernel
        self._function = function
        self._warned = False
        self.family = family
        self.keys: tuple[str, ...] = tuple(keys)
        self.unit_strides: tuple[str, ...] = ()
        self.dimension: str | None = None
        parameters = inspect.signature(function).parameters
        named = [
            p for p in parameters.values()
            if p.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        ]  # fmt: skip
        self._takes_all = len(named) == 1 and named[0].name not in arg_names
        self._any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self._names = [p.name for p in named]
        if not self._takes_all:
            for p in named:
                if p.name not in arg_names and p.default is inspect.Parameter.empty:
                    raise UnknownNameError(
                        f"problem takes {p.name!r}, which is no argument of {kernel}"
                        f"{closest(p.name, arg_names)}; its arguments: {', '.join(arg_names)}"
                    )

    def problem(self, arguments: Mapping[str, Any], gpu: Gpu | None) -> TileProblem | NotKnown:  # noqa: ARG002 - part of the protocol
        """Return what the user's function says; its errors are the user's."""
        if self._takes_all:
            found = self._function(dict(arguments))
        elif self._any_name:
            found = self._function(**arguments)
        else:
            given = {name: arguments[name] for name in self._names if name in arguments}
            found = self._function(**given)
        self._warn_of_missing_keys(arguments)
        if found is None:
            return NotKnown("the problem function returned None")
        wanted = FAMILIES[self.family]
        if not isinstance(found, wanted) or not isinstance(found, TileProblem):
            raise UsageError(
                f"the problem function of {self._kernel} returned a {type(found).__name__}, and "
                f"family {self.family!r} is of {wanted.__name__}; return one, or None for a "
                "problem that the model does not know"
            )
        if found.backend is not None:
            return NotKnown(f"backend {found.backend} names a library's kernel; leave it out")
        return found

    def _warn_of_missing_keys(self, arguments: Mapping[str, Any]) -> None:
        """Say once that calls which differ in what the function reads share a decision."""
        missing = [
            name
            for name in self._names
            if name not in self.keys and isinstance(arguments.get(name), int | float | str)
        ]
        if missing and not self._warned:
            self._warned = True
            warnings.warn(
                f"problem reads {', '.join(missing)}, which the key of {self._kernel} lacks: calls "
                "that differ in nothing else share a decision; add them to key",
                TuningWarning,
                stacklevel=2,
            )


def bind(
    kernel: str,
    arg_names: Sequence[str],
    *,
    family: str | None,
    problem: Callable[..., Any] | None,
    names: Mapping[str, str] | None,
    key: Sequence[str],
) -> Binding | None:
    """Return how to read the problem from a call, ``None`` where nobody said.

    Raises:
        UnknownNameError: unknown family, role or argument.
    """
    roles = {*_CONVENTIONS}
    if family is not None and family not in FAMILIES:
        raise UnknownNameError(
            f"family is {family!r}{closest(str(family), list(FAMILIES))}; use one of: "
            f"{', '.join(FAMILIES)}; for another kernel leave it out"
        )
    if problem is not None:
        return FunctionBinding(kernel, arg_names, problem, key, family or CONVENTIONAL)
    if family is None:
        return None
    if family != CONVENTIONAL:
        raise UnknownNameError(
            f"family {family!r} has no conventional argument names to read {kernel}'s problem by; "
            "add problem=, a function of its arguments that returns the "
            f"{FAMILIES[family].__name__}"
        )
    mine = dict(names or {})
    for role in mine:
        if role not in roles and not role.startswith(("block_", "group_", "split_", "num_")):
            raise UnknownNameError(
                f"names has {role!r}{closest(role, roles)}; roles: {', '.join(sorted(roles))}"
            )
    return GemmBinding(kernel, arg_names, mine)


def _operand(value: Any, gpu: Gpu | None) -> DType:
    dtype = parse_dtype(_dtype_of(value))
    # Triton multiplies 32-bit floats as TF32 where the device can, unless told otherwise.
    if dtype == FP32 and gpu is not None and TF32.name in gpu.tensor_tflops:
        return TF32
    return dtype


def _out_dtype(value: Any) -> DType | None:
    return None if value is None else parse_dtype(_dtype_of(value))


def _dtype_of(value: Any) -> Any:
    """A tensor's element type; ahead of time a type stands for the tensor."""
    if hasattr(value, "dtype"):
        return value.dtype
    base = getattr(value, "base", None)
    return value if base is None or not hasattr(base, "dtype") else base.dtype
