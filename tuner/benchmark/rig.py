"""What a single benchmark runs on, by its address: this machine's GPU, a recorded table, a fake."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import NoDeviceError, NotInstalledError, UsageError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.hardware.gpu import Gpu
from tuner.measure.copies import TensorLaunch
from tuner.measure.device import Device, DeviceIdentity, Trial
from tuner.measure.harness import Harness
from tuner.measure.measurement import Measurement, bare
from tuner.measure.protocol import TimingProtocol

if TYPE_CHECKING:
    from perfmodel.tiling.config import TileConfig
    from tuner.kernels.catalog import ReferenceKernel

ADDRESSES = "cuda, cuda:1, replay:TABLE.parquet, fake or fake:SEED"

NEEDS_NONE = (
    "`perfmodel predict`, `rank`, `explain` and `compare` answer without a GPU, and "
    "`perfmodel bench ... --device fake --gpu NAME` rehearses"
)

Launch = Callable[[], object]


@dataclass
class Rig:
    """A device ready for one benchmark.

    Args:
        device: what times; a `Harness`, or a recorded table.
        gpu: the device's description.
        protocol: how it times, ``None`` for a table, whose rows say it.
        kernels: makes launches and compares results; ``None`` where nothing runs.
        pretend: the times that a fake gives, by configuration; ``None`` for any other device.
        about: why its times are none of a device, for whoever reads them.
        clock: seconds, monotonic.
    """

    device: Device
    gpu: Gpu
    protocol: TimingProtocol | None
    kernels: KernelLaunches | None = None
    pretend: dict[str, float] | None = None
    about: str | None = None
    clock: Callable[[], float] = time.monotonic
    closing: Callable[[], None] = lambda: None

    @property
    def is_table(self) -> bool:
        """Whether a recorded table answers."""
        return self.protocol is None

    @property
    def cold(self) -> bool:
        """Whether each launch finds a flushed L2; a table does not say so here."""
        return self.protocol is not None and self.protocol.l2 == "cold"

    def launch(self, kernel: ReferenceKernel, problem: Any, config: TileConfig) -> Launch | None:
        """Return what runs, ``None`` where nothing does; raises what making its inputs raises."""
        return None if self.kernels is None else self.kernels.launch(kernel, problem, config)

    def verify(self, kernel: ReferenceKernel, problem: Any, config: TileConfig) -> str | None:
        """Run once and return what is wrong with the result.

        Raises:
            UsageError: nothing runs here.
        """
        if self.kernels is None:
            raise UsageError(f"--check needs a GPU, and the device is {self.device.identity.name}")
        return self.kernels.verify(kernel, problem, config)

    def measure(self, trial: Trial, *, floor_us: float, limit_s: float) -> Measurement:
        """Measure a trial as well as the device can."""
        if isinstance(self.device, Harness):
            return self.device.measure(trial, floor_us=floor_us, limit_s=limit_s)
        return bare(self.device.time(trial, samples=1, limit_s=limit_s), floor_us)

    def close(self) -> None:
        """Give the device back."""
        if isinstance(self.device, Harness):
            self.device.close()
        self.closing()


class KernelLaunches:
    """Launches of the reference kernels on a torch device, one problem's inputs shared by all."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._inputs: dict[tuple[str, Any], Any] = {}

    def launch(self, kernel: ReferenceKernel, problem: Any, config: TileConfig) -> Launch:
        """Return a launch on random inputs of the problem."""
        from tuner.kernels.execution import allocate, execute  # noqa: PLC0415 - loads Triton

        plan = kernel.planned(problem, config)
        key = (kernel.name, problem)
        if key not in self._inputs:
            self._inputs = {key: kernel.inputs(problem, 0, self._device)}
        tensors = {**self._inputs[key], **allocate(plan, self._device)}
        return TensorLaunch(partial(execute, plan), tensors)

    def verify(self, kernel: ReferenceKernel, problem: Any, config: TileConfig) -> str | None:
        """Return how one run's result differs from a float64 reference, ``None`` if it does not."""
        if not self._device.startswith("cuda"):
            return kernel.verify(problem, config, device=self._device)
        import torch  # noqa: PLC0415 - optional extra

        with torch.cuda.device(self._device):  # Triton launches on the current one
            return kernel.verify(problem, config, device=self._device)


def open_rig(address: str, gpu: str | None, protocol: TimingProtocol) -> Rig:
    """Return the rig at an address.

    Args:
        address: see `ADDRESSES`.
        gpu: the device's name or file; needed for a table or a fake.
        protocol: how to time.

    Raises:
        UsageError: another address, or ``gpu`` is missing or not what is there.
        NoDeviceError, NotInstalledError: there is no GPU, or what drives it is absent.
        MissingDataError, DataError: the table cannot be replayed.
    """
    kind, _, rest = address.partition(":")
    if kind == "cuda" and (not rest or rest.isdigit()):
        return _cuda(int(rest or 0), gpu, protocol)
    if kind not in ("replay", "fake") or (kind == "replay" and not rest):
        raise UsageError(f"device is {address!r}; use {ADDRESSES}")
    if gpu is None:
        raise UsageError(f"--device {address} stands in for a GPU; say which with --gpu NAME")
    if kind == "replay":
        return _replay(Path(rest.partition("?")[0]).expanduser(), load_gpu(gpu))
    if rest and not rest.isdigit():
        raise UsageError(f"device is {address!r}; use fake, or fake:SEED with a whole number")
    return _fake(int(rest or 0), load_gpu(gpu), protocol)


def _cuda(ordinal: int, gpu: str | None, protocol: TimingProtocol) -> Rig:
    from tuner.collect.inventory import require_known, visible_devices  # noqa: PLC0415 - asks NVML
    from tuner.measure.gauges import NvmlGauges  # noqa: PLC0415 - as above
    from tuner.measure.nvml import Nvml  # noqa: PLC0415 - as above
    from tuner.measure.session import cuda_harness  # noqa: PLC0415 - as above

    try:
        devices = visible_devices()
        if ordinal >= len(devices):
            names = ", ".join(f"cuda:{d.ordinal} ({d.facts.name})" for d in devices)
            raise NoDeviceError(f"there is no cuda:{ordinal}; this process sees {names}")
        _require_torch()
    except NoDeviceError as error:
        raise NoDeviceError(f"{error}; {NEEDS_NONE}") from None
    found = devices[ordinal]
    described = load_gpu(require_known(found.identity) if gpu is None else gpu)
    if found.identity.gpu is not None and described.name != found.identity.gpu:
        raise UsageError(
            f"--gpu is {gpu}, and cuda:{ordinal} is {found.identity.gpu}; leave --gpu out"
        )
    nvml = Nvml()
    name = f"cuda:{ordinal}"
    harness = cuda_harness(name, found.identity, protocol, NvmlGauges(nvml, found.facts.index))
    return Rig(harness, described, protocol, KernelLaunches(name), closing=nvml.close)


def _replay(table: Path, gpu: Gpu) -> Rig:
    from tuner.collect.bench import replay_bench  # noqa: PLC0415 - loads pyarrow

    device = replay_bench(table, 0.0, gpu.name).device
    return Rig(device, gpu, None, about=f"a recorded time of {table.name}; nothing ran here")


def _fake(seed: int, gpu: Gpu, protocol: TimingProtocol) -> Rig:
    from tuner.measure.fake import FakeDevice  # noqa: PLC0415 - only for rehearsals

    times = {_REFERENCE.config: 200.0}
    identity = DeviceIdentity("a fake device", gpu.architecture, gpu=gpu.name)
    fake = FakeDevice(times, seed=seed, noise=0.01, identity=identity, protocol=protocol.name)
    harness = Harness(fake, protocol, fake, _REFERENCE, clock=fake.clock, wait=fake.wait)
    about = "a rehearsal: times are made up around the prediction, and nothing ran"
    return Rig(harness, gpu, protocol, pretend=times, about=about, clock=fake.clock)


def _require_torch() -> None:
    try:
        import torch  # noqa: PLC0415 - optional extra
        import triton  # noqa: F401, PLC0415 - as above
    except ImportError as error:
        raise NotInstalledError(
            f"measuring on a GPU needs torch and Triton ({error}); "
            "install them with: pip install 'perfmodel[triton]'"
        ) from error
    if not torch.cuda.is_available():
        raise NoDeviceError(
            f"the driver has a GPU that torch {torch.__version__} cannot use: install a build of "
            "torch for CUDA"
        )


_REFERENCE = Trial("reference")

__all__ = ["ADDRESSES", "KernelLaunches", "Rig", "open_rig"]
