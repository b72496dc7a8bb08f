"""Every reference kernel by name: what it computes, how it is launched, and how it is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfmodel.errors import InvalidProblemError, UsageError, closest
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import parse_dtype
from perfmodel.tiling.config import TileConfig
from tuner.kernels import attention, decode
from tuner.kernels.execution import (
    Tensors,
    Tolerance,
    allocate,
    disagreement,
    execute,
    tolerance_of,
)
from tuner.kernels.inputs import attention_inputs
from tuner.kernels.launch import Plan
from tuner.kernels.references import attention_reference
from tuner.kernels.spaces import attention_space, decode_space

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ReferenceKernel:
    """One kernel, or a fixed sequence of kernels, that computes a family of problems.

    Args:
        name: by which it is found and recorded.
        family: the problems' family: ``gemm``, ``attention``, ``grouped_gemm``.
        refuses: why it does not compute a problem, ``None`` where it does.
        plan: launches for a problem and a configuration; see `planned`.
        space: configurations worth trying for a problem on a device.
        inputs: random inputs of a problem from a seed, on a torch device.
        reference: the results in float64, from the same inputs.
        tolerance: how far from them a result may be.
        examples: small and typical problems, for a tour of all that the kernel can do.
    """

    name: str
    family: str
    refuses: Callable[[Any], str | None]
    plan: Callable[[Any, TileConfig], Plan]
    space: Callable[[Any, Gpu], Sequence[TileConfig]]
    inputs: Callable[[Any, int, str], Tensors]
    reference: Callable[[Any, Mapping[str, torch.Tensor]], Tensors]
    tolerance: Callable[[Any], Tolerance]
    examples: tuple[Any, ...]

    def require(self, problem: Any) -> None:
        """Raise unless this kernel computes ``problem``.

        Raises:
            InvalidProblemError: it does not; the message says why.
        """
        reason = self.refuses(problem) if problem.family == self.family else (
            f"it computes {self.family} problems"
        )  # fmt: skip
        if reason is not None:
            raise InvalidProblemError(f"kernel {self.name} does not compute {problem}: {reason}")

    def planned(self, problem: Any, config: TileConfig) -> Plan:
        """Return the launches that compute ``problem`` under ``config``.

        Raises:
            InvalidProblemError: this kernel does not compute it.
            NotInstalledError: Triton is absent.
        """
        self.require(problem)
        return self.plan(problem, config)

    def verify(
        self, problem: Any, config: TileConfig, *, seed: int = 0, device: str = "cpu"
    ) -> str | None:
        """Run once and return how the results differ from the reference; ``None`` if they do not.

        On a CPU this needs Triton's interpreter (``TRITON_INTERPRET=1``).
        """
        plan = self.planned(problem, config)
        inputs = self.inputs(problem, seed, device)
        tensors = {**inputs, **allocate(plan, device, marked=True)}
        execute(plan, tensors)
        wanted = self.reference(problem, inputs)
        for name in plan.outputs:
            wrong = disagreement(tensors[name], wanted[name], self.tolerance(problem))
            if wrong is not None:
                return f"{name}: {wrong}"
        return None


def _attention_tolerance(problem: Attention) -> Tolerance:
    return tolerance_of(problem.compute_dtype, parse_dtype(problem.out_dtype or ""))


KERNELS: tuple[ReferenceKernel, ...] = (
    ReferenceKernel(
        "attention", "attention", attention.refuses, attention.plan, attention_space,
        attention_inputs, attention_reference, _attention_tolerance,
        examples=(Attention(1, 1024, q_heads=8, head_dim=128),),
    ),
    ReferenceKernel(
        "attention_decode", "attention", decode.refuses, decode.plan, decode_space,
        attention_inputs, attention_reference, _attention_tolerance,
        examples=(Attention(8, 1, 4096, q_heads=32, kv_heads=8, page_size=16),),
    ),
)  # fmt: skip
"""All of them, in a fixed order."""


def find(name: str) -> ReferenceKernel:
    """Return the kernel called ``name``.

    Raises:
        UsageError: there is none; the message lists all.
    """
    for kernel in KERNELS:
        if kernel.name == name:
            return kernel
    names = [kernel.name for kernel in KERNELS]
    raise UsageError(
        f"no reference kernel is called {name!r}{closest(name, names)}; use one of: "
        f"{', '.join(names)}"
    )


__all__ = ["KERNELS", "ReferenceKernel", "find"]
