"""The steps of a session, in order, and until when each may go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfmodel.errors import UsageError


@dataclass(frozen=True)
class Step:
    """One step: its part of the time, and what it is not worth starting for."""

    name: str
    title: str
    share: float
    least_s: float


STEPS: tuple[Step, ...] = (
    Step("correctness", "every reference kernel against float64", 0.12, 20.0),
    Step("ceilings", "bandwidths, peaks and the launch floor", 0.06, 10.0),
    Step("attention", "flash attention forward, all configurations", 0.34, 30.0),
    Step("decode", "decode attention with split keys", 0.12, 10.0),
    Step("gemm", "matrix products, bf16 and scaled fp8", 0.22, 20.0),
    Step("moe", "fused mixture of experts", 0.14, 15.0),
)

TIMED = ("attention", "decode", "gemm", "moe")
"""The steps that time a plan."""

RESERVE_SHARE = 0.03
RESERVE_LEAST_S = 4.0
"""Kept back at the end, for writing results."""

MINUTES_MIN, MINUTES_MAX = 0.5, 24 * 60.0


def deadlines(minutes: float, started: float, steps: Sequence[Step] = STEPS) -> Mapping[str, float]:
    """Return until when each step may go on, on the clock that ``started`` is on.

    They are cumulative: what a step leaves over is the next one's. Steps are dropped from the end
    until the share of every other one is worth starting for: these have no deadline.

    Raises:
        UsageError: minutes that make no session.
    """
    if not MINUTES_MIN <= minutes <= MINUTES_MAX:
        raise UsageError(
            f"minutes is {minutes:g}; use {MINUTES_MIN:g} to {MINUTES_MAX:,.0f}: a session takes "
            "about 15"
        )
    usable = 60 * minutes - max(RESERVE_SHARE * 60 * minutes, RESERVE_LEAST_S)
    kept = list(steps)
    while len(kept) > 1:
        whole = sum(step.share for step in kept)
        if all(usable * step.share / whole >= step.least_s for step in kept):
            break
        kept.pop()
    whole, until, found = sum(step.share for step in kept), started, {}
    for step in kept:
        until += usable * step.share / whole
        found[step.name] = until
    return found


def plan_path(work: Path, step: str) -> Path:
    """Return where the plan of a step lies."""
    return work / f"plan-{step}.json"
