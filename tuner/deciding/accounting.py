"""What became of every configuration of a decision: none is ever lost from the account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tuner.deciding.account_text import table_text
from tuner.deciding.policy import Policy


class Fate(StrEnum):
    """The end of one configuration in one decision."""

    TIMED = "timed"
    STORED = "timed before"
    TO_TIME = "to be timed"
    RANKED_OUT = "ranked out"
    PRUNED = "pruned"
    DUPLICATE = "duplicate"
    ILLEGAL = "illegal"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INVALID = "invalid time"
    OUT_OF_TIME = "out of time"
    QUARANTINED = "quarantined"
    NOT_TIMED = "not timed"


@dataclass(frozen=True)
class Row:
    """One configuration's line; times in microseconds, ``None`` where there is none.

    ``config`` is its text in full, ``values`` the same by name.
    """

    position: int
    config: str
    fate: Fate
    reason: str | None = None
    predicted_us: float | None = None
    measured_us: float | None = None
    chosen: bool = False
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Account:
    """One decision in full; as text it fits a terminal of 120 columns.

    ``expected_loss`` is by how much the choice is expected to be slower than the best of the
    configurations, a share (0.02 for 2 %): the model's own typical error for its pick, the noise
    between timed ones; ``None`` where nobody can tell.
    """

    kernel: str
    policy: Policy
    device: str
    rows: tuple[Row, ...]
    decided_by: str
    problem: str | None = None
    model_gpu: str | None = None
    basis: str | None = None
    expected_loss: float | None = None
    bucket: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> Row | None:
        """The line of the choice."""
        return next((row for row in self.rows if row.chosen), None)

    def counts(self) -> dict[Fate, int]:
        """Return how many configurations met each fate; they add up to all."""
        return dict(Counter(row.fate for row in self.rows))

    def __str__(self) -> str:
        return table_text(self)
