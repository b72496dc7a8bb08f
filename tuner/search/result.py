"""What a search found out about every configuration that it was given."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import NoUsableConfigError

REASONS_SHOWN = 20
"""Configurations that an error message lists one by one."""


class Status(StrEnum):
    """What became of one configuration; each has exactly one."""

    TIMED = "timed"
    """It was timed as often as asked."""

    DROPPED = "dropped"
    """It was timed, and given up after its first samples as hopelessly slow."""

    STORED = "stored"
    """An earlier measurement of it was used."""

    RANKED_OUT = "ranked_out"
    """The budget of configurations went to ones that the model puts first."""

    OUT_OF_TIME = "out_of_time"
    """The budget of seconds, or the device, ended before its turn or during it."""

    FAILED = "failed"
    """It did not compile, did not fit, crashed, or gave a wrong result."""

    TIMED_OUT = "timed_out"
    """It was cut off at the limit of one configuration."""

    IMPLAUSIBLE = "implausible"
    """Its times were no times (zero, negative, not finite, beyond physics), twice."""

    ILLEGAL = "illegal"
    """The device cannot run it; found out by whoever made the trials."""

    QUARANTINED = "quarantined"
    """It crashed or hung before, and is not tried again."""


@dataclass(frozen=True)
class Entry:
    """One configuration's line in the account; times in microseconds.

    ``outcome`` is ``None`` where nothing was tried.
    """

    config: str
    status: Status
    outcome: Outcome | None = None
    median_us: float | None = None
    samples_us: tuple[float, ...] = ()
    expected_us: float | None = None
    reason: str | None = None
    traceback: str | None = None

    @property
    def usable(self) -> bool:
        """Whether it has a time that may win."""
        return self.median_us is not None

    @property
    def quarantined(self) -> bool:
        """Whether it is not to be tried again: it crashed or hung."""
        bad = self.outcome in (Outcome.CRASHED, Outcome.TIMEOUT)
        return bad and self.status in (Status.FAILED, Status.TIMED_OUT)


@dataclass(frozen=True)
class SearchResult:
    """The winner and the account of all configurations, in the order they were given.

    ``best`` is ``None`` where none has a usable time. ``noise`` is the relative difference up to
    which two configurations counted as equal. ``kept_baseline`` says that the baseline stayed
    although another looked faster, by less than noise. ``stopped`` says what ended the search
    early.
    """

    best: str | None
    entries: tuple[Entry, ...]
    baseline: str | None = None
    noise: float = 0.0
    seconds: float = 0.0
    kept_baseline: bool = False
    stopped: str | None = None

    def entry(self, config: str) -> Entry:
        """Return one configuration's line."""
        return next(e for e in self.entries if e.config == config)

    @property
    def best_us(self) -> float | None:
        """Median time of the winner, microseconds."""
        return None if self.best is None else self.entry(self.best).median_us

    @property
    def baseline_us(self) -> float | None:
        """Median time of the baseline, microseconds."""
        return None if self.baseline is None else self.entry(self.baseline).median_us

    @property
    def timed(self) -> int:
        """How many configurations were timed now: what a budget of trials counts."""
        return sum(e.status in (Status.TIMED, Status.DROPPED) for e in self.entries)

    @property
    def quarantine(self) -> dict[str, str]:
        """Configurations not to be tried again, with the reason: they crashed or hung."""
        return {e.config: e.reason or str(e.outcome) for e in self.entries if e.quarantined}

    def counts(self) -> dict[Status, int]:
        """Return how many configurations have each status; they add up to all."""
        return dict(Counter(e.status for e in self.entries))

    def require_best(self) -> str:
        """Return the winner.

        Raises:
            NoUsableConfigError: there is none; the message lists every reason, and a note carries
                the first traceback.
        """
        if self.best is not None:
            return self.best
        lines = [
            f"{e.config}: {e.reason or e.outcome or e.status}" for e in self.entries[:REASONS_SHOWN]
        ]
        if len(self.entries) > REASONS_SHOWN:
            lines.append(f"and {len(self.entries) - REASONS_SHOWN:,} more")
        error = NoUsableConfigError(
            f"no usable config among {len(self.entries):,}:\n  " + "\n  ".join(lines)
        )
        first = next((e.traceback for e in self.entries if e.traceback), None)
        if first is not None:
            error.add_note(f"the first of them failed so:\n{first}")
        raise error
