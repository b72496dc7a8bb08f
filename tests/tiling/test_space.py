"""The candidate tiles of a problem on a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import UnsupportedDtypeError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Gemm
from perfmodel.tiling.config import TileConfig
from perfmodel.tiling.legality import legal_mask
from perfmodel.tiling.space import candidate_configs

GPUS = [
    "v100-sxm2-32gb", "t4", "a100-sxm4-80gb", "rtx-4090", "h100-sxm5", "b200", "rtx-5090", "mi300x",
]  # fmt: skip
SIZES = st.integers(0, 100_000)


@given(SIZES, SIZES, SIZES, st.sampled_from(["fp16", "fp32"]), st.sampled_from(GPUS))
def test_every_candidate_is_legal_and_there_is_at_least_one(
    m: int, n: int, k: int, dtype: str, gpu: str
) -> None:
    problem, device = Gemm(m, n, k, a_dtype=dtype), load_gpu(gpu)
    table = candidate_configs(problem, device)
    assert 1 <= len(table) <= 2000
    assert legal_mask(problem, table, device).all()
    for block, size in ((table.block_m, m), (table.block_n, n)):
        assert (block <= max(2 * size, 16)).all()


def test_the_order_is_the_same_every_time() -> None:
    problem, gpu = Gemm(2048, 2048, 2048), load_gpu("h100-sxm5")
    first = candidate_configs(problem, gpu).configs
    assert candidate_configs(problem, gpu).configs == first
    assert len(set(first)) == len(first)


@pytest.mark.parametrize(
    ("gpu", "best"),
    [  # the fastest as measured, of public grids on these GPUs
        ("a100-sxm4-80gb", TileConfig(128, 256, 32, 8, 8, 4)),
        ("a100-sxm4-80gb", TileConfig(128, 128, 32, 8, 4, 4)),
        ("a100-sxm4-80gb", TileConfig(64, 64, 64, 8, 4, 4)),
        ("h100-sxm5", TileConfig(128, 128, 64, 8, 4, 3)),
        ("h100-sxm5", TileConfig(64, 128, 64, 8, 4, 5)),
    ],
)
def test_known_winners_are_candidates(gpu: str, best: TileConfig) -> None:
    problem = Gemm(4096, 4096, 4096, a_dtype="fp16")
    assert best in candidate_configs(problem, load_gpu(gpu)).configs


@pytest.mark.parametrize("sm_count", [16, 48, 108])
def test_small_devices_have_candidates_too(sm_count: int) -> None:
    gpu = replace(load_gpu("a100-sxm4-80gb"), name=f"small-{sm_count}", sm_count=sm_count)
    problem = Gemm(4096, 4096, 4096, a_dtype="fp16")
    assert len(candidate_configs(problem, gpu)) > 500


def test_spilling_tiles_are_left_out() -> None:
    table = candidate_configs(Gemm(4096, 4096, 4096, a_dtype="fp16"), load_gpu("a100-sxm4-80gb"))
    per_thread = table.block_m * table.block_n / (32 * table.num_warps)
    assert per_thread.max() <= 128
    assert np.unique(table.num_warps).tolist() == [1, 2, 4, 8, 16]


def test_zero_work_has_the_smallest_tile() -> None:
    table = candidate_configs(Gemm(0, 0, 0, a_dtype="fp16"), load_gpu("h100-sxm5"))
    assert {(c.block_m, c.block_n, c.block_k) for c in table.configs} == {(16, 16, 16)}


def test_a_type_that_the_device_lacks_is_an_error() -> None:
    with pytest.raises(UnsupportedDtypeError):
        candidate_configs(Gemm(64, 64, 64, a_dtype="fp8_e4m3"), load_gpu("a100-sxm4-80gb"))
