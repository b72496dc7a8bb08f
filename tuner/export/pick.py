"""What is exported: for each shape the configuration that the model picks on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.errors import IllegalConfigError
from perfmodel.families import TileProblem, family_of
from perfmodel.hardware.gpu import Gpu
from perfmodel.predictor import Predictor
from perfmodel.tiling.config import ConfigTable, TileConfig

PICKS_SCHEMA = "perfmodel.picks/1"
"""``to_json``: ``schema``, ``gpu``, ``model`` and ``picks``, each with ``problem``, ``config``,
``latency_us``, ``basis``, ``unsure`` (how many leading configurations the model cannot tell
apart) and ``ordered_by`` (trees that know which tiles won and no times, where those chose)."""


@dataclass(frozen=True)
class Pick:
    """The configuration chosen for one problem; nothing was timed."""

    problem: TileProblem
    gpu: str
    config: TileConfig
    latency_us: float
    basis: str
    unsure: int
    model: str | None
    ordered_by: str | None = None
    """Trees that know which tiles won and no times, where those chose."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the documented form."""
        return {
            "family": self.problem.family,
            "problem": self.problem.to_dict(),
            "config": self.config.to_dict(),
            "latency_us": self.latency_us,
            "basis": self.basis,
            "unsure": self.unsure,
            "ordered_by": self.ordered_by,
        }


Keep = Callable[[TileConfig], bool]


def pick(
    problem: TileProblem,
    gpu: Gpu,
    predictor: Predictor,
    *,
    keep: Keep | None = None,
    prefer: TileConfig | None = None,
) -> Pick:
    """Return the configuration predicted to be the fastest.

    Args:
        problem, gpu, predictor: what is asked, and who answers.
        keep: which of the device's candidates the kernel that reads the answer can use.
        prefer: a configuration that competes beside the candidates, and is chosen where the model
            cannot tell it from the fastest.

    Raises:
        IllegalConfigError: no configuration is left, or none can run.
        UnsupportedDtypeError: the device has no arithmetic for the problem's type.
    """
    found = family_of(problem).candidates(problem, gpu)
    if keep is not None or prefer is not None:
        listed = [c for c in found.configs if c != prefer and (keep is None or keep(c))]
        found = ConfigTable.of(listed if prefer is None else [*listed, prefer])
    if not len(found):
        raise IllegalConfigError(
            f"no configuration that this kernel takes can run {problem} on {gpu.name}; "
            "choose another data type or block of scales"
        )
    ranking = predictor.rank(problem, gpu, found, with_rejected=False)
    alike = ranking.candidates[: ranking.unsure]
    best = next((c for c in alike if c.config == prefer), ranking.candidates[0])
    return Pick(
        problem,
        gpu.name,
        best.config,
        best.latency_us,
        best.basis,
        ranking.unsure,
        ranking.model,
        ranking.ordered_by,
    )


def to_json(picks: Sequence[Pick]) -> dict[str, Any]:
    """Return the picks as they are, in the form of `PICKS_SCHEMA`."""
    return {
        "schema": PICKS_SCHEMA,
        "gpu": picks[0].gpu if picks else None,
        "model": picks[0].model if picks else None,
        "picks": [found.to_dict() for found in picks],
    }
