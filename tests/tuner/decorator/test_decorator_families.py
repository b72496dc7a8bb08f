"""Kernels of other families than the matrix product: a function says what they compute."""

# Arguments and names are those of kernels: constants in capitals, as Triton writes them.
# ruff: noqa: N803
from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tuner
from perfmodel.errors import TuningWarning, UnknownNameError, UsageError
from perfmodel.predictor import Predictor
from perfmodel.problems.attention import Attention
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.grouped_gemm import GroupedGemm

CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
    for m, n in ((256, 256), (64, 32), (128, 128), (64, 64))
    for warps in (4, 8)
    for stages in (2, 3)
]
SHAPE = {"q_ptr": torch.bfloat16, "B": 4, "H": 32, "HK": 8, "N_CTX": 4096, "HEAD_DIM": 128}


def attention_of(B: int, H: int, HK: int, N_CTX: int, HEAD_DIM: int, **_: Any) -> Attention:
    return Attention(
        batch=B, q_len=N_CTX, kv_len=N_CTX, q_heads=H, kv_heads=HK, head_dim=HEAD_DIM, dtype="bf16"
    )


def flash(**options: Any) -> Any:
    @tuner.autotune(
        **{
            "key": ["B", "H", "HK", "N_CTX", "HEAD_DIM"],
            "configs": CONFIGS,
            "family": "attention",
            "problem": attention_of,
            "gpu": "h100-sxm5",
        }
        | options,
    )
    @triton.jit
    def attend(
        q_ptr, B, H, HK, N_CTX, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
        BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        pass

    return attend


def test_attention_tiles_come_in_the_model_s_order() -> None:
    kernel = flash()
    account = kernel.explain(**SHAPE)
    best = Predictor().rank(
        attention_of(4, 32, 8, 4096, 128), "h100-sxm5", kernel.tile_set.table(
            tuple(range(len(CONFIGS))), SHAPE)[0],
    ).best  # fmt: skip
    chosen = tuner.config_for(kernel, **SHAPE)
    assert (chosen.kwargs["BLOCK_M"], chosen.kwargs["BLOCK_N"]) == (best.block_m, best.block_n)
    assert (chosen.num_warps, chosen.num_stages) == (best.num_warps, best.num_stages)
    illegal = [row for row in account.rows if str(row.fate) == "illegal"]
    assert {row.config.split(",")[0] for row in illegal} == {"BLOCK_M: 256"}
    assert "shared memory" in str(illegal[0].reason)
    assert "q_len=4096" in str(account.problem)


def test_attention_configs_are_made_for_the_device_and_split_nothing_without_a_name_for_it() -> (
    None
):
    chosen = tuner.config_for(flash(configs=None), **SHAPE)
    assert set(chosen.kwargs) == {"BLOCK_M", "BLOCK_N"}


def test_off_takes_the_first_that_the_device_can_run() -> None:
    chosen = tuner.config_for(flash(policy="off"), **SHAPE)
    assert (chosen.kwargs, chosen.num_warps) == ({"BLOCK_M": 64, "BLOCK_N": 32}, 4)


def test_a_mixture_of_experts_is_ranked_too() -> None:
    def layer(T: int, **_: Any) -> GroupedGemm:
        return GroupedGemm(tokens=T, experts=8, top_k=2, hidden=4096, intermediate=2048)

    @tuner.autotune(
        configs=[
            triton.Config({"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64})
            for m in (256, 16)
        ],
        key=["T"], family="moe", problem=layer, gpu="a100-sxm4-80gb", policy="model",
    )  # fmt: skip
    @triton.jit
    def experts(
        x_ptr, T, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr,
        BLOCK_SIZE_K: tl.constexpr,
    ):  # fmt: skip
        pass

    few = tuner.config_for(experts, x_ptr=torch.bfloat16, T=8)
    assert few.kwargs["BLOCK_SIZE_M"] == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "atention"}, "did you mean 'attention'"),
        ({"problem": None}, "add problem=, a function .* returns the Attention"),
        ({"family": "moe"}, "family 'moe' needs a config name for block_k"),
    ],
)
def test_what_cannot_be_meant_is_an_error_at_decoration(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnknownNameError, match=message):
        flash(**options)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (lambda **_: None, "returned None"),
        (
            lambda **_: Attention(
                batch=1, q_len=64, kv_len=64, q_heads=1, kv_heads=1, head_dim=64,
                backend="flash_attention_3",
            ),
            "names a library's kernel",
        ),
    ],
)  # fmt: skip
def test_a_problem_that_the_model_does_not_know_says_why(problem: Any, reason: str) -> None:
    account = flash(problem=problem).explain(**SHAPE)
    assert any(reason in note for note in account.notes)
    assert account.problem is None


def test_a_problem_of_another_kind_is_an_error() -> None:
    kernel = flash(problem=lambda **_: Gemm(64, 64, 64))
    with pytest.raises(UsageError, match="returned a Gemm, and family 'attention' is of Attention"):
        kernel.explain(**SHAPE)


def test_what_the_problem_reads_beyond_the_key_is_said_once() -> None:
    kernel = flash(key=["B", "H", "N_CTX"])
    with pytest.warns(TuningWarning, match="problem reads HK, HEAD_DIM, which the key of attend"):
        tuner.config_for(kernel, **SHAPE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuner.config_for(kernel, **{**SHAPE, "N_CTX": 2048})


def test_an_order_that_winners_taught_says_so_and_promises_no_loss() -> None:
    account = flash().explain(**SHAPE)
    assert account.expected_loss is None
    assert any("winners on h100-sxm5" in note for note in account.notes)
    assert "head_dim=128" in str(account.problem)
    assert "causal=True" in str(account.problem)
