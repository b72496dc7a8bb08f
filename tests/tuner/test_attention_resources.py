"""The shared memory and registers of tiled attention against what the compiler says."""

from __future__ import annotations

import pytest

from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Attention
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.tiling.attention_resources import attention_resources
from perfmodel.tiling.config import ConfigTable, TileConfig

pytest.importorskip("triton", reason="compiling needs Triton")

from tuner.compile import compile_launch
from tuner.kernels.attention import plan

DEVICES = {
    "sm_75": "t4", "sm_80": "a100-sxm4-80gb", "sm_86": "a40", "sm_90": "h100-sxm5",
    "sm_100": "b200", "sm_120": "rtx-pro-6000-server",
}  # fmt: skip


@pytest.mark.parametrize(
    ("target", "head_dim", "m", "n", "warps", "stages"),
    [
        ("sm_75", 64, 16, 64, 4, 2),
        ("sm_80", 64, 64, 32, 4, 3),
        ("sm_80", 128, 32, 64, 4, 2),
        ("sm_86", 256, 16, 32, 4, 1),
        ("sm_90", 64, 64, 64, 4, 2),
        ("sm_90", 64, 32, 32, 4, 3),
        ("sm_100", 64, 16, 64, 4, 2),
        ("sm_120", 128, 64, 32, 4, 2),
    ],
)
def test_shared_memory_is_what_the_compiler_takes(
    target: str, head_dim: int, m: int, n: int, warps: int, stages: int
) -> None:
    problem = Attention(2, 1024, q_heads=4, kv_heads=2, head_dim=head_dim, dtype="fp16")
    config = TileConfig(m, n, num_warps=warps, num_stages=stages)
    (launch,) = plan(problem, config).launches
    compiled = compile_launch(launch, target)
    assert compiled.ok, compiled.reason
    found = attention_resources(
        AttentionTable.of(problem), ConfigTable.of([config]), load_gpu(DEVICES[target])
    )
    assert found.smem_bytes[0] == compiled.shared_bytes
    assert found.smem_loop_bytes[0] <= compiled.shared_bytes
    if target != "sm_75":
        assert compiled.registers is not None
        assert abs(found.registers[0] - compiled.registers) <= 45
