"""The answers given to a user, and their documented JSON form.

``Prediction.to_dict()`` (``perfmodel predict --json``), schema ``perfmodel.prediction/1``:

=================== ============================================================================
``schema``          ``perfmodel.prediction/1``; a new number when a key changes meaning
``family``          ``gemm``, ``attention``, ``grouped_gemm`` or ``memory_bound``
``problem``         sizes, dtypes, layouts and leading strides (in elements); arguments of its class
``gpu``             canonical name
``config``          every tile parameter; unknown ones of the user's own last; null for a kernel
                    whose tile is unknown (a library's), as are ``waves`` and ``occupancy``
``latency_us``      predicted time of one launch, microseconds
``interval_us``     [low, high], microseconds
``coverage``        share of measured times that such intervals held where it was checked
``tflops``          useful operations per second, without padding, in 10^12
``share_of_peak``   of the dense peak of the compute type, 0 to 1
``limiter``         the resource that alone takes longest: tensor, fma, sfu, issue, dram, l2, smem,
                    latency or launch
``breakdown_us``    for each limiter, the part of ``latency_us`` it would take by itself; they
                    overlap, so they do not add up
``waves``           CTAs over the CTAs that the device runs at once
``occupancy``       CTAs per SM
``basis``           measured, interpolated (this GPU and dtype were measured), extrapolated (they
                    were not, or the launch lies outside what was), analytic (no learned part)
``model``           version of the learned model, null without one
``expected_error``  its mean relative error on held-out measurements of this GPU, null if unknown
``notes``           warnings in words
``rivals``          on the command line: the next best as in a ranking's ``candidates``; empty with
                    ``--config``
``considered``      on the command line: how many candidates there were, null with ``--config``
``unsure``          on the command line: as in a ranking, null with ``--config``
=================== ============================================================================

``Ranking.to_dict()`` (``perfmodel rank --json``), schema ``perfmodel.ranking/1``, has ``schema``,
``family``, ``problem``, ``gpu``, ``basis``, ``model``, ``expected_error``, ``notes`` as above, and

=================== ============================================================================
``considered``      how many configurations can run, shown or not
``unsure``          how many leading candidates the model cannot tell apart; 1 when it is sure
``candidates``      fastest first: ``rank``, ``config``, ``latency_us``, ``slowdown`` (1 for the
                    fastest), ``limiter``, ``basis``, ``position`` (in the list given, from 0)
``rejected``        ``config``, ``position``, and ``reasons``: ``limit``, ``needed``,
                    ``available``, ``change`` for each limit broken
=================== ============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from perfmodel.problems import Problem
from perfmodel.tiling.config import TileConfig
from perfmodel.tiling.legality import Rejection

Basis = Literal["measured", "interpolated", "extrapolated", "analytic"]

PREDICTION_SCHEMA = "perfmodel.prediction/1"
RANKING_SCHEMA = "perfmodel.ranking/1"


@dataclass(frozen=True)
class Prediction:
    """How long one launch takes, and why. The fields are those of the module's table."""

    problem: Problem
    gpu: str
    config: TileConfig | None
    latency_us: float
    interval_us: tuple[float, float]
    coverage: float
    tflops: float
    share_of_peak: float
    limiter: str
    breakdown_us: Mapping[str, float]
    waves: float | None
    occupancy: int | None
    basis: Basis
    model: str | None = None
    expected_error: float | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the documented form."""
        return {
            "schema": PREDICTION_SCHEMA,
            "family": self.problem.family,
            "problem": self.problem.to_dict(),
            "gpu": self.gpu,
            "config": None if self.config is None else self.config.to_dict(),
            "latency_us": self.latency_us,
            "interval_us": list(self.interval_us),
            "coverage": self.coverage,
            "tflops": self.tflops,
            "share_of_peak": self.share_of_peak,
            "limiter": self.limiter,
            "breakdown_us": dict(self.breakdown_us),
            "waves": self.waves,
            "occupancy": self.occupancy,
            "basis": self.basis,
            "model": self.model,
            "expected_error": self.expected_error,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration in its place; ``position`` is its index in the list that was ranked."""

    rank: int
    config: TileConfig
    latency_us: float
    slowdown: float
    limiter: str
    basis: Basis
    position: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the documented form."""
        return {
            "rank": self.rank,
            "config": self.config.to_dict(),
            "latency_us": self.latency_us,
            "slowdown": self.slowdown,
            "limiter": self.limiter,
            "basis": self.basis,
            "position": self.position,
        }


@dataclass(frozen=True, slots=True)
class Rejected:
    """A configuration that cannot be launched, and every limit it breaks."""

    config: TileConfig
    reasons: tuple[Rejection, ...]
    position: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the documented form."""
        return {
            "config": self.config.to_dict(),
            "position": self.position,
            "reasons": [asdict(reason) for reason in self.reasons],
        }


@dataclass(frozen=True)
class Ranking:
    """Configurations in order of predicted time, fastest first, and those that cannot run.

    ``ordered_by`` names trees that know which tiles won and no times, where those made the order;
    times are the estimate's then, and a later place may have a shorter one.
    ``unsure`` of the first may each be the best.
    """

    problem: Problem
    gpu: str
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    considered: int
    unsure: int
    basis: Basis
    model: str | None = None
    expected_error: float | None = None
    notes: tuple[str, ...] = ()
    ordered_by: str | None = None

    @property
    def best(self) -> TileConfig:
        """The configuration predicted to be the fastest."""
        return self.candidates[0].config

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the documented form."""
        return {
            "schema": RANKING_SCHEMA,
            "family": self.problem.family,
            "problem": self.problem.to_dict(),
            "gpu": self.gpu,
            "basis": self.basis,
            "model": self.model,
            "expected_error": self.expected_error,
            "ordered_by": self.ordered_by,
            "notes": list(self.notes),
            "considered": self.considered,
            "unsure": self.unsure,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "rejected": [rejected.to_dict() for rejected in self.rejected],
        }
