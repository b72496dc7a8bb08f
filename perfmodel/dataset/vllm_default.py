"""The configuration that vLLM's fused MoE kernel takes where it finds no table.

The rule of vLLM since pull request 34846 (February 2026), in our words; options that it leaves out
are Triton's own, 4 warps and 3 stages.
"""

from __future__ import annotations

from perfmodel.dataset.vllm_key import quantisation
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import TileConfig

AMD_STAGES = 2
WNA16_CUDA_ROWS = 6.0
"""Routed rows an expert up to which vLLM multiplies 4-bit weights in a CUDA kernel of its own."""


def vllm_default(
    problem: GroupedGemm, gpu: Gpu, block_shape: tuple[int, int] | None = None
) -> TileConfig | None:
    """Return vLLM's default configuration, ``None`` where it takes a kernel without Triton tiles.

    Raises:
        InvalidProblemError: vLLM has no such kernel.
    """
    tokens, experts = problem.tokens, problem.experts // problem.ep
    kind, amd = quantisation(problem), gpu.vendor == "amd"
    if kind == "fp8_w8a8" and block_shape is not None:
        return TileConfig(
            block_m=16 if tokens <= 64 else 64,
            block_n=block_shape[0],
            block_k=block_shape[1],
            group_m=1 if tokens <= 16 else 32,
            num_warps=4,
            num_stages=AMD_STAGES if amd else 3,
        )
    if kind in ("int4_w4a16", "int8_w8a16") and block_shape is not None:
        rows = tokens * problem.top_k / experts
        group_fits = block_shape[1] in (32, 64, 128)
        if kind == "int4_w4a16" and group_fits and rows <= WNA16_CUDA_ROWS:
            return None
        one = tokens == 1
        return TileConfig(
            block_m=_first_that_holds(tokens, (20, 16), (40, 32)) or 64,
            block_n=32 if one else 64,
            block_k=64 if one else 32,
            group_m=1,
        )
    deep = kind == "fp8_w8a8" or tokens <= 64
    few_stages = 4 if tokens <= 32 else 3
    return TileConfig(
        block_m=_first_that_holds(tokens, (32, 16), (96, 32), (512, 64)) or 128,
        block_n=64 if tokens <= 64 else 128,
        block_k=128 if deep else 64,
        group_m=16 if tokens // experts > 128 else 1,
        num_warps=4 if tokens <= 128 else 8,
        num_stages=AMD_STAGES if amd else few_stages,
    )


def _first_that_holds(tokens: int, *steps: tuple[int, int]) -> int | None:
    return next((value for limit, value in steps if tokens <= limit), None)
