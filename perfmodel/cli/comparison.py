"""A comparison of GPUs as a table and as JSON (``perfmodel compare --json``).

Schema ``perfmodel.comparison/1``: ``schema``, ``family`` and ``problem`` as in a prediction, and
``gpus``, one object a device in the order given: ``gpu``; ``prediction`` (as of ``perfmodel predict
--json``) or null with ``error``; ``price_per_hour`` and ``cost_per_million``, the price of a
million launches one after the other in the same currency, null without a price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.cli.rendering import columns, note_lines, time_text, wrapped
from perfmodel.cli.titles import title
from perfmodel.prediction import Prediction
from perfmodel.problems import Problem

COMPARISON_SCHEMA = "perfmodel.comparison/1"

MILLION_US_PER_HOUR = 3600.0
"""An hour holds 3,600 x a million microseconds."""

SCALES = {"us": 1.0, "ms": 1e-3, "s": 1e-6}


@dataclass(frozen=True)
class Entry:
    """What is known of one device: its prediction, or why there is none, and its price."""

    gpu: str
    prediction: Prediction | None
    price_per_hour: float | None = None
    error: str | None = None

    @property
    def cost_per_million(self) -> float | None:
        """The price of a million launches, ``None`` without a price or a prediction."""
        if self.prediction is None or self.price_per_hour is None:
            return None
        return self.prediction.latency_us * self.price_per_hour / MILLION_US_PER_HOUR

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the documented form."""
        return {
            "gpu": self.gpu,
            "prediction": None if self.prediction is None else self.prediction.to_dict(),
            "error": self.error,
            "price_per_hour": self.price_per_hour,
            "cost_per_million": self.cost_per_million,
        }


def comparison_text(problem: Problem, entries: Sequence[Entry]) -> str:
    """Return the devices side by side, in the order given."""
    known = [e for e in entries if e.prediction is not None]
    latencies = [e.prediction.latency_us for e in known if e.prediction is not None]
    fastest = min(latencies)
    unit = time_text(fastest).split()[1]
    priced = any(e.cost_per_million is not None for e in known)
    coverage = next(e.prediction.coverage for e in known if e.prediction is not None)
    head = ["gpu", unit, f"{100 * coverage:.0f} % interval", "slower", "limiter", "basis"]
    head += ["per million"] if priced else []
    rows = [head]
    for entry in known:
        found = entry.prediction
        assert found is not None
        low, high = (_number(us * SCALES[unit]) for us in found.interval_us)
        row = [
            entry.gpu,
            _number(found.latency_us * SCALES[unit]),
            f"{low} to {high}",
            _times(found.latency_us / fastest),
            found.limiter,
            found.basis,
        ]
        if priced:
            cost = entry.cost_per_million
            row.append("" if cost is None else _number(cost))
        rows.append(row)
    about = wrapped("", title(problem, f"{len(entries)} GPUs"))
    lines = [*about, "", *columns(rows, right=(1, 2, 3, 6))]
    if priced:
        lines += ["", "per million: price of a million launches, in your --price's currency"]
    lines += [line for e in entries if e.error for line in ["", *wrapped(f"{e.gpu}: ", e.error)]]
    return "\n".join([*lines, *_notes(known)])


def _notes(entries: Sequence[Entry]) -> list[str]:
    """Notes with the devices they are about; those of all devices once."""
    about: dict[str, list[str]] = {}
    for entry in entries:
        for note in entry.prediction.notes if entry.prediction else ():
            about.setdefault(note, []).append(entry.gpu)
    return note_lines(
        note if len(gpus) == len(entries) else f"{', '.join(gpus)}: {note}"
        for note, gpus in about.items()
    )


def _times(factor: float) -> str:
    return "" if factor == 1 else f"{factor:.2f} x"


def _number(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 1000 else 0
    return f"{value:,.{digits}f}" if value >= 0.01 else f"{value:.2g}"
