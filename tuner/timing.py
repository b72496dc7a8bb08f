"""The measured part of a decision: trials, copies of what they write, the store, the other ranks."""

from __future__ import annotations

import hashlib
import inspect
import logging
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import NoUsableConfigError
from perfmodel.problems.gemm import Gemm
from tuner import devices, keys, store, triton_api
from tuner.accounting import Fate
from tuner.arguments import NOTHING, Access, CannotCopyError, Snapshot, access_of, everything
from tuner.decide import advice, shipped_predictor
from tuner.decision import Call, Decision
from tuner.identity import Key, space_text
from tuner.measure.device import Device, DeviceIdentity, Timing, Trial
from tuner.measure.do_bench import DoBenchDevice
from tuner.measure.failures import classify, reason_of
from tuner.policy import Policy
from tuner.ranks import Ranks
from tuner.search.result import Entry, SearchResult, Status
from tuner.search.search import Budget, search
from tuner.search.tunables import ONE_CALL, Tunables

if TYPE_CHECKING:
    from tuner.decorator import Autotuner

LOG = logging.getLogger("tuner")

FIRST_WORD_S, NEXT_WORD_S = 3.0, 15.0
"""When a long tuning first says how far it is, and how often then."""

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


@dataclass
class _Session:
    """One decision by timing."""

    kernel: Autotuner
    call: Call
    decision: Decision
    legal: list[int]
    pick: int
    device: Device
    key: Key
    texts: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.texts = {i: keys.config_text(self.decision.candidates[i]) for i in self.legal}
        self.decision.texts = {text: i for i, text in self.texts.items()}

    @property
    def baseline(self) -> int | None:
        """The user's first configuration; ``None`` where we made them."""
        if self.kernel.makes_configs:
            return None
        return min(self.legal) if self.kernel.perf_model is None else self.legal[0]

    def in_turn(self) -> list[int]:
        """Positions that the policy has timed, in order."""
        decision = self.decision
        best_first = decision.view.best_first(self.legal)
        if decision.policy is Policy.VERIFY and decision.view.ranks:
            best_first = best_first[: self.kernel.settings.k]
        first = [] if self.baseline is None else [self.baseline]
        return list(dict.fromkeys([*first, *best_first]))


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
    session = _Session(kernel, call, decision, legal, pick, device, key)
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
        decision.fates |= {i: (Fate.NOT_TIMED, "left to rank 0") for i in legal}
    decision.position = position
    decision.by = f"agreement of {ranks.size} ranks: {agreed.decided_by}"
    return decision


def preview(kernel: Autotuner, decision: Decision, legal: list[int], pick: int) -> Decision:
    """Say what would be timed."""
    decision.position, decision.by = pick, "not yet: this is what a call would do"
    nothing = Call((), {}, {})
    key = Key("", "", decision.identity)
    device = _NoDevice(decision.identity)
    turns = set(_Session(kernel, nothing, decision, legal, pick, device, key).in_turn())
    for i in legal:
        decision.fates[i] = (Fate.TO_TIME if i in turns else Fate.RANKED_OUT, None)
    return decision


@dataclass(frozen=True)
class _NoDevice:
    identity: DeviceIdentity
    protocol: str = "none-0"

    def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
        raise NotImplementedError("a preview times nothing")


def device_of(kernel: Autotuner, identity: DeviceIdentity) -> Device:
    """Return where this kernel's configurations are timed."""
    if kernel.settings.device is not None:
        return kernel.settings.device
    if kernel.own_do_bench is not None:
        protocol = f"do_bench-1:{_name_of(kernel.own_do_bench)}"
        return DoBenchDevice(kernel.own_do_bench, identity, protocol)
    return DoBenchDevice(kernel.do_bench, identity, "triton.do_bench-1")


def _name_of(function: Callable[..., Any]) -> str:
    """Tells timers apart: times of different ones are never compared."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return name
    return f"{name}:{hashlib.sha256(source.encode()).hexdigest()[:12]}"


def _time(session: _Session, by_model: str) -> None:
    """Time what is in turn and has no stored time, and take the best."""
    kernel, decision, memory = session.kernel, session.decision, session.kernel.memory()
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
        with _device_in_use:
            result, broken = _search(session, turns, waiting, stored, quarantine)
    except CannotCopyError as error:
        decision.position, decision.by = session.pick, by_model
        decision.notes.append(f"nothing was timed: {error}")
        fate = (Fate.NOT_TIMED, "its arguments could not be copied")
        decision.fates |= {i: fate for i in session.legal}
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
        raise _all_failed(session, result)
    _settle(session, result)
    _tell(session, result, time.perf_counter() - started)


def _settle(session: _Session, result: SearchResult) -> None:
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
    session: _Session,
    turns: Sequence[int],
    waiting: Sequence[int],
    stored: Mapping[str, Timing],
    quarantine: Mapping[str, str],
) -> tuple[SearchResult | None, dict[int, str]]:
    """Compile what waits, copy what it may write, search; returns also what did not compile."""
    kernel, call, memory = session.kernel, session.call, session.kernel.memory()
    access, broken = _access(session, waiting)
    for i, (outcome, reason) in broken.items():
        timing = Timing(outcome, session.device.protocol, reason=reason)
        memory.record(session.key, session.texts[i], timing)
    turns = [i for i in turns if i not in broken]
    reasons = {i: reason for i, (_, reason) in broken.items()}
    if not turns:
        return None, reasons
    snapshot = Snapshot(call.arguments, access) if waiting else None
    expected = _expected(session)
    trials = [
        Trial(
            session.texts[i],
            None
            if snapshot is None
            else _launcher(kernel, call, session.decision.candidates[i], snapshot),
            expected.get(i),
        )
        for i in turns
    ]
    told = _Progress(session, memory)
    with snapshot if snapshot is not None else Snapshot({}, NOTHING):
        result = search(
            session.device,
            trials,
            baseline=turns.index(session.baseline) if session.baseline in turns else None,
            order=range(len(turns)),
            budget=Budget(seconds=kernel.settings.budget_s),
            stored=stored,
            quarantine=quarantine,
            tunables=ONE_CALL if isinstance(session.device, DoBenchDevice) else Tunables(),
            tell=told,
        )
    for text, reason in result.quarantine.items():
        memory.quarantine(session.key, text, reason)
    return result, reasons


def _access(
    session: _Session, waiting: Sequence[int]
) -> tuple[Access, dict[int, tuple[Outcome, str]]]:
    """What any of the waiting configurations may write, and those that do not compile.

    Raises:
        Exception: what is no configuration's fault.
    """
    kernel, call = session.kernel, session.call
    if not waiting:
        return NOTHING, {}
    always = frozenset(kernel.restore_value) & set(call.arguments)
    access = Access(always, always)
    if session.decision.identity in (devices.INTERPRETER, devices.NOWHERE):
        return access | everything(call.arguments), {}
    broken: dict[int, tuple[Outcome, str]] = {}
    for i in waiting:
        config = session.decision.candidates[i]
        options = {name: v for name, v in call.kwargs.items() if name != "warmup"}
        try:
            binary = kernel.fn.run(*call.args, **options, **config.all_kwargs(), warmup=True)
        except Exception as error:
            failure = classify(error)
            if failure is None:
                raise
            broken[i] = (failure.outcome, failure.reason)
            continue
        ttir = getattr(binary, "asm", {}).get("ttir") if binary is not None else None
        access |= everything(call.arguments) if ttir is None else access_of(ttir, call.arguments)
    return access, broken


def _launcher(
    kernel: Autotuner, call: Call, config: Any, snapshot: Snapshot
) -> Callable[[], object]:
    """One launch as it is timed: inputs put back, hooks round it."""
    chosen = config.all_kwargs()
    arguments = {**dict(zip(kernel.arg_names, call.args, strict=False)), **call.kwargs, **chosen}

    def launch() -> None:
        snapshot.restore(all_of_it=False)
        if config.pre_hook is not None:
            config.pre_hook(arguments)
        kernel.hooks.before_timing(arguments)
        try:
            kernel.fn.run(*call.args, **call.kwargs, **chosen)
        except Exception as error:
            kernel.hooks.after_timing(arguments, error)
            raise
        kernel.hooks.after_timing(arguments, None)

    return launch


def _expected(session: _Session) -> dict[int, float]:
    """The model's times by position, where the device is the one that it predicts for."""
    view = session.decision.view
    measured_here = session.kernel.own_do_bench is None and session.device.identity.gpu is not None
    if not (view.ranks and measured_here and isinstance(view.problem, Gemm)):
        return {}
    if view.gpu is None or view.gpu.name != session.device.identity.gpu:
        return {}
    times = shipped_predictor().latency_us(view.problem, view.gpu, view.table)
    return {i: float(t) for i, t in zip(view.kept, times, strict=True) if t < float("inf")}


def _take(session: _Session, result: SearchResult) -> None:
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


def _all_failed(session: _Session, result: SearchResult | None) -> NoUsableConfigError:
    """The error that gives each configuration's own reason, and what to change."""
    kernel, decision = session.kernel, session.decision
    lines = []
    for i, config in enumerate(decision.candidates):
        fate, reason = decision.fates.get(i, (Fate.NOT_TIMED, None))
        told = f"{config}: {fate}"
        if reason:
            told += f" ({reason}{advice(kernel, decision.view, config, i, reason)})"
        lines.append(told)
    error = NoUsableConfigError(
        f"no usable config for {kernel.name} among {len(decision.candidates)}:\n  "
        + "\n  ".join(lines)
    )
    first = next((e.traceback for e in result.entries if e.traceback), None) if result else None
    if first is not None:
        error.add_note(f"the first of them failed so:\n{first}")
    return error


class _Progress:
    """Writes every measurement down at once, and says how far a long tuning is."""

    def __init__(self, session: _Session, memory: Any) -> None:
        self._session, self._memory = session, memory
        self._started = self._spoke = time.monotonic()
        self._first = True

    def __call__(self, entry: Entry, done: int, total: int) -> None:
        session = self._session
        if entry.outcome is not None and entry.status is not Status.STORED:
            transient = (entry.reason or "").startswith("OutOfMemoryError")
            if not transient and entry.outcome is not Outcome.IMPLAUSIBLE:
                timing = Timing(
                    entry.outcome, session.device.protocol, entry.samples_us, entry.reason
                )
                self._memory.record(session.key, entry.config, timing)
        now = time.monotonic()
        if now - self._spoke < (FIRST_WORD_S if self._first else NEXT_WORD_S):
            return
        self._spoke, self._first = now, False
        left = (now - self._started) / max(done, 1) * (total - done)
        LOG.warning(
            "tuning %s: %d of %d configs, about %.0f s left",
            session.kernel.name, done, total, left,
        )  # fmt: skip


def _tell(session: _Session, result: SearchResult, seconds: float) -> None:
    """One line for the log, Triton's own print, and its listener."""
    kernel, decision = session.kernel, session.decision
    skipped = [
        (fate, reason)
        for fate, reason in decision.fates.values()
        if fate in (Fate.ILLEGAL, Fate.FAILED, Fate.TIMED_OUT, Fate.INVALID, Fate.QUARANTINED)
    ]
    what = "; ".join(sorted({_brief(reason) for _, reason in skipped if reason}))
    LOG.info(
        "%s: timed %d of %d configs in %.2f s%s, chose %s",
        kernel.name, result.timed, len(decision.candidates), seconds,
        f", {len(skipped)} skipped: {what}" if skipped else "", decision.config,
    )  # fmt: skip
    if triton_api.knob("autotuning", "print") and result.timed:
        print(
            f"Triton autotuning for function {kernel.name},\nwith key as {session.key.arguments},\n"
            f"finished after {seconds:.2f}s,\nbest config selected: {decision.config};"
        )
    listener = triton_api.knob("autotuning", "listener")
    if callable(listener):
        listener(
            fn=triton_api.jit_function(kernel.fn),
            key=session.key.arguments,
            best_config=decision.config,
            configs_timings=kernel.configs_timings,
            duration=seconds if result.timed else None,
            cache_hit=result.timed == 0,
        )


def _brief(reason: str) -> str:
    return reason.split(":")[0] if ":" in reason else reason


__all__ = ["decide_by_timing", "device_of", "preview", "reason_of", "reset_after_fork"]
