"""Kernels of unknown tile: every term positive and finite, exact at the corners of the roofline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfmodel.analytic.rates import DRAM_SUSTAINED
from perfmodel.analytic.shape import (
    CHUNK,
    SHAPE_LIMITERS,
    ShapeEstimate,
    ShapeTable,
    shape_estimate,
)
from perfmodel.errors import UnsupportedDtypeError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Attention, Gemm, GroupedGemm, MemoryBound, Problem
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.problems.dtypes import BF16
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.problems.grouped_gemm_table import GroupedGemmTable
from perfmodel.problems.memory_bound import MemoryBoundTable

LAUNCH_S = 2e-6
gpus = st.sampled_from(["a100-sxm4-80gb", "h100-sxm5", "l40s", "b200", "rtx-pro-6000-server"])
quick = settings(max_examples=60)


def table(*problems: Problem) -> ShapeTable:
    kinds: dict[type, Any] = {
        Gemm: GemmTable, Attention: AttentionTable, GroupedGemm: GroupedGemmTable,
        MemoryBound: MemoryBoundTable,
    }  # fmt: skip
    found: ShapeTable = kinds[type(problems[0])].of_problems(problems)
    return found


def ask(*problems: Problem, gpu: str = "h100-sxm5", warm: bool = False) -> ShapeEstimate:
    return shape_estimate(table(*problems), load_gpu(gpu), launch_overhead_s=LAUNCH_S, warm_l2=warm)


size = st.integers(0, 8192)
gemms = st.builds(Gemm, size, size, size, st.integers(0, 4))
heads = st.sampled_from([(32, 8), (8, 8), (64, 1), (12, 4)])
attentions = st.builds(
    lambda batch, q, prefix, heads, dim, causal, backward: Attention(
        batch, q, q + prefix, q_heads=heads[0], kv_heads=heads[1], head_dim=dim, causal=causal,
        backward=backward,
    ),
    st.integers(0, 16), st.integers(0, 4096), st.integers(0, 4096), heads,
    st.sampled_from([64, 80, 128, 256]), st.booleans(), st.booleans(),
)  # fmt: skip
moes = st.builds(
    lambda tokens, experts, k, inner, routing, side: GroupedGemm(
        tokens, experts, k, 2048, inner, routing=routing, projection=side
    ),
    st.integers(0, 5000), st.sampled_from([8, 64]), st.integers(1, 4),
    st.sampled_from([512, 1408]), st.sampled_from(["uniform", "balanced", "zipf"]),
    st.sampled_from(["both", "up", "down"]),
)  # fmt: skip
memory = st.builds(MemoryBound, st.sampled_from(["rms_norm", "silu_mul", "softmax"]), size, size)
problems = st.one_of(gemms, attentions, moes, memory)


@given(problems, gpus, st.booleans())
@quick
def test_every_term_is_finite_and_nothing_is_faster_than_a_launch(
    problem: Problem, gpu: str, warm: bool
) -> None:
    found = ask(problem, gpu=gpu, warm=warm)
    assert found.seconds[0] >= LAUNCH_S
    for name in ("tensor_s", "sfu_s", "fma_s", "dram_s", "l2_s", "waves", "ctas", "one_tile_s"):
        assert np.isfinite(getattr(found, name)).all(), name
        assert (getattr(found, name) >= 0).all(), name
    for name in SHAPE_LIMITERS:
        assert np.isfinite(found.by_limiter[name]).all(), name
    assert 0 <= found.sm_share[0] <= 1 + 1e-9
    assert 0 <= found.resident[0] <= 1
    assert found.padding[0] >= 1
    assert found.one_tile_s[0] >= found.seconds[0] * (1 - 1e-9)


@given(problems, gpus)
@quick
def test_from_cold_nothing_beats_the_peak_or_the_compulsory_traffic(
    problem: Problem, gpu: str
) -> None:
    device, found = load_gpu(gpu), ask(problem, gpu=gpu)
    assert found.bytes_moved[0] >= problem.compulsory_bytes * (1 - 1e-12)
    dram = problem.compulsory_bytes / (device.dram_bandwidth_gb_per_s * 1e9)
    assert found.seconds[0] >= dram
    if not isinstance(problem, MemoryBound):
        assert found.flops[0] == pytest.approx(problem.flops)
        assert found.seconds[0] >= problem.flops / (device.tensor_tflops["bf16"] * 1e12)


@given(problems, gpus)
@quick
def test_what_l2_still_holds_is_never_slower(problem: Problem, gpu: str) -> None:
    warm, cold = ask(problem, gpu=gpu, warm=True), ask(problem, gpu=gpu)
    assert warm.seconds[0] <= cold.seconds[0] * (1 + 1e-12)


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096), gpus)
@quick
def test_twice_the_work_takes_no_less(m: int, n: int, k: int, gpu: str) -> None:
    found = ask(Gemm(m, n, k), Gemm(2 * m, n, k), Gemm(m, 2 * n, k), Gemm(m, n, 2 * k), gpu=gpu)
    assert (found.seconds[1:] >= found.seconds[0] * (1 - 1e-9)).all()


@given(st.integers(1, 16), st.integers(1, 2048), st.integers(0, 2048), st.booleans(), gpus)
@example(1, 8, 743, False, "a100-sxm4-80gb")  # twice the keys make room for more parts of them
@quick
def test_more_sequences_queries_or_keys_take_no_less(
    batch: int, q: int, prefix: int, causal: bool, gpu: str
) -> None:
    kind: dict[str, Any] = {"q_heads": 16, "kv_heads": 4, "causal": causal}
    found = ask(
        Attention(batch, q, q + prefix, **kind),
        Attention(2 * batch, q, q + prefix, **kind),
        Attention(batch, 2 * q, 2 * q + prefix, **kind),
        Attention(batch, q, 2 * (q + prefix), **kind),
        gpu=gpu,
    )
    assert (found.seconds[1:] >= found.seconds[0] * (1 - 1e-9)).all()


@pytest.mark.parametrize(
    ("gpu", "beyond"),
    # On a B200 the largest tile keeps L2 as busy as the matrix units.
    [("a100-sxm4-80gb", 0.02), ("h100-sxm5", 0.1), ("l40s", 0.02), ("b200", 0.2)],
)
def test_a_large_product_takes_its_tensor_time(gpu: str, beyond: float) -> None:
    found = ask(Gemm(32768, 32768, 32768), gpu=gpu)
    assert 1 <= found.seconds[0] / found.tensor_s[0] <= 1 + beyond


@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "h100-sxm5", "l40s", "b200"])
def test_reading_a_large_cache_takes_its_dram_time(gpu: str) -> None:
    problem = Attention(256, 1, 16384, q_heads=32, kv_heads=8)
    found = ask(problem, gpu=gpu, warm=True)
    exact = problem.compulsory_bytes / load_gpu(gpu).dram_bandwidth_gb_per_s / 1e9 / DRAM_SUSTAINED
    assert found.dram_s[0] == pytest.approx(exact)
    assert found.seconds[0] == pytest.approx(exact, rel=0.05)
    assert found.limiter_name(0) == "dram"


def test_a_copy_takes_its_dram_time_and_nothing_takes_a_launch() -> None:
    large, none = ask(MemoryBound("copy", 1 << 16, 1 << 15)), ask(MemoryBound("copy", 0, 8))
    assert large.seconds[0] == pytest.approx(large.dram_s[0], rel=0.02)
    assert none.seconds[0] == LAUNCH_S


@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "h100-sxm5", "b200"])
def test_a_causal_mask_halves_long_prefill(gpu: str) -> None:
    found = ask(
        Attention(1, 65536, q_heads=32), Attention(1, 65536, q_heads=32, causal=False), gpu=gpu
    )
    assert found.seconds[0] / found.seconds[1] == pytest.approx(0.5, abs=0.02)


def test_a_window_makes_prefill_grow_with_length_not_its_square() -> None:
    found = ask(*(Attention(1, n, q_heads=32, window=512) for n in (16384, 32768, 65536)))
    assert found.seconds[2] / found.seconds[1] == pytest.approx(2, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3000)), min_size=2, max_size=6))
@quick
def test_unequal_lengths_take_no_longer_than_one_by_one_and_no_less_than_the_longest(
    items: list[tuple[int, int]],
) -> None:
    kind: dict[str, Any] = {"q_heads": 32, "kv_heads": 8}
    mixed = ask(Attention(q_len=[q for q, _ in items], kv_len=[q + p for q, p in items], **kind))
    alone = [ask(Attention(1, q, q + p, **kind)).seconds[0] for q, p in items]
    assert mixed.seconds[0] <= sum(alone) * 1.02
    assert mixed.seconds[0] >= max(alone) * 0.9


def test_a_mixed_batch_is_not_its_mean() -> None:
    kind: dict[str, Any] = {"q_heads": 32, "kv_heads": 8}
    mixed = ask(Attention(q_len=[8192, 1, 1, 1], kv_len=[8192] * 4, **kind)).seconds[0]
    mean = ask(Attention(4, 2048, 8192, **kind)).seconds[0]
    assert abs(mixed / mean - 1) > 0.1


def test_experts_that_got_no_token_cost_nothing() -> None:
    few = GroupedGemm(2, 64, 1, 4096, 1024, routing=[1, 1, *[0] * 62])
    all_ = GroupedGemm(64, 64, 1, 4096, 1024, routing="balanced")
    found = ask(few, all_)
    assert found.seconds[0] < 0.2 * found.seconds[1]


def test_both_projections_take_about_as_long_as_each_and_what_is_between() -> None:
    kind: dict[str, Any] = {"experts": 8, "top_k": 2, "hidden": 4096, "intermediate": 14336}
    both, up, down = (
        ask(GroupedGemm(4096, **kind, projection=side)).seconds[0]  # type: ignore[arg-type]
        for side in ("both", "up", "down")
    )
    assert up + down < both < 1.5 * (up + down)


def test_many_rows_are_what_they_are_alone() -> None:
    sizes = np.arange(1, CHUNK + 100, dtype=np.float64)
    found = shape_estimate(
        AttentionTable.of_columns(
            batch=1, q_len=sizes, kv_len=sizes, q_heads=8, kv_heads=8, head_dim=64,
            dtypes=(BF16,) * 3,
        ),
        load_gpu("h100-sxm5"),
        launch_overhead_s=LAUNCH_S,
        warm_l2=False,
    )  # fmt: skip
    assert len(found) == len(sizes)
    for row in (0, 1000, CHUNK + 50):
        alone = ask(Attention(1, int(sizes[row]), q_heads=8, head_dim=64))
        assert found.seconds[row] == alone.seconds[0]
        assert found.by_limiter["tensor"][row] == alone.by_limiter["tensor"][0]


def test_a_device_without_the_type_is_named() -> None:
    with pytest.raises(UnsupportedDtypeError, match="a100-sxm4-80gb"):
        ask(Gemm(8, 8, 8, a_dtype="fp8"), gpu="a100-sxm4-80gb")
