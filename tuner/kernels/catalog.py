"""Every reference kernel by name: what it computes, how it is launched, and how it is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfmodel.errors import InvalidConfigError, InvalidProblemError, UsageError, closest
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import parse_dtype
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels import (
    attention,
    attention_backward,
    decode,
    gemm,
    gemm_persistent,
    gemm_scaled,
    gemm_split_k,
    gemm_weight_only,
    inputs,
    moe,
    moe_inputs,
    references,
    spaces,
)
from tuner.kernels.execution import (
    ROUNDING,
    Tensors,
    Tolerance,
    allocate,
    disagreement,
    execute,
    tolerance_of,
)
from tuner.kernels.launch import Plan

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
        examples: typical problems of each type, for a tour of all that the kernel can do.
        splits: whether ``split_k`` of a configuration has a meaning to it.
        extras: the names of further parameters that it takes.
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
    splits: bool = False
    extras: tuple[str, ...] = ()

    def require(self, problem: Any) -> None:
        """Raise unless this kernel computes ``problem``.

        Raises:
            InvalidProblemError: it does not; the message says why.
        """
        reason = self.refuses(problem) if problem.family == self.family else (
            f"it computes {self.family} problems"
        )  # fmt: skip
        if reason is not None:
            sizes = ", ".join(f"{k}={v}" for k, v in problem.to_dict().items() if v is not None)
            raise InvalidProblemError(
                f"kernel {self.name} does not compute this problem: {reason} ({sizes})"
            )

    def planned(self, problem: Any, config: TileConfig) -> Plan:
        """Return the launches that compute ``problem`` under ``config``.

        Raises:
            InvalidProblemError: this kernel does not compute it.
            InvalidConfigError: a parameter would be ignored, so that what ran were not ``config``.
            NotInstalledError: Triton is absent.
        """
        self.require(problem)
        if config.split_k != 1 and not self.splits:
            raise InvalidConfigError(
                f"split_k is {config.split_k}, but kernel {self.name} does not split; use 1"
            )
        for name, _ in config.extras:
            if name not in self.extras:
                raise InvalidConfigError(
                    f"kernel {self.name} takes no parameter {name!r}; it takes "
                    f"{', '.join(self.extras) or 'none beyond those of a tile'}"
                )
        return self.plan(problem, config)

    def verify(
        self, problem: Any, config: TileConfig, *, seed: int = 0, device: str = "cpu"
    ) -> str | None:
        """Run once and return how the results differ from the reference; ``None`` if they do not.

        On a CPU this needs Triton's interpreter (``TRITON_INTERPRET=1``).
        """
        plan = self.planned(problem, config)
        given = self.inputs(problem, seed, device)
        tensors = {**given, **allocate(plan, device, marked=True)}
        execute(plan, tensors)
        wanted = self.reference(problem, given)
        for name in plan.outputs:
            wrong = disagreement(tensors[name], wanted[name], self.tolerance(problem))
            if wrong is not None:
                return f"{name}: {wrong}"
        return None


def _attention_tolerance(problem: Attention) -> Tolerance:
    return tolerance_of(problem.compute_dtype, parse_dtype(problem.out_dtype or ""))


def _gradient_tolerance(problem: Attention) -> Tolerance:
    result = max(
        (problem.dtype, parse_dtype(problem.kv_dtype or "")), key=lambda d: ROUNDING[d.name]
    )
    return tolerance_of(problem.compute_dtype, result, roundings=2)


def _gemm_tolerance(problem: Gemm) -> Tolerance:
    return tolerance_of(problem.compute_dtype, parse_dtype(problem.out_dtype or ""), roundings=0)


def _weight_only_tolerance(problem: Gemm) -> Tolerance:
    return tolerance_of(problem.compute_dtype, parse_dtype(problem.out_dtype or ""))


KERNELS: tuple[ReferenceKernel, ...] = (
    ReferenceKernel(
        "gemm", "gemm", gemm.refuses, gemm.plan, spaces.gemm_space,
        inputs.gemm_inputs, references.gemm_reference, _gemm_tolerance,
        examples=(
            Gemm(4096, 4096, 4096, a_dtype="bf16"),
            Gemm(4096, 4096, 4096, a_dtype="tf32"),
            Gemm(4096, 4096, 4096, a_dtype="fp8_e4m3"),
            Gemm(4096, 4096, 4096, a_dtype="int8"),
            Gemm(4096, 4096, 4096, a_dtype="fp16", a_layout="col", b_layout="col"),
            Gemm(4095, 4095, 4095, a_dtype="fp16"),
        ),
    ),
    ReferenceKernel(
        "gemm_persistent", "gemm", gemm_persistent.refuses, gemm_persistent.plan,
        spaces.persistent_space, inputs.gemm_inputs, references.gemm_reference, _gemm_tolerance,
        examples=(Gemm(8192, 8192, 4096), Gemm(8192, 8192, 4096, a_dtype="fp8_e4m3")),
        extras=(gemm_persistent.PROGRAMS,),
    ),
    ReferenceKernel(
        "gemm_split_k", "gemm", gemm_split_k.refuses, gemm_split_k.plan, spaces.split_k_space,
        inputs.gemm_inputs, references.gemm_reference, _gemm_tolerance,
        examples=(Gemm(64, 4096, 8192), Gemm(64, 4096, 8192, a_dtype="fp8_e4m3")),
        splits=True,
    ),
    ReferenceKernel(
        "gemm_row_scaled", "gemm", gemm_scaled.refuses, gemm_scaled.plan_rows, spaces.gemm_space,
        inputs.row_scaled_inputs, references.row_scaled_reference, _gemm_tolerance,
        examples=(
            Gemm(4096, 4096, 4096, a_dtype="fp8_e4m3", b_layout="col"),
            Gemm(4096, 4096, 4096, a_dtype="int8", b_layout="col", out_dtype="bf16"),
        ),
    ),
    ReferenceKernel(
        "gemm_block_scaled", "gemm", gemm_scaled.refuses, gemm_scaled.plan_blocks,
        spaces.scaled_space, inputs.block_scaled_inputs, references.block_scaled_reference,
        _gemm_tolerance,
        examples=(Gemm(4096, 4096, 4096, a_dtype="fp8_e4m3", b_layout="col"),),
    ),
    ReferenceKernel(
        "gemm_weight_only", "gemm", gemm_weight_only.refuses, gemm_weight_only.plan,
        spaces.scaled_space, inputs.weight_only_inputs, references.weight_only_reference,
        _weight_only_tolerance,
        examples=(
            Gemm(64, 4096, 4096, a_dtype="bf16", b_dtype="int8"),
            Gemm(64, 4096, 4096, a_dtype="bf16", b_dtype="int4"),
        ),
    ),
    ReferenceKernel(
        "attention", "attention", attention.refuses, attention.plan, spaces.attention_space,
        inputs.attention_inputs, references.attention_reference, _attention_tolerance,
        examples=(
            Attention(1, 4096, q_heads=32, kv_heads=8, head_dim=128),
            Attention(1, 4096, q_heads=32, head_dim=64, causal=False, dtype="fp16"),
            Attention(1, 4096, q_heads=8, head_dim=128, window=1024),
            Attention(1, 4096, q_heads=8, head_dim=256),
            Attention(1, 4096, q_heads=8, head_dim=512),
            Attention(1, 4096, q_heads=8, head_dim=16),
            Attention(q_len=[1000, 3000], q_heads=8, head_dim=80),
            Attention(1, 4096, q_heads=8, head_dim=128, dtype="fp8_e4m3"),
        ),
    ),
    ReferenceKernel(
        "attention_decode", "attention", decode.refuses, decode.plan, spaces.decode_space,
        inputs.attention_inputs, references.attention_reference, _attention_tolerance,
        examples=(
            Attention(8, 1, 4096, q_heads=32, kv_heads=8, page_size=16),
            Attention(8, 1, 4096, q_heads=32, kv_heads=8, page_size=16, kv_dtype="fp8_e4m3"),
            Attention(
                8, 1, 4096, q_heads=16, kv_heads=1, head_dim=576, v_head_dim=512, page_size=64,
                shared_kv=True,
            ),
        ),
        splits=True,
    ),
    ReferenceKernel(
        "attention_backward", "attention", attention_backward.refuses, attention_backward.plan,
        spaces.attention_space, inputs.gradient_inputs, references.attention_gradients,
        _gradient_tolerance,
        examples=(
            Attention(1, 4096, q_heads=32, kv_heads=8, head_dim=128, backward=True),
            Attention(1, 4096, q_heads=32, head_dim=64, causal=False, backward=True, dtype="fp16"),
            Attention(1, 4096, q_heads=8, head_dim=256, backward=True),
            Attention(1, 4096, q_heads=8, head_dim=512, backward=True),
        ),
    ),
    ReferenceKernel(
        "grouped_gemm", "grouped_gemm", moe.refuses, moe.plan, spaces.moe_space,
        moe_inputs.moe_inputs, moe_inputs.moe_reference, moe_inputs.moe_tolerance,
        examples=(
            GroupedGemm(1024, 8, 2, 4096, 14336),
            GroupedGemm(256, 128, 8, 4096, 1536, dtype="fp8_e4m3"),
            GroupedGemm(256, 64, 6, 2048, 1408, weight_dtype="int8"),
        ),
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
