"""How a kernel is timed: one value, with a version, that is recorded with every number."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from perfmodel.errors import UsageError

PROTOCOL_VERSION = 1
"""A new number when anything changes that moves times: those of two versions are never mixed."""

L2State = Literal["cold", "warm"]


@dataclass(frozen=True)
class TimingProtocol:
    """How times are taken; what it says in defaults is what its version stands for.

    Args:
        l2: ``cold``: each launch finds the L2 flushed, or inputs of its own that were never in it;
            ``warm``: it finds what the launch before left there.
        interval: half-width of the median's interval over the median, at which samples suffice.
        confidence: of that interval.
        samples_min, samples_max: how many samples are taken, as far as time allows.
        warm_up_s: longest warm-up; it ends sooner when times are steady.
        steady: up to which relative difference medians of consecutive blocks count as steady.
        retries: how often a throttled or contended measurement is taken again.
        cool_down_s: the pause before that.
        graph_below_us: launches shorter than this are timed several together, in a CUDA graph: an
            event on either side of one costs a microsecond or two.
        graph_span_us: how long the launches of one graph are to take together.
        graph_launches_max: how many one graph holds at most.
        reference_samples: of the reference kernel, at each check for drift.
        drift_max: relative drift from which a measurement is flagged.
    """

    l2: L2State = "cold"
    interval: float = 0.004
    confidence: float = 0.95
    samples_min: int = 10
    samples_max: int = 1500
    warm_up_s: float = 0.5
    steady: float = 0.02
    retries: int = 2
    cool_down_s: float = 0.5
    graph_below_us: float = 50.0
    graph_span_us: float = 500.0
    graph_launches_max: int = 128
    reference_samples: int = 300
    drift_max: float = 0.01

    def __post_init__(self) -> None:
        if self.l2 not in ("cold", "warm"):
            raise UsageError(f"l2 is {self.l2!r}; use cold or warm")
        if not 1 <= self.samples_min <= self.samples_max:
            raise UsageError(
                f"samples are {self.samples_min} to {self.samples_max}; use whole numbers from 1, "
                "the smaller first"
            )
        if not 0 < self.interval < 1:
            raise UsageError(
                f"interval is {self.interval}; use a share of the median between 0 and 1, e.g. 0.01"
            )
        if not 0.5 <= self.confidence < 1:
            raise UsageError(f"confidence is {self.confidence}; use a share such as 0.95")

    @property
    def name(self) -> str:
        """The name that `tuner.measure.device.Timing` records: ``steady-cold-1``."""
        return f"steady-{self.l2}-{PROTOCOL_VERSION}"

    def to_dict(self) -> dict[str, Any]:
        """Return name, version and every setting, plain."""
        return {"name": self.name, "version": PROTOCOL_VERSION, **asdict(self)}


__all__ = ["PROTOCOL_VERSION", "L2State", "TimingProtocol"]
