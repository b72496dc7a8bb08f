"""The bench of a GPU, as far as it goes without one; kernels run in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.cli.app import main
from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError, NoDeviceError, UnknownGpuError
from tuner.collect import cuda
from tuner.collect.bench import Bench
from tuner.collect.inventory import GpuDevice
from tuner.collect.plan_file import Plan
from tuner.collect.shard import read_shard
from tuner.kernels.language import INSTALLED
from tuner.measure.nvml import DeviceFacts

from .conftest import Watched

needs_triton = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")

INTERPRETED = """
import sys
from pathlib import Path
from perfmodel.problems import Attention, Gemm, GroupedGemm
from tuner.collect.bench import Bench
from tuner.collect.cuda import KernelTrials
from tuner.collect.families import FAMILIES
from tuner.collect.output import Output
from tuner.collect.plan_file import Plan, PlannedConfig, PlannedProblem, Settings
from tuner.collect.run import run_shard
from tuner.kernels.interpreter import mend_interpreter
from tuner.measure.device import DeviceIdentity
from tuner.measure.timer import TimerDevice, WallClock

mend_interpreter()
base = {"block_m": 16, "block_n": 16, "num_warps": 1, "num_stages": 1}
deep = base | {"block_k": 32, "group_m": 8}
small = {
    "gemm": (deep, Gemm(32, 16, 48, a_dtype="fp16"), Gemm(20, 24, 40, a_dtype="fp16"),
             Gemm(20, 24, 40, a_dtype="fp8_e4m3", out_dtype="bf16", b_layout="col")),
    "attention": (base, Attention(2, 20, q_heads=2, head_dim=16, dtype="fp16")),
    "attention-backward": (base, Attention(1, 20, q_heads=2, head_dim=16, dtype="fp16",
                                           backward=True)),
    "decode": (base | {"split_k": 2}, Attention(2, 1, [40, 9], 4, 2, 16, page_size=16)),
    "moe": (deep, GroupedGemm(10, 4, 2, 32, 32), GroupedGemm(10, 4, 2, 32, 32, projection="up")),
}
planned = []
for name, (config, *problems) in small.items():
    family = FAMILIES[name]
    configs = tuple(PlannedConfig(config | {"block_m": m}, "stratum", 1.0) for m in (16, 32))
    planned += [PlannedProblem(family.table, family.kernel_of(p), family.columns(p), "small", 1.0,
                               configs) for p in problems]
plan = Plan("h100-sxm5", "sm_90", 0, None, None, Settings(1, 30.0), tuple(planned))
device = TimerDevice(WallClock(), DeviceIdentity("interpreter", "none", gpu="h100-sxm5"))
run_shard(plan, Bench(device, KernelTrials("cpu")), Output(Path(sys.argv[1])))
"""


@needs_triton
def test_the_reference_kernels_run_with_their_own_inputs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED, str(tmp_path)], capture_output=True, text=True,
        check=False, env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = read_shard(tmp_path / "shard-1-of-1.jsonl").rows
    assert [(row.outcome, len(row.samples_us)) for row in rows] == [(Outcome.OK, 1)] * 16


def gpu(name: str) -> tuple[GpuDevice, ...]:
    return (GpuDevice(0, DeviceFacts(0, name=name, compute_capability=(9, 0))),)


def test_what_a_gpu_lacks_is_said_before_anything_is_measured(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="a bench on a GPU needs torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cuda, "visible_devices", lambda: gpu("NVIDIA H100 80GB HBM3"))
    with pytest.raises(NoDeviceError, match=r"there is no cuda:2; this process sees 1: cuda:0"):
        cuda.cuda_bench(2, plan)
    with pytest.raises(NoDeviceError, match="install a build of torch for CUDA"):
        cuda.cuda_bench(0, plan)
    monkeypatch.setattr(cuda, "visible_devices", lambda: gpu("NVIDIA X1"))
    with pytest.raises(UnknownGpuError, match="'NVIDIA X1'"):
        cuda.cuda_bench(0, plan)


def test_a_lost_device_starts_the_command_anew_while_it_gets_on(
    plan: Plan,
    bench: Bench,
    device: Watched,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a row in between it gives up at the third time."""

    def lose() -> None:
        raise DeviceLostError("the CUDA context was lost")

    class Replaced(BaseException):
        pass

    def replace_process(_path: str, words: list[str]) -> None:
        started.append(words)
        raise Replaced

    started: list[list[str]] = []
    command = ["collect", "run", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out")]
    plan.save(tmp_path / "plan.json")
    monkeypatch.setattr("tuner.collect.bench.open_bench", lambda *_: bench)
    monkeypatch.setattr(os, "execv", replace_process)
    monkeypatch.setattr(sys, "argv", ["perfmodel", *command])
    monkeypatch.setenv("PERFMODEL_COLLECT_RESTARTS", "0")
    for after in (1, 1, 3, 3, 1, 1):
        device.before = {device.asked + after: lose}
        with pytest.raises(Replaced):
            main(command)
    assert started[-1][-len(command) :] == command
    device.before = {device.asked + 1: lose}
    assert main(command) == 1
    assert "the CUDA context was lost" in capsys.readouterr().err
    assert main(command) == 0
    rows = read_shard(tmp_path / "out" / "shard-1-of-1.jsonl").rows
    assert len(rows) == len(plan.items)
