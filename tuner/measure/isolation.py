"""Timing in a process of its own: how, and the worker that is kept between decisions."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.compiling.worker_process import WorkerProcess

IDLE_S = 30.0
"""Without work, after which the worker ends: it holds some 500 MB of the device while it lives."""


@dataclass(frozen=True)
class Isolation:
    """How to isolate; given as ``isolate=`` it is done whatever the current device.

    ``command`` is what to run as a worker, ``environment`` variables to set for it (``None``
    removes one).
    """

    command: tuple[str, ...] | None = None
    environment: Mapping[str, str | None] | None = None

    @property
    def protocol(self) -> str:
        """How the worker times. Its inputs are not the call's own, so its times stand apart."""
        from tuner.measure.timer import CudaEvents, WallClock  # noqa: PLC0415 - start-up time

        environment = os.environ | dict(self.environment or {})
        interpreted = environment.get("TRITON_INTERPRET") == "1"
        return f"{(WallClock if interpreted else CudaEvents).protocol}-worker"


@contextmanager
def borrowed(isolation: Isolation) -> Iterator[WorkerProcess]:
    """Hold a worker, the last one where it still runs; its start is not waited for."""
    from tuner.measure.worker_device import worker_process  # noqa: PLC0415 - start-up time

    key = _key(isolation)
    with _lock:
        spare = _idle.pop(key, None)
    if spare is None:
        worker = worker_process(isolation.command, isolation.environment)
    else:
        worker, timer = spare
        timer.cancel()
    try:
        worker.begin()
        yield worker
    finally:
        timer = threading.Timer(IDLE_S, _end, (key, worker))
        timer.daemon = True
        with _lock:
            spare = _idle.get(key)
            _idle[key] = (worker, timer)
        try:
            timer.start()
        except RuntimeError:  # no thread can be had
            _end(key, worker)
        if spare is not None:
            spare[0].close()


def give_up(isolation: Isolation, reason: str) -> None:
    """Ask for no worker again in this process: each failure takes seconds."""
    _unavailable[_key(isolation)] = reason


def why_unavailable(isolation: Isolation) -> str | None:
    """Return why no worker can be had, ``None`` while that is not known."""
    return _unavailable.get(_key(isolation))


def _key(isolation: Isolation) -> str:
    return repr((isolation.command, sorted((isolation.environment or {}).items())))


def _end(key: str, worker: WorkerProcess) -> None:
    with _lock:
        known = _idle.get(key)
        if known is None or known[0] is not worker:
            return  # somebody holds it
        del _idle[key]
    worker.close()


def end_workers() -> None:
    """End every worker that has nothing to do."""
    with _lock:
        ended = list(_idle.values())
        _idle.clear()
    for worker, timer in ended:
        timer.cancel()
        worker.close()


def reset_after_fork() -> None:
    """Leave the parent its workers."""
    global _lock  # noqa: PLW0603 - a lock cannot be reset in place
    _lock = threading.Lock()
    _idle.clear()


_lock = threading.Lock()
_unavailable: dict[str, str] = {}
_idle: dict[str, tuple[WorkerProcess, threading.Timer]] = {}
atexit.register(end_workers)
