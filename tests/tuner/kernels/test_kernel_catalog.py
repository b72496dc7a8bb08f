"""The catalogue: kernels by name, problems that they refuse, and results that are wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace

import pytest

from perfmodel.errors import InvalidConfigError, InvalidProblemError, UsageError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Attention, Gemm, GroupedGemm
from perfmodel.problems.dtypes import BF16, FP16, INT32
from perfmodel.tiling.config import TileConfig
from tuner.kernels.catalog import KERNELS, ReferenceKernel, find
from tuner.kernels.execution import Tolerance, disagreement, tolerance_of
from tuner.kernels.inputs import attention_inputs
from tuner.kernels.language import INSTALLED

needs_triton = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def test_an_unknown_kernel_is_an_error_that_lists_all() -> None:
    with pytest.raises(UsageError, match=r"'atention' \(did you mean 'attention'\?\)"):
        find("atention")


def test_names_are_unique_and_every_example_has_a_space() -> None:
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)
    gpu = load_gpu("h100-sxm5")
    for kernel in KERNELS:
        for problem in kernel.examples:
            assert kernel.refuses(problem) is None
            assert len(list(kernel.space(problem, gpu))) > 10


@pytest.mark.parametrize(
    ("name", "problem", "words"),
    [
        ("gemm", Gemm(8, 8, 8, a_dtype="fp64"), "fp64 is not a type"),
        ("gemm", Attention(1, 8), "it computes gemm problems"),
        ("gemm_persistent", Gemm(8, 8, 8, batch=2), "one matrix"),
        ("gemm_row_scaled", Gemm(8, 8, 8, a_dtype="int8"), "give out_dtype='bf16'"),
        ("gemm_weight_only", Gemm(8, 8, 8), "int8 or int4 weights"),
        ("gemm", Gemm(8, 8, 8, backend="cublas"), "library kernel"),
        ("attention", Attention(1, 8, page_size=16), "decode kernel's"),
        ("attention", Attention(1, 8, backward=True), "backward kernels'"),
        ("attention_backward", Attention(1, 8), "forward kernels'"),
        ("attention_decode", Attention(1, 1, 8, dtype="int8"), "int8 is not a type"),
        ("grouped_gemm", GroupedGemm(8, 4, 2, 8, 8, weight_dtype="int4"), "int4 is not a type"),
        ("grouped_gemm", GroupedGemm(8, 4, 2, 8, 8, dtype="fp8", weight_dtype="bf16"),
         "not multiplied with one another"),
    ],
)  # fmt: skip
def test_a_problem_that_a_kernel_does_not_compute_is_refused_with_the_reason(
    name: str, problem: object, words: str
) -> None:
    with pytest.raises(InvalidProblemError, match=words):
        find(name).require(problem)


@needs_triton
def test_no_parameter_is_ignored_in_silence() -> None:
    problem = Gemm(64, 64, 64)
    with pytest.raises(InvalidConfigError, match="kernel gemm does not split"):
        find("gemm").planned(problem, TileConfig(split_k=2))
    with pytest.raises(InvalidConfigError, match="takes no parameter 'programs'"):
        find("gemm").planned(problem, TileConfig(extras=(("programs", 8),)))


@needs_torch
def test_the_same_seed_gives_the_same_inputs_and_never_constants() -> None:
    problems: dict[str, object] = {
        "gemm": Gemm(30, 20, 40, a_layout="col", lda=64),
        "attention": Attention(q_len=[5, 9], q_heads=2, head_dim=16),
        "grouped_gemm": GroupedGemm(12, 4, 2, 16, 16),
    }
    for kernel in KERNELS:
        problem = small(kernel, problems)
        first, second, other = (kernel.inputs(problem, seed, "cpu") for seed in (3, 3, 4))
        for name, tensor in first.items():
            assert tensor.double().equal(second[name].double()), name
            if tensor.dtype.is_floating_point and tensor.numel() > 1:
                assert tensor.double().std() > 0
                assert not tensor.double().equal(other[name].double())


def small(kernel: ReferenceKernel, problems: dict[str, object]) -> object:
    """A problem small enough to make in no time."""
    if kernel.refuses(problems[kernel.family]) is None:
        return problems[kernel.family]
    sizes = {
        "gemm": {"m": 30, "n": 20, "k": 40, "lda": None, "ldb": None},
        "attention": {"batch": 2, "q_len": 9, "kv_len": 9, "window": None},
    }
    return replace(kernel.examples[0], **sizes[kernel.family])


@needs_torch
def test_pages_of_a_cache_are_scattered_and_belong_to_one_sequence_each() -> None:
    made = attention_inputs(Attention(q_len=1, kv_len=[33, 1, 64], page_size=16))
    table = made["pages"]
    assert table.tolist()[1][1:] == [-1, -1, -1]
    used = table[table >= 0].tolist()
    assert len(set(used)) == len(used) == 3 + 1 + 4
    assert used != sorted(used)
    assert made["k"].shape[0] >= 16 * (max(used) + 1)


@needs_torch
def test_wrong_results_are_found_and_rounding_is_not_one() -> None:
    import torch  # noqa: PLC0415 - optional extra

    want = torch.randn(64, 64, dtype=torch.float64)
    tolerance = tolerance_of(BF16, BF16, roundings=0)
    assert disagreement(want.bfloat16(), want, tolerance) is None
    assert "4096 of 4096 elements are wrong" not in str(disagreement(want, want, tolerance))
    assert "elements are wrong" in str(disagreement(torch.zeros_like(want), want, tolerance))
    one_wrong = want.clone()
    one_wrong[5, 7] += 0.5
    assert "1 of 4096" in str(disagreement(one_wrong, want, tolerance))
    one_wrong[5, 7] = torch.nan
    assert "not finite" in str(disagreement(one_wrong, want, tolerance))
    assert "shape" in str(disagreement(want[1:], want, tolerance))
    exact = tolerance_of(FP16, INT32, roundings=0)
    assert exact == Tolerance(0.0, 0.0)


def test_a_kernel_that_writes_zeros_or_nothing_is_caught(interpret: Callable[[str], None]) -> None:
    interpret("""
from dataclasses import replace
from tuner.kernels import catalog
gemm, problem = find("gemm"), Gemm(40, 40, 40, a_dtype="fp16")
tile = TileConfig(32, 32, 32, num_warps=4, num_stages=2)

def cut(problem, config):
    plan = gemm.plan(problem, config)
    (launch,) = plan.launches
    return replace(plan, launches=(replace(launch, **change(launch)),))

broken = replace(gemm, plan=cut)
change = lambda launch: {"integers": {**launch.integers, "K": 0}}
assert "are wrong" in broken.verify(problem, tile)
change = lambda launch: {"grid": (1,)}
assert "not finite" in broken.verify(problem, tile)
change = lambda launch: {}
assert broken.verify(problem, tile) is None
""")
