from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.dataset.bounds import (
    ABOVE_BANDWIDTH,
    ABOVE_L2,
    ABOVE_PEAK,
    attention_counts,
    bounds_us,
)
from perfmodel.hardware.catalog import load_gpu

H100 = load_gpu("h100-sxm5")


def attention(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "family": "attention", "direction": "forward", "batch": 1, "q_len": 64, "kv_len": 64,
        "q_heads": 8, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128, "causal": True,
        "window_size": None, "q_dtype": "bf16", "kv_dtype": "bf16", "out_dtype": "bf16",
    }  # fmt: skip
    return base | more


def moe(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "family": "grouped_gemm", "tokens": 4096, "experts": 8, "top_k": 2, "hidden_size": 4096,
        "intermediate_size": 14336, "expert_parallel": 1, "tensor_parallel": 1,
        "projection": "both", "routing": "balanced", "a_dtype": "bf16", "b_dtype": "bf16",
        "out_dtype": "bf16",
    }  # fmt: skip
    return base | more


def bounds(row: dict[str, Any]) -> dict[str, float]:
    found = bounds_us(H100, pd.DataFrame([row]), {})
    return {gate: float(least[0]) for gate, least in found.items()}


@given(
    q=st.integers(1, 40), more=st.integers(0, 40), causal=st.booleans(),
    window=st.one_of(st.none(), st.integers(1, 90)), batch=st.integers(1, 3),
)  # fmt: skip
def test_counts_are_those_of_a_mask_drawn_out(
    q: int, more: int, causal: bool, window: int | None, batch: int
) -> None:
    window = window if causal else None
    kv = q + more
    last = np.arange(q)[:, None] + more  # the key that each query stands on
    key = np.arange(kv)[None, :]
    mask = key <= last if causal else np.ones((q, kv), dtype=bool)
    if window is not None:
        mask &= key > last - window
    row = attention(q_len=q, kv_len=kv, causal=causal, window_size=window, batch=batch)
    found = [float(c[0]) for c in attention_counts(pd.DataFrame([row]))]
    assert found == [batch * q, batch * mask.sum(), batch * mask.any(axis=0).sum()]


def test_unequal_lengths_add_up_sequence_by_sequence() -> None:
    listed = attention(q_len=None, kv_len=None, q_lens=[3, 1], kv_lens=[3, 9], batch=2)
    apart = [attention(q_len=3, kv_len=3), attention(q_len=1, kv_len=9)]
    queries, pairs, keys = attention_counts(pd.DataFrame([listed]))
    each = attention_counts(pd.DataFrame(apart))
    assert [queries[0], pairs[0], keys[0]] == [c.sum() for c in each]


def test_a_window_makes_a_fast_time_possible() -> None:
    whole = bounds(attention(q_len=65536, kv_len=65536))
    windowed = bounds(attention(q_len=65536, kv_len=65536, window_size=128))
    assert windowed[ABOVE_PEAK] < 0.01 * whole[ABOVE_PEAK]


def test_a_prefix_costs_its_keys() -> None:
    short = bounds(attention(q_len=1, kv_len=4096, batch=64))
    long = bounds(attention(q_len=1, kv_len=65536, batch=64))
    assert long[ABOVE_BANDWIDTH] > 15 * short[ABOVE_BANDWIDTH]


def test_what_fits_the_l2_is_bounded_by_the_l2_alone() -> None:
    small = bounds(attention(q_len=1, kv_len=1024, batch=4))  # 17 MB of keys and values
    assert small[ABOVE_BANDWIDTH] == 0 < small[ABOVE_L2]
    large = bounds(attention(q_len=1, kv_len=1024, batch=64))  # 268 MB
    assert large[ABOVE_BANDWIDTH] > large[ABOVE_L2] > 0


def test_backward_multiplies_five_matrices_where_forward_does_two() -> None:
    forward, backward = (bounds(attention(direction=d)) for d in ("forward", "backward"))
    assert backward[ABOVE_PEAK] == pytest.approx(2.5 * forward[ABOVE_PEAK])


def test_moe_bound_counts_every_routed_token() -> None:
    found = bounds(moe())
    flops = 2 * 4096 * 2 * 4096 * 14336 * 2
    clock = H100.max_clock_mhz or H100.boost_clock_mhz
    peak = H100.tensor_tflops["bf16"] * 1e6 * clock / H100.boost_clock_mhz
    assert found[ABOVE_PEAK] == pytest.approx(flops / peak)
    assert bounds(moe(tensor_parallel=2))[ABOVE_PEAK] == pytest.approx(flops / peak / 2)


def test_a_skewed_share_of_experts_has_no_least_work() -> None:
    found = bounds(moe(expert_parallel=8, routing="power_law_1.2"))
    assert max(found.values()) == 0
    assert bounds(moe(expert_parallel=8))[ABOVE_PEAK] > 0


@pytest.mark.parametrize(
    "row", [attention(q_len=0), attention(batch=0), moe(tokens=0)], ids=["q", "batch", "tokens"]
)
def test_no_work_has_no_bound(row: dict[str, Any]) -> None:
    assert bounds(row)[ABOVE_PEAK] == 0
    assert bounds(row)[ABOVE_BANDWIDTH] == 0
