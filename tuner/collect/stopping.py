"""Ending on SIGTERM and SIGINT: at once where it is safe, and in any case within seconds."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

GRACE_S = 4.0
"""A device call that does not return keeps Python's own signal handling waiting; after this long
the process ends without it. Every row measured is on disk by then."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """Raised inside an interruptible block; no ``except Exception`` may swallow it."""


class Stopping:
    """Within its block, SIGTERM and SIGINT stop a run instead of killing it.

    Outside the main thread, which alone gets signals, it does nothing.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._interruptible = False
        self._restore: dict[signal.Signals, Any] = {}
        self._ended = threading.Event()

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self.signal is not None

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """A block that a signal may end at any point, by `Stopped`."""
        self._interruptible = True
        try:
            if self.requested:
                raise Stopped
            yield
        finally:
            self._interruptible = False

    def __enter__(self) -> Stopping:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._theirs = theirs
        self._wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._restore = {s: signal.signal(s, self._handle) for s in SIGNALS}
        threading.Thread(target=self._watch, args=(self._ours,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._restore:
            for number, handler in self._restore.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wakeup)
            self._theirs.close()
            self._restore = {}

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        if self._interruptible:
            raise Stopped

    def _watch(self, ours: socket.socket) -> None:
        """End the process should the main thread be stuck in a call; in a thread of its own."""
        with ours:
            while not self._ended.is_set():
                if not select.select([ours], [], [], 0.2)[0]:
                    continue
                numbers = ours.recv(64)
                if not numbers:
                    return
                wanted = [n for n in numbers if n in SIGNALS]
                if wanted and not self._ended.wait(GRACE_S):
                    os._exit(128 + wanted[0])
