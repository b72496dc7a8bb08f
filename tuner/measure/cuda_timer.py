"""Times launches on a CUDA device by the protocol: short ones several together in a graph.

All that is timed, the events around it and the flush before it lie on one stream, this timer's
own: an event on another would time nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perfmodel.errors import NotInstalledError
from tuner.measure.copies import Copyable
from tuner.measure.failures import classify, is_poisoned
from tuner.measure.protocol import TimingProtocol
from tuner.measure.timer import L2_BYTES_UNKNOWN, L2_TIMES, PartedLaunch

Launch = Callable[[], object]

HOLD_US = 100.0
HOLD_HOST_TIMES = 2.0
CYCLES_PER_US = 2000
"""Before a launch between events the device spins for so long, or so many times what the host took
to enqueue one, at 2 GHz: the host, which takes 20 to 60 us a launch, is done by then."""

HOLD_US_MAX = 1e4

KEPT = 16
KEPT_SHARE = 8
"""So many prepared launches are kept, since finalists are timed by turns, as long as they take at
most one part in so many of the device's memory: the next problem's inputs need the rest."""

MEMORY_SHARE = 8
"""Copies of one launch's inputs take at most one part in so many of the free memory."""

ROUGH = 3
"""Launches behind the first estimate, which decides how the others are timed."""

EVENTS = "events"
GRAPH = "cuda_graph"


class CudaTimer:
    """Times launches one by one or in graphs, with a cold or a warm L2.

    A launch under ``protocol.graph_below_us`` goes into a CUDA graph with others like it, so that
    what an event costs is shared by all. For a cold L2 they work on memory of their own each (a
    `tuner.measure.copies.Copyable`), and the L2 is flushed before the graph starts, outside the
    timed span; a launch that cannot be copied is alone in its graph. What cannot be captured, and
    what takes longer, is timed by an event on either side.

    Args:
        device: ``cuda`` or ``cuda:1``.
        protocol: how times are taken.

    Raises:
        NotInstalledError: torch is absent.
    """

    def __init__(self, device: str = "cuda", protocol: TimingProtocol | None = None) -> None:
        try:
            import torch  # noqa: PLC0415 - an extra, and slow to import
        except ImportError as error:
            raise NotInstalledError(
                "timing on a GPU needs torch; install it with: pip install 'perfmodel[triton]'"
            ) from error
        self._torch: Any = torch
        self._device = torch.device(device)
        self._settings = protocol or TimingProtocol()
        self._stream: Any = None
        self._flush: Any = None
        self._prepared: dict[int, _Prepared] = {}

    @property
    def protocol(self) -> str:
        """The protocol's name."""
        return self._settings.name

    def warm(self, launch: Launch) -> None:
        """Launch and wait, and decide how it is timed: whatever compiles or loads does so now."""
        self._ready(launch)

    def samples_us(self, launch: Launch, count: int) -> list[float]:
        """Return times of one launch, each the mean over those of its graph; waits at the end."""
        prepared = self._ready(launch)
        with self._on_stream():
            pairs = [self._sample(prepared, first=not i) for i in range(count)]
            self._stream.synchronize()
        return [1e3 * a.elapsed_time(b) / prepared.launches for a, b in pairs]

    def how(self, launch: Launch) -> tuple[str, int]:
        """Return how a launch is timed, and how many each sample is the mean of."""
        prepared = self._ready(launch)
        return (EVENTS if prepared.graph is None else GRAPH), prepared.launches

    def close(self) -> None:
        """Give all memory back; it may be used again afterwards."""
        for prepared in self._prepared.values():
            prepared.release()
        self._prepared, self._flush = {}, None

    # One sample

    def _sample(self, prepared: _Prepared, *, first: bool) -> tuple[Any, Any]:
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        parts = prepared.parts
        if parts is not None:
            parts.prepare()
        # Graphs are enqueued at once: after the first, the host is ahead by itself.
        if first or prepared.graph is None:
            self._hold(prepared.host_us)
        if self._settings.l2 == "cold":
            self._flushing().zero_()
        started = time.perf_counter()
        begin.record(self._stream)
        if prepared.graph is not None:
            prepared.graph.replay()
        elif parts is not None:
            parts.bare()
        else:
            prepared.launch()
        end.record(self._stream)
        prepared.host_us = max(prepared.host_us, 1e6 * (time.perf_counter() - started))
        if parts is not None:
            parts.finish()
        return begin, end

    def _hold(self, host_us: float) -> None:
        # Private, and in torch since its first CUDA streams; without it the host's own time may
        # leak into what is timed by events.
        sleep = getattr(self._torch.cuda, "_sleep", None)
        if sleep is not None:
            held_us = min(max(HOLD_US, HOLD_HOST_TIMES * host_us), HOLD_US_MAX)
            sleep(int(held_us * CYCLES_PER_US))

    def _flushing(self) -> Any:
        if self._flush is None:
            found = self._torch.cuda.get_device_properties(self._device)
            size = L2_TIMES * (getattr(found, "L2_cache_size", 0) or L2_BYTES_UNKNOWN)
            self._flush = self._torch.empty(size, dtype=self._torch.int8, device=self._device)
        return self._flush

    # Preparing

    def _ready(self, launch: Launch) -> _Prepared:
        key = id(launch)  # what is prepared keeps the launch: no other has its identity
        if key in self._prepared:
            self._prepared[key] = self._prepared.pop(key)  # most recently used
            return self._prepared[key]
        self._make_room(launch)
        prepared = self._prepare(launch)
        self._prepared[key] = prepared
        return prepared

    def _make_room(self, launch: Launch) -> None:
        """Give up what was used longest ago."""
        _, total = self._torch.cuda.mem_get_info(self._device)
        left = total / KEPT_SHARE - _bytes_of(launch)
        while self._prepared:
            taken = sum(prepared.bytes for prepared in self._prepared.values())
            if len(self._prepared) < KEPT and taken <= left:
                return
            self._prepared.pop(next(iter(self._prepared))).release()

    def _prepare(self, launch: Launch) -> _Prepared:
        parts = launch if isinstance(launch, PartedLaunch) else None
        plain = _Prepared(self._torch, launch, parts)
        with self._on_stream():
            # Compiles, loads and allocates; and the flush has its memory before any capture.
            launch()
            if self._settings.l2 == "cold":
                self._flushing()
            self._stream.synchronize()
            if parts is not None:
                return plain  # its inputs are put back between launches
            pairs = [self._sample(plain, first=True) for _ in range(ROUGH)]
            self._stream.synchronize()
            rough_us = min(1e3 * a.elapsed_time(b) for a, b in pairs)
            if rough_us >= self._settings.graph_below_us:
                return plain
            return self._captured(launch, rough_us) or plain

    def _captured(self, launch: Launch, rough_us: float) -> _Prepared | None:
        """A graph of as many launches as the protocol wants and memory allows."""
        wanted = int(self._settings.graph_span_us / max(rough_us, 1e-3)) + 1
        count = min(max(wanted, 1), self._settings.graph_launches_max)
        while True:
            try:
                return self._capture(launch, self._launches(launch, count))
            except Exception as error:
                found = classify(error)
                if is_poisoned(error):
                    raise
                small = found is not None and "memory" in str(error).lower()
                if not small or count == 1:
                    # Something in it does not go into a graph: it ran, so it is timed as it is.
                    return None
                self._torch.cuda.empty_cache()
                count //= 2

    def _launches(self, launch: Launch, count: int) -> Sequence[Launch]:
        if self._settings.l2 == "warm":
            return [launch] * count
        if not isinstance(launch, Copyable):
            return [launch]  # a second one would find in the L2 what the first left there
        free, _ = self._torch.cuda.mem_get_info(self._device)
        fit = int(free / MEMORY_SHARE / max(launch.bytes_each, 1)) + 1
        return launch.copies(min(count, fit))

    def _capture(self, launch: Launch, launches: Sequence[Launch]) -> _Prepared:
        """Record launches, all of which ran before, into a graph, and run that once."""
        torch = self._torch
        for each in launches[1:]:
            each()  # the copies' first use, and a kernel may be specialised on an address
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads, which compile, may allocate meanwhile.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for each in launches:
                each()
        except BaseException:
            with contextlib.suppress(Exception):  # the stream must not stay in capture
                graph.capture_end()
            raise
        graph.capture_end()
        graph.replay()
        self._stream.synchronize()
        return _Prepared(torch, launch, None, graph, launches)

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Make this timer's stream the current one, behind whatever the caller has enqueued."""
        torch = self._torch
        if self._stream is None:
            self._stream = torch.cuda.Stream(device=self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield


def _bytes_of(launch: Launch) -> int:
    """Memory that a launch holds, as far as it says."""
    return launch.bytes_each if isinstance(launch, Copyable) else 0


class _Prepared:
    """A launch and how it is timed; the graph needs its launches' memory as long as it lives."""

    def __init__(
        self,
        torch: Any,
        launch: Launch,
        parts: PartedLaunch | None,
        graph: Any = None,
        kept: Sequence[Launch] = (),
    ) -> None:
        self.launch, self.parts, self.graph = launch, parts, graph
        self.launches = max(len(kept), 1)
        self.bytes = _bytes_of(launch) * len({id(each) for each in (launch, *kept)})
        self.host_us = 0.0  # to enqueue it, at most so far
        self._torch, self._kept = torch, kept

    def release(self) -> None:
        """Give the graph and the copies back."""
        if self.graph is not None:
            self.graph.reset()
        self.graph, self._kept = None, ()


__all__ = ["EVENTS", "GRAPH", "CudaTimer"]
