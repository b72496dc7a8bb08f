"""What became of every configuration of a decision: none is ever lost from the account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

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
    """One configuration's line; times in microseconds, ``None`` where there is none."""

    position: int
    config: str
    fate: Fate
    reason: str | None = None
    predicted_us: float | None = None
    measured_us: float | None = None
    chosen: bool = False


@dataclass(frozen=True)
class Account:
    """One decision in full.

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
        return "\n".join([*self._heading(), "", *_table(self.rows)])

    def _heading(self) -> Sequence[str]:
        counts = ", ".join(f"{count} {fate}" for fate, count in sorted(self.counts().items()))
        lines = [
            f"kernel    {self.kernel}",
            f"device    {self.device}",
            f"policy    {self.policy}",
            f"decided   {self.decided_by}",
            f"configs   {len(self.rows)}: {counts}",
        ]
        if self.problem is not None:
            lines.append(f"problem   {self.problem}")
        if self.model_gpu is not None:
            basis = f" ({self.basis})" if self.basis else ""
            lines.append(f"model     {self.model_gpu}{basis}")
        if self.bucket is not None:
            lines.append(f"bucket    {self.bucket}")
        loss = "unknown" if self.expected_loss is None else f"{100 * self.expected_loss:.1f} %"
        lines.append(f"expected loss  {loss}")
        lines += [f"note      {note}" for note in self.notes]
        return lines


def _table(rows: Sequence[Row]) -> list[str]:
    header = ("", "#", "config", "fate", "predicted us", "measured us", "reason")
    body = [
        (
            "*" if row.chosen else "",
            str(row.position),
            row.config,
            str(row.fate),
            "" if row.predicted_us is None else f"{row.predicted_us:.2f}",
            "" if row.measured_us is None else f"{row.measured_us:.2f}",
            row.reason or "",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in (header, *body)) for i in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (header, *body)
    ]
