"""A plan on a Ray cluster: one actor a GPU; nothing is lost with an actor, a node or the driver.

The plan is cut into pieces, each a few configurations of one problem. An actor appends its rows to
a shard of its own, as a single run does, and a new driver reads what all shards hold before it
gives out the rest.
"""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import (
    DeviceLostError,
    NoDeviceError,
    NotInstalledError,
    RunFailedError,
    UsageError,
)
from tuner.collect.bench import absolute_address, open_bench
from tuner.collect.heartbeat import Heartbeat, Tell
from tuner.collect.lock import hold
from tuner.collect.merge import gather
from tuner.collect.output import Output
from tuner.collect.plan_file import Item, Plan, load_plan
from tuner.collect.run import header_of, measure_one, seconds_of, stopped
from tuner.collect.shard import SUFFIX, ShardWriter
from tuner.collect.stopping import Stopping

PIECE_SECONDS = 5.0
"""Device time of a piece: what a lost actor costs at most, and still long beside handing it out."""

STRAGGLER = 3.0
"""Times the usual pace past which a piece is also given to an idle actor."""

STRAGGLER_MIN_S = 5.0

LOSSES_MAX = 20
"""Actors lost in a row, without a row in between, after which something else must be wrong."""

TRIES_MAX = 4
"""Actors that a single piece may take down."""


@dataclass(frozen=True)
class FleetSummary:
    """What a fleet did."""

    total: int
    measured: int
    workers: int
    lost: int
    requeued: int
    seconds: float


@dataclass
class Piece:
    """Some items of one problem, handed out together."""

    items: tuple[int, ...]  # numbers in the plan
    seconds: float
    tries: int = 0
    given: int = 0  # actors that have it now
    done: bool = False


class Worker:
    """What runs in an actor: a bench, and a shard of its own."""

    def __init__(self, plan_text: str, out: str, device: str, name: str) -> None:
        self._text, self._out, self._device, self._name = plan_text, out, device, name

    def start(self) -> int:
        """Make the device ready, and return the process that measures."""
        self._output = Output(self._out)
        folder = self._output.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._plan = _plan_from(self._text, folder, self._name)
        self._bench = open_bench(self._device, self._plan)
        self._bench.require_for(self._plan)
        path = folder / f"shard-{self._name}{SUFFIX}"
        self._writer = ShardWriter(path, header_of(self._plan, self._bench))
        return os.getpid()

    def measure(self, numbers: Sequence[int]) -> int:
        """Measure items by number, and return how many of them failed."""
        failed = 0
        for number in numbers:
            try:
                row = measure_one(self._plan.items[number], self._bench, self._plan)
            except DeviceLostError:
                self._writer.sync()
                os._exit(1)  # another actor goes on, with a CUDA context of its own
            self._writer.append(row)
            failed += not row.outcome.ran
        self._output.send(self._writer.path.name)
        return failed


@dataclass
class _Busy:
    """An actor, and what it is doing."""

    actor: Any
    name: str
    piece: Piece | None = None
    started: float = 0.0
    ready: Any = None  # reference to its first answer
    task: Any = None


def run_on_ray(
    plan: Plan,
    out: str,
    *,
    device: str = "cuda",
    workers: int | None = None,
    tell: Tell | None = None,
    piece_seconds: float = PIECE_SECONDS,
    seen: Callable[[int], None] | None = None,
) -> FleetSummary:
    """Measure what is left of ``plan`` on every GPU of a Ray cluster.

    The cluster is that of ``RAY_ADDRESS``, or one on this machine. Rows of other machines must
    reach ``out``: a shared folder, or an fsspec address.

    Args:
        plan, out, tell: as `tuner.collect.run.run_shard`.
        device: the address of each actor's device; Ray gives each ``cuda`` actor a GPU of its own,
            so it is ``cuda`` everywhere. A replay needs no GPU: ``workers`` are pretended.
        workers: actors; by default as many as the cluster has GPUs.
        piece_seconds: device time of what is handed out at once.
        seen: told of the process of every actor that is ready.

    Raises:
        NotInstalledError: Ray is absent. NoDeviceError: the cluster has no GPU.
        OutputLockedError: another driver measures into ``out``.
        RunStoppedError: SIGTERM or SIGINT came; the same call goes on.
        RunFailedError: actors keep dying without measuring anything.
    """
    ray = _ray()
    started = time.monotonic()
    out, device = _absolute(out), absolute_address(device)  # actors have folders of their own
    output = Output(out)
    with Stopping() as stopping, hold(output.folder, "fleet"), output.holding("fleet"):
        plan.save(output.folder / "plan.json")
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent unasked
            ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False,
                     include_dashboard=False)  # fmt: skip
        on_gpu = device.startswith("cuda")
        count = _workers(ray, workers, on_gpu=on_gpu)
        output.fetch_all()
        done = _done(plan, output)
        left = [item for item in plan.items if item.key not in done]
        beat = Heartbeat(
            output.folder / "fleet.heartbeat.json", total=len(plan.items), done=len(done),
            remaining_s=sum(seconds_of(i) for i in left) / count, tell=tell,
        )  # fmt: skip
        fleet = _Fleet(ray, plan, out, device, on_gpu, beat, seen)
        try:
            fleet.run(pieces_of(left, piece_seconds), count, stopping)
        finally:
            fleet.end()
        beat.write("done")
    return FleetSummary(
        len(plan.items), len(left), count, fleet.lost, fleet.requeued, time.monotonic() - started
    )


def pieces_of(items: Iterable[Item], seconds: float) -> list[Piece]:
    """Cut items into pieces of about ``seconds`` each, none across two problems."""
    pieces: list[Piece] = []
    numbers: list[int] = []
    load, problem = 0.0, None
    for item in items:
        if numbers and (item.problem is not problem or load + seconds_of(item) > seconds):
            pieces.append(Piece(tuple(numbers), load))
            numbers, load = [], 0.0
        numbers.append(item.number)
        load += seconds_of(item)
        problem = item.problem
    if numbers:
        pieces.append(Piece(tuple(numbers), load))
    return pieces


class _Fleet:
    """Hands pieces to actors until all are done."""

    def __init__(
        self, ray: Any, plan: Plan, out: str, device: str, on_gpu: bool, beat: Heartbeat,
        seen: Callable[[int], None] | None,
    ) -> None:  # fmt: skip
        self._ray, self._plan, self._out, self._device = ray, plan, out, device
        self._beat, self._seen = beat, seen
        self._text = ray.put(_text_of(plan))
        self._actor = ray.remote(
            num_gpus=1 if on_gpu else 0, num_cpus=1 if on_gpu else 0, max_restarts=0
        )(Worker)  # fmt: skip
        self._run = uuid.uuid4().hex[:6]
        self._made = 0
        self._refused: set[str] = set()
        self._losses = 0  # in a row
        self._paces: list[float] = []  # seconds taken per second estimated
        self._actors: list[_Busy] = []
        self.lost = self.requeued = 0

    def run(self, pieces: Sequence[Piece], count: int, stopping: Stopping) -> None:
        """Measure all pieces with ``count`` actors.

        Raises:
            RunStoppedError: SIGTERM or SIGINT came.
            RunFailedError: actors die one after the other; the last one's words are in it.
        """
        queue = list(pieces)
        self._actors = [self._new() for _ in range(min(count, len(queue)))]
        while not all(piece.done for piece in pieces):
            if stopping.requested:
                raise stopped(stopping, self._beat.write("stopped"), self._out)
            for busy in self._actors:
                if busy.task is None:
                    self._give(busy, queue)
            waiting = [b.task for b in self._actors if b.task is not None]
            ready, _ = self._ray.wait(waiting, timeout=1.0) if waiting else ([], [])
            for task in ready:
                busy = next(b for b in self._actors if b.task == task)
                self._take(busy, queue)

    def end(self) -> None:
        """Let all actors go."""
        for busy in self._actors:
            self._ray.kill(busy.actor)

    def _new(self) -> _Busy:
        self._made += 1
        name = f"ray-{self._run}-{self._made}"
        actor = self._actor.remote(self._text, self._out, self._device, name)
        busy = _Busy(actor, name)
        busy.task = busy.ready = actor.start.remote()
        return busy

    def _give(self, busy: _Busy, queue: list[Piece]) -> None:
        while queue and queue[0].done:
            queue.pop(0)
        piece = queue.pop(0) if queue else self._straggler()
        if piece is None:
            return
        piece.given += 1
        busy.piece, busy.started = piece, time.monotonic()
        busy.task = busy.actor.measure.remote(list(piece.items))

    def _straggler(self) -> Piece | None:
        """A piece that takes much longer than it should, and that only one actor has."""
        pace = statistics.median(self._paces) if self._paces else None
        now = time.monotonic()
        for busy in self._actors:
            piece = busy.piece
            if piece is None or piece.done or piece.given != 1 or pace is None:
                continue
            if now - busy.started > max(STRAGGLER * pace * piece.seconds, STRAGGLER_MIN_S):
                self.requeued += 1
                return piece
        return None

    def _take(self, busy: _Busy, queue: list[Piece]) -> None:
        """Note what an actor did, or put another in its place."""
        task, piece = busy.task, busy.piece
        busy.task, busy.piece = None, None
        try:
            answer = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            self._lost(busy, piece, queue, error)
            return
        if task == busy.ready:
            if self._seen is not None:
                self._seen(answer)
            return
        assert piece is not None
        self._losses = 0
        self._paces.append((time.monotonic() - busy.started) / max(piece.seconds, 1e-9))
        piece.given -= 1
        if not piece.done:
            piece.done = True
            for at, number in enumerate(piece.items):
                item = self._plan.items[number]
                self._beat.beat(item.problem.origin, seconds_of(item), failed=at < answer)

    def _lost(self, busy: _Busy, piece: Piece | None, queue: list[Piece], error: Exception) -> None:
        """Replace a lost actor; what it had goes to the next one, less what its shard holds."""
        self.lost += 1
        if isinstance(error, self._ray.exceptions.RayTaskError):  # it lives, and cannot do it
            others = [b for b in self._actors if b is not busy and b.name not in self._refused]
            if isinstance(error.cause, UsageError) and piece is None and others:
                self._refused.add(busy.name)  # its node has another GPU, or none that can be used
                self._ray.kill(busy.actor)
                self._actors.remove(busy)
                return
            raise error.cause if isinstance(error.cause, Exception) else error
        self._losses += 1
        if self._losses > LOSSES_MAX:
            raise RunFailedError(
                f"{self._losses} actors were lost one after the other without measuring anything; "
                f"the last: {str(error).splitlines()[-1] if str(error) else type(error).__name__}. "
                "Every row before is on disk; find the reason, and run the same command again"
            ) from error
        self._ray.kill(busy.actor)
        self._actors[self._actors.index(busy)] = self._new()
        if piece is None:
            return
        piece.given -= 1
        if piece.done or piece.given:
            return
        piece.tries += 1
        self.requeued += 1
        done = _done(self._plan, Output(self._out), only=busy.name)
        left = tuple(n for n in piece.items if self._plan.items[n].key not in done)
        if len(left) < len(piece.items):
            self._losses = 0
            piece.tries = 0
        for number in set(piece.items) - set(left):
            item = self._plan.items[number]
            self._beat.beat(item.problem.origin, seconds_of(item), failed=False)
        piece.items = left
        if not left:
            piece.done = True
            return
        if piece.tries >= TRIES_MAX:
            item = self._plan.items[left[0]]
            raise RunFailedError(
                f"{piece.tries} actors died measuring {item.problem.origin} with {item.text}; "
                "every row before is on disk, and the same command tries again"
            )
        queue.insert(0, piece)


def _done(plan: Plan, output: Output, only: str | None = None) -> frozenset[str]:
    """The keys of what shards hold; none where there are no shards yet."""
    from perfmodel.errors import MissingDataError  # noqa: PLC0415 - only here
    from tuner.collect.shard import read_shard  # noqa: PLC0415 - as above

    if only is not None:
        name = f"shard-{only}{SUFFIX}"
        output.fetch(name)
        return read_shard(output.folder / name).keys
    try:
        return frozenset(gather(plan, output.folder).rows)
    except MissingDataError:
        return frozenset()


def _workers(ray: Any, wanted: int | None, *, on_gpu: bool) -> int:
    if wanted is not None and wanted < 1:
        raise UsageError(f"workers is {wanted}; use a whole number of at least 1")
    if not on_gpu:
        return wanted or 1
    there = int(ray.cluster_resources().get("GPU", 0))
    if there < 1:
        raise NoDeviceError(
            "the Ray cluster has no GPU; add a node with one, or rehearse with "
            "--device replay:TABLE --workers 2"
        )
    if wanted is not None and wanted > there:
        raise UsageError(f"workers is {wanted}, and the Ray cluster has {there} GPUs")
    return wanted or there


def _absolute(out: str) -> str:
    return out if "://" in out else str(Path(out).expanduser().resolve())


def _text_of(plan: Plan) -> str:
    import tempfile  # noqa: PLC0415 - only here

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        return path.read_text(encoding="utf-8")


def _plan_from(text: str, folder: Path, name: str) -> Plan:
    path = folder / f".plan-{name}.json"
    path.write_text(text, encoding="utf-8")
    try:
        return load_plan(path)
    finally:
        path.unlink(missing_ok=True)


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotInstalledError(
            "--on ray needs Ray; install it with: pip install 'perfmodel[fleet]'"
        ) from error
    return ray
