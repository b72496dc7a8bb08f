"""Probes do the work that their rates are counted by, and compile for every architecture."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfmodel.problems.dtypes import parse_dtype
from tuner.collect.session.ceilings import MULTIPLY_TILES
from tuner.compile import compile_kernel, specialize
from tuner.kernels.language import INSTALLED, tl
from tuner.kernels.probes import multiply_kernel

needs_triton = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")


def test_what_is_read_and_multiplied_is_what_is_counted(interpret: Callable[[str], None]) -> None:
    interpret("""
import triton.language as tl
from tuner.kernels.probes import empty_kernel, multiply_kernel, read_kernel
data = torch.arange(6 * 32, dtype=torch.int32)
out = torch.empty(4 * 32, dtype=torch.int32)
read_kernel[(4,)](data, out, 6, 5, BLOCK=32)
assert out.sum() == 5 * data.sum(), "every block is read once a repetition"
a, b = torch.randn(16, 16).half(), torch.randn(32, 16).half()
out = torch.empty(2, 16, 32)
multiply_kernel[(2,)](a, b, out, 3, BLOCK_M=16, BLOCK_N=32, BLOCK_K=16, ACC_DTYPE=tl.float32,
                      INPUT_PRECISION="ieee")
torch.testing.assert_close(out[1], 3 * a.float() @ b.float().T, rtol=1e-2, atol=1e-2)
live = torch.zeros(1, dtype=torch.int32)
empty_kernel[(1,)](live, LIVE=False)
assert live.item() == 0
""")


@needs_triton
@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3", "int8", "tf32"])
def test_a_tile_stays_on_the_sm_and_the_loop_multiplies_alone(dtype: str) -> None:
    kind, (m, n, depth, warps) = parse_dtype(dtype), MULTIPLY_TILES[0]
    whole = dtype == "int8"
    found = compile_kernel(
        multiply_kernel,
        specialize(
            multiply_kernel.arg_names,
            {"a_ptr": kind, "b_ptr": kind, "out_ptr": parse_dtype("int32" if whole else "fp32")},
            {"steps": 4096},
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 16 * depth // kind.bits,
             "ACC_DTYPE": tl.int32 if whole else tl.float32,
             "INPUT_PRECISION": "tf32" if dtype == "tf32" else "ieee"},
        ),
        "sm_90",
        {"num_warps": warps},
    )  # fmt: skip
    assert found.ok, found.reason
    assert found.stack_bytes == 0
    assert found.shared_bytes is not None
    assert found.shared_bytes <= 113 * 1024  # two programs a SM
