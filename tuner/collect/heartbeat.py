"""Signs of life of a run: how far it is, how fast, and when it will end."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from perfmodel.errors import PerfmodelError
from perfmodel.files import atomic_path
from tuner.collect.lock import me

EVERY_S = 5.0


@dataclass(frozen=True)
class Progress:
    """How far a run is. Times are in seconds, and ``None`` before they can be told."""

    done: int
    total: int
    failed: int
    elapsed_s: float
    eta_s: float | None
    what: str

    @property
    def share(self) -> float:
        """0 to 1."""
        return self.done / self.total if self.total else 1.0

    def line(self) -> str:
        """Return one line for a log."""
        left = "" if self.eta_s is None else f", {duration(self.eta_s)} left"
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"{self.done:,} of {self.total:,} measured{failed}{left}"


Tell = Callable[[Progress], None]


class Heartbeat:
    """Tells of progress every few seconds, and writes it to a file beside the shard.

    Args:
        path: the file, replaced whole each time.
        total: measurements in all.
        done: those that earlier runs did.
        remaining_s: estimated device seconds of those that are left, before any was timed.
        tell: called with each state.
    """

    def __init__(
        self, path: Path, total: int, done: int, remaining_s: float, tell: Tell | None = None
    ) -> None:
        self._path, self._tell = path, tell
        self._total, self._done, self._failed = total, done, 0
        self._left_s = max(remaining_s, 0.0)
        self._started = self._last = time.monotonic()
        self._first: tuple[float, float] | None = None  # when the first was done, and what was left

    def beat(self, what: str, planned_s: float, *, failed: bool) -> None:
        """Count one measurement that was estimated to take ``planned_s``."""
        self._done += 1
        self._failed += failed
        self._left_s = max(self._left_s - planned_s, 0.0)
        if self._first is None:  # starting up says nothing of the pace
            self._first = time.monotonic(), self._left_s
        if time.monotonic() - self._last >= EVERY_S:
            self.write(what)

    def write(self, what: str) -> Progress:
        """Tell of progress now."""
        self._last = time.monotonic()
        state = self.state(what)
        # A run does not end for want of a sign of life: its rows say when the disk is full.
        with contextlib.suppress(PerfmodelError), atomic_path(self._path) as partial:
            text = json.dumps({**asdict(state), **me(), "at": time.time()})
            partial.write_text(text, encoding="utf-8")
        if self._tell is not None:
            self._tell(state)
        return state

    def state(self, what: str) -> Progress:
        """Return how far the run is; the time left follows the estimates at the pace so far."""
        elapsed = time.monotonic() - self._started
        eta_s = 0.0 if self._done >= self._total else None
        if eta_s is None and self._first is not None:
            since, left_s = self._first
            spent = left_s - self._left_s
            eta_s = (time.monotonic() - since) / spent * self._left_s if spent > 0 else None
        return Progress(self._done, self._total, self._failed, elapsed, eta_s, what)


def duration(seconds: float) -> str:
    """Return a duration in words: ``2 h 05 min``, ``3 min 20 s``, ``8 s``."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
