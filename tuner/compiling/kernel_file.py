"""A kernel in a user's file, and the compilations that are asked for it on a command line."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.errors import NotInstalledError, UsageError, closest
from tuner.compile import ALIGNMENT, Specialization
from tuner.compiling.compile_job import CompileJob
from tuner.compiling.portable import portable

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Of a configuration, what Triton takes beside the kernel's own arguments."""

_SCALARS = (
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "fp16",
    "bf16",
    "fp32",
    "fp64",
)
_POINTER = re.compile(r"\*(?:k)?(?P<type>[a-z]\w*)(?P<unaligned>:unaligned)?")
_POINTEES = (*_SCALARS, "fp8e4nv", "fp8e5", "fp8e4b15", "fp8e4b8", "fp8e5b16")
_HOW = (
    "*fp16 (a pointer, aligned to 16 bytes), *fp16:unaligned, a type (i32, i64, fp32, ...) or an "
    "integer (specialised on as a launch would)"
)


def load_kernel(address: str) -> Any:
    """Return the kernel of ``FILE.py:name``; the file is run, once, as an import would.

    Raises:
        NotInstalledError: Triton is absent.
        UsageError: there is no such file or kernel, or the file raises.
    """
    if importlib.util.find_spec("triton") is None:
        raise NotInstalledError(
            "compiling a kernel needs Triton, which is not installed; "
            "install it with: pip install 'perfmodel[triton]'"
        )
    file, colon, name = address.rpartition(":")
    if not colon or not file:
        raise UsageError(f"kernel {address!r} is not FILE.py:name; e.g. kernels.py:matmul_kernel")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"there is no file {file}; give the kernel as FILE.py:name")
    module_name = f"perfmodel_kernels_of_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # kernels look their module up
    sys.path.insert(0, str(path.resolve().parent))  # what lies beside it, as when it is run
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    kernels = {n: v for n, v in vars(module).items() if _argument_names(v) is not None}
    if name not in kernels:
        known = ", ".join(kernels) or "none"
        raise UsageError(
            f"{file} has no Triton kernel {name!r}{closest(name, kernels)}; it has: {known}"
        )
    return kernels[name]


def jobs_of(
    kernel: Any, arguments: Mapping[str, str], configs: Sequence[Mapping[str, Any]], target: str
) -> list[CompileJob]:
    """Return one compilation for each configuration.

    Args:
        kernel: a ``@triton.jit`` kernel, or what is decorated on top of it.
        arguments: what each run-time argument is: a type, a pointer type or an integer. An
            annotation of the kernel says it for arguments left out.
        configs: compile-time arguments and options together, one mapping each; none for those that
            the kernel's autotuner lists.
        target: ``sm_90``.

    Raises:
        UsageError: an argument is unknown, missing or of no known type; the message says which.
        KernelNotPortableError: the kernel refers to what cannot be sent to a worker.
    """
    text = portable(kernel)
    names = _argument_names(kernel) or []
    parameters = inspect.signature(_plain(kernel)).parameters
    chosen = list(configs) or [_flat(c) for c in getattr(kernel, "configs", ())] or [{}]
    for name in arguments:
        if name not in names:
            raise _unknown(name, names)
    return [
        CompileJob(
            text,
            _specialization(names, parameters, arguments, config),
            target,
            {n: config[n] for n in OPTIONS if config.get(n) is not None},
            config_label(config),
        )
        for config in chosen
    ]


def config_label(config: Mapping[str, Any]) -> str:
    """Return ``BLOCK=128, num_warps=8``."""
    return ", ".join(f"{n}={v}" for n, v in config.items() if v is not None) or "defaults"


def parse_pairs(text: str, what: str) -> dict[str, str]:
    """Split ``a=1,b=2``.

    Raises:
        UsageError: a part is no pair, or a name comes twice.
    """
    found: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (p.strip() for p in part.partition("="))
        if not equals or not name or not value:
            raise UsageError(f"{what} {part!r} is not NAME=VALUE")
        if name in found:
            raise UsageError(f"{what} {name} is given twice")
        found[name] = value
    return found


def parse_constant(text: str) -> Any:
    """Return the value that a compile-time argument is given on a command line."""
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith("tl."):
        import triton.language as tl  # noqa: PLC0415 - an extra, and slow to import

        found = getattr(tl, text.removeprefix("tl."), None)
        if not isinstance(found, tl.dtype):
            raise UsageError(f"{text} is no type of triton.language; use one such as tl.float32")
        return found
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _specialization(
    names: Sequence[str],
    parameters: Mapping[str, inspect.Parameter],
    arguments: Mapping[str, str],
    config: Mapping[str, Any],
) -> Specialization:
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attrs: dict[tuple[int, ...], Sequence[tuple[str, int]]] = {}
    for name in config:
        if name not in names and name not in OPTIONS:
            raise _unknown(name, [*names, *OPTIONS])
    for position, name in enumerate(names):
        parameter = parameters[name]
        if name in config or _is_constexpr(parameter):
            if name not in config and parameter.default is inspect.Parameter.empty:
                raise UsageError(
                    f"compile-time argument {name} has no value; give it with --config {name}=..."
                )
            signature[name] = "constexpr"
            constants[name] = config.get(name, parameter.default)
            continue
        said = arguments.get(name) or _annotated(parameter)
        if said is None and parameter.default is not inspect.Parameter.empty:
            said = str(parameter.default)
        if said is None:
            raise UsageError(
                f"run-time argument {name} has no type; give it with --args {name}=..., one of: "
                f"{_HOW}"
            )
        _add_argument(name, position, said, signature, constants, attrs)
    return Specialization(signature, constants, attrs)


def _add_argument(
    name: str,
    position: int,
    said: str,
    signature: dict[str, str],
    constants: dict[str, Any],
    attrs: dict[tuple[int, ...], Sequence[tuple[str, int]]],
) -> None:
    pointer = _POINTER.fullmatch(said)
    if pointer is not None and pointer["type"] in _POINTEES:
        signature[name] = f"*{pointer['type']}"
        if not pointer["unaligned"]:
            attrs[(position,)] = [("tt.divisibility", ALIGNMENT)]
    elif said in _SCALARS:
        signature[name] = said
    elif said == "None":
        signature[name], constants[name] = "constexpr", None
    elif re.fullmatch(r"-?\d+", said):
        value = int(said)
        if value == 1:
            signature[name], constants[name] = "constexpr", 1
            return
        signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
        if value % ALIGNMENT == 0:
            attrs[(position,)] = [("tt.divisibility", ALIGNMENT)]
    else:
        raise UsageError(f"run-time argument {name} is {said!r}; use one of: {_HOW}")


def _annotated(parameter: inspect.Parameter) -> str | None:
    """The type that an annotation such as ``x: "*fp16"`` names."""
    said = parameter.annotation
    if not isinstance(said, str):
        return None
    said = said.strip("\"'")
    pointer = _POINTER.fullmatch(said)
    known = said in _SCALARS or (pointer is not None and pointer["type"] in _POINTEES)
    return said if known else None


def _is_constexpr(parameter: inspect.Parameter) -> bool:
    said = parameter.annotation
    text = said if isinstance(said, str) else getattr(said, "__name__", "")
    return "constexpr" in text


def _argument_names(value: Any) -> list[str] | None:
    """The arguments of a kernel, ``None`` for anything else."""
    names = getattr(value, "arg_names", None)
    return list(names) if isinstance(names, list | tuple) and hasattr(value, "fn") else None


def _plain(kernel: Any) -> Any:
    while not inspect.isfunction(kernel) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def _flat(config: Any) -> dict[str, Any]:
    """A ``triton.Config`` as one mapping."""
    options = {n: getattr(config, n, None) for n in OPTIONS}
    if options["num_ctas"] == 1:  # Triton's own default
        del options["num_ctas"]
    return {**config.kwargs, **{n: v for n, v in options.items() if v is not None}}


def _unknown(name: str, known: Sequence[str]) -> UsageError:
    return UsageError(
        f"the kernel has no argument {name!r}{closest(name, known)}; it has: {', '.join(known)}"
    )
