"""The reference matrix product computes matrix products (Triton's interpreter, on a CPU)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from perfmodel.problems import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels.gemm import launch_of
from tuner.kernels.language import INSTALLED

HAS_TORCH = importlib.util.find_spec("torch") is not None

# Triton 3.6's interpreter turns arrays of one element into whole numbers, which NumPy 2.4 refuses.
RUN = """
import torch
from triton.runtime import interpreter
patch = interpreter._patch_lang_tensor
def patched(tensor, scope):
    patch(tensor, scope)
    tensor.__index__ = lambda self: int(self.handle.data.item())
interpreter._patch_lang_tensor = patched
from perfmodel.problems import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.kernels.gemm import launch_of, matmul_kernel

TORCH = {"fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32, "int8": torch.int8,
         "bf16": torch.bfloat16, "int32": torch.int32}

def operand(rows, cols, layout, pitch, dtype):
    shape = (rows, pitch) if layout == "row" else (cols, pitch)
    if dtype == "int8":
        data = torch.randint(-8, 8, shape, dtype=torch.int8)
    else:
        data = torch.randint(-4, 5, shape).to(TORCH[dtype])
    return data[:, :cols] if layout == "row" else data[:, :rows].T

def product(problem, config):
    torch.manual_seed(0)
    a = operand(problem.m, problem.k, problem.a_layout, problem.lda, str(problem.a_dtype))
    b = operand(problem.k, problem.n, problem.b_layout, problem.ldb, str(problem.b_dtype))
    c = torch.full((problem.m, problem.n), 99, dtype=TORCH[str(problem.out_dtype)])
    launch = launch_of(problem, config)
    matmul_kernel[launch.grid](
        a, b, c, *launch.integers.values(), **launch.constexprs, **launch.options)
    # Small whole numbers: every type holds the sums exactly.
    want = (a.double() @ b.double()).to(c.dtype)
    assert torch.equal(c, want), (problem, config, (c - want).abs().max())

tile = TileConfig(32, 32, 32, 2, num_warps=4, num_stages=2)
for problem in (
    Gemm(64, 64, 64, a_dtype="fp16"),
    Gemm(70, 45, 33, a_dtype="fp16"),
    Gemm(33, 65, 40, a_dtype="fp16", a_layout="col", b_layout="col"),
    Gemm(33, 65, 40, a_dtype="fp32", lda=48, ldb=70),
    Gemm(40, 40, 64, a_dtype="tf32", b_layout="col"),
    Gemm(40, 40, 64, a_dtype="int8"),
    Gemm(40, 40, 64, a_dtype="fp16", b_dtype="int8"),
    Gemm(1, 5, 32, a_dtype="fp16"),
    Gemm(8, 8, 0, a_dtype="fp16"),
):
    product(problem, tile)
product(Gemm(130, 70, 32, a_dtype="fp16"), TileConfig(16, 16, 16, 8, num_warps=1, num_stages=1))
print("ok")
"""


@pytest.mark.skipif(not (INSTALLED and HAS_TORCH), reason="Triton or torch is not installed")
def test_products_of_all_layouts_types_and_edges_are_exact() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "ok\n", done.stderr[-3000:]


@pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
def test_offsets_are_64_bit_only_where_an_operand_is_too_large_for_32() -> None:
    config = TileConfig(64, 64, 32)

    def wide(problem: Gemm) -> bool:
        return bool(launch_of(problem, config).constexprs["WIDE_OFFSETS"])

    assert not wide(Gemm(4096, 4096, 4096))
    assert wide(Gemm(65536, 65536, 64))
    assert wide(Gemm(64, 64, 2**20, lda=2**26))


@pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
def test_an_empty_result_launches_nothing() -> None:
    assert launch_of(Gemm(0, 64, 64), TileConfig()).grid == (0,)
    assert launch_of(Gemm(64, 64, 0), TileConfig()).grid == (1,)  # zeros are still written
