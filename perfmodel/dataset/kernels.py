"""Which library kernel a row is of: from the sources' names to one identity.

A row's identity is written ``LIBRARY/BACKEND@VERSION`` (`perfmodel.problems.library`): the
framework that launched it, whose kernel it is, and the framework's version, for instance
``vllm/flash_attention_3@0.24.0``. The row's ``kernel`` is finer: the source's own name for it, with
the quantisation where types do not tell it.

What answers for a kernel that was never seen on a device, in this order:

1. the same backend in the same framework, in the newest version that is not newer, else in the
   oldest newer one;
2. the same backend in another framework;
3. another backend of the same framework;
4. nothing: the analytic estimate, named as such.

Where only a backend is named (``flash_attention_3``), any framework's rows of it are the same
kernel, newest version first.
"""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from perfmodel.problems.library import LibraryKernel
from perfmodel.problems.library import stand_in as stand_in  # noqa: PLC0414 - part of this module

UNNAMED = "default"
"""The backend of kernels that a source names only after its framework."""

_BACKENDS = (
    (r"deepgemm", "deepgemm"),
    (r"marlin", "marlin"),
    (r"(fa|flash_attention_v|flash_attn_)4", "flash_attention_4"),
    (r"(fa|flash_attention_v|flash_attn_)3", "flash_attention_3"),
    (r"(fa|flash_attention_v|flash_attn_)2", "flash_attention_2"),
    (r"flash_att", "flash_attention"),
    (r"triton|fused_moe", "triton"),
    (r"xpu", "xpu"),
    (r"flashinfer_trtllm|trtllm_mha", "trtllm"),
    (r"cutedsl", "cute_dsl"),
    (r"cutlass|sgl_kernel_fp8_scaled_mm", "cutlass"),
    (r"flashinfer", "flashinfer"),
    (r"torch_linear|functional\.linear", "cublas"),
    (r"torch_flow|trt_flow", "trtllm"),
)
"""Pattern of a source's kernel name and whose kernel that is; the first that fits counts.

FlashInfer launches TRT-LLM's kernels as well as its own; torch's linear calls cuBLAS; the unmarked
fused MoE kernels of vLLM and SGLang are their Triton ones."""


def backend_of(kernel: str) -> str:
    """Return whose kernel the source's name ``kernel`` stands for."""
    for pattern, backend in _BACKENDS:
        if re.search(pattern, kernel.lower()):
            return backend
    return UNNAMED


def identities(frame: pd.DataFrame) -> dict[LibraryKernel, int]:
    """Return the library kernels of ``frame``'s rows and how many rows each has."""
    names = ["library", "backend", "library_version"]
    counts = frame.loc[frame["is_library"], names].astype(object).value_counts(dropna=False)
    return {
        LibraryKernel(*(_text(value) for value in identity)): int(rows)
        for identity, rows in zip(counts.index, counts, strict=True)
    }


def _text(value: Any) -> Any:
    return None if pd.isna(value) else str(value)
