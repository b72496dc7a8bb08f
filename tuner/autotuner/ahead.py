"""Decisions before the first call: shapes from a list, a look-up for compiled models."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from perfmodel.errors import TuningWarning, UnknownShapeError, UsageError, closest
from perfmodel.problems.dtypes import parse_dtype
from tuner import devices, triton_api
from tuner.autotuner.call_key import Key
from tuner.autotuner.decorator import Autotuner
from tuner.autotuner.processes import alive
from tuner.deciding.decision import Call

Shape = Mapping[str, Any]
"""Arguments of a call by name. A tensor may be replaced by its element type; ``dtype`` gives that
of all the tensors of a known family. Strides of a known family may be left out: packed rows."""


def warm(kernel: Autotuner, shapes: Iterable[Shape]) -> dict[int, Any]:
    """Decide for each shape with nothing timed, and compile what was chosen where there is a GPU.

    A call with one of these shapes then neither decides nor times. Integers are specialised by
    Triton as 1, a multiple of 16, or neither: the shapes should cover what will be used.

    Returns:
        The configuration for each shape, by its place in the list.

    Raises:
        UnknownShapeError: a value is missing, or a name is no argument.
    """
    found = {}
    for place, shape in enumerate(_listed(shapes)):
        call = call_of(kernel, shape)
        decision = kernel.decide_ahead(call, may_time=False)
        found[place] = decision.config
        _compile(kernel, call, decision.config)
    return found


def tune(
    kernel: Autotuner,
    shapes: Iterable[Shape],
    inputs: Callable[[Shape], tuple[tuple[Any, ...], Mapping[str, Any]]] | None = None,
) -> dict[int, Any]:
    """Decide for each shape, timing as the kernel's policy says.

    Args:
        kernel: what to tune.
        shapes: as in `warm`. To be timed a shape needs real tensors, and its ``grid``: contents
            decide how long some kernels take, so none are made up.
        inputs: makes the call of a shape: positional arguments, and keyword arguments with
            ``grid``. Without it a shape is the call's arguments by name.

    Raises:
        UnknownShapeError: a value is missing, or a name is no argument.
    """
    found = {}
    untimed = 0
    for place, shape in enumerate(_listed(shapes) if inputs is None else shapes):
        if inputs is not None:
            args, kwargs = inputs(shape)
            call = Call.of(kernel.arg_names, tuple(args), dict(kwargs) | {"warmup": False})
        else:
            call = call_of(kernel, shape)
        real = not any(triton_api.is_dtype(v) for v in call.arguments.values())
        if real and kernel.settings.policy not in ("model", "off") and "grid" not in call.kwargs:
            raise UnknownShapeError(
                f"shapes[{place}] of {kernel.name} has no grid, which timing needs; add 'grid'"
            )
        decision = kernel.decide_ahead(call, may_time=real)
        untimed += decision.policy.times and not real
        found[place] = decision.config
    if untimed:
        warnings.warn(
            f"{untimed} of {len(found)} shapes of {kernel.name} give types for tensors and were "
            "decided by the model; to be timed they need tensors and a grid",
            TuningWarning,
            stacklevel=3,
        )
    return found


def config_for(kernel: Any, **arguments: Any) -> Any:
    """Return the configuration for a call with these arguments: a look-up, nothing is timed.

    For use before a launch inside ``torch.compile``: ``config.all_kwargs()`` are plain constants.

    Raises:
        UnknownShapeError: a value is missing, or a name is no argument.
        UsageError: ``kernel`` is none that `tuner.autotune` made.
    """
    kernel = _tuned(kernel)
    call = call_of(kernel, arguments)
    key = kernel.key_of(call)
    known = kernel.cache.get(key, kernel.looked_up.get(key))
    if known is None:
        # Kept apart: a call is still verified if its policy says so.
        known = kernel.looked_up[key] = kernel.decide_without_timing(call).config
    return known


def resolve(kernel: Any, shapes: Iterable[Shape]) -> list[tuple[Shape, Any]]:
    """Return each shape with its configuration; see `config_for`."""
    return [(shape, config_for(kernel, **shape)) for shape in _listed(shapes)]


def explained_call(kernel: Autotuner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Return the call that the arguments of ``kernel.explain`` stand for.

    Raises:
        UnknownShapeError: a value is missing, or a name is no argument.
    """
    if not args:
        skipped = _launch_options() - {"grid", *kernel.arg_names}
        return call_of(kernel, {n: v for n, v in kwargs.items() if n not in skipped})
    if len(args) > len(kernel.arg_names):
        raise UnknownShapeError(
            f"{kernel.name} takes {len(kernel.arg_names)} arguments and was given {len(args)}: "
            f"{', '.join(kernel.arg_names)}"
        )
    named = dict(zip(kernel.arg_names, args, strict=False)) | dict(kwargs)
    _check_names(kernel, [n for n in kwargs if n not in _launch_options()])
    _check_key(kernel, named)
    return Call.of(kernel.arg_names, args, kwargs)


def warn_late(kernel: Autotuner, key: Key) -> None:
    """Warn of a decision during a call although the kernel was made ready ahead of time."""
    warnings.warn(
        f"{kernel.name} decides during a call for {key[:-2]}, which was not among the "
        "shapes it was warmed for; later ones are counted in late_decisions",
        TuningWarning,
        stacklevel=6,
    )


def _launch_options() -> frozenset[str]:
    return triton_api.backend_options() | {*triton_api.CONFIG_OPTIONS, "warmup", "grid"}


def _tuned(kernel: Any) -> Autotuner:
    found = triton_api.tuned(kernel, alive)
    if not isinstance(found, Autotuner):
        name = getattr(kernel, "__name__", type(kernel).__name__)
        raise UsageError(f"{name} is no kernel that tuner.autotune decorated; give that one")
    return found


def _listed(shapes: Iterable[Shape]) -> list[Shape]:
    listed = [] if isinstance(shapes, Mapping) else list(shapes)
    wrong = shapes if isinstance(shapes, Mapping) else next(
        (shape for shape in listed if not isinstance(shape, Mapping)), None
    )  # fmt: skip
    if wrong is not None:
        raise UnknownShapeError(
            f"shapes has {wrong!r}; use a list of arguments by name: [{{'M': 4096, ...}}, ...]"
        )
    return listed


def _check_names(kernel: Autotuner, names: Iterable[str]) -> None:
    for name in names:
        if name not in kernel.arg_names:
            raise UnknownShapeError(
                f"a shape of {kernel.name} has {name!r}{closest(name, kernel.arg_names)}; "
                f"use its arguments: {', '.join(kernel.arg_names)}"
            )


def _check_key(kernel: Autotuner, given: Mapping[str, Any]) -> None:
    missing = [
        name for name in kernel.call_key.names if name not in given and not kernel.has_default(name)
    ]
    if missing:
        raise UnknownShapeError(
            f"a shape of {kernel.name} lacks {', '.join(missing)}; needed are: "
            f"{', '.join(kernel.call_key.names)}"
        )


def call_of(kernel: Autotuner, shape: Shape) -> Call:
    """Return the call that a shape stands for.

    Raises:
        UnknownShapeError: a value is missing, or a name is no argument.
    """
    given = dict(shape)
    grid = given.pop("grid", None)
    binding = kernel.binding
    family = binding is not None and hasattr(binding, "roles")
    dtype = given.pop("dtype", None) if family and "dtype" not in kernel.arg_names else None
    _check_names(kernel, given)
    if family:
        given = _packed(binding.roles, given, dtype)  # type: ignore[union-attr]  # has roles
    _check_key(kernel, given)
    if family:
        _check_family(kernel, binding.roles, given)  # type: ignore[union-attr]  # as above
    ordered = {name: given[name] for name in kernel.arg_names if name in given}
    kwargs = dict(ordered)
    if grid is not None:
        kwargs |= {"grid": grid, "warmup": False}
    return Call((), kwargs, ordered)


def _check_family(kernel: Autotuner, roles: Mapping[str, str], given: Mapping[str, Any]) -> None:
    """A look-up has no launch that would tell: sizes are whole numbers, and types are known."""
    for role in ("m", "n", "k"):
        value = given.get(roles[role])
        try:
            sound = operator.index(value) >= 0  # type: ignore[arg-type]  # what is none raises
        except TypeError:
            sound = False
        if not sound:
            raise UnknownShapeError(
                f"a shape of {kernel.name} has {roles[role]}={value!r}; use a whole number from 0"
            )
    missing = [roles[role] for role in ("a", "b") if roles[role] not in given]
    if missing:
        raise UnknownShapeError(
            f"a shape of {kernel.name} lacks {' and '.join(missing)}; give tensors, their types, "
            "or dtype='bf16' for all of them"
        )


def _packed(roles: Mapping[str, str], given: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """Fill in what a known family's shape may leave out."""
    for role in ("a", "b", "c"):
        name = roles.get(role)
        if name is not None and name not in given and dtype is not None:
            given[name] = _element_type(dtype)
    sizes = {role: given.get(roles[role]) for role in ("m", "n", "k")}
    packed = {
        "stride_am": sizes["k"], "stride_ak": 1, "stride_bk": sizes["n"], "stride_bn": 1,
    }  # fmt: skip
    for role, stride in packed.items():
        name = roles.get(role)
        if name is not None and name not in given and stride is not None:
            given[name] = stride
    return given


def _element_type(dtype: Any) -> Any:
    """The type as a tensor of it would have it, so that both give the same key."""
    if not isinstance(dtype, str):
        return dtype
    try:
        import torch  # noqa: PLC0415 - optional extra
    except ImportError:
        return parse_dtype(dtype)
    return getattr(torch, parse_dtype(dtype).torch_name)


def _compile(kernel: Autotuner, call: Call, config: Any) -> None:
    """Fill Triton's own cache, where there is a device and all arguments are known."""
    if devices.identity_of_current(kernel.fn) in (devices.INTERPRETER, devices.NOWHERE):
        return
    constants = set(config.kwargs)
    if any(name not in call.arguments and name not in constants for name in kernel.arg_names):
        return
    options = {name: v for name, v in call.kwargs.items() if name not in ("warmup", "grid")}
    kernel.fn.warmup(**options, **config.all_kwargs(), grid=(1,))
