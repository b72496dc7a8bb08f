"""Time a plan until a deadline: what is compiled first, a problem at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perfmodel.dataset.outcome import Outcome
from tuner.collect.bench import Bench
from tuner.collect.lock import hold
from tuner.collect.plan_file import Item, Plan
from tuner.collect.run import DriftWatch, header_of, measure_one, shard_name
from tuner.collect.session.attempt import Attempt
from tuner.collect.session.ready import ReadyReader
from tuner.collect.shard import SUFFIX, Row, ShardWriter

PAUSE_S = 0.02

Needs = Mapping[str, Sequence[str]]
"""The names of the binaries that each measurement needs, by its key."""


def needs_of(plan: Plan) -> Needs:
    """Return what each measurement of a plan needs compiled."""
    from tuner.collect.kernels import binaries_of  # noqa: PLC0415 - loads Triton
    from tuner.collect.keys import measurement_key  # noqa: PLC0415 - beside what loads Triton

    return {
        item.key: [measurement_key(v.text) for v in binaries_of(item)] for item in plan.items
    }  # fmt: skip


def time_plan(
    plan: Plan,
    bench: Bench,
    folder: Path,
    *,
    needs: Needs,
    ready: ReadyReader,
    until: float,
    attempt: Attempt,
    compiling: Callable[[], bool],
) -> bool:
    """Time what is compiled, in rounds over the problems, until ``until`` on the wall clock.

    What does not compile is a row. Rows of earlier calls are kept; whatever took the process down
    in one of them, as ``attempt`` tells, is not tried again.

    Args:
        plan, bench: what to measure on what.
        folder: where its shard lies.
        needs: what `needs_of` returned.
        ready: which binaries are compiled.
        until: when to stop, seconds as of `time.time`.
        attempt: what is under way, for whoever watches.
        compiling: whether more binaries may come; once none do, the rest is compiled as it is
            launched.

    Returns:
        Whether everything was measured.

    Raises:
        DeviceLostError: a new process has to go on.
    """
    bench.require_for(plan)
    name = shard_name(1, 1)
    with (
        hold(folder, name),
        ShardWriter(folder / f"{name}{SUFFIX}", header_of(plan, bench)) as out,
    ):
        done = {row.key for row in out.done}
        left = [item for item in plan.items if item.key not in done]
        for item in [i for i in left if i.key in attempt.fatal]:
            out.append(_row(item, Outcome.CRASHED, attempt.fatal[item.key]))
            left.remove(item)
        drift = DriftWatch(bench.device)
        while left and time.time() < until:
            ready.refresh()
            batch = _next_batch(left, needs, ready, waiting=not ready.ended and compiling())
            if not batch:
                time.sleep(PAUSE_S)
                continue
            measured = set()
            for item in batch:
                if time.time() >= until:
                    break
                out.append(_measured(item, bench, plan, needs, ready, attempt, drift))
                measured.add(item.key)
            left = [item for item in left if item.key not in measured]
        return not left


def _measured(
    item: Item, bench: Bench, plan: Plan, needs: Needs, ready: ReadyReader, attempt: Attempt,
    drift: DriftWatch,
) -> Row:  # fmt: skip
    for key in needs[item.key]:
        reason = ready.reasons.get(key)
        if reason is not None:
            return _row(item, Outcome.COMPILE_FAILED, reason)
    attempt.begin(item.key)
    return measure_one(item, bench, plan, drift.look())


def _next_batch(
    left: Sequence[Item], needs: Needs, ready: ReadyReader, *, waiting: bool
) -> list[Item]:
    """The measurements of one problem that can be made now: of that which has most of them."""
    by_problem: dict[int, list[Item]] = {}
    for item in left:
        if not waiting or all(key in ready.reasons for key in needs[item.key]):
            by_problem.setdefault(id(item.problem), []).append(item)
    return max(by_problem.values(), key=len, default=[])


def _row(item: Item, outcome: Outcome, reason: str) -> Row:
    return Row(item.number, item.key, outcome, reason=reason)
