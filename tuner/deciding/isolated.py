"""Timing in a process of its own: what hangs is cut off, what crashes takes nothing of the user's.

The worker is not the user's program: it is sent the kernel as text and the call's arguments as a
`Task`, so this is possible only where those say all there is to a launch.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from perfmodel.errors import (
    DeviceLostError,
    KernelNotPortableError,
    KernelRaisedError,
    RunFailedError,
    TuningWarning,
    UnknownOptionError,
    UsageError,
)
from tuner import devices, triton_api
from tuner.compiling.compile_job import encode
from tuner.compiling.portable import PortableKernel, portable
from tuner.compiling.worker_process import WorkerProcess
from tuner.deciding.arguments import Access, free_bytes, overlapping, torch_tensors
from tuner.deciding.decision import Call
from tuner.measure.device import DeviceIdentity, Timing, Trial
from tuner.measure.isolation import Isolation, borrowed, give_up
from tuner.measure.task import LaunchSpec, Task
from tuner.measure.worker_device import WorkerDevice

if TYPE_CHECKING:
    from tuner.autotuner.decorator import Autotuner

VARIABLE = "PERFMODEL_ISOLATE"
"""Environment variable that overrides every kernel's ``isolate`` for a whole process."""

CONTEXT_BYTES = 1 << 30
"""Of the device's memory for the worker itself: its context, and what it flushes the L2 with."""

MEMORY_SHARE = 0.9
"""Of the free memory that the worker may take."""

BUDGET_SHARE = 0.25
"""Of the budget that one configuration may take: one that hangs leaves time for others."""


class CannotIsolateError(Exception):
    """The worker cannot time this; the message is the reason."""


@dataclass
class IsolatedDevice:
    """A device whose worker is started when there is something to time."""

    identity: DeviceIdentity
    isolation: Isolation
    asked: bool
    protocol: str = ""
    _worker: WorkerDevice | None = None

    def __post_init__(self) -> None:
        self.protocol = self.isolation.protocol

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        """Return times from the worker.

        Raises:
            DeviceLostError: it cannot be had any more.
            CannotIsolateError: the kernel raised there what is no configuration's fault.
        """
        assert self._worker is not None
        try:
            timing = self._worker.time(trial, samples=samples, limit_s=limit_s)
        except KernelRaisedError as error:
            raise CannotIsolateError(f"it raised {error} in the worker") from error
        return replace(timing, protocol=self.protocol)

    @contextmanager
    def lent(self) -> Iterator[WorkerProcess]:
        """Hold a worker, which starts while other things are done.

        Raises:
            CannotIsolateError: it cannot be started.
        """
        with ExitStack() as held:
            try:
                worker = held.enter_context(borrowed(self.isolation))
            except RunFailedError as error:
                raise CannotIsolateError(f"its process {error}") from error
            yield worker

    @contextmanager
    def opened(
        self, worker: WorkerProcess, task: Task, launches: Mapping[str, LaunchSpec]
    ) -> Iterator[None]:
        """Hold the task in the worker.

        Raises:
            CannotIsolateError: it cannot be had, or cannot make the task's tensors.
        """
        nowhere = self.identity in (devices.INTERPRETER, devices.NOWHERE)
        number = None if nowhere else devices.current_index()
        with WorkerDevice(task, launches, worker=worker, number=number) as device:
            try:
                device.load()
            except DeviceLostError as error:
                give_up(self.isolation, str(error))
                raise CannotIsolateError(str(error)) from error
            except KernelRaisedError as error:
                raise CannotIsolateError(str(error)) from error
            self._worker = device
            try:
                yield
            finally:
                self._worker = None


def isolation_of(kernel: Autotuner, *, timer_here: bool) -> tuple[Isolation | None, bool]:
    """Return how a kernel is to be isolated, ``None`` for not, and whether that was asked for.

    Args:
        kernel: the kernel.
        timer_here: whether it would be timed by our own timer on a device.

    Raises:
        UnknownOptionError: the environment variable is neither on nor off.
    """
    asked = kernel.settings.isolate
    if isinstance(asked, Isolation):
        return asked, True
    forced = os.environ.get(VARIABLE, "").strip().lower()
    if forced not in ("", "0", "1", "on", "off"):
        raise UnknownOptionError(f"{VARIABLE} is {forced!r}; use 1 or 0")
    if forced:
        asked = forced in ("1", "on")
    if asked is False or not timer_here:
        return None, False
    return Isolation(), asked is True


def why_not(kernel: Autotuner, call: Call) -> str | None:
    """Return why a call cannot be timed in a worker, ``None`` where it can."""
    if kernel.hooks.called or any(config.pre_hook is not None for config in kernel.configs):
        return "its hooks are functions of this process"
    if kernel.settings.check is not None:
        return "its check is a function of this process"
    source = _source_of(kernel)
    if isinstance(source, str):
        return source
    try:
        for name, value in call.arguments.items():
            if not hasattr(value, "untyped_storage"):
                encode(name, value)
    except KernelNotPortableError:
        return f"argument {name} is {type(value).__name__}, neither a tensor nor a number"
    return overlapping(call.arguments)


def describe(
    kernel: Autotuner, call: Call, configs: Mapping[str, Any], access: Access
) -> tuple[Task, dict[str, LaunchSpec]]:
    """Return a call as a task, and the launch of each configuration, by its text.

    Raises:
        CannotIsolateError: an argument or a value cannot be sent, or would not fit beside the
            call's own.
    """
    source = _source_of(kernel)
    assert not isinstance(source, str)  # `why_not` says so before
    zeroed = tuple(n for n in kernel.reset_to_zero if call.arguments.get(n) is not None)
    carried = tuple(sorted(access.carried))
    _check_memory(call.arguments, carried)
    try:
        task = Task.of_call(source, call.arguments, carried=carried, zeroed=zeroed)
        launches = {text: _launch(kernel, call, config) for text, config in configs.items()}
        task.to_dict()  # what cannot be sent shows here
        for launch in launches.values():
            launch.to_dict()
    except (KernelNotPortableError, UsageError) as error:
        raise CannotIsolateError(str(error)) from error
    return task, launches


def warn_if_asked(kernel: Autotuner, reason: str) -> None:
    """Warn once a kernel and reason where isolation was asked for and cannot be had."""
    told = _told.setdefault(kernel, set())
    if reason not in told:
        told.add(reason)
        warnings.warn(
            f"{kernel.name} is timed in this process although isolation was asked for: {reason}",
            TuningWarning,
            stacklevel=2,
        )


def _launch(kernel: Autotuner, call: Call, config: Any) -> LaunchSpec:
    chosen = config.all_kwargs()
    given = {n: v for n, v in call.kwargs.items() if n not in ("grid", "warmup")} | chosen
    extra = {n: v for n, v in given.items() if n in chosen or n not in kernel.arg_names}
    extra |= triton_api.heuristic_values(kernel.fn, call.args, given)
    names = set(kernel.arg_names)
    return LaunchSpec(
        {n: v for n, v in extra.items() if n in names},
        {n: v for n, v in extra.items() if n not in names},
        _grid(kernel, call, extra),
    )


def _grid(kernel: Autotuner, call: Call, extra: Mapping[str, Any]) -> tuple[int, ...]:
    grid = call.kwargs.get("grid")
    if callable(grid):
        defaults = {
            name: value
            for name in kernel.arg_names
            if (value := triton_api.default_value(kernel.fn, name)) is not triton_api.NO_DEFAULT
        }
        try:
            grid = grid({**defaults, **call.arguments, **extra})
        except Exception as error:  # the user's own; in this process it shows with its traceback
            raise CannotIsolateError(f"its grid raised {type(error).__name__}") from error
    try:
        found = tuple(int(part) for part in grid)  # type: ignore[union-attr]  # what is none raises
    except (TypeError, ValueError):
        raise CannotIsolateError(f"its grid is {grid!r}, no tuple of numbers") from None
    return found


def _source_of(kernel: Autotuner) -> PortableKernel | str:
    """The kernel's text, or why there is none; worked out once a kernel."""
    known = _sources.get(kernel)
    if known is None:
        known = _sources[kernel] = _source(kernel)
    return known


def _source(kernel: Autotuner) -> PortableKernel | str:
    function = kernel.fn
    while triton_api.is_heuristics(function):
        function = function.fn
    if not triton_api.is_jit(function):
        return f"it is wrapped in {type(function).__name__}"
    try:
        return portable(function)
    except KernelNotPortableError as error:
        return str(error)


def _check_memory(arguments: Mapping[str, Any], carried: Sequence[str]) -> None:
    needed: dict[Any, int] = {}
    for name, tensor in torch_tensors(arguments):
        copies = 2 if name in carried else 1
        size = copies * _span_bytes(tensor)
        needed[tensor.device] = needed.get(tensor.device, CONTEXT_BYTES) + size
    for device, size in needed.items():
        free = free_bytes(device)
        if free is not None and size > MEMORY_SHARE * free:
            raise CannotIsolateError(
                f"the worker needs {size:,} bytes for inputs of its own and {device} has {free:,}"
            )


def _span_bytes(tensor: Any) -> int:
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int((1 + sum((n - 1) * s for n, s in steps)) * tensor.element_size())


def wait_for_device() -> None:
    """Let what this process launched end: two processes share a device by turns."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()


_sources: WeakKeyDictionary[Autotuner, PortableKernel | str] = WeakKeyDictionary()
_told: WeakKeyDictionary[Autotuner, set[str]] = WeakKeyDictionary()
