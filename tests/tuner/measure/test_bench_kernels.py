"""A benchmark of real kernels, in Triton's interpreter: inputs, launches, copies, comparisons."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tuner.kernels.language import INSTALLED

INTERPRETED = """
import json
from dataclasses import replace
from perfmodel.hardware.catalog import load_gpu
from perfmodel.predictor import Predictor
from perfmodel.problems import Attention, Gemm, GroupedGemm
from perfmodel.tiling.config import TileConfig
from tuner.benchmark.rig import KernelLaunches, Rig
from tuner.benchmark.single import Subject, bench, choose_kernel
from tuner.kernels.interpreter import mend_interpreter
from tuner.measure.device import DeviceIdentity
from tuner.measure.harness import Harness
from tuner.measure.protocol import TimingProtocol
from tuner.measure.timer import TimerDevice, WallClock

mend_interpreter()
protocol = TimingProtocol(samples_min=1, samples_max=2, warm_up_s=1e-3)
device = Harness(TimerDevice(WallClock(), DeviceIdentity("interpreter", "none")), protocol)
launches = KernelLaunches("cpu")
rig = Rig(device, load_gpu("h100-sxm5"), protocol, launches)
tile = TileConfig(16, 16, 32, 8, 1, 1)
said = []
for problem, config in (
    (Gemm(16, 16, 128, a_dtype="fp16"), replace(tile, split_k=2)),
    (Attention(2, 1, [20, 9], 2, 1, 16, page_size=16, dtype="fp16"), tile),
    (GroupedGemm(4, 2, 1, 32, 16, dtype="fp16"), tile),
):
    subject = Subject(problem, choose_kernel(problem, None, config), rig.gpu)
    found = bench(subject, rig, Predictor(analytic_only=True), [config], check=True)
    first, other = launches.launch(subject.kernel, problem, config).copies(2)
    plan = subject.kernel.planned(problem, config)
    results = []
    for each in (first, other):
        each()
        tensors = first._tensors if each is first else each.args[-1]
        results.append([tensors[name].clone() for name in plan.outputs])
    same = all(bool((a == b).all()) for a, b in zip(*results))
    said.append([subject.kernel.name, found.measurement.outcome.value, found.checked, same])
print(json.dumps(said))
"""


@pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
def test_real_kernels_are_benched_compared_and_copied() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = ("gemm_split_k", "attention_decode", "grouped_gemm")
    assert json.loads(done.stdout) == [[name, "ok", "", True] for name in names]
