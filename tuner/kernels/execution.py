"""Run a plan on tensors, and compare what it gave with what it should have given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfmodel.problems.dtypes import DType
from tuner.kernels.launch import Launch, Plan

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]

ROUNDING = {
    "fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8,
    "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3, "int32": 0.0, "int8": 0.0,
}  # fmt: skip
"""Largest relative error of rounding to each type: half a unit in its last place."""


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from the float64 reference.

    An element may differ by ``relative`` of itself plus ``of_typical`` of the root mean square of
    the whole reference: sums whose terms cancel carry the terms' error, not their own.
    """

    relative: float
    of_typical: float


def tolerance_of(inputs: DType, result: DType, roundings: int = 1) -> Tolerance:
    """Return the tolerance of a chain of products.

    Args:
        inputs: type of the products' operands; intermediate results (softmax weights, activations)
            are rounded to it.
        result: type that the result is rounded to.
        roundings: how many intermediate results are rounded on the way; 0 for a single product,
            whose operands are exact unless they are tf32.

    Rounding errors of many terms are independent, so their sum is of the typical element's size
    times one rounding; 8 of those are allowed, as an extreme of millions of elements needs.
    """
    steps = max(roundings, 1) if inputs.name == "tf32" else roundings
    return Tolerance(
        relative=2 * ROUNDING[result.name],
        of_typical=8 * ROUNDING[inputs.name] * steps + _accumulation(inputs, result),
    )


def _accumulation(inputs: DType, result: DType) -> float:
    """Error of a sum of thousands of products, as a share of it."""
    if result.name.startswith("int"):
        return 0.0
    # Hopper's tensor cores keep 14 bits of a sum of fp8 products, which costs up to 2 % at
    # K = 4096 (DeepSeek-V3 technical report, section 3.3.2).
    return 2.0**-5 if inputs.name.startswith("fp8") else 2.0**-12


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return torch's type object that stores ``dtype``; 4-bit integers are stored two in a byte."""
    import torch  # noqa: PLC0415 - optional extra

    found = torch.uint8 if dtype.bits == 4 else getattr(torch, dtype.torch_name)
    assert isinstance(found, torch.dtype)
    return found


def allocate(plan: Plan, device: str = "cpu", *, marked: bool = False) -> Tensors:
    """Return the plan's buffers; ``marked`` fills them so that what is never written shows."""
    import torch  # noqa: PLC0415 - optional extra

    made = {}
    for name, buffer in plan.buffers.items():
        tensor = torch.empty(buffer.shape, dtype=torch_dtype(buffer.dtype), device=device)
        if marked:
            if tensor.dtype.is_floating_point:
                tensor.copy_(torch.full_like(tensor, math.nan, dtype=torch.float32))
            else:
                tensor.fill_(torch.iinfo(tensor.dtype).max)
        made[name] = tensor
    return made


def execute(plan: Plan, tensors: Mapping[str, torch.Tensor]) -> None:
    """Launch everything in order; ``tensors`` holds the inputs and the buffers."""
    for launch in plan.launches:
        run(launch, tensors)


def run(launch: Launch, tensors: Mapping[str, torch.Tensor]) -> None:
    """Launch once; without a program there is nothing to launch."""
    if launch.programs == 0:
        return
    launch.kernel[launch.grid](
        **{name: tensors[launch.tensor_of(name)] for name in launch.pointers},
        **launch.integers, **launch.floats, **launch.constexprs, **launch.options,
    )  # fmt: skip


def disagreement(got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance) -> str | None:
    """Return how ``got`` differs from the float64 ``want`` by more than allowed, or ``None``."""
    if tuple(got.shape) != tuple(want.shape):
        return f"shape is {tuple(got.shape)}, but {tuple(want.shape)} was expected"
    if got.numel() == 0:
        return None
    want = want.double()
    found = got.to(want.device).double()
    unwritten = int((~found.isfinite()).sum())
    if unwritten:
        return f"{unwritten} of {got.numel()} elements are not finite numbers"
    typical = float(want.square().mean().sqrt())
    allowed = tolerance.relative * want.abs() + tolerance.of_typical * typical
    error = (found - want).abs()
    wrong = error > allowed
    count = int(wrong.sum())
    if not count:
        return None
    worst = int((error - allowed).argmax())
    return (
        f"{count} of {got.numel()} elements are wrong; the worst is "
        f"{float(found.flatten()[worst]):.6g} where {float(want.flatten()[worst]):.6g} was "
        f"expected, and {float(allowed.flatten()[worst]):.2g} of difference is allowed"
    )


__all__ = [
    "Tolerance", "allocate", "disagreement", "execute", "run", "tolerance_of", "torch_dtype",
]  # fmt: skip
