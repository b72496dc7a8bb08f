"""Which configurations a device runs, why not, and what to change."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import IllegalConfigError, UnsupportedDtypeError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Gemm
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import (
    check,
    fits_shared_memory,
    legal_mask,
    nearest_legal,
    require_dtype,
    require_legal,
    slow_to_compile_mask,
)

A100 = load_gpu("a100-sxm4-80gb")
H100 = load_gpu("h100-sxm5")
PROBLEM = Gemm(4096, 4096, 4096, a_dtype="fp16")
ROOT = Path(__file__).parents[2]
MIRROR = Path(os.environ.get("PERFMODEL_DATA_MIRROR") or ROOT.parent / "shared" / "data" / "mirror")
GRID = (
    MIRROR / "github.com" / "Lxdfs58" / "RL-Triton-Autotuning"
    / "2b095f51dedbec2814c8a1a76e01de954a56e279" / "simdata" / "FP16-R100"
)  # fmt: skip

LIMITS = {  # bytes a block may opt in to, by architecture
    "t4": 65536, "a100-sxm4-80gb": 166912, "rtx-3090": 101376, "l4": 101376, "rtx-4090": 101376,
    "h100-sxm5": 232448, "b200": 232448, "b300": 232448, "rtx-5090": 101376,
    "rtx-pro-6000-server": 101376,
}  # fmt: skip


def limits_broken(config: TileConfig, gpu: str = "a100-sxm4-80gb") -> list[str]:
    (reasons,) = check(PROBLEM, [config], load_gpu(gpu))
    return [reason.limit for reason in reasons]


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_exactly_the_limit_fits_and_one_byte_more_does_not(name: str, limit: int) -> None:
    gpu = load_gpu(name)
    assert fits_shared_memory(float(limit), gpu)
    assert not fits_shared_memory(float(limit + 1), gpu)


def test_the_smaller_of_two_tiles_is_legal_on_consumer_blackwell() -> None:
    needs = np.array([106496.0, 98304.0])
    assert fits_shared_memory(needs, load_gpu("rtx-5090")).tolist() == [False, True]
    assert fits_shared_memory(needs, load_gpu("h100-sxm5")).tolist() == [True, True]


def test_one_family_is_not_one_limit() -> None:
    # Attention with heads of 192: 64 x 64 tiles in 3 stages need 144 KiB, 128 x 32 in 2 need 96.
    query_and_stages = np.array([64 * 192 * 2 + 5 * 64 * 192 * 2, 128 * 192 * 2 + 4 * 32 * 192 * 2])
    assert fits_shared_memory(query_and_stages, load_gpu("rtx-3090")).tolist() == [False, True]
    assert fits_shared_memory(query_and_stages, A100).tolist() == [True, True]


def test_a_config_that_the_textbook_formula_rejects_runs_on_consumer_blackwell() -> None:
    # stages x (A + B) says 147,456 bytes; the compiler takes 98,304.
    assert limits_broken(TileConfig(128, 256, 64, num_warps=8, num_stages=3), "rtx-5090") == []
    broken = limits_broken(TileConfig(128, 256, 64, num_warps=8, num_stages=4), "rtx-5090")
    assert broken == ["shared memory per block in bytes"]


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (TileConfig(256, 256, 128, num_warps=8, num_stages=5), "shared memory per block in bytes"),
        (TileConfig(64, 64, 32, num_warps=64), "threads per block"),
        (TileConfig(64, 64, 32, num_warps=6), "num_warps as a power of two"),
        (TileConfig(96, 64, 32), "block_m as a power of two"),
        (TileConfig(64, 64, 8), "depth of one product (block_k)"),
        (TileConfig(256, 256, 16, num_warps=4, num_stages=2), "accumulators per thread"),
        (TileConfig(64, 64, 32, num_ctas=2), "CTAs per cluster (num_ctas)"),
        (TileConfig(64, 64, 32, maxnreg=16), "registers per thread (maxnreg)"),
        (TileConfig(2048, 1024, 16, num_warps=32), "elements of one block tensor"),
    ],
)
def test_each_limit_is_named(config: TileConfig, limit: str) -> None:
    assert limit in limits_broken(config)


def test_wavefronts_of_64_make_blocks_of_twice_the_threads() -> None:
    config = TileConfig(64, 64, 32, num_warps=32, num_stages=2)
    assert limits_broken(config) == []
    assert limits_broken(config, "mi300x") == ["threads per block"]


def test_clusters_are_legal_where_the_device_has_them() -> None:
    assert limits_broken(TileConfig(128, 128, 64, num_ctas=2), "h100-sxm5") == []


def test_8_bit_products_are_32_deep_at_least() -> None:
    configs = ConfigTable.of([TileConfig(64, 64, 16), TileConfig(64, 64, 32)])
    assert legal_mask(Gemm(64, 64, 64, a_dtype="int8"), configs, A100).tolist() == [False, True]
    assert legal_mask(PROBLEM, configs, A100).all()


def test_a_grid_too_long_for_the_device_is_rejected() -> None:
    huge = Gemm(2**40, 2**20, 64, a_dtype="fp16")
    (reasons,) = check(huge, [TileConfig(16, 16, 32)], A100)
    assert [r.limit for r in reasons] == ["blocks of the grid"]


def test_the_error_says_what_is_needed_and_gives_a_config_that_fits() -> None:
    config = TileConfig(128, 128, 64, num_warps=8, num_stages=6)
    with pytest.raises(IllegalConfigError) as raised:
        require_legal(PROBLEM, config, load_gpu("rtx-4090"))
    message = str(raised.value)
    assert "needs 163,840, limit 101,376" in message
    assert "lower num_stages, block_k, block_m or block_n" in message
    assert message.endswith("nearest that fits: block_k=32")
    assert raised.value.exit_code == 2


def test_a_missing_type_lists_what_there_is() -> None:
    with pytest.raises(UnsupportedDtypeError, match=r"no arithmetic for fp8_e4m3; it has: .*fp16"):
        require_dtype(Gemm(1, 1, 1, a_dtype="fp8_e4m3").a_dtype, A100)
    require_dtype(Gemm(1, 1, 1, a_dtype="fp8_e4m3").a_dtype, H100)


@pytest.mark.parametrize("size", [0, 1, 65536])
def test_zero_one_and_huge_sizes_are_judged_alike(size: int) -> None:
    problem = Gemm(size, size, size, a_dtype="fp16")
    assert check(problem, [TileConfig()], A100) == [()]


ANY = st.builds(
    TileConfig,
    block_m=st.sampled_from([16, 64, 100, 256, 512, 1024]),
    block_n=st.sampled_from([16, 64, 100, 256, 512, 1024]),
    block_k=st.sampled_from([4, 16, 48, 64, 256, 512]),
    num_warps=st.sampled_from([1, 3, 4, 8, 32, 64]),
    num_stages=st.integers(1, 8),
    num_ctas=st.sampled_from([1, 2]),
    maxnreg=st.sampled_from([None, 8, 128]),
)
GPUS = st.sampled_from(["t4", "a100-sxm4-80gb", "h100-sxm5", "b200", "rtx-5090", "mi300x"])


@given(ANY, GPUS)
def test_the_mask_and_the_reasons_agree(config: TileConfig, gpu: str) -> None:
    device = load_gpu(gpu)
    legal = legal_mask(PROBLEM, ConfigTable.of([config]), device)
    assert bool(legal[0]) == (check(PROBLEM, [config], device) == [()])


@given(ANY, GPUS)
def test_the_nearest_config_is_legal_and_a_legal_one_is_its_own_nearest(
    config: TileConfig, gpu: str
) -> None:
    device = load_gpu(gpu)
    near = nearest_legal(PROBLEM, config, device)
    if near is None:
        return
    assert check(PROBLEM, [near], device) == [()]
    assert nearest_legal(PROBLEM, near, device) == near


def test_the_nearest_config_keeps_what_no_formula_knows() -> None:
    config = TileConfig(256, 256, 128, num_warps=8, num_stages=5, extras=(("WAVES", 3),))
    near = nearest_legal(PROBLEM, config, A100)
    assert near is not None
    assert near.extras == config.extras
    assert near.block_m == near.block_n == 256


def test_loads_of_many_registers_and_stages_are_slow_to_compile() -> None:
    configs = ConfigTable.of(
        [
            TileConfig(128, 128, 64, num_warps=4, num_stages=4),
            TileConfig(256, 64, 256, num_warps=2, num_stages=1),
            TileConfig(16, 128, 256, num_warps=2, num_stages=3),
        ]
    )
    assert slow_to_compile_mask(PROBLEM, configs, A100).tolist() == [False, True, True]


@pytest.mark.skipif(
    not GRID.is_dir(), reason=f"the published grid is not here: no {GRID} (PERFMODEL_DATA_MIRROR)"
)
def test_the_a100_grid_nothing_that_ran_is_rejected_and_what_failed_is_foreseen() -> None:
    names = {
        "BLOCK_SIZE_M": "block_m", "BLOCK_SIZE_N": "block_n", "BLOCK_SIZE_K": "block_k",
        "GROUP_SIZE_M": "group_m", "num_stages": "num_stages", "num_warps": "num_warps",
    }  # fmt: skip
    failed = foreseen = 0
    for path in sorted(GRID.glob("*.json")):
        size, _, kind = path.stem.partition("_")
        rows = pd.DataFrame(json.loads(path.read_text()))
        columns = {ours: rows[theirs].to_numpy(np.float64) for theirs, ours in names.items()}
        one = np.ones(len(rows))
        table = ConfigTable(**columns, split_k=one, num_ctas=one, maxnreg=0 * one)
        problem = replace(PROBLEM, m=int(size), n=int(size), k=int(size), lda=None, ldb=None)
        legal = legal_mask(problem, table, A100)
        slow = slow_to_compile_mask(problem, table, A100)
        if kind == "results":
            assert legal.all(), path.name
            assert not slow.any(), path.name
        else:
            failed += len(rows)
            foreseen += int((~legal | slow).sum())
    assert foreseen / failed >= 0.997  # the rest are compilations cut off at 6 s
