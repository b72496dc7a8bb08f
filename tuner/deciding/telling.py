"""What a tuning says: progress, one line at its end, Triton's own messages, and why all failed."""

from __future__ import annotations

import logging
import time

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import NoUsableConfigError
from tuner import triton_api
from tuner.deciding.accounting import Fate
from tuner.deciding.trials import Session
from tuner.deciding.unusable import advice, how_to_release
from tuner.measure.device import Timing
from tuner.search.result import Entry, SearchResult, Status
from tuner.store import Store

LOG = logging.getLogger("tuner")

FIRST_WORD_S, NEXT_WORD_S = 3.0, 15.0
"""When a long tuning first says how far it is, and how often then."""


def all_failed(session: Session, result: SearchResult | None) -> NoUsableConfigError:
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
        + "\n  ".join([*lines, *how_to_release(decision.fates)])
    )
    first = next((e.traceback for e in result.entries if e.traceback), None) if result else None
    if first is not None:
        error.add_note(f"the first of them failed so:\n{first}")
    return error


class Progress:
    """Writes every measurement down at once, and says how far a long tuning is."""

    def __init__(self, session: Session, memory: Store) -> None:
        self._session, self._memory = session, memory
        self._started = self._spoke = time.monotonic()
        self._first = True

    def __call__(self, entry: Entry, done: int, total: int) -> None:
        """Take one measurement."""
        session = self._session
        if entry.outcome is not None and entry.status is not Status.STORED:
            transient = (entry.reason or "").startswith("OutOfMemoryError")
            if not transient and entry.outcome is not Outcome.IMPLAUSIBLE:
                timing = Timing(
                    entry.outcome, session.device.protocol, entry.samples_us, entry.reason
                )
                self._memory.record(session.key, entry.config, timing)
            if entry.quarantined:  # now: the next one may end this process
                reason = entry.reason or str(entry.outcome)
                self._memory.quarantine(session.key, entry.config, reason)
        now = time.monotonic()
        if now - self._spoke < (FIRST_WORD_S if self._first else NEXT_WORD_S):
            return
        self._spoke, self._first = now, False
        left = (now - self._started) / max(done, 1) * (total - done)
        LOG.warning(
            "tuning %s: %d of %d configs, about %.0f s left",
            session.kernel.name, done, total, left,
        )  # fmt: skip


def tell_result(session: Session, result: SearchResult, seconds: float) -> None:
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
    return reason.split(":", maxsplit=1)[0]
