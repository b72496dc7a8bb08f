"""Candidates tried in random order: what knowing nothing costs, as an expectation."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.evaluate.answers import Answer
from perfmodel.evaluate.rows import GemmRows


@dataclass(frozen=True)
class RandomOrder:
    """The expectation over all orders, so there is no seed to fix."""

    name: str = "random"

    def answer(self, train: GemmRows, test: GemmRows) -> Answer | None:  # noqa: ARG002 - learns nothing
        """Return the mark that the order is random."""
        return Answer(is_random=True)
