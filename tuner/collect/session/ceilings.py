"""What a device gives at most: bandwidths, the rate of its tensor units, the cost of a launch.

Each is the best of several rounds, since a ceiling is what can be reached, and is kept with the
median. None is corrected: what a probe reached is a lower bound of what there is.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.dtypes import parse_dtype
from tuner.measure.failures import classify

ROUNDS = 7
ROUND_S = 0.02
"""Seconds of one round: long beside a launch, short beside a change of clocks."""

COPY_BYTES = 2 << 30
L2_SHARE = 0.25
"""Of the L2: it holds this with room to spare, whatever its policy and its halves."""

READ_BLOCK = 1024
MULTIPLY_STEPS = 4096
MULTIPLY_TILES = ((128, 128, 64, 4), (128, 256, 64, 8), (64, 256, 64, 4))
"""block_m, block_n, block_k and warps; the tile that suits a device differs."""

LIBRARY_SIZE = 8192
DTYPES = ("bf16", "fp16", "tf32", "fp8_e4m3", "int8")
LAUNCHES = 200


class Meter(Protocol):
    """Times launches back to back."""

    def seconds(self, launch: Callable[[], object], count: int) -> float:
        """Return the device seconds of ``count`` launches together."""


@dataclass(frozen=True)
class Ceiling:
    """One ceiling. ``value`` is the best round, ``median`` the middle one, both in ``unit``."""

    name: str
    dtype: str | None
    value: float | None
    median: float | None
    unit: str
    rounds: int
    detail: str
    outcome: Outcome = Outcome.OK
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"outcome": self.outcome.value}


@dataclass(frozen=True)
class Probe:
    """One thing to try. ``make`` returns a launch, and what one launch of it amounts to."""

    name: str
    dtype: str | None
    unit: str
    detail: str
    make: Callable[[], tuple[Callable[[], object], float]]


def measured(probes: Sequence[Probe], meter: Meter) -> Iterator[Ceiling]:
    """Yield what each probe reached; what cannot run here says why.

    Raises:
        DeviceLostError: nothing more can be measured in this process.
    """
    for probe in probes:
        try:
            launch, amount = probe.make()
            rates = _rates(launch, amount, meter)
        except Exception as error:
            found = classify(error)
            if found is not None and found.poisoned:
                raise DeviceLostError(f"the CUDA context was lost: {found.reason}") from error
            reason = f"{type(error).__name__}: {error}" if found is None else found.reason
            outcome = Outcome.CRASHED if found is None else found.outcome
            yield Ceiling(probe.name, probe.dtype, None, None, probe.unit, 0, probe.detail,
                          outcome, reason)  # fmt: skip
            continue
        best = min(rates) if probe.unit == "us" else max(rates)
        yield Ceiling(
            probe.name, probe.dtype, best, statistics.median(rates), probe.unit, len(rates),
            probe.detail,
        )  # fmt: skip


def _rates(launch: Callable[[], object], amount: float, meter: Meter) -> list[float]:
    """Amounts a second of each round; for launches, microseconds each."""
    meter.seconds(launch, 2)  # compiles, loads, and raises the clocks
    once = max(meter.seconds(launch, 4) / 4, 1e-7)
    count = max(min(round(ROUND_S / once), 10_000), 2)
    found = [meter.seconds(launch, count) / count for _ in range(ROUNDS)]
    return [1e6 * s if amount == 0 else amount / s for s in found]


class CudaMeter:
    """CUDA events around all launches, once they are queued."""

    def __init__(self, device: str) -> None:
        import torch  # noqa: PLC0415 - optional extra

        self._torch, self._device = torch, device

    def seconds(self, launch: Callable[[], object], count: int) -> float:
        """Return the seconds between the first and the end of the last."""
        cuda = self._torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda.synchronize(self._device)
        begin.record()
        for _ in range(count):
            launch()
        end.record()
        cuda.synchronize(self._device)
        return 1e-3 * float(begin.elapsed_time(end))


def probes(gpu: Gpu, device: str) -> list[Probe]:
    """Return what to try on a device of that kind."""
    found = [
        Probe("copy bandwidth", None, "GB/s", "read and written, torch copy of 2 GiB at most",
              partial(_copy, gpu, device)),
        Probe("L2 read bandwidth", None, "GB/s",
              f"a quarter of the {gpu.l2_bytes / 2**20:.0f} MiB read over and over",
              partial(_l2, gpu, device)),
        Probe("launch", None, "us", "an empty kernel, launched one by one",
              partial(_empty, device)),
        Probe("launch in a graph", None, "us", f"one of {LAUNCHES} empty kernels of a CUDA graph",
              partial(_graph, device)),
    ]  # fmt: skip
    found += [
        Probe("tensor units", dtype, "TFLOP/s", "tile {}x{}x{} on {} warps".format(*tile),
              partial(_multiply, gpu, device, dtype, tile))
        for dtype in DTYPES
        if dtype in gpu.tensor_tflops
        for tile in MULTIPLY_TILES
    ]  # fmt: skip
    found += [
        Probe("library product", dtype, "TFLOP/s", f"torch, {LIBRARY_SIZE} cubed",
              partial(_library, device, dtype))
        for dtype in ("bf16", "fp16", "tf32")
        if dtype in gpu.tensor_tflops
    ]  # fmt: skip
    return found


def _copy(gpu: Gpu, device: str) -> tuple[Callable[[], object], float]:
    import torch  # noqa: PLC0415 - optional extra

    size = min(COPY_BYTES, gpu.memory_bytes // 8)
    source = torch.ones(size // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2 * size / 1e9


def _l2(gpu: Gpu, device: str) -> tuple[Callable[[], object], float]:
    import torch  # noqa: PLC0415 - optional extra

    from tuner.kernels.probes import read_kernel  # noqa: PLC0415 - loads Triton

    blocks = max(int(L2_SHARE * gpu.l2_bytes) // (4 * READ_BLOCK), 1)
    programs, repeats = min(4 * gpu.sm_count, blocks), 64
    data = torch.ones(blocks * READ_BLOCK, dtype=torch.int32, device=device)
    out = torch.empty(programs * READ_BLOCK, dtype=torch.int32, device=device)

    def launch() -> None:
        read_kernel[(programs,)](data, out, blocks, repeats, BLOCK=READ_BLOCK, num_warps=8)

    return launch, repeats * blocks * READ_BLOCK * 4 / 1e9


def _empty(device: str) -> tuple[Callable[[], object], float]:
    import torch  # noqa: PLC0415 - optional extra

    from tuner.kernels.probes import empty_kernel  # noqa: PLC0415 - loads Triton

    out = torch.zeros(1, dtype=torch.int32, device=device)
    return lambda: empty_kernel[(1,)](out, LIVE=False), 0.0


def _graph(device: str) -> tuple[Callable[[], object], float]:
    import torch  # noqa: PLC0415 - optional extra

    one, _ = _empty(device)
    one()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            one()
    return _Split(graph.replay, LAUNCHES), 0.0


class _Split:
    """A launch of many: a meter that counts launches is told of one at a time."""

    def __init__(self, replay: Callable[[], object], launches: int) -> None:
        self._replay, self._launches, self._left = replay, launches, 0

    def __call__(self) -> None:
        if not self._left:
            self._replay()
            self._left = self._launches
        self._left -= 1


def _multiply(
    gpu: Gpu, device: str, dtype: str, tile: tuple[int, int, int, int]
) -> tuple[Callable[[], object], float]:
    import torch  # noqa: PLC0415 - optional extra

    from tuner.kernels.execution import torch_dtype  # noqa: PLC0415 - beside torch
    from tuner.kernels.language import tl  # noqa: PLC0415 - loads Triton
    from tuner.kernels.probes import multiply_kernel  # noqa: PLC0415 - as above

    m, n, bytes_k, warps = tile
    kind = parse_dtype(dtype)
    k = 2 * bytes_k * 8 // kind.bits
    whole = kind.name == "int8"
    drawn = torch.randn((m + n, k), device=device)
    operands = (20 * drawn if whole else drawn).to(torch_dtype(kind))
    programs = 2 * gpu.sm_count
    out = torch.empty(
        (programs, m, n), device=device, dtype=torch.int32 if whole else torch.float32
    )
    a, b = operands[:m].contiguous(), operands[m:].contiguous()

    def launch() -> None:
        multiply_kernel[(programs,)](
            a, b, out, MULTIPLY_STEPS, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k,
            ACC_DTYPE=tl.int32 if whole else tl.float32,
            INPUT_PRECISION="tf32" if kind.name == "tf32" else "ieee", num_warps=warps,
        )  # fmt: skip

    return launch, 2.0 * programs * MULTIPLY_STEPS * m * n * k / 1e12


def _library(device: str, dtype: str) -> tuple[Callable[[], object], float]:
    import torch  # noqa: PLC0415 - optional extra

    from tuner.kernels.execution import torch_dtype  # noqa: PLC0415 - beside torch

    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    shape = (LIBRARY_SIZE, LIBRARY_SIZE)
    a, b = (torch.randn(shape, device=device).to(torch_dtype(parse_dtype(dtype))) for _ in "ab")
    out = torch.empty(shape, device=device, dtype=a.dtype)
    return lambda: torch.matmul(a, b, out=out), 2.0 * LIBRARY_SIZE**3 / 1e12
