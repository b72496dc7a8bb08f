"""Measure one shard of a plan on one device; what was measured is never measured again."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.schema import SCHEMA_VERSION
from perfmodel.errors import DeviceLostError, PerfmodelError, RunStoppedError
from tuner.collect.bench import Bench
from tuner.collect.heartbeat import Heartbeat, Progress, Tell
from tuner.collect.lock import hold
from tuner.collect.output import Output
from tuner.collect.plan_file import Item, Plan, Settings
from tuner.collect.shard import SUFFIX, Header, Row, ShardWriter
from tuner.collect.stopping import Stopped, Stopping
from tuner.measure.device import Device, Trial
from tuner.measure.failures import classify
from tuner.measure.harness import Harness
from tuner.measure.measurement import Measurement

SAVE_SECONDS = 30.0
"""Rows are copied to an output that is not a local folder this often."""

DRIFT_SECONDS = 60.0
"""A reference kernel is timed this often, where there is one."""


@dataclass(frozen=True)
class RunSummary:
    """What a run did; ``resumed`` rows were there before it."""

    shard: Path
    total: int
    resumed: int
    measured: int
    failed: int
    seconds: float


def shard_name(index: int, count: int) -> str:
    """Return the name of a shard, from 1."""
    return f"shard-{index}-of-{count}"


def header_of(plan: Plan, bench: Bench) -> Header:
    """Return the conditions under which ``bench`` measures ``plan``."""
    identity = bench.device.identity
    return Header(
        plan=plan.digest,
        protocol=bench.device.protocol,
        schema=SCHEMA_VERSION,
        gpu=identity.gpu,
        device=identity.name,
        driver=identity.driver,
        compiler=bench.compiler,
        kernels=dict(bench.kernels),
    )


def run_shard(
    plan: Plan,
    bench: Bench,
    output: Output,
    *,
    index: int = 1,
    count: int = 1,
    tell: Tell | None = None,
) -> RunSummary:
    """Measure what is left of shard ``index`` of ``count``.

    Args:
        plan: what to measure.
        bench: what to measure on.
        output: where the shard lies; it is gone on with if it is there.
        index, count: which shard, from 1.
        tell: told of progress every few seconds.

    Raises:
        UsageError: no such shard. OutputLockedError: another process runs it.
        ResumeMismatchError: it was begun under other conditions.
        RunStoppedError: SIGTERM or SIGINT came. OutputFullError: a row could not be written.
        DeviceLostError: a new process has to go on. Whatever it raises, the same call resumes.
    """
    items = plan.shard(index, count)
    bench.require_for(plan)
    name = shard_name(index, count)
    with Stopping() as stopping, hold(output.folder, name), output.holding(name):
        output.fetch(f"{name}{SUFFIX}")
        path = output.folder / f"{name}{SUFFIX}"
        with ShardWriter(path, header_of(plan, bench)) as writer:
            done = {row.key for row in writer.done}
            left = [item for item in items if item.key not in done]
            beat = Heartbeat(
                output.folder / f"{name}.heartbeat.json",
                total=len(items),
                done=len(items) - len(left),
                remaining_s=sum(seconds_of(item) for item in left),
                tell=tell,
            )
            beat.write("started")
            try:
                measure(left, bench, plan, writer, beat, stopping, output)
            except Stopped:
                state = beat.write("stopped")
                raise stopped(stopping, state, path) from None
            except DeviceLostError:
                beat.write("device lost")
                raise
            finally:
                writer.sync()
                output.send(path.name, final=True)
            state = beat.write("done")
    return RunSummary(
        path, len(items), len(items) - len(left), len(left), state.failed, state.elapsed_s
    )


def measure(
    items: Sequence[Item],
    bench: Bench,
    plan: Plan,
    writer: ShardWriter,
    beat: Heartbeat,
    stopping: Stopping,
    output: Output,
) -> None:
    """Measure items in order, each on disk before the next; a failure is a row like any other.

    Raises:
        Stopped: a signal came. OutputFullError, DeviceLostError: as `run_shard`.
    """
    saved, drift = time.monotonic(), DriftWatch(bench.device)
    for item in items:
        with stopping.interruptible():
            row = measure_one(item, bench, plan, drift.look())
        writer.append(row)
        beat.beat(item.problem.origin, seconds_of(item), failed=not row.outcome.ran)
        if time.monotonic() - saved > SAVE_SECONDS:
            output.send(writer.path.name)
            saved = time.monotonic()


class DriftWatch:
    """Has a reference kernel timed now and then, on a device that has one."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._last = -math.inf

    def look(self) -> float | None:
        """Return how much slower it is than at the start, if it was time to look."""
        if not isinstance(self._device, Harness):
            return None
        if time.monotonic() - self._last < DRIFT_SECONDS:
            return None
        drift = self._device.check_drift()
        self._last = time.monotonic()
        return drift


def measure_one(item: Item, bench: Bench, plan: Plan, drift: float | None = None) -> Row:
    """Measure one item; whatever its inputs or its launch raise is an outcome.

    Raises:
        DeviceLostError: nothing more can be measured in this process.
    """
    started = time.perf_counter()
    before = bench.clocks("before")
    outcome, samples, reason = Outcome.CRASHED, tuple[float, ...](), None
    about: dict[str, Any] = {}
    flags: tuple[str, ...] = ()
    try:
        trial = bench.trials.trial(item)
        found = timed(trial, bench.device, plan.settings)
        outcome, reason, flags = found.outcome, found.timing.reason, found.flags
        samples = found.timing.samples_us
        about = {n: v for n, v in found.clocks.items() if v is not None}
        if found.timing.method is not None:
            about["timing_method"] = found.timing.method
    except DeviceLostError:
        raise
    except Exception as error:  # out of memory for the inputs, or a kernel that does not take them
        failure = classify(error)
        if isinstance(error, PerfmodelError) and failure is None:
            outcome, reason = Outcome.COMPILE_FAILED, str(error)
        elif failure is None:
            raise
        else:
            outcome, reason = failure.outcome, failure.reason
    return Row(
        item=item.number,
        key=item.key,
        outcome=outcome,
        samples_us=samples if outcome.ran else (),
        reason=reason,
        clocks={**before, **bench.clocks("after"), **about},
        wall_s=round(time.perf_counter() - started, 6),
        flags=flags,
        drift=drift,
    )


def timed(trial: Trial, device: Device, settings: Settings) -> Measurement:
    """Return what a device measured, with all that it says of it.

    Raises:
        DeviceLostError: nothing more can be timed in this process.
    """
    samples, limit_s = settings.samples, settings.limit_s
    if isinstance(device, Harness):
        return device.measure(trial, samples=samples, limit_s=limit_s, checked=False)
    return Measurement(device.time(trial, samples=samples, limit_s=limit_s))


def seconds_of(item: Item) -> float:
    """Return the estimated device seconds of one measurement."""
    return item.problem.seconds / len(item.problem.configs)


def stopped(stopping: Stopping, state: Progress, path: Path | str) -> RunStoppedError:
    """Return the error of a run that a signal ended; its exit code is a shell's for that signal."""
    number = stopping.signal
    error = RunStoppedError(
        f"stopped by {number.name if number else 'a signal'}: {state.done:,} of {state.total:,} "
        f"rows are in {path}; run the same command again to go on"
    )
    error.exit_code = 128 + int(number or 1)
    return error
