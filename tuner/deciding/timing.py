"""The measured part of a decision: what is timed, what is kept, what other ranks say."""

from __future__ import annotations

import statistics
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import TuningWarning
from tuner import keys, store, triton_api
from tuner.deciding.accounting import Fate
from tuner.deciding.arguments import NOTHING, CannotCopyError, Snapshot
from tuner.deciding.decision import Call, Decision
from tuner.deciding.policy import Policy
from tuner.deciding.ranks import Ranks
from tuner.deciding.telling import Progress, all_failed, tell_result
from tuner.deciding.trials import (
    Session,
    TimedLaunch,
    access_and_broken,
    checked,
    device_of,
    expected_us,
    floor_of,
)
from tuner.identity import Key, space_text
from tuner.measure.device import DeviceIdentity, Timing, Trial
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
    kernel: Autotuner, call: Call, decision: Decision, legal: list[int], pick: int, by_model: str
) -> Decision:
    """Complete a decision by timing, or by what another rank or an earlier process timed.

    Raises:
        NoUsableConfigError: nothing could be timed.
        Exception: the user's own errors.
    """
    device = device_of(kernel, decision.identity)
    key = keys.store_key(kernel, call, device.identity)
    session = Session(kernel, call, decision, legal, pick, device, key)
    ranks = Ranks.of_process()
    if ranks is None:
        _time(session, by_model)
        return decision
    name = f"{key!r}|{sorted(session.texts.values())}"

    def measured() -> str:
        _time(session, by_model)
        return session.texts[decision.position]

    agreed = ranks.agree(
        name, measured, lambda: session.texts[pick], kernel.settings.rank_timeout_s
    )
    position = decision.texts.get(agreed.config)
    if position is None:  # the ranks' lists differ: nothing to agree on
        decision.notes.append("the ranks agreed on a config that this one does not have")
        position = pick
    if ranks.rank != 0:
        decision.fates |= dict.fromkeys(legal, (Fate.NOT_TIMED, "left to rank 0"))
    decision.position = position
    decision.by = f"agreement of {ranks.size} ranks: {agreed.decided_by}"
    return decision


def preview(kernel: Autotuner, decision: Decision, legal: list[int], pick: int) -> Decision:
    """Say what would be timed."""
    decision.position, decision.by = pick, "not yet: this is what a call would do"
    nothing = Call((), {}, {})
    key = Key("", "", decision.identity)
    device = _NoDevice(decision.identity)
    turns = set(Session(kernel, nothing, decision, legal, pick, device, key).in_turn())
    for i in legal:
        decision.fates[i] = (Fate.TO_TIME if i in turns else Fate.RANKED_OUT, None)
    return decision


@dataclass(frozen=True)
class _NoDevice:
    identity: DeviceIdentity
    protocol: str = "none-0"

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        raise NotImplementedError("a preview times nothing")


def _time(session: Session, by_model: str) -> None:
    """Time what is in turn and has no stored time, and take the best."""
    decision, memory = session.decision, session.kernel.memory()
    stored = dict(memory.timings(session.key, session.device.protocol))
    quarantine = dict(memory.quarantined(session.key))
    failed = {
        i: f"{stored[text].outcome}, remembered: {stored[text].reason}"
        for i, text in session.texts.items()
        if text in stored
        and stored[text].outcome in (Outcome.COMPILE_FAILED, Outcome.OUT_OF_RESOURCES)
    }
    if len(failed) == len(session.legal):
        failed = {}  # all of them: the world may have changed, and the user must see why
    turns = [i for i in session.in_turn() if i not in failed]
    if not turns:
        turns = [i for i in session.legal if i not in failed]
    waiting = [
        i
        for i in turns
        if session.texts[i] not in quarantine
        and not (session.texts[i] in stored and stored[session.texts[i]].outcome is Outcome.OK)
    ]
    started = time.perf_counter()
    try:
        with _device_in_use, triton_api.binaries_dropped(session.kernel.fn):
            result, broken = _search(session, turns, waiting, stored, quarantine)
    except CannotCopyError as error:
        decision.position, decision.by = session.pick, by_model
        decision.notes.append(f"nothing was timed: {error}")
        fate = (Fate.NOT_TIMED, "its arguments could not be copied")
        decision.fates |= dict.fromkeys(session.legal, fate)
        return
    failed |= broken
    for i, reason in failed.items():
        decision.fates[i] = (Fate.FAILED, reason)
    for i in session.legal:
        if i not in failed and (result is None or i not in turns):
            decision.fates[i] = (Fate.RANKED_OUT, None)
    if result is not None:
        _take(session, result)
    if result is None or result.best is None:
        if _untimed(session, result, by_model):
            return
        raise all_failed(session, result) from session.error
    _settle(session, result)
    tell_result(session, result, time.perf_counter() - started)


def _untimed(session: Session, result: SearchResult | None, by_model: str) -> bool:
    """Whether they ran and the timer gave no time for any: then nothing is known, and no error.

    The choice holds in this process only.
    """
    ran = {
        session.decision.texts[entry.config]
        for entry in (result.entries if result is not None else ())
        if entry.status is Status.IMPLAUSIBLE
    }
    if not ran:
        return False
    decision = session.decision
    decision.position = session.pick if session.pick in ran else min(ran)
    decision.by = f"{by_model}: the timer gave no usable time"
    reason = decision.fates[decision.position][1]
    warnings.warn(
        f"{session.kernel.name} could not be timed ({reason}); {by_model} was taken",
        TuningWarning,
        stacklevel=2,
    )
    return True


def _settle(session: Session, result: SearchResult) -> None:
    """Keep the decision; where another process kept one for the same choice, that one holds."""
    kernel, decision = session.kernel, session.decision
    if any(fate is Fate.OUT_OF_TIME for fate, _ in decision.fates.values()):
        return  # the next process goes on where this one had to stop
    assert result.best is not None
    policy = str(decision.policy)
    if decision.policy is Policy.VERIFY and decision.view.ranks:
        policy += f"-{kernel.settings.k}"
    mine = store.Decision(
        config=session.texts[decision.position],
        policy=f"{policy} by {session.device.protocol}",
        expected_loss=result.noise,
        timed=result.timed,
        why=decision.by,
        space=space_text(list(session.texts.values())),
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
    access, broken = access_and_broken(session, waiting)
    for i, (outcome, reason) in broken.items():
        if outcome in (Outcome.CRASHED, Outcome.TIMEOUT):  # it took the compiler down
            memory.quarantine(session.key, session.texts[i], reason)
            continue
        timing = Timing(outcome, session.device.protocol, reason=reason)
        memory.record(session.key, session.texts[i], timing)
    turns = [i for i in turns if i not in broken]
    reasons = {i: reason for i, (_, reason) in broken.items()}
    if not turns:
        return None, reasons
    snapshot = Snapshot(call.arguments, access) if waiting else None
    expected = expected_us(session)
    trials = [
        Trial(
            session.texts[i],
            None
            if snapshot is None
            else TimedLaunch(kernel, call, session.decision.candidates[i], snapshot),
            expected.get(i),
        )
        for i in turns
    ]
    told = Progress(session, memory)
    with snapshot if snapshot is not None else Snapshot({}, NOTHING):
        result = search(
            session.device if kernel.settings.check is None else checked(session.device),
            trials,
            baseline=turns.index(session.baseline) if session.baseline in turns else None,
            order=range(len(turns)),
            budget=Budget(seconds=kernel.settings.budget_s),
            stored=stored,
            quarantine=quarantine,
            floor_us=floor_of(session),
            tunables=ONE_CALL if isinstance(session.device, DoBenchDevice) else Tunables(),
            tell=told,
        )
    for text, reason in result.quarantine.items():
        memory.quarantine(session.key, text, reason)
    return result, reasons


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
        decision.by = f"timing {result.timed} of {len(session.legal)} legal configs"
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
