"""Which tiles of attention fit which device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.errors import UnsupportedDtypeError
from perfmodel.families import family_of
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Attention
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.tiling.attention_resources import attention_resources
from perfmodel.tiling.attention_space import (
    attention_candidates,
    attention_limits,
    attention_rejected,
)
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.limits import rejections, within

PREFILL = Attention(4, 2048, q_heads=16, kv_heads=4)
DECODE = Attention(64, 1, 4096, q_heads=32, kv_heads=8)


def legal(problem: Attention, gpu: str, *configs: TileConfig) -> list[bool]:
    table, found = ConfigTable.of(configs), AttentionTable.of(problem)
    return within(attention_limits(found, table, load_gpu(gpu)), len(table)).tolist()


@pytest.mark.parametrize("gpu", ["a40", "l40s", "rtx-3090", "rtx-pro-6000-server"])
def test_head_dim_192_finds_the_tile_that_fits_99_kb(gpu: str) -> None:
    """The default of one large device needs 128 KB for keys and values; the other tile 32."""
    problem = Attention(2, 4096, q_heads=16, head_dim=192)
    tiles = TileConfig(64, 64, num_stages=3), TileConfig(128, 32, num_stages=2)
    assert legal(problem, gpu, *tiles) == [False, True]
    assert legal(problem, "a100-sxm4-80gb", *tiles) == [True, True]


def test_exactly_the_limit_is_legal_and_a_byte_more_is_not() -> None:
    gpu = load_gpu("rtx-5090")
    assert gpu.smem_per_block_optin_bytes == 101376
    problem, config = AttentionTable.of(Attention(1, 4096)), ConfigTable.of([TileConfig(64, 64)])
    found = attention_resources(problem, config, gpu)
    for needed, fits in ((101376.0, True), (101377.0, False), (106496.0, False), (98304.0, True)):
        given = replace(found, smem_loop_bytes=np.array([needed]))
        assert within(attention_limits(problem, config, gpu, given), 1)[0] == fits


@pytest.mark.parametrize("gpu", ["t4", "l40s", "rtx-pro-6000-server", "a100-sxm4-80gb",
                                 "h100-sxm5", "b200", "mi300x", "v100-sxm2-32gb"])  # fmt: skip
@pytest.mark.parametrize("head_dim", [7, 64, 80, 256, 512])
@pytest.mark.parametrize("causal", [True, False])
def test_every_device_has_tiles_that_fit_it_whatever_the_head_dim(
    gpu: str, head_dim: int, causal: bool
) -> None:
    device = load_gpu(gpu)
    problem = Attention(2, 1024, q_heads=8, head_dim=head_dim, dtype="fp16", causal=causal)
    found = attention_candidates(problem, device)
    resources = attention_resources(AttentionTable.of(problem), found, device)
    assert len(found) >= 1
    assert (resources.smem_bytes <= device.smem_per_block_optin_bytes).all()
    assert (resources.occupancy >= 1).all()
    assert within(attention_limits(AttentionTable.of(problem), found, device), len(found)).all()


@pytest.mark.parametrize("problem", [PREFILL, DECODE, Attention(0, 1), Attention(1, 3, head_dim=5)])
def test_candidates_and_the_rejected_make_the_whole_grid_and_no_tile_is_in_both(
    problem: Attention,
) -> None:
    gpu = load_gpu("h100-sxm5")
    chosen = attention_candidates(problem, gpu).configs
    left_out = attention_rejected(problem, gpu)
    assert chosen == attention_candidates(problem, gpu).configs
    assert not set(chosen) & {config for config, _ in left_out}
    assert all(reasons for _, reasons in left_out)


def test_only_decode_splits_keys_and_no_finer_than_there_are_tiles() -> None:
    gpu = load_gpu("h100-sxm5")
    assert set(attention_candidates(PREFILL, gpu).split_k) == {1}
    single = attention_candidates(Attention(1, 1, 8192, q_heads=8, kv_heads=1), gpu)
    assert max(single.split_k) == 64
    assert (single.split_k <= np.ceil(8192 / single.block_n)).all()


def test_small_problems_get_small_tiles() -> None:
    found = attention_candidates(Attention(1, 20, 40), load_gpu("h100-sxm5"))
    assert max(found.block_m) == 32
    assert max(found.block_n) == 64


def test_a_rejection_says_what_is_needed_what_there_is_and_what_to_change() -> None:
    problem = AttentionTable.of(PREFILL)
    config = ConfigTable.of([TileConfig(48, 128, num_stages=9)])
    ((power, smem),) = rejections(attention_limits(problem, config, load_gpu("l40s")), 1)
    assert str(power) == ("block_m is 48, no power of two; use 32 or 64")
    assert (smem.needed, smem.available) == (8 * 65536, 101376)
    assert "num_stages" in smem.change


def test_the_nearest_tile_that_fits_is_found() -> None:
    gpu, config = load_gpu("l40s"), TileConfig(128, 128, num_warps=8, num_stages=5)
    near = family_of(PREFILL).nearest(PREFILL, config, gpu)
    assert near == replace(config, block_n=64, num_stages=4)
    assert family_of(PREFILL).nearest(PREFILL, near, gpu) == near


def test_a_device_without_the_type_is_named() -> None:
    with pytest.raises(UnsupportedDtypeError, match=r"a100-sxm4-80gb has no .* fp8_e4m3"):
        attention_candidates(Attention(1, 128, dtype="fp8"), load_gpu("a100-sxm4-80gb"))
