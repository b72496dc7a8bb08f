from __future__ import annotations

import pytest

from perfmodel.errors import InvalidProblemError
from perfmodel.problems import Gemm, LibraryKernel
from perfmodel.problems.library import nearest_kernel, version_key

KNOWN = [
    LibraryKernel.parse(text)
    for text in (
        "vllm/fa3@0.9.0", "vllm/fa3@0.10.1", "vllm/fa3@0.12.0", "vllm/flashinfer@0.12.0",
        "sglang/fa3@0.5.6", "trtllm/default@1.1.0rc5", "trtllm/default@1.1.0",
    )
]  # fmt: skip


@pytest.mark.parametrize("text", ["cublas", "vllm/fa3", "cublas@12.4", "trtllm/x@1.0.0rc3"])
def test_an_identity_is_what_was_written(text: str) -> None:
    assert str(LibraryKernel.parse(text)) == text


@pytest.mark.parametrize(
    ("wanted", "found", "reason"),
    [
        ("vllm/fa3@0.10.1", "vllm/fa3@0.10.1", ""),
        ("vllm/fa3", "vllm/fa3@0.12.0", ""),
        ("vllm/fa3@0.11.0", "vllm/fa3@0.10.1", "another version"),
        ("vllm/fa3@0.1", "vllm/fa3@0.9.0", "another version"),
        ("trtllm/default@1.1.0rc6", "trtllm/default@1.1.0rc5", "another version"),
        ("atom/fa3@1", "vllm/fa3@0.12.0", "the same kernel elsewhere"),
        ("sglang/triton@0.5", "sglang/fa3@0.5.6", "another kernel of that backend"),
    ],
)
def test_the_nearest_known_kernel_answers_and_is_named(
    wanted: str, found: str, reason: str
) -> None:
    answer = nearest_kernel(LibraryKernel.parse(wanted), KNOWN)
    assert answer is not None
    kernel, why = answer
    assert str(kernel) == found
    assert reason in why
    assert not reason or (wanted in why and found in why)


def test_nothing_near_is_said_to_be_nothing() -> None:
    assert nearest_kernel(LibraryKernel("deepgemm"), KNOWN) is None


def test_versions_are_ordered_by_their_numbers() -> None:
    ordered = ["0.9.0", "0.10.0rc1", "0.10.0", "0.10.0.post1", "0.10.1", "1.0"]
    mixed = ["1.0", "0.10.0", "0.9.0", "0.10.1", "0.10.0.post1", "0.10.0rc1"]
    assert sorted(mixed, key=version_key) == ordered


def test_triton_is_no_library() -> None:
    assert Gemm(1, 2, 3, backend="triton") == Gemm(1, 2, 3)
    named = Gemm(1, 2, 3, backend="cuBLAS@12.4")
    assert named.backend == LibraryKernel("cublas", None, "12.4")
    assert Gemm(**named.to_dict()) == named
    assert "backend" not in Gemm(1, 2, 3).to_dict()


@pytest.mark.parametrize("bad", ["", "a/b/c", 7])
def test_what_is_no_identity_is_refused(bad: object) -> None:
    with pytest.raises(InvalidProblemError, match="backend is"):
        Gemm(1, 2, 3, backend=bad)  # type: ignore[arg-type]  # on purpose
