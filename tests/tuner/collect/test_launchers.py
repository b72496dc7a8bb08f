"""Launchers built ahead are those that Triton would build, letter by letter, if it builds any."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from tuner.kernels.language import INSTALLED

pytestmark = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")

COMPARE = """
import json
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.compiler import ASTSource
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from perfmodel.problems import Attention, Gemm, GroupedGemm
from perfmodel.tiling.config import TileConfig
from tuner.collect.launchers import build_launcher, launcher_source
from tuner.kernels.catalog import find
from tuner.kernels.execution import torch_dtype

class Stub:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_device_interface(self): return torch.cpu
    def is_active(self): return True

class Stop(Exception): pass
sources, made = [], ASTSource.__init__
def init(self, *rest, **named):
    made(self, *rest, **named)
    sources.append(self)
    raise Stop
driver.set_active(Stub())
tile = TileConfig(16, 32, 32, num_warps=2, num_stages=1)
found = []
for name, problem in (
    ("gemm", Gemm(512, 256, 100, a_dtype="bf16")),
    ("attention", Attention(1, 128, q_heads=4, kv_heads=2, head_dim=64)),
    ("attention_decode", Attention(2, 1, 100, 4, 2, 64, page_size=16)),
    ("grouped_gemm", GroupedGemm(64, 4, 2, 64, 64)),
):
    for launch in find(name).planned(problem, tile).launches:
        ours = launcher_source(launch)
        if ours is None:
            found.append(build_launcher(launch))
            continue
        tensors = {n: torch.empty(16, dtype=torch_dtype(d)) for n, d in launch.pointers.items()}
        ASTSource.__init__ = init
        try:
            launch.kernel.warmup(**tensors, **launch.integers, **launch.floats,
                                 **launch.constexprs, **launch.options, grid=launch.grid)
        except Stop:
            pass
        ASTSource.__init__ = made
        signature = dict(sources[-1].signature)
        found.append(nvidia.make_launcher(sources[-1].constants, signature, None) == ours)
print(json.dumps(found))
"""


def test_the_launcher_of_every_kind_of_kernel_is_tritons_own() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    done = subprocess.run(
        [sys.executable, "-c", COMPARE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) >= 7
    assert all(found)
