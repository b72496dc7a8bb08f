"""A benchmark on a GPU from its address to its time, the device simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.errors import NoDeviceError, UnknownGpuError, UsageError
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.benchmark import rig as rigs
from tuner.benchmark.single import Subject, bench, choose_kernel
from tuner.collect.inventory import GpuDevice
from tuner.measure import session
from tuner.measure.device import Trial
from tuner.measure.nvml import DeviceFacts
from tuner.measure.protocol import TimingProtocol

from .conftest import Kernel, SimulatedCuda, Work

PROBLEM = Gemm(1024, 1024, 1024, a_dtype="bf16")


def visible(*names: str) -> Callable[[], tuple[GpuDevice, ...]]:
    return lambda: tuple(
        GpuDevice(n, DeviceFacts(n, name=name, compute_capability=(9, 0)))
        for n, name in enumerate(names)
    )


@pytest.fixture
def machine(cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch) -> SimulatedCuda:
    """One H100, whose launches take 7 us and whose reference takes 200."""
    monkeypatch.setattr("tuner.collect.inventory.visible_devices", visible("NVIDIA H100 80GB HBM3"))
    monkeypatch.setattr(rigs, "_require_torch", lambda: None)
    monkeypatch.setattr("tuner.measure.nvml._binding", lambda: SimpleNamespace(nvmlInit=list))
    reference = Trial("reference", launch=Work(cuda, [Kernel(200.0, 200.0, 20.0)]))
    monkeypatch.setattr(session, "reference_trial", lambda device: reference)
    monkeypatch.setattr(
        rigs.KernelLaunches, "launch", lambda *_: Work(cuda, [Kernel(7.0, 8.0, 50.0)])
    )
    return cuda


def test_a_gpu_is_found_and_its_kernel_timed_in_a_graph(machine: SimulatedCuda) -> None:
    rig = rigs.open_rig("cuda", None, TimingProtocol(samples_max=100))
    subject = Subject(PROBLEM, choose_kernel(PROBLEM), rig.gpu)
    found = bench(subject, rig, Predictor(analytic_only=True), [TileConfig(128, 128, 64)])
    m = found.measurement
    assert rig.gpu.name == "h100-sxm5"
    assert m.latency_us == pytest.approx(8.0, rel=0.02)
    assert (m.timing.method, m.timing.launches, m.flags) == ("cuda_graph", 56, ())
    assert m.timing.protocol == "steady-cold-1"
    assert m.drift == pytest.approx(0.0)
    assert m.before.missing  # the binding has no query at all
    rig.close()


def test_what_is_asked_for_must_be_what_is_there(
    machine: SimulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = TimingProtocol()
    with pytest.raises(NoDeviceError, match=r"no cuda:1; this process sees cuda:0 \(NVIDIA H100"):
        rigs.open_rig("cuda:1", None, protocol)
    with pytest.raises(UsageError, match="--gpu is h200-sxm, and cuda:0 is h100-sxm5"):
        rigs.open_rig("cuda", "h200-sxm", protocol)
    monkeypatch.setattr("tuner.collect.inventory.visible_devices", visible("NVIDIA X9"))
    with pytest.raises(UnknownGpuError, match="X9"):
        rigs.open_rig("cuda", None, protocol)
    assert rigs.open_rig("cuda", "h100-pcie", protocol).gpu.name == "h100-pcie"


def test_the_reference_is_a_product_on_random_numbers_that_can_be_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch", reason="the reference is torch's own product")
    monkeypatch.setattr(session, "_REFERENCE_SIZE", 32)
    seen: list[Any] = []

    def multiply(tensors: Mapping[str, Any]) -> None:
        torch.mm(tensors["a"], tensors["b"], out=tensors["out"])
        seen.append(tensors["out"])

    monkeypatch.setattr(session, "_multiply", multiply)
    first, again = (session.reference_trial("cpu") for _ in range(2))
    for trial in (first, again):
        assert trial.launch is not None
        trial.launch()
    assert torch.equal(*seen)
    assert seen[0].float().std() > 1.0
