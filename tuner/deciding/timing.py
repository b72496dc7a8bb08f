"""The measured part of a decision: what is timed, what is kept, what other ranks say."""

from __future__ import annotations

import statistics
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import TuningWarning
from tuner import keys, store, triton_api
from tuner.deciding.accounting import Fate
from tuner.deciding.arguments import CannotTimeError, Snapshot
from tuner.deciding.decision import Call, Decision, TimedBefore
from tuner.deciding.isolated import (
    BUDGET_SHARE,
    CannotIsolateError,
    IsolatedDevice,
    describe,
    wait_for_device,
)
from tuner.deciding.policy import Policy
from tuner.deciding.ranks import Ranks
from tuner.deciding.telling import Progress, all_failed, tell_result
from tuner.deciding.trials import (
    NoDevice,
    Session,
    TimedLaunch,
    access_and_broken,
    checked,
    device_of,
    expected_us,
    floor_of,
)
from tuner.identity import Key, space_text
from tuner.measure.device import Timing, Trial
from tuner.measure.do_bench import DoBenchDevice
from tuner.search.result import Entry, SearchResult, Status
from tuner.search.search import search
from tuner.search.tunables import ONE_CALL, Budget, Tunables

if TYPE_CHECKING:
    from tuner.autotuner.decorator import Autotuner

_FATES: Mapping[Status, Fate] = {
    Status.TIMED: Fate.TIMED,
    Status.DROPPED: Fate.TIMED,
    Status.STORED: Fate.STORED,
    Status.RANKED_OUT: Fate.RANKED_OUT,
    Status.OUT_OF_TIME: Fate.OUT_OF_TIME,
    Status.FAILED: Fate.FAILED,
    Status.TIMED_OUT: Fate.TIMED_OUT,
    Status.IMPLAUSIBLE: Fate.INVALID,
    Status.ILLEGAL: Fate.ILLEGAL,
    Status.QUARANTINED: Fate.QUARANTINED,
}

# One timing at a time in a process: two would slow each other down. Re-entrant, since a kernel that
# is timed may launch another.
_device_in_use = threading.RLock()


def reset_after_fork() -> None:
    """Forget a lock that a thread of the parent held."""
    global _device_in_use  # noqa: PLW0603 - a lock cannot be reset in place
    _device_in_use = threading.RLock()


def decide_by_timing(
    kernel: Autotuner, call: Call, decision: Decision, legal: list[int], by_model: str
) -> Decision:
    """Complete a decision by timing, or by what another rank or an earlier process timed.

    Raises:
        NoUsableConfigError: nothing could be timed.
        Exception: the user's own errors.
    """
    device, why_here = device_of(kernel, call, decision.identity)
    if why_here is not None:
        decision.notes.append(f"timed in this process: {why_here}")
    key = keys.store_key(kernel, call, device.identity)
    session = Session(kernel, call, decision, legal, device, key)
    ranks = Ranks.of_process()
    if ranks is None:
        _time(session, by_model)
        return decision
    name = f"{key!r}|{sorted(session.texts.values())}"

    def measured() -> str:
        _time(session, by_model)
        return session.texts[decision.position]

    agreed = ranks.agree(
        name, measured, lambda: session.texts[session.pick], kernel.settings.rank_timeout_s
    )
    position = decision.texts.get(agreed.config)
    if position is None:  # the ranks' lists differ: nothing to agree on
        decision.notes.append("the ranks agreed on a config that this one does not have")
        position = session.pick
    if ranks.rank != 0:
        decision.fates |= dict.fromkeys(legal, (Fate.NOT_TIMED, "left to rank 0"))
    decision.position = position
    decision.by = f"agreement of {ranks.size} ranks: {agreed.decided_by}"
    return decision


def preview(kernel: Autotuner, decision: Decision, legal: list[int]) -> Decision:
    """Say what would be timed."""
    decision.position, decision.by = (
        decision.view.best(legal),
        "not yet: this is what a call would do",
    )
    nothing = Call((), {}, {})
    key = Key("", "", decision.identity)
    device = NoDevice(decision.identity)
    turns = set(Session(kernel, nothing, decision, legal, device, key).in_turn())
    for i in legal:
        decision.fates[i] = (Fate.TO_TIME if i in turns else Fate.RANKED_OUT, None)
    return decision


def _time(session: Session, by_model: str) -> None:
    """Time what is in turn and has no stored time, and take the best.

    Where nothing that was in turn can be used, what comes next is timed. What was decided before
    from the same configurations stands.
    """
    if _stands(session):
        return
    started = time.perf_counter()
    bad: set[int] = set()
    while True:
        try:
            result, left = _turn(session, bad)
        except CannotIsolateError as error:
            session.stay_here(str(error))
            continue
        except CannotTimeError as error:
            _leave_to_model(session, by_model, str(error), bad)
            return
        if result is not None and result.best is not None:
            break
        if _untimed(session, by_model):
            return
        if not left:
            raise all_failed(session, result) from session.error
    _settle(session, result)
    tell_result(session, result, time.perf_counter() - started)


def _leave_to_model(session: Session, by_model: str, reason: str, bad: set[int]) -> None:
    """Take the model's first of those that did no harm."""
    decision = session.decision
    harmful = session.kernel.memory().quarantined(session.key)
    for i in session.legal:
        why = harmful.get(session.texts[i])
        fate = (Fate.NOT_TIMED, None) if why is None else (Fate.QUARANTINED, why)
        if i not in bad:
            decision.fates[i] = fate
    sound = [i for i in session.legal if decision.fates[i][0] is Fate.NOT_TIMED]
    if not sound:
        raise all_failed(session, None) from session.error
    in_order = [i for i in decision.view.best_first(session.legal) if i in sound]
    decision.position = session.pick if session.pick in sound else in_order[0]
    decision.by = by_model
    decision.notes.append(f"nothing was timed: {reason}")


def _turn(session: Session, bad: set[int]) -> tuple[SearchResult | None, bool]:
    """One search; returns also whether anything is left where none of its trials can be used.

    ``bad`` are configurations that failed in an earlier turn, and grows by this one's.
    """
    decision, memory = session.decision, session.kernel.memory()
    stored = dict(memory.timings(session.key, session.device.protocol))
    quarantine = dict(memory.quarantined(session.key))
    failed = {
        i: f"{stored[text].outcome}, remembered: {stored[text].reason}"
        for i, text in session.texts.items()
        if text in stored
        and stored[text].outcome in (Outcome.COMPILE_FAILED, Outcome.OUT_OF_RESOURCES)
    }
    set_aside = {i: quarantine[text] for i, text in session.texts.items() if text in quarantine}
    if len(failed.keys() | set_aside.keys()) == len(session.legal):
        failed = {}  # all of them: the world may have changed, and the user must see why
    out = bad | failed.keys() | set_aside.keys()
    turns = session.in_turn(out) or [i for i in session.legal if i not in bad and i not in failed]
    waiting = [
        i
        for i in turns
        if session.texts[i] not in quarantine
        and not (session.texts[i] in stored and stored[session.texts[i]].outcome is Outcome.OK)
    ]
    with _device_in_use, triton_api.binaries_dropped(session.kernel.fn):
        result, broken = _search(session, turns, waiting, stored, quarantine)
    for i in session.legal:
        if i in bad:
            continue
        if i in failed or i in broken:
            decision.fates[i] = (Fate.FAILED, (failed | broken)[i])
        elif i in set_aside:
            decision.fates[i] = (Fate.QUARANTINED, set_aside[i])
        elif result is None or i not in turns:
            decision.fates[i] = (Fate.RANKED_OUT, None)
    if result is not None:
        _take(session, result)
    bad |= {*turns, *failed, *set_aside}
    return result, len(bad) < len(session.legal)


def _untimed(session: Session, by_model: str) -> bool:
    """Whether some might run though there is no time of any: then nothing is known, and no error.

    They ran and the timer gave no time, or there was no time to try them. The choice holds in this
    process only.
    """
    decision = session.decision
    for fate, why in (
        (Fate.INVALID, "the timer gave no usable time"),
        (Fate.OUT_OF_TIME, "time ran out before any was timed"),
    ):
        open_ = {i for i, (found, _) in decision.fates.items() if found is fate}
        if not open_:
            continue
        in_order = [i for i in decision.view.best_first(session.legal) if i in open_]
        decision.position = session.pick if session.pick in open_ else in_order[0]
        decision.by = f"{by_model}: {why}"
        reason = decision.fates[decision.position][1] or why
        warnings.warn(
            f"{session.kernel.name} could not be timed ({reason}); {by_model} was taken",
            TuningWarning,
            stacklevel=2,
        )
        return True
    return False


def _stands(session: Session) -> bool:
    """Take the decision that was kept for the same choice, and read nothing else."""
    if callable(triton_api.knob("autotuning", "listener")):
        return False  # it is told all the times
    decision = session.decision
    policy, space = _choice(session)
    held = session.kernel.memory().decision(session.key, policy, space)
    position = None if held is None else decision.texts.get(held.config)
    if held is None or position is None:
        return False
    decision.position = position
    decision.by = f"a decision kept before: {held.why}"
    decision.timed_before = TimedBefore(session.key, session.device.protocol, held.expected_loss)
    for i in session.legal:
        decision.fates[i] = (Fate.RANKED_OUT, None)
    decision.fates[position] = (Fate.STORED, None)
    return True


def _choice(session: Session) -> tuple[str, str]:
    """What a decision is kept as: by which policy and timer, from which configurations."""
    policy = str(session.decision.policy)
    if session.decision.policy is Policy.VERIFY and session.decision.view.ranks:
        policy += f"-{session.kernel.settings.k}"
    space = space_text(list(session.texts.values()))
    return f"{policy} by {session.device.protocol}", space


def _settle(session: Session, result: SearchResult) -> None:
    """Keep the decision; where another process kept one for the same choice, that one holds."""
    kernel, decision = session.kernel, session.decision
    if any(fate is Fate.OUT_OF_TIME for fate, _ in decision.fates.values()):
        return  # the next process goes on where this one had to stop
    assert result.best is not None
    policy, space = _choice(session)
    mine = store.Decision(
        config=session.texts[decision.position],
        policy=policy,
        expected_loss=result.noise,
        timed=result.timed,
        why=decision.by,
        space=space,
    )
    held = kernel.memory().decide(session.key, mine, first_wins=True)
    position = decision.texts.get(held.config)
    if position is not None and position != decision.position:
        decision.position = position
        decision.by = f"a decision kept before: {held.why}"


def _search(
    session: Session,
    turns: Sequence[int],
    waiting: Sequence[int],
    stored: Mapping[str, Timing],
    quarantine: Mapping[str, str],
) -> tuple[SearchResult | None, dict[int, str]]:
    """Compile what waits, copy what it may write, search; returns also what did not compile."""
    kernel, call, memory = session.kernel, session.call, session.kernel.memory()
    with ExitStack() as held:
        isolated = session.device if isinstance(session.device, IsolatedDevice) else None
        worker = None
        if isolated is not None and waiting:  # it starts while kernels are compiled
            worker = held.enter_context(isolated.lent())
        access, broken = access_and_broken(session, waiting)
        for i, (outcome, reason) in broken.items():
            if outcome in (Outcome.CRASHED, Outcome.TIMEOUT):  # it took the compiler down
                memory.quarantine(session.key, session.texts[i], reason)
                continue
            timing = Timing(outcome, session.device.protocol, reason=reason)
            memory.record(session.key, session.texts[i], timing)
        reasons = {i: reason for i, (_, reason) in broken.items()}
        turns = [i for i in turns if i not in broken]
        if not turns:
            return None, reasons
        snapshot = None
        if worker is not None and isolated is not None:
            configs = {session.texts[i]: session.decision.candidates[i] for i in turns}
            task, launches = describe(kernel, call, configs, access)
            held.enter_context(isolated.opened(worker, task, launches))
            wait_for_device()
        elif waiting:
            snapshot = held.enter_context(Snapshot(call.arguments, access))
        result = search(
            session.device if kernel.settings.check is None else checked(session.device),
            _trials(session, turns, snapshot),
            baseline=turns.index(session.baseline) if session.baseline in turns else None,
            order=range(len(turns)),
            budget=Budget(seconds=kernel.settings.budget_s),
            stored=stored,
            quarantine=quarantine,
            floor_us=floor_of(session),
            tunables=_tunables(session),
            tell=Progress(session, memory),
        )
    return result, reasons


def _trials(session: Session, turns: Sequence[int], snapshot: Snapshot | None) -> list[Trial]:
    expected = expected_us(session)
    kernel, call, candidates = session.kernel, session.call, session.decision.candidates
    return [
        Trial(
            session.texts[i],
            None if snapshot is None else TimedLaunch(kernel, call, candidates[i], snapshot),
            expected.get(i),
        )
        for i in turns
    ]


def _tunables(session: Session) -> Tunables:
    settings = session.kernel.settings
    limit_s = settings.limit_s
    if isinstance(session.device, IsolatedDevice) and settings.budget_s is not None:
        limit_s = min(limit_s, BUDGET_SHARE * settings.budget_s)
    kind = ONE_CALL if isinstance(session.device, DoBenchDevice) else Tunables()
    return replace(kind, limit_s=limit_s)


def _take(session: Session, result: SearchResult) -> None:
    decision, kernel = session.decision, session.kernel
    decision.result = result
    timings: dict[Any, list[float]] = {}
    for entry in result.entries:
        i = decision.texts[entry.config]
        decision.fates[i] = (_FATES[entry.status], entry.reason)
        if entry.samples_us:
            timings[decision.candidates[i]] = _quantiles_ms(entry)
    kernel.configs_timings = timings
    kernel.bench_time = result.seconds
    if result.best is not None:
        decision.position = decision.texts[result.best]
        where = " in a worker" if isinstance(session.device, IsolatedDevice) else ""
        decision.by = f"timing {result.timed} of {len(session.legal)} legal configs{where}"
        if result.timed == 0:
            decision.by = "times measured before"
        if result.kept_baseline:
            decision.notes.append(
                "the user's first config stays: nothing was faster by more than "
                f"{100 * result.noise:.1f} %"
            )
        if result.stopped:
            decision.notes.append(result.stopped)


def _quantiles_ms(entry: Entry) -> list[float]:
    """Median, 20 % and 80 % quantile in milliseconds, as Triton keeps them."""
    samples = sorted(entry.samples_us)
    low, high = samples[int(0.2 * (len(samples) - 1))], samples[-1 - int(0.2 * (len(samples) - 1))]
    return [statistics.median(samples) / 1e3, low / 1e3, high / 1e3]
