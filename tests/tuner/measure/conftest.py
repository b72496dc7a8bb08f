"""A stand-in for ``torch.cuda`` with a clock for the host and one for the device.

It holds to the rules that a real one punishes: nothing is captured on the default stream, nothing
waits, allocates or is compiled inside a capture, and a kernel's time depends on what is in the L2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

FREE_BYTES = 80 << 30
L2_BYTES = 50 << 20
DEFAULT = "default stream"


@dataclass
class Kernel:
    """What a launch costs, and what it touches: ``host_us`` to enqueue, warm or cold to run."""

    warm_us: float
    cold_us: float
    host_us: float = 5.0
    memory: str = "m"
    capturable: bool = True


@dataclass(eq=False)
class Stream:
    cuda: SimulatedCuda
    name: str = "side stream"
    busy_until_us: float = 0.0

    def synchronize(self) -> None:
        self.cuda.synchronize(self)

    def wait_stream(self, other: Stream) -> None:
        self.busy_until_us = max(self.busy_until_us, other.busy_until_us)


@dataclass
class SimulatedCuda:
    """The device, the host that feeds it, and what a test may ask of them."""

    flush_us: float = 30.0
    event_us: float = 1.0  # on the device, after the first of two
    graph_start_us: float = 1.5
    largest_copy: int = 1 << 62
    now_us: float = 0.0
    resident: set[str] = field(default_factory=set)
    compiled: set[int] = field(default_factory=set)
    capture: list[Kernel] | None = None
    capturing: bool = False
    launched_on: list[str] = field(default_factory=list)
    recorded_on: list[str] = field(default_factory=list)
    flushed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.default = Stream(self, DEFAULT)
        self.current = self.default

    # What a launch does

    def launch(self, kernel: Kernel) -> None:
        self.launched_on.append(self.current.name)
        self.now_us += kernel.host_us
        if self.capturing:
            if not kernel.capturable or id(kernel) not in self.compiled:
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
            assert self.capture is not None
            self.capture.append(kernel)
            return
        self.compiled.add(id(kernel))
        self.run(kernel)

    def run(self, kernel: Kernel) -> None:
        cold = kernel.memory not in self.resident
        self.resident.add(kernel.memory)
        self.occupy(kernel.cold_us if cold else kernel.warm_us)

    def occupy(self, us: float) -> None:
        self.current.busy_until_us = max(self.current.busy_until_us, self.now_us) + us

    def synchronize(self, stream: Stream | None = None) -> None:
        assert not self.capturing, "a wait inside a capture"
        self.now_us = max(self.now_us, (stream or self.current).busy_until_us)

    # torch

    def empty(self, size: int, **_: Any) -> Any:
        assert not self.capturing, "an allocation inside a capture"
        return SimpleNamespace(zero_=lambda: self._flush(size))

    def _flush(self, size: int) -> None:
        self.flushed.append(size)
        self.now_us += 3.0
        self.resident.clear()
        self.occupy(self.flush_us)

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def module(self) -> Any:
        """Return what stands in for ``torch``."""
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                self.at_us = 0.0

            def record(self, stream: Stream) -> None:
                cuda.recorded_on.append(stream.name)
                cuda.now_us += 1.0
                self.at_us = max(stream.busy_until_us, cuda.now_us)
                stream.busy_until_us = self.at_us + cuda.event_us

            def elapsed_time(self, end: Event) -> float:
                return (end.at_us - self.at_us) / 1e3

        class CUDAGraph:
            def __init__(self) -> None:
                self.kernels: list[Kernel] | None = []

            def capture_begin(self, capture_error_mode: str = "global") -> None:
                if cuda.current is cuda.default:
                    raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
                assert capture_error_mode == "thread_local"
                cuda.capture, cuda.capturing = self.kernels, True

            def capture_end(self) -> None:
                cuda.capture, cuda.capturing = None, False

            def replay(self) -> None:
                assert self.kernels, "an empty graph, or one given back"
                cuda.now_us += 8.0
                cuda.occupy(cuda.graph_start_us)
                for kernel in self.kernels:
                    cuda.run(kernel)

            def reset(self) -> None:
                self.kernels = None

        return SimpleNamespace(
            device=lambda name: name,
            int8="int8",
            empty=cuda.empty,
            cuda=SimpleNamespace(
                Event=Event,
                CUDAGraph=CUDAGraph,
                Stream=lambda device: Stream(cuda),
                current_stream=lambda device: cuda.current,
                stream=cuda.stream,
                synchronize=lambda device=None: cuda.synchronize(),
                get_device_properties=lambda device: SimpleNamespace(L2_cache_size=L2_BYTES),
                mem_get_info=lambda device: (FREE_BYTES, 2 * FREE_BYTES),
                empty_cache=lambda: None,
                _sleep=lambda cycles: cuda.occupy(cycles / 2000),
            ),
        )


@dataclass
class Work:
    """A launch of some kernels that may be copied."""

    cuda: SimulatedCuda
    kernels: list[Kernel]
    bytes_each: int = 1 << 20

    def __call__(self) -> None:
        for kernel in self.kernels:
            self.cuda.launch(kernel)

    def copies(self, count: int) -> list[Callable[[], object]]:
        if count > self.cuda.largest_copy:
            raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory.")
        return [self, *(self._copy(number) for number in range(1, count))]

    def _copy(self, number: int) -> Callable[[], object]:
        kernels = [
            Kernel(k.warm_us, k.cold_us, k.host_us, f"{k.memory} {number}", k.capturable)
            for k in self.kernels
        ]
        return Work(self.cuda, kernels)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimulatedCuda:
    """A simulated device that ``import torch`` gives, and whose host time the timer reads."""
    simulated = SimulatedCuda()
    monkeypatch.setitem(__import__("sys").modules, "torch", simulated.module())
    monkeypatch.setattr(
        "tuner.measure.cuda_timer.time.perf_counter", lambda: simulated.now_us / 1e6
    )
    return simulated
