"""Compile a plan ahead of time, on CPUs alone, so that GPU time goes to timing.

Binaries go into Triton's own cache (``TRITON_CACHE_DIR``), under the keys that its launcher looks
up on the GPU's host. What does not compile is remembered beside the plan's rows, since Triton's
cache only remembers successes.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.schema import SCHEMA_VERSION
from perfmodel.errors import UsageError
from tuner.collect.keys import measurement_key
from tuner.collect.lock import hold
from tuner.collect.plan_file import Item, Plan
from tuner.collect.shard import SUFFIX, Header, Row, ShardWriter
from tuner.compiling.cpus import available_cpus

if TYPE_CHECKING:
    from tuner.collect.kernels import Case, Launched, Variant

L = TypeVar("L", Item, "Case")

Tell = Callable[[int, int, str], None]
"""Called with how many binaries are done, of how many, and which was last."""

LIMIT_S = 300.0
"""For one compilation; most take a second, and one that hangs would hold everything up."""

IN_FLIGHT = 2
"""Compilations handed to each process ahead of its need."""


@dataclass(frozen=True)
class Compiled:
    """What one compilation came to; ``cached`` if Triton's cache held it."""

    outcome: Outcome
    reason: str | None
    seconds: float
    cached: bool


@dataclass(frozen=True)
class AheadSummary:
    """What compiling a plan came to, binaries counted once each."""

    binaries: int
    compiled: int
    cached: int
    failed: int
    failed_before: int
    seconds: float  # of all processes together
    reasons: tuple[tuple[str, str], ...]  # of the failures: configuration and reason


def compile_plan(
    plan: Plan,
    folder: Path,
    *,
    processes: int | None = None,
    tell: Tell | None = None,
) -> AheadSummary:
    """Compile every binary of ``plan`` that is not compiled yet, in many processes.

    Args:
        plan: whose device's architecture is compiled for, whatever this machine has.
        folder: where failures are remembered.
        processes: at once; by default as many as this process may use cores.
        tell: told of progress.

    Raises:
        NotInstalledError: Triton is absent.
        UsageError: the device is none that Triton compiles for, or ``processes`` is under 1.
    """
    from tuner.collect import kernels  # noqa: PLC0415 - loads Triton
    from tuner.compile import compute_capability  # noqa: PLC0415 - as above

    processes = available_cpus() if processes is None else processes
    if processes < 1:
        raise UsageError(f"processes is {processes}; use a whole number of at least 1")
    compute_capability(plan.architecture)
    variants = kernels.variants_of(plan.items)
    header = Header(
        plan="any",
        protocol="compile-1",
        schema=SCHEMA_VERSION,
        gpu=None,
        device=plan.architecture,
        compiler=kernels.compiler_name(),
    )
    name = f"compiled-{hashlib.sha256(repr(header).encode()).hexdigest()[:8]}"
    with hold(folder, name), ShardWriter(folder / f"{name}{SUFFIX}", header) as ledger:
        before = {row.key: row for row in ledger.done if not row.outcome.ran}
        todo = [v for v in variants if measurement_key(v.text) not in before]
        tally = _Tally(len(variants), len(variants) - len(todo), tell)
        for variant, found in compile_variants(todo, plan.architecture, processes):
            if not found.outcome.ran:
                row = Row(
                    variant.item.number, measurement_key(variant.text), found.outcome,
                    reason=found.reason, wall_s=round(found.seconds, 4),
                )  # fmt: skip
                ledger.append(row)
            tally.count(variant.item, found)
        ledger.sync()
    failures = [(v, before[measurement_key(v.text)].reason or "") for v in variants
                if measurement_key(v.text) in before]  # fmt: skip
    known = [(_describe(v.item), reason) for v, reason in failures]
    return AheadSummary(
        binaries=len(variants),
        compiled=tally.compiled,
        cached=tally.cached,
        failed=len(tally.reasons),
        failed_before=len(known),
        seconds=tally.seconds,
        reasons=(*known, *tally.reasons),
    )


def compile_variants(
    variants: Sequence[Variant[L]],
    architecture: str,
    processes: int,
    *,
    niceness: int = 0,
    launchers: bool = False,
    wanted: Callable[[Variant[L]], bool] = lambda _variant: True,
) -> Iterator[tuple[Variant[L], Compiled]]:
    """Compile binaries in their order, and yield each with its result as it comes.

    Args:
        variants: what to compile.
        architecture: for which, such as ``sm_90``.
        processes: at once.
        niceness: how far these give way to others of this machine.
        launchers: build launchers too, where this Triton has one for each kind of kernel.
        wanted: asked just before a binary is started; what is no longer wanted is left out.
    """
    tasks = [(v.item, v.number, architecture) for v in variants]
    work = compile_with_launcher if launchers else compile_one
    found = _in_processes(tasks, processes, niceness, lambda at: wanted(variants[at]), work)
    for at, result in found:
        yield variants[at], result


def compile_one(item: Launched, number: int, architecture: str) -> Compiled:
    """Compile launch ``number`` of an item, or find it in Triton's cache."""
    from tuner.collect.kernels import launches_of  # noqa: PLC0415 - loads Triton
    from tuner.compile import compile_launch  # noqa: PLC0415 - as above

    with _listening() as hits:
        found = compile_launch(launches_of(item).launches[number], architecture)
    return Compiled(found.outcome, found.reason, found.seconds, cached=hits == [True])


def compile_with_launcher(item: Launched, number: int, architecture: str) -> Compiled:
    """Compile one launch and build what launches it, on the machine that will."""
    from tuner.collect.kernels import launches_of  # noqa: PLC0415 - loads Triton
    from tuner.collect.launchers import build_launcher  # noqa: PLC0415 - as above

    found = compile_one(item, number, architecture)
    if found.outcome.ran:
        build_launcher(launches_of(item).launches[number])
    return found


class _Tally:
    """Counts results, and tells of them."""

    def __init__(self, total: int, done: int, tell: Tell | None) -> None:
        self._total, self._done, self._tell = total, done, tell
        self.compiled = self.cached = 0
        self.seconds = 0.0
        self.reasons: list[tuple[str, str]] = []
        if tell is not None:
            tell(done, total, "")

    def count(self, item: Item, found: Compiled) -> None:
        """Add one result."""
        self._done += 1
        self.seconds += found.seconds
        if not found.outcome.ran:
            self.reasons.append((_describe(item), found.reason or found.outcome.value))
        elif found.cached:
            self.cached += 1
        else:
            self.compiled += 1
        if self._tell is not None:
            self._tell(self._done, self._total, item.problem.origin)


Task = tuple["Launched", int, str]
Work = Callable[["Launched", int, str], Compiled]


def _in_processes(
    tasks: Sequence[Task],
    processes: int,
    niceness: int = 0,
    wanted: Callable[[int], bool] = lambda _at: True,
    work: Work | None = None,
) -> Iterator[tuple[int, Compiled]]:
    """Yield each task's result as it comes.

    A compiler that takes its process down, or hangs, takes the pool with it: what was under way is
    then tried again, each alone, and what does so alone is a failure.
    """
    work = work or compile_one
    left = deque(range(len(tasks)))
    while left:
        running: dict[Future[Compiled], int] = {}
        try:
            with _pool(min(processes, len(left)), niceness) as pool:
                while left or running:
                    while left and len(running) < IN_FLIGHT * processes:
                        at = left.popleft()
                        if not wanted(at):
                            continue
                        running[pool.submit(work, *tasks[at])] = at
                    finished = wait(running, LIMIT_S, return_when=FIRST_COMPLETED).done
                    if running and not finished:
                        _end(pool)
                    for future in finished:
                        result = future.result()
                        yield running.pop(future), result
        except BrokenProcessPool:
            for at in sorted(running.values()):
                yield at, _alone(work, tasks[at], niceness)


def _alone(work: Work, task: Task, niceness: int) -> Compiled:
    try:
        with _pool(1, niceness) as pool:
            future = pool.submit(work, *task)
            if not wait([future], LIMIT_S).done:
                _end(pool)
                reason = f"compiling took over {LIMIT_S:g} s"
                return Compiled(Outcome.TIMEOUT, reason, LIMIT_S, cached=False)
            return future.result()
    except BrokenProcessPool:
        return Compiled(Outcome.CRASHED, "the compiler took its process down", 0.0, cached=False)


def _end(pool: ProcessPoolExecutor) -> None:
    """Kill the processes of a pool that is stuck; it then counts as broken."""
    for process in list((pool._processes or {}).values()):  # no public way before Python 3.14
        process.kill()


def _pool(processes: int, niceness: int) -> ProcessPoolExecutor:
    # Not fork: the compiler starts threads, which a forked child would be without.
    return ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_give_way_and_end_with_parent,
        initargs=(niceness,),
    )


def _give_way_and_end_with_parent(niceness: int) -> None:
    """See that this process does not outlive the one that wants its results."""
    os.nice(niceness)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _listening() -> Iterator[list[bool]]:
    """Yield whether each compilation within was found in Triton's cache."""
    from triton import knobs  # noqa: PLC0415 - optional extra

    hits: list[bool] = []

    def listen(*, cache_hit: bool, **_: Any) -> None:
        hits.append(bool(cache_hit))

    before = knobs.compilation.listener
    knobs.compilation.listener = listen
    try:
        yield hits
    finally:
        knobs.compilation.listener = before


def _describe(item: Item) -> str:
    values = ",".join(f"{k}={v}" for k, v in item.config.values.items())
    return f"{item.problem.origin}: {values}"
