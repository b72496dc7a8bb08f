"""A few library kernels whose features a shape-level model remembers; see `learned.probes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.probes import DIGITS
from perfmodel.learned.shape_features import kernel_columns, shape_matrix
from perfmodel.learned.shape_table import shape_columns
from perfmodel.problems.attention import Attention
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.problems.grouped_gemm_table import GroupedGemmTable

GPUS = ("a100-sxm4-80gb", "h100-sxm5", "b200")
"""With neither, with the first and with the second kind of asynchronous products."""

KERNEL = ("vllm", "triton", False)

_GEMMS = ((4096, 4096, 4096), (17, 5120, 333))
_LAYERS = ((4096, 8, 2, 4096, 14336, 1, 1), (48, 128, 8, 2048, 768, 8, 2))


def _gemms(dtype: str) -> GemmTable:
    return GemmTable.of_problems(
        [Gemm(m, n, k, a_dtype=dtype, out_dtype="bf16") for m, n, k in _GEMMS]
    )


def _attention(q_lens: Sequence[int]) -> AttentionTable:
    one, other = q_lens
    return AttentionTable.of_problems(
        [
            Attention(batch=4, q_len=one, kv_len=8192, q_heads=32, kv_heads=8, head_dim=128),
            Attention(batch=1, q_len=other, kv_len=1000, q_heads=6, kv_heads=2, window=128),
        ]
    )


def _experts(dtype: str) -> GroupedGemmTable:
    return GroupedGemmTable.of_problems(
        [
            GroupedGemm(*sizes, dtype=dtype, routing=routing)
            for sizes, routing in zip(_LAYERS, ("balanced", "power-law:1.2"), strict=True)
        ]
    )


def shape_probes(family: str) -> tuple[tuple[float, ...], ...]:
    """Return the features of a model's probes, rounded, one tuple a launch.

    Args:
        family: ``gemm``, ``gemm-fp8``, ``prefill``, ``decode``, ``moe`` or ``moe-fp8``.
    """
    dtype = "fp8_e4m3" if family.endswith("-fp8") else "bf16"
    kind = family.removesuffix("-fp8")
    rows = []
    for name in GPUS:
        gpu = load_gpu(name)
        if dtype not in gpu.tensor_tflops:
            continue
        if kind == "gemm":
            table: GemmTable | AttentionTable | GroupedGemmTable = _gemms(dtype)
        elif kind == "moe":
            table = _experts(dtype)
        else:
            table = _attention(_QUERIES[kind])
        columns, found = shape_columns(table, gpu)
        columns |= kernel_columns(*KERNEL)
        rows += shape_matrix(columns, len(found)).tolist()
    return tuple(tuple(float(f"{v:.{DIGITS}g}") for v in row) for row in rows)


_QUERIES: Mapping[str, tuple[int, int]] = {"prefill": (4096, 300), "decode": (1, 1)}
