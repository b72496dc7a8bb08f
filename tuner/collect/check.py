"""Is a collection whole and sound: what is missing, what failed and why, how far it spreads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from perfmodel.dataset.outcome import Outcome
from tuner.collect.merge import Merged, table_of

NOISY = 0.1
"""Spread, (largest - smallest) / median, past which a row is counted as noisy."""

REASONS_SHOWN = 5


@dataclass(frozen=True)
class CheckReport:
    """What a check found. Shares are fractions; ``None`` where nothing could be told."""

    planned: int
    measured: int
    missing: int
    duplicates: int
    torn_shards: int
    outcomes: Mapping[str, int]
    reasons: Mapping[str, int]  # of failures, the most frequent first
    gates: Mapping[str, int]  # rows dropped, by gate
    spread_median: float | None
    spread_p90: float | None
    noisy: int
    throttled: int
    clocks_known: int
    error_median: float | None  # of the plan's predictions against what was measured
    drivers: tuple[str, ...]
    flags: Mapping[str, int]  # rows by what is doubtful about them
    drift: float | None  # of a reference kernel, the largest either way

    @property
    def sound(self) -> bool:
        """Whether everything planned is there and nothing was refused by physics."""
        return not self.missing and not any(self.gates.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "sound": self.sound}


def check(merged: Merged) -> CheckReport:
    """Check the rows of a plan, as far as they are there."""
    frame, info = table_of(merged, partial=True)
    rows = [row for row, _ in merged.rows.values()]
    ran = frame[frame["outcome"] == Outcome.OK.value]
    spread = ran["latency_spread"].dropna().to_numpy(dtype=np.float64)
    expected = {item.number: item.config.expected_us for item in merged.plan.items}
    predicted = ran["source_row"].map(expected).to_numpy(dtype=np.float64)
    error = np.abs(predicted / ran["latency_us"].to_numpy(dtype=np.float64) - 1)
    throttle = [str(r.clocks.get("throttle_after") or r.clocks.get("throttle_before") or "")
                for r in rows]  # fmt: skip
    reasons = Counter(r.reason or "no reason given" for r in rows if not r.outcome.ran)
    gates: Mapping[str, int] = (info.gates or {}).get("rows_dropped", {})
    return CheckReport(
        planned=len(merged.plan.items),
        measured=len(rows),
        missing=len(merged.missing),
        duplicates=merged.duplicates,
        torn_shards=merged.torn,
        outcomes=dict(sorted(Counter(map(str, frame["outcome"])).items())),
        reasons=dict(reasons.most_common(REASONS_SHOWN)),
        gates=dict(gates),
        spread_median=float(np.median(spread)) if len(spread) else None,
        spread_p90=float(np.quantile(spread, 0.9)) if len(spread) else None,
        noisy=int((spread > NOISY).sum()),
        throttled=sum(bool(text) for text in throttle),
        clocks_known=sum("sm_clock_after_mhz" in r.clocks for r in rows),
        error_median=float(np.median(error)) if len(error) else None,
        flags=dict(Counter(flag for row in rows for flag in row.flags).most_common()),
        drift=max((row.drift for row in rows if row.drift is not None), key=abs, default=None),
        drivers=tuple(sorted({h.driver for _, h in merged.rows.values() if h.driver})),
    )
