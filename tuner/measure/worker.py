"""``python -m tuner.measure.worker``: runs and times what it is sent; see `worker_device`."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.compiling.portable import load
from tuner.compiling.worker_loop import serve
from tuner.measure.check import mismatch
from tuner.measure.device import DeviceIdentity, Trial
from tuner.measure.task import LaunchSpec, Task
from tuner.measure.timer import CudaEvents, Stopwatch, TimerDevice, WallClock


class Worker:
    """Holds one task: its kernel, its tensors, and what the reference gave."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._kernel: Any = None
        self._tensors: dict[str, Any] = {}
        self._kept: list[tuple[Any, Any]] = []  # bytes that a launch may read back, and a copy
        self._expected: dict[str, Any] | None = None
        self._verified: dict[str, str | None] = {}
        self._device: TimerDevice | None = None
        self._place = "cpu"

    def answer(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Load a task or time a configuration; an error of the user's comes back as text."""
        try:
            if "load" in message:
                return self._load(Task.from_dict(message["load"]), message.get("device"))
            if "unload" in message:
                return self._unload()
            return self._time(message)
        except Exception as error:  # whatever it is, the parent says so to whoever asked
            text = "".join(traceback.format_exception(error))
            return {"raised": type(error).__name__, "message": str(error), "traceback": text}

    def _load(self, task: Task, number: int | None) -> Mapping[str, Any]:
        on_cpu = os.environ.get("TRITON_INTERPRET") == "1"
        self._place = "cpu" if on_cpu else _cuda(number)
        stopwatch: Stopwatch = WallClock() if on_cpu else CudaEvents(self._place)
        identity = _identity(on_cpu)
        self._task, self._kernel = task, load(task.kernel)
        self._tensors = {n: t.make(self._place, task.seed + i) for i, (n, t) in self._made(task)}
        # What the tensors span, not the tensors: an expanded one cannot be written to.
        spans = [_span(self._tensors[name]) for name in task.carried if name in self._tensors]
        self._kept = [(span, span.clone()) for span in spans]
        self._device = TimerDevice(stopwatch, DeviceIdentity(**identity))
        self._expected, self._verified = None, {}
        return {"protocol": stopwatch.protocol, "identity": identity}

    def _unload(self) -> Mapping[str, Any]:
        """Give back all memory, that of the device too; the next message is a task."""
        if self._device is not None:
            self._device.close()
        self._task = self._kernel = self._device = self._expected = None
        self._tensors, self._kept, self._verified = {}, [], {}
        if self._place != "cpu":
            import torch  # noqa: PLC0415 - an extra, and slow to import

            torch.cuda.empty_cache()
        return {"unloaded": True}

    def _time(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        task, device = self._task, self._device
        if task is None or device is None:
            raise RuntimeError("there is no task to time; load one first")
        spec, config = LaunchSpec.from_dict(message["launch"]), message["config"]
        zeroed = [self._tensors[name] for name in task.zeroed if name in self._tensors]
        launch = _Launch(self._launcher(spec, self._tensors), self._kept, zeroed)
        if task.reference is not None and self._expected is None:
            self._expected = self._results(task, task.reference)
        trial = Trial(config, launch)
        timing = device.time(trial, samples=message["samples"], limit_s=message["limit_s"])
        if timing.outcome.ran and self._expected is not None:
            if config not in self._verified:
                self._verified[config] = self._compare(task, spec)
            if self._verified[config] is not None:
                return {"outcome": "wrong_result", "reason": self._verified[config]}
        return {
            "outcome": timing.outcome.value,
            "samples_us": list(timing.samples_us),
            "reason": timing.reason,
            "traceback": timing.traceback,
            "lost": device.lost,
        }

    def _compare(self, task: Task, spec: LaunchSpec) -> str | None:
        assert self._expected is not None
        for name, found in self._results(task, spec).items():
            wrong = mismatch(found, self._expected[name], task.relative, task.of_typical)
            if wrong is not None:
                return f"{name}: {wrong}"
        return None

    def _results(self, task: Task, spec: LaunchSpec) -> dict[str, Any]:
        """Run once on fresh inputs and return the outputs."""
        fresh = {n: t.make(self._place, task.seed + i) for i, (n, t) in self._made(task)}
        self._launcher(spec, fresh)()
        return {n: t for n, t in fresh.items() if not task.outputs or n in task.outputs}

    def _launcher(self, spec: LaunchSpec, tensors: Mapping[str, Any]) -> Callable[[], object]:
        assert self._task is not None
        given = {**tensors, **self._task.scalars, **spec.constexprs, **spec.options}
        return lambda: self._kernel[spec.grid](**given)

    def _made(self, task: Task) -> list[tuple[int, tuple[str, Any]]]:
        return list(enumerate(task.tensors.items()))


class _Launch:
    """One launch as it is timed: what it may read back is put back first (a `PartedLaunch`)."""

    def __init__(
        self,
        launch: Callable[[], object],
        kept: Sequence[tuple[Any, Any]],
        zeroed: Sequence[Any],
    ) -> None:
        self._launch, self._kept, self._zeroed = launch, kept, zeroed

    def __call__(self) -> object:
        self.prepare()
        return self.bare()

    def prepare(self) -> None:
        """Put back, set to zero."""
        for span, copy in self._kept:
            span.copy_(copy)
        for tensor in self._zeroed:
            tensor.zero_()

    def bare(self) -> object:
        """Launch."""
        return self._launch()

    def finish(self) -> None:
        """Nothing follows."""


def _span(tensor: Any) -> Any:
    if not tensor.numel():
        return tensor
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((extent,), (1,))


def _cuda(number: int | None) -> str:
    if number is None:
        return "cuda"
    import torch  # noqa: PLC0415 - an extra, and slow to import

    torch.cuda.set_device(number)
    return f"cuda:{number}"


def _identity(on_cpu: bool) -> dict[str, Any]:
    if on_cpu:
        return {"name": "interpreter", "architecture": "interpreter"}
    import torch  # noqa: PLC0415 - an extra, and slow to import

    found = torch.cuda.get_device_properties("cuda")
    clock_khz = getattr(found, "clock_rate", None)
    return {
        "name": found.name,
        "architecture": f"sm_{found.major}{found.minor}",
        "sm_count": found.multi_processor_count,
        "memory_bytes": found.total_memory,
        "clock_mhz": None if clock_khz is None else clock_khz / 1e3,
    }


if __name__ == "__main__":
    serve(Worker().answer)
