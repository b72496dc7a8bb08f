from __future__ import annotations

import pandas as pd
import pytest

from perfmodel.dataset.kernels import UNNAMED, backend_of, identities, stand_in
from perfmodel.problems.library import LibraryKernel


@pytest.mark.parametrize(
    ("kernel", "backend"),
    [
        ("torch.nn.functional.linear", "cublas"),
        ("vllm_flash_attn_fa3", "flash_attention_3"),
        ("flash_attention_v4", "flash_attention_4"),
        ("vllm_flashinfer_trtllmdecode", "trtllm"),
        ("vllm_flashinfer_fidecode", "flashinfer"),
        ("moe_torch_flow_triton_fp8_block", "triton"),
        ("DeepGemmFp8BlockScaledMMKernel", "deepgemm"),
        ("sglang", UNNAMED),
    ],
)
def test_whose_kernel_a_source_means(kernel: str, backend: str) -> None:
    assert backend_of(kernel) == backend


KNOWN = [
    LibraryKernel("vllm", "flash_attention_3", "0.22.0"),
    LibraryKernel("vllm", "flash_attention_3", "0.24.0"),
    LibraryKernel("sglang", "triton", "0.5.14"),
]


@pytest.mark.parametrize(
    ("wanted", "found", "named"),
    [
        ("vllm/flash_attention_3@0.24.0", "vllm/flash_attention_3@0.24.0", False),
        ("vllm/flash_attention_3@0.23.0", "vllm/flash_attention_3@0.22.0", True),
        ("vllm/flash_attention_3@0.1", "vllm/flash_attention_3@0.22.0", True),
        ("vllm/triton@0.24.0", "sglang/triton@0.5.14", True),
        ("sglang/marlin@0.5.14", "sglang/triton@0.5.14", True),
        ("flash_attention_3", "vllm/flash_attention_3@0.24.0", False),
    ],
)
def test_what_answers_for_a_kernel_in_the_documented_order(
    wanted: str, found: str, named: bool
) -> None:
    answer = stand_in(LibraryKernel.parse(wanted), KNOWN)
    assert answer is not None
    assert str(answer[0]) == found
    assert bool(answer[1]) is named


def test_nothing_answers_for_a_stranger() -> None:
    assert stand_in(LibraryKernel.parse("rocblas"), KNOWN) is None


def test_identities_count_the_library_rows() -> None:
    frame = pd.DataFrame({
        "is_library": [True, True, False], "library": ["vllm", "vllm", "x"],
        "backend": ["cublas", "cublas", "triton"], "library_version": ["1", None, "1"],
    })  # fmt: skip
    assert identities(frame) == {
        LibraryKernel("vllm", "cublas", "1"): 1, LibraryKernel("vllm", "cublas"): 1,
    }  # fmt: skip
