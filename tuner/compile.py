"""Compile Triton kernels ahead of time, with no GPU, and read what the binary uses."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import NotInstalledError, UsageError
from perfmodel.problems.dtypes import DType
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels.gemm import launch_of
from tuner.kernels.language import INSTALLED
from tuner.kernels.launch import Launch
from tuner.measure.failures import reason_of

POINTER_TYPES: Mapping[str, str] = {
    "fp64": "*fp64", "fp32": "*fp32", "tf32": "*fp32", "fp16": "*fp16", "bf16": "*bf16",
    "fp8_e4m3": "*fp8e4nv", "fp8_e5m2": "*fp8e5", "int8": "*i8", "int32": "*i32",
    "uint8": "*u8", "int4": "*u8",
}  # fmt: skip
"""Triton's name of a pointer to each data type."""

ALIGNMENT = 16
"""What Triton's launcher specialises on: pointers and integers divisible by 16."""

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True)
class CompiledKernel:
    """What one compilation gave.

    ``shared_bytes`` is shared memory per block, as Triton's launcher asks for it; ``registers``
    per thread and ``stack_bytes`` (spilled registers and local arrays) per thread come from the
    cubin. All are ``None`` where the compilation failed, and ``reason`` then says why.
    ``seconds`` is wall time, short where Triton's own cache held the result.
    """

    target: str
    num_warps: int
    outcome: Outcome
    reason: str | None
    seconds: float
    shared_bytes: int | None = None
    registers: int | None = None
    stack_bytes: int | None = None
    tensor_memory_columns: int | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a binary."""
        return self.outcome is Outcome.OK


@dataclass(frozen=True)
class Specialization:
    """A kernel's arguments as Triton's compiler takes them.

    ``signature`` maps every argument to its Triton type (``constexpr`` for compile-time ones),
    ``constexprs`` those to their values, ``attrs`` argument positions to what is known of them.
    """

    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    attrs: Mapping[tuple[int, ...], Sequence[tuple[str, int]]]


def specialize(
    argument_names: Sequence[str],
    pointers: Mapping[str, DType],
    integers: Mapping[str, int],
    constexprs: Mapping[str, Any],
    floats: Mapping[str, float] | None = None,
) -> Specialization:
    """Return the specialisation that Triton's launcher would make for these arguments.

    Pointers count as aligned to 16 bytes; an integer divisible by 16 is marked so; the integer 1
    becomes a constant; others are 32-bit where they fit. ``floats`` are passed as fp32.
    """
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attrs: dict[tuple[int, ...], Sequence[tuple[str, int]]] = {}
    for position, name in enumerate(argument_names):
        if name in pointers:
            signature[name] = _pointer_type(pointers[name])
            attrs[(position,)] = [("tt.divisibility", ALIGNMENT)]
        elif name in constexprs:
            signature[name] = "constexpr"
            constants[name] = constexprs[name]
        elif floats is not None and name in floats:
            signature[name] = "fp32"
        elif integers[name] == 1:
            signature[name] = "constexpr"
            constants[name] = 1
        else:
            value = integers[name]
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % ALIGNMENT == 0:
                attrs[(position,)] = [("tt.divisibility", ALIGNMENT)]
    return Specialization(signature, constants, attrs)


def compile_kernel(
    function: Any,
    specialization: Specialization,
    target: str,
    options: Mapping[str, Any],
) -> CompiledKernel:
    """Compile a Triton kernel for ``target`` (``sm_90``), whatever this machine has.

    A configuration that does not compile is an answer (``outcome``, ``reason``), not an exception.

    Raises:
        NotInstalledError: Triton is absent.
        UsageError: ``target`` is not a CUDA architecture such as ``sm_90``.
    """
    if not INSTALLED:
        raise NotInstalledError(
            "compiling a kernel needs Triton, which is not installed; "
            "install it with: pip install 'perfmodel[triton]'"
        )
    import triton  # noqa: PLC0415  # optional extra
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415 - as above
    from triton.compiler import ASTSource  # noqa: PLC0415 - as above

    gpu_target = GPUTarget("cuda", compute_capability(target), 32)
    num_warps = int(options.get("num_warps", 4))
    started = time.perf_counter()
    try:
        source = ASTSource(
            function,
            signature=dict(specialization.signature),
            constexprs=dict(specialization.constexprs),
            # As the launcher writes them, lists of lists: its cache key holds their text.
            attrs=_attributes(specialization, triton.__version__),
        )
        with contextlib.redirect_stdout(io.StringIO()):  # Triton prints a failing kernel whole
            binary = triton.compile(source, target=gpu_target, options=dict(options))
    except Exception as error:  # Triton raises errors of every class; the reason names it
        seconds = time.perf_counter() - started
        return CompiledKernel(target, num_warps, Outcome.COMPILE_FAILED, reason_of(error), seconds)
    seconds = time.perf_counter() - started
    registers, stack_bytes = resource_usage(binary.asm["cubin"])
    return CompiledKernel(
        target, num_warps, Outcome.OK, None, seconds,
        shared_bytes=int(binary.metadata.shared),
        registers=registers,
        stack_bytes=stack_bytes,
        tensor_memory_columns=getattr(binary.metadata, "tmem_size", None),
    )  # fmt: skip


def compile_gemm(problem: Gemm, config: TileConfig, target: str) -> CompiledKernel:
    """Compile the reference matrix product for ``problem`` and ``config``; see `compile_kernel`."""
    return compile_launch(launch_of(problem, config), target)


def compile_launch(launch: Launch, target: str) -> CompiledKernel:
    """Compile one launch of a reference kernel; see `compile_kernel`."""
    specialization = specialize(
        launch.kernel.arg_names, launch.pointers, launch.integers, launch.constexprs, launch.floats
    )
    return compile_kernel(launch.kernel, specialization, target, launch.options)


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Return registers and stack bytes per thread of a cubin's kernel.

    Read with ``cuobjdump -res-usage`` from the Triton wheel. Where a cubin holds several
    functions, the largest counts.
    """
    from triton import knobs  # noqa: PLC0415  # optional extra

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        listing = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    found = [tuple(map(int, match)) for match in _USAGE.findall(listing)]
    return max(f[0] for f in found), max(f[1] + f[3] for f in found)


def compute_capability(target: str) -> int:
    """Return 90 for ``sm_90``.

    Raises:
        UsageError: another form; the message shows the right one.
    """
    match = re.fullmatch(r"sm_(\d{2,3})a?", target)
    if match is None:
        raise UsageError(f"target {target!r} is not a CUDA architecture; use a name such as sm_90")
    return int(match[1])


def _attributes(
    specialization: Specialization, triton_version: str
) -> dict[tuple[int, ...], list[list[Any]]]:
    """What is known of each argument, in the launcher's own form, on which Triton's key depends.

    It knows nothing of numbers with a fraction, and lists none. Up to 3.6 it leaves compile-time
    arguments out as well, save those that are texts.
    """
    all_listed = tuple(map(int, re.findall(r"\d+", triton_version)[:2])) >= (3, 7)
    return {
        (position,): [list(fact) for fact in specialization.attrs.get((position,), ())]
        for position, (name, kind) in enumerate(specialization.signature.items())
        if kind != "fp32"
        and (
            all_listed
            or kind != "constexpr"
            or isinstance(specialization.constexprs.get(name), str)
        )
    }


def _pointer_type(dtype: DType) -> str:
    found = POINTER_TYPES.get(dtype.name)
    if found is None:
        raise UsageError(
            f"Triton kernels cannot take {dtype} operands; use one of: {', '.join(POINTER_TYPES)}"
        )
    return found
