"""A device in a process of its own: what hangs is cut off, what crashes is started again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError, KernelRaisedError, RunFailedError
from tuner.compiling.worker_process import (
    STARTUP_LIMIT_S,
    WorkerDiedError,
    WorkerProcess,
    WorkerTimeoutError,
    python_command,
)
from tuner.measure.device import DeviceIdentity, Timing, Trial
from tuner.measure.task import LaunchSpec, Task

CONFIGS_PER_WORKER = 100
"""Kernels stay loaded while their process lives: after so many it is replaced, so that a search
over thousands keeps its memory."""

SOFT_SHARE = 0.9
"""Of its limit, after which the worker itself stops taking samples: it keeps those it has."""

UNLOAD_LIMIT_S = 10.0
"""For giving memory back."""

STARTS_MAX = 3
"""A worker that fails to load its task so often in a row will not be had."""


class WorkerDevice:
    """Times configurations of one task in a long-lived worker.

    The user's script is not run again: the kernel goes there as text, its arguments as JSON.

    Args:
        task: the kernel and its arguments.
        launches: the launch of each configuration, by its text.
        environment: variables to set for the worker.
        command: what to run as a worker; by default ours.
        canonical: maps a driver's device name to a known device.
        worker: one that runs already, instead of ``environment`` and ``command``; `close` leaves it
            running, with the task's memory given back.
        number: of the device, as this process counts them; by default the first.
    """

    def __init__(
        self,
        task: Task,
        launches: Mapping[str, LaunchSpec],
        *,
        environment: Mapping[str, str | None] | None = None,
        command: Sequence[str] | None = None,
        canonical: Callable[[str], str | None] = lambda _name: None,
        worker: WorkerProcess | None = None,
        number: int | None = None,
    ) -> None:
        self._task = task.to_dict()
        self._launches = launches
        self._canonical = canonical
        self._number = number
        self._lent = worker is not None
        self._worker = worker or worker_process(command, environment)
        self._loaded: Mapping[str, Any] | None = None
        self._seen: set[str] = set()

    @property
    def identity(self) -> DeviceIdentity:
        """The device that the worker found; starts it.

        Raises:
            DeviceLostError: it does not start.
        """
        found = DeviceIdentity(**self._load()["identity"])
        return replace(found, gpu=self._canonical(found.name))

    @property
    def protocol(self) -> str:
        """How the worker times; starts it."""
        return str(self._load()["protocol"])

    @property
    def starts(self) -> int:
        """How often a worker was started."""
        return self._worker.starts

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        """Return times of a configuration; after a hang or crash the next one gets a new worker.

        Raises:
            DeviceLostError: no worker can be had.
            KernelRaisedError: the user's own error, with its traceback in the worker.
        """
        protocol = self.protocol
        if len(self._seen) >= CONFIGS_PER_WORKER and trial.config not in self._seen:
            self._drop()
            self._load()
        self._seen.add(trial.config)
        message = {
            "config": trial.config, "launch": self._launches[trial.config].to_dict(),
            "samples": samples, "limit_s": SOFT_SHARE * limit_s,
        }  # fmt: skip
        try:
            found = self._worker.ask(message, limit_s)
        except WorkerTimeoutError:
            self._drop()
            return Timing(Outcome.TIMEOUT, protocol, reason=f"cut off after {limit_s:g} s")
        except WorkerDiedError as error:
            self._drop()
            return Timing(Outcome.CRASHED, protocol, reason=f"its process {error}")
        if "raised" in found:
            raise _raised(found)
        if found.get("lost"):
            self._drop()  # its CUDA context is beyond use
        return Timing(
            Outcome(found["outcome"]), protocol, tuple(found.get("samples_us", ())),
            found.get("reason"), found.get("traceback"),
        )  # fmt: skip

    def load(self) -> None:
        """Have the worker make the task's tensors now.

        Raises:
            DeviceLostError: no worker can be had.
            KernelRaisedError: the task cannot be made there, for want of memory for one.
        """
        self._load()

    def close(self) -> None:
        """End the worker, or have a lent one forget the task."""
        if self._lent and self._worker.running and self._loaded is not None:
            try:
                self._worker.ask({"unload": True}, UNLOAD_LIMIT_S)
            except RunFailedError:
                self._drop()
        elif not self._lent:
            self._drop()
        self._loaded = None

    def __enter__(self) -> WorkerDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drop(self) -> None:
        self._worker.close()
        self._seen = set()

    def _load(self) -> Mapping[str, Any]:
        """Start a worker where none runs, and give it the task."""
        if self._loaded is not None and self._worker.running:
            return self._loaded
        for attempt in range(STARTS_MAX):
            try:
                message = {"load": self._task, "device": self._number}
                found = self._worker.ask(message, STARTUP_LIMIT_S)
                break
            except RunFailedError as error:
                self._drop()
                if attempt == STARTS_MAX - 1 or isinstance(error, WorkerTimeoutError):
                    raise DeviceLostError(f"no worker can be had: {error}") from error
        if "raised" in found:
            self._drop()
            raise _raised(found)
        self._loaded = found
        return found


def worker_process(
    command: Sequence[str] | None = None, environment: Mapping[str, str | None] | None = None
) -> WorkerProcess:
    """Return a worker to lend to devices, not yet started."""
    return WorkerProcess(command or python_command("tuner.measure.worker"), environment)


def _raised(found: Mapping[str, Any]) -> KernelRaisedError:
    error = KernelRaisedError(f"{found['raised']}: {found['message']}")
    error.add_note(f"in the measuring worker:\n{found['traceback']}")
    return error
