"""How attention is cut into CTAs, against a count tile by tile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Attention
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.tiling.attention_resources import attention_resources
from perfmodel.tiling.attention_tile import TILES_LISTED, cta_lengths, padded_head_dim
from perfmodel.tiling.attention_work import attention_work
from perfmodel.tiling.config import ConfigTable, TileConfig

H100 = load_gpu("h100-sxm5")


def visits(problem: Attention, bm: int, bn: int) -> list[int]:
    """Key tiles of every CTA of prefill, from the first to the last one with a visible pair."""
    found = []
    for q, kv in problem.items:
        for first in range(0, q, bm):
            rows = range(first, min(first + bm, q))
            low, high = kv, 0
            for row in rows:
                position = kv - q + row
                left = 0 if problem.window is None else max(0, position - problem.window + 1)
                right = kv
                if problem.causal:
                    right = position + 1
                elif problem.window is not None:
                    right = min(kv, position + problem.window)
                low, high = min(low, left), max(high, right)
            found += [-(-high // bn) - low // bn] * problem.q_heads
    return found


@given(
    st.lists(st.tuples(st.integers(2, 90), st.integers(0, 60)), min_size=1, max_size=3),
    st.booleans(), st.one_of(st.none(), st.integers(1, 40)),
    st.sampled_from([16, 32]), st.sampled_from([16, 32, 64]),
)  # fmt: skip
def test_ctas_and_their_trips_are_those_counted_one_by_one(
    items: list[tuple[int, int]], causal: bool, window: int | None, bm: int, bn: int
) -> None:
    longest = max(q + prefix for q, prefix in items)
    problem = Attention(
        q_len=[q for q, _ in items], kv_len=[q + prefix for q, prefix in items], q_heads=4,
        kv_heads=2, causal=causal, window=None if window is None else min(window, longest),
    )  # fmt: skip
    found = cta_lengths(AttentionTable.of(problem), ConfigTable.of([TileConfig(bm, bn)]))
    expected = visits(problem, bm, bn)
    assert found.ctas[0] == len(expected)
    assert found.mean_trips[0] == pytest.approx(np.mean(expected))
    assert found.longest_trips[0] == max(expected)


def test_query_heads_share_a_tile_to_decode_and_splits_share_its_keys() -> None:
    problem = Attention(16, 1, 4096, q_heads=32, kv_heads=8)
    configs = ConfigTable.of([TileConfig(16, 64), TileConfig(16, 64, split_k=4)])
    found = cta_lengths(AttentionTable.of(problem), configs)
    assert found.ctas.tolist() == [16 * 8, 4 * 16 * 8]
    assert found.longest_trips.tolist() == [64, 16]
    wide = Attention(16, 1, 4096, q_heads=128, kv_heads=1)
    assert cta_lengths(AttentionTable.of(wide), configs).ctas[0] == 16 * 128 / 16


def test_the_backward_pass_visits_the_same_tiles_from_the_other_side() -> None:
    forward, backward = (
        Attention(2, 512, q_heads=4, causal=True, backward=b) for b in (False, True)
    )
    config = ConfigTable.of([TileConfig(64, 64)])
    totals = []
    for problem in (forward, backward):
        found = cta_lengths(AttentionTable.of(problem), config)
        totals.append(found.ctas[0] * found.mean_trips[0])
    assert totals[0] == totals[1] == 2 * 4 * (8 * 9 / 2)


def test_very_long_sequences_are_counted_by_a_part_of_their_tiles() -> None:
    tiles = 8 * TILES_LISTED
    problem = Attention(1, tiles * 16, q_heads=1)
    found = cta_lengths(AttentionTable.of(problem), ConfigTable.of([TileConfig(16, 16)]))
    assert found.ctas[0] == tiles
    assert found.longest_trips[0] == tiles
    assert found.mean_trips[0] == pytest.approx((tiles + 1) / 2, rel=1e-3)


@pytest.mark.parametrize(("size", "padded"), [(1, 16), (80, 128), (128, 128), (192, 256)])
def test_a_head_dim_is_padded_to_a_power_of_two(size: int, padded: int) -> None:
    assert padded_head_dim(size, Attention().dtype) == padded


def test_padding_costs_products_but_no_traffic() -> None:
    config = ConfigTable.of([TileConfig(64, 64)])
    odd, even = (
        attention_work(AttentionTable.of(Attention(2, 1024, q_heads=8, head_dim=d)), config, H100)
        for d in (72, 128)
    )
    assert odd.classes[0].tensor_flops[0] == even.classes[0].tensor_flops[0]
    assert odd.classes[0].load_bytes[0] == even.classes[0].load_bytes[0] * 72 / 128
    assert odd.flops[0] == even.flops[0] * 72 / 128


@given(
    st.integers(1, 5), st.integers(0, 300), st.integers(0, 300), st.sampled_from([1, 2, 8]),
    st.integers(1, 300), st.booleans(), st.sampled_from(["bf16", "fp8_e4m3", "fp32"]),
    st.sampled_from(["h100-sxm5", "b200", "l40s", "mi300x", "a100-sxm4-80gb"]),
)  # fmt: skip
def test_every_count_is_finite_and_tiles_do_all_the_work(
    batch: int, q: int, prefix: int, group: int, dim: int, backward: bool, dtype: str, gpu: str
) -> None:
    problem = Attention(
        batch, q, q + prefix, q_heads=2 * group, kv_heads=2, head_dim=dim, dtype=dtype,
        backward=backward,
    )  # fmt: skip
    configs = ConfigTable.of(
        [TileConfig(m, n, num_warps=w, num_stages=s) for m, n, w, s in
         [(16, 32, 4, 1), (64, 64, 4, 3), (128, 32, 8, 2)]]
    )  # fmt: skip
    device = load_gpu(gpu)
    work = attention_work(AttentionTable.of(problem), configs, device)
    (cta,) = work.classes
    for name in ("tensor_flops", "fma_flops", "sfu_ops", "load_bytes", "smem_bytes",
                 "instructions", "epilogue_bytes", "spill_bytes"):  # fmt: skip
        values = getattr(cta, name)
        assert np.isfinite(values).all(), name
        assert (values >= 0).all(), name
    scores = cta.count * cta.iterations * configs.block_m * configs.block_n
    packed = group if q <= 1 and not backward else 1
    assert (scores * packed * 2 + 1 >= AttentionTable.of(problem).pairs[0]).all()
    assert (work.dram_bytes >= problem.compulsory_bytes).all()
    assert (attention_resources(AttentionTable.of(problem), configs, device).smem_bytes > 0).all()
