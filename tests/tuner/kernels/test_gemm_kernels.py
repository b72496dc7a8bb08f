"""Every kind of matrix product agrees with float64 at all layouts, types and edges."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfmodel.errors import InvalidConfigError
from perfmodel.problems import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels import gemm_persistent, gemm_scaled
from tuner.kernels.language import INSTALLED

needs_triton = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")


def test_plain_products_agree_with_float64(interpret: Callable[[str], None]) -> None:
    interpret("""
tile = TileConfig(32, 32, 32, 2, num_warps=4, num_stages=2)
for problem in (
    Gemm(70, 45, 33, a_dtype="fp16"),
    Gemm(33, 65, 40, a_dtype="bf16", a_layout="col", b_layout="col", lda=40, ldb=41),
    Gemm(33, 65, 40, a_dtype="fp32"),
    Gemm(33, 65, 40, a_dtype="tf32"),
    Gemm(33, 65, 40, a_dtype="fp8_e4m3"),
    Gemm(33, 65, 40, a_dtype="fp8_e5m2", b_dtype="fp8_e4m3", b_layout="col"),
    Gemm(33, 65, 40, a_dtype="int8"),
    Gemm(33, 65, 40, a_dtype="bf16", b_dtype="int8"),
    Gemm(20, 40, 50, batch=3, a_dtype="fp16", lda=64),
    Gemm(20, 40, 50, batch=2, a_dtype="fp16", a_layout="col", b_layout="col"),
    Gemm(20, 40, 50, batch=0, a_dtype="fp16"),
    Gemm(0, 40, 50), Gemm(20, 40, 0), Gemm(1, 1, 1, a_dtype="fp16"),
):
    check("gemm", problem, tile)
""")


def test_persistent_and_split_products_agree_with_float64(
    interpret: Callable[[str], None],
) -> None:
    interpret("""
from dataclasses import replace
tile = TileConfig(32, 32, 32, 2, num_warps=4, num_stages=2)
for problem in (
    Gemm(130, 70, 100, a_dtype="fp16"),
    Gemm(33, 65, 40, a_dtype="int8"),
    Gemm(33, 65, 40, a_dtype="bf16", b_layout="col"),
    Gemm(33, 65, 64, a_dtype="fp8_e4m3"),
    Gemm(20, 40, 0), Gemm(0, 40, 20),
):
    for programs in (3, 100):
        check("gemm_persistent", problem, replace(tile, extras=(("programs", programs),)))
    for splits in (1, 3):
        check("gemm_split_k", problem, replace(tile, split_k=splits))
""")


def test_scaled_and_weight_only_products_agree_with_float64(
    interpret: Callable[[str], None],
) -> None:
    interpret("""
tile = TileConfig(32, 32, 64, 2, num_warps=4, num_stages=2)
for problem in (
    Gemm(33, 140, 300, a_dtype="fp8_e4m3", b_layout="col"),
    Gemm(33, 140, 256, a_dtype="fp8_e4m3", b_dtype="fp8_e5m2", out_dtype="fp32"),
    Gemm(33, 140, 130, a_dtype="int8", out_dtype="bf16"),
):
    check("gemm_row_scaled", problem, tile)
    check("gemm_block_scaled", problem, tile)
for problem in (
    Gemm(33, 70, 300, a_dtype="fp16", b_dtype="int8"),
    Gemm(3, 70, 256, a_dtype="bf16", b_dtype="int8", b_layout="col", ldb=260),
    Gemm(33, 70, 300, a_dtype="fp16", b_dtype="int4"),
    Gemm(3, 70, 256, a_dtype="bf16", b_dtype="int4", ldb=80),
    Gemm(3, 70, 301, a_dtype="fp16", b_dtype="int4", b_layout="col"),
    Gemm(3, 70, 301, a_dtype="fp16", b_dtype="int4"),
):
    check("gemm_weight_only", problem, tile)
""")


@needs_triton
def test_a_config_that_a_kernel_cannot_take_is_an_error_with_the_fix() -> None:
    with pytest.raises(InvalidConfigError, match=r"programs is None; .*number of at least 1"):
        gemm_persistent.plan(Gemm(64, 64, 64), TileConfig())
    with pytest.raises(InvalidConfigError, match=r"block_k is 256; .* divides 128"):
        gemm_scaled.plan_blocks(Gemm(64, 64, 64, a_dtype="fp8"), TileConfig(block_k=256))
