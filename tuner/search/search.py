"""One search: time the baseline, then what the model puts first; time the finalists again."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError, InvalidConfigError
from tuner.measure.device import Device, Timing, Trial
from tuner.search.noise import difference_error, paired_levels, pooled_deviation
from tuner.search.result import Entry, SearchResult, Status
from tuner.search.tunables import Budget, Tunables

Tell = Callable[[Entry, int, int], None]
"""Called after each measurement with its entry so far, configurations done, and all of them."""

UNLIMITED = Budget()
DEFAULT = Tunables()


def search(
    device: Device,
    trials: Sequence[Trial],
    *,
    baseline: int | None = 0,
    order: Sequence[int] | None = None,
    budget: Budget = UNLIMITED,
    stored: Mapping[str, Timing] | None = None,
    quarantine: Mapping[str, str] | None = None,
    floor_us: float | None = None,
    tunables: Tunables = DEFAULT,
    tell: Tell | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult:
    """Find the fastest of ``trials``, never one slower than the baseline beyond noise.

    Without a budget the search is exhaustive; with one, ``order`` (the model's) decides what is
    timed. Times within noise count as equal, and of equals the baseline wins, then the first in
    the order of ``trials``: noise never decides. A failure costs one configuration; whatever ends
    the search early, the best so far is returned.

    Args:
        device: where trials are timed.
        trials: the candidates, in the user's order, no configuration twice.
        baseline: which of them is the user's own choice, timed first; ``None`` for none.
        order: indices of the trials to time, best expected first; by default by ``expected_us``,
            and as given where that is not known. Trials left out count as ranked out.
        budget: how many configurations and seconds may be spent.
        stored: earlier measurements by configuration, used instead of timing.
        quarantine: configurations not to be tried, with the reason.
        floor_us: no time below it can be, whatever the configuration (`tuner.measure.check`).
        tunables: how samples are spent; ``ONE_CALL`` where a call is a whole benchmark.
        tell: told of every measurement, for progress and for writing it down.
        clock: seconds, monotonic.

    Raises:
        InvalidConfigError: no trials, a configuration twice, or an index out of range.
        Exception: what the user's own code raised on the device.
    """
    run = _Search(
        device, list(trials), baseline, budget, dict(stored or {}), dict(quarantine or {}),
        floor_us, tunables, tell, clock,
    )  # fmt: skip
    run.check()
    run.turns = run.in_turn(order)
    try:
        run.sweep()
        run.look_again()
        run.finals()
    except DeviceLostError as error:
        run.lose(str(error))
    return run.result()


@dataclass
class _State:
    """What is known of one trial so far."""

    samples_us: list[float] = field(default_factory=list)
    median_us: float | None = None  # while it may win
    status: Status | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    traceback: str | None = None

    def add(self, samples_us: Sequence[float]) -> None:
        self.outcome = Outcome.OK
        self.samples_us += samples_us
        self.median_us = statistics.median(self.samples_us)


@dataclass
class _Search:
    device: Device
    trials: list[Trial]
    baseline: int | None
    budget: Budget
    stored: dict[str, Timing]
    quarantine: dict[str, str]
    floor_us: float | None
    tunables: Tunables
    tell: Tell | None
    clock: Callable[[], float]
    stopped: str | None = None
    turns: list[int] = field(default_factory=list)
    rounds: list[dict[int, float]] = field(default_factory=list)
    least_us: float = math.inf  # of all usable times so far

    def __post_init__(self) -> None:
        self.states = [_State() for _ in self.trials]
        expected = [t.expected_us for t in self.trials if t.expected_us]
        self.least_expected_us = min(expected, default=math.inf)
        self.started = self.clock()

    def check(self) -> None:
        if not self.trials:
            raise InvalidConfigError("there is no configuration to time; give at least one")
        seen: set[str] = set()
        for trial in self.trials:
            if trial.config in seen:
                raise InvalidConfigError(f"configuration {trial.config} is given twice; keep one")
            seen.add(trial.config)
        if self.baseline is not None:
            self._check_index(self.baseline, "baseline")

    def in_turn(self, order: Sequence[int] | None) -> list[int]:
        """The trials to time, the baseline first."""
        if order is None:
            expected = [t.expected_us for t in self.trials]
            order = sorted(
                range(len(self.trials)),
                key=lambda i: math.inf if expected[i] is None else float(expected[i] or 0.0),
            )
        for i in order:
            self._check_index(i, "order")
        first = [] if self.baseline is None else [self.baseline]
        return list(dict.fromkeys([*first, *order]))

    def sweep(self) -> None:
        """A first sample of each, as far as the budget goes."""
        timed = 0
        for i in self.turns:
            state, config = self.states[i], self.trials[i].config
            if config in self.stored and self._use_stored(state, self.stored[config]):
                continue
            if config in self.quarantine:
                state.status, state.reason = Status.QUARANTINED, self.quarantine[config]
                continue
            if self.budget.trials is not None and timed >= self.budget.trials:
                self.stopped = self.stopped or f"{self.budget.trials} configurations were timed"
                state.status = Status.RANKED_OUT
                continue  # what is stored still counts
            if self._out_of_time():
                state.status = Status.OUT_OF_TIME
                continue
            if self._measure(i, self.tunables.first_samples):
                timed += 1
                state.status = Status.DROPPED if self._is_hopeless(i) else Status.TIMED
            self._report(i)

    def look_again(self) -> None:
        """More samples of all that were not dropped, the last first: a steady drift cancels."""
        if not self.tunables.samples:
            return
        contenders = [i for i, s in enumerate(self.states) if s.status is Status.TIMED]
        if len(contenders) == 1 and not self._usable_stored():
            return  # nothing to compare it with
        for i in reversed(contenders):
            if self._is_hopeless(i):  # something faster came after it
                self.states[i].status = Status.DROPPED
            elif not self._out_of_time():
                self._measure(i, self.tunables.samples)
                self._report(i)

    def finals(self) -> None:
        """Time what is near the best in turns, until the finalists are told apart."""
        finalists = self._finalists()
        while len(finalists) > 1 and len(self.rounds) < self.tunables.rounds_max:
            there = self._time_all(finalists)
            back = self._time_all(finalists[::-1]) if len(there) == len(finalists) else {}
            gone = {i for i in finalists if self.states[i].outcome is not Outcome.OK}
            if not gone and len(back) < len(finalists):
                break  # time ran out within the round
            finalists = [i for i in finalists if i not in gone]
            # The rounds so far compare those that are left.
            self.rounds = [{i: r[i] for i in finalists} for r in self.rounds]
            if not gone:
                self.rounds.append({i: math.sqrt(there[i] * back[i]) for i in finalists})
            if len(self.rounds) >= self.tunables.rounds_min and self._is_decided():
                break
        if len(finalists) < 2:
            self.rounds = []

    def _time_all(self, finalists: Sequence[int]) -> dict[int, float]:
        """Return a time of each, fewer where one fails or time runs out."""
        times: dict[int, float] = {}
        for i in finalists:
            if self._out_of_time():
                break
            before = len(self.states[i].samples_us)
            if self._measure(i, self.tunables.final_samples):
                times[i] = statistics.median(self.states[i].samples_us[before:])
            self._report(i)
        return times

    def lose(self, reason: str) -> None:
        """End the search: what was not reached never will be."""
        self.stopped = reason
        for i in self.turns:
            if self.states[i].status is None:
                self.states[i].status = Status.OUT_OF_TIME
                self.states[i].reason = reason

    def result(self) -> SearchResult:
        best, band, kept = self._choose()
        entries = tuple(self._entry(i) for i in range(len(self.trials)))
        return SearchResult(
            best=None if best is None else self.trials[best].config,
            entries=entries,
            baseline=None if self.baseline is None else self.trials[self.baseline].config,
            noise=band,
            seconds=self.clock() - self.started,
            kept_baseline=kept,
            stopped=self.stopped,
        )

    # One measurement

    def _measure(self, i: int, samples: int) -> bool:
        """Add samples of a trial; return whether all of them can be used."""
        state = self.states[i]
        for attempt in range(2):
            limit, own_limit = self._limit_s()
            wanted = samples if attempt == 0 else 2 * samples + 1
            timing = self.device.time(self.trials[i], samples=wanted, limit_s=limit)
            wrong = implausible(timing, self.floor_us)
            if wrong is None:
                state.add(timing.samples_us)
                self.least_us = min(self.least_us, state.median_us or math.inf)
                return True
            if timing.outcome is Outcome.OK:
                timing = replace(timing, outcome=Outcome.IMPLAUSIBLE)
            state.outcome, state.reason = timing.outcome, wrong
            state.traceback = timing.traceback
            if timing.outcome is not Outcome.IMPLAUSIBLE:
                break
        if state.outcome is Outcome.TIMEOUT and not own_limit:
            # Cut off by the budget: no fault of the configuration, and what it had stays.
            self.stopped = self.stopped or f"the budget of {self.budget.seconds} s was spent"
            if state.samples_us:
                state.outcome, state.reason = Outcome.OK, None
            else:
                state.status = Status.OUT_OF_TIME
            return False
        state.status = _FAILURES.get(timing.outcome, Status.FAILED)
        if state.median_us is not None:
            state.median_us = None
            self.least_us = min(self._times(range(len(self.states))).values(), default=math.inf)
        return False

    def _limit_s(self) -> tuple[float, bool]:
        """Seconds for one call, and whether that is the limit of one configuration."""
        if self.budget.seconds is None:
            return self.tunables.limit_s, True
        left = self.budget.seconds - (self.clock() - self.started)
        return min(self.tunables.limit_s, max(left, 0.0)), left >= self.tunables.limit_s

    def _out_of_time(self) -> bool:
        if self.budget.seconds is None or self.clock() - self.started < self.budget.seconds:
            return False
        self.stopped = self.stopped or f"the budget of {self.budget.seconds} s was spent"
        return True

    def _use_stored(self, state: _State, timing: Timing) -> bool:
        if timing.protocol != self.device.protocol or implausible(timing, self.floor_us):
            return False  # not comparable: timed again
        state.add(timing.samples_us)
        state.status = Status.STORED
        self.least_us = min(self.least_us, state.median_us or math.inf)
        return True

    # Comparing

    def _is_hopeless(self, i: int) -> bool:
        mine = self.states[i].median_us
        return mine is not None and (
            mine > self.tunables.hopeless * self.least_us
            or mine > self.tunables.hopeless_of_model * self.least_expected_us
        )

    def _contenders(self) -> list[int]:
        """Trials with a usable time; those dropped count only where nothing else is left."""
        usable = [i for i, s in enumerate(self.states) if s.median_us is not None]
        kept = [i for i in usable if self.states[i].status is not Status.DROPPED]
        return kept or usable

    def _finalists(self) -> list[int]:
        times = self._times(self._contenders())
        if not times:
            return []
        best = min(times.values())
        if len(set(times.values())) == 1:
            return []  # equal to the digit: no noise to look through
        near = [i for i, t in times.items() if t <= best * (1.0 + self._sweep_band())]
        if all(self.states[i].status is Status.STORED for i in near):
            return []
        fastest = sorted(near, key=lambda i: times[i])[: self.tunables.finalists]
        first = sorted(near, key=self._precedence)[: self.tunables.finalists + 1]
        return sorted({*fastest, *first})

    def _choose(self) -> tuple[int | None, float, bool]:
        """The winner, the relative noise within which it was chosen, and if it was kept only so."""
        contenders = self._contenders()
        if not contenders:
            return None, 0.0, False
        if self.rounds:
            levels, _ = paired_levels(self.rounds)
            band = self._band()
        else:
            levels = {i: math.log(t) for i, t in self._times(contenders).items()}
            band = self.tunables.noise_floor
            deviation = self._deviation()
            if deviation is not None:
                band = max(band, self._standard_errors(deviation, self._repeats(contenders)))
        least = min(levels.values())
        equal = [i for i, level in levels.items() if level - least <= math.log1p(band)]
        best = min(equal, key=self._precedence)
        return best, band, best == self.baseline and levels[best] > least

    def _precedence(self, i: int) -> tuple[bool, int]:
        return (i != self.baseline, i)

    def _times(self, which: Iterable[int]) -> dict[int, float]:
        medians = {i: self.states[i].median_us for i in which}
        return {i: t for i, t in medians.items() if t is not None}

    def _sweep_band(self) -> float:
        """How near to the best a time may be the best in truth, before the finals."""
        deviation = self._deviation()
        if deviation is None:
            return self.tunables.margin
        error = difference_error(deviation, self._repeats(self._contenders()))
        return max(self.tunables.noise_floor, self.tunables.near_deviations * error)

    def _band(self) -> float:
        """Up to which difference finalists count as equal, after the rounds so far."""
        _, deviation = paired_levels(self.rounds)
        found = self._standard_errors(deviation, len(self.rounds))
        return max(self.tunables.final_floor, found)

    def _is_decided(self) -> bool:
        """Whether more rounds would tell nothing that is asked for."""
        band = self._band()
        levels = sorted(paired_levels(self.rounds)[0].values())
        return band <= self.tunables.noise_wanted or levels[1] - levels[0] > math.log1p(band)

    def _standard_errors(self, deviation: float, samples: int) -> float:
        return self.tunables.deviations * difference_error(deviation, samples)

    def _deviation(self) -> float | None:
        return pooled_deviation(s.samples_us for s in self.states if s.outcome is Outcome.OK)

    def _repeats(self, which: Sequence[int]) -> int:
        return min((len(self.states[i].samples_us) for i in which), default=1)

    def _usable_stored(self) -> bool:
        return any(s.status is Status.STORED for s in self.states)

    # Accounting

    def _entry(self, i: int) -> Entry:
        state, trial = self.states[i], self.trials[i]
        return Entry(
            trial.config, state.status or Status.RANKED_OUT, state.outcome, state.median_us,
            tuple(state.samples_us) if state.outcome is Outcome.OK else (),
            trial.expected_us, state.reason, state.traceback,
        )  # fmt: skip

    def _report(self, i: int) -> None:
        if self.tell is not None:
            done = sum(s.status is not None for s in self.states)
            self.tell(self._entry(i), done, len(self.trials))

    def _check_index(self, i: int, what: str) -> None:
        if not 0 <= i < len(self.trials):
            raise InvalidConfigError(
                f"{what} is {i}; use the index of a configuration, 0 to {len(self.trials) - 1}"
            )


def implausible(timing: Timing, floor_us: float | None = None) -> str | None:
    """Return why a timing that ran cannot be used, ``None`` where it can.

    One impossible sample taints the rest: whatever produced it may have bent them too.
    """
    if timing.outcome is not Outcome.OK:
        return timing.reason or str(timing.outcome)
    if not timing.samples_us:
        return "no sample was returned"
    for sample in timing.samples_us:
        if not math.isfinite(sample):
            return f"a time of {sample} us is not a finite number"
        if sample <= 0.0:
            return f"a time of {sample} us is not positive"
        if floor_us is not None and sample < floor_us:
            return f"a time of {sample:.4g} us is faster than the device can be: {floor_us:.4g} us"
    return None


_FAILURES = {
    Outcome.TIMEOUT: Status.TIMED_OUT,
    Outcome.IMPLAUSIBLE: Status.IMPLAUSIBLE,
}
