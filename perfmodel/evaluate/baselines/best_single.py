"""One configuration for everything: the one that training says is best, then the next best.

What a kernel without tuning ships with. Per device and data type the configurations are ordered by
their geometric mean of best time over time on the training problems; one that was offered in fewer
than half of them counts as worst there, so that a rare favourite does not lead the list.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.evaluate.answers import Answer
from perfmodel.evaluate.metrics import Floats, Indices
from perfmodel.evaluate.rows import GemmRows

NOT_OFFERED = 0.5
"""Quality counted where a configuration was not among a problem's candidates: about what a random
pick reaches."""


@dataclass(frozen=True)
class BestSingle:
    """A fixed order of configurations, learnt per data type (and device where it was seen)."""

    name: str = "best-single-config"

    def answer(self, train: GemmRows, test: GemmRows) -> Answer | None:
        """Order the test rows by how well their configurations did in training."""
        score = np.full(len(test), np.nan)
        for gpu, dtype in sorted({*zip(test.gpu, test.dtype, strict=True)}):
            # A device without training rows is served by what other devices taught.
            for mine in (
                (train.gpu == gpu) & (train.dtype == dtype),
                train.dtype == dtype,
                np.ones(len(train), dtype=bool),
            ):
                if mine.any():
                    break
            here = (test.gpu == gpu) & (test.dtype == dtype)
            merit = _merit(train.take(mine), int(max(train.tile.max(), test.tile.max())) + 1)
            score[here] = -merit[test.tile[here]]
        return Answer(score=score)


def _merit(train: GemmRows, tiles: int) -> Floats:
    """Return each configuration's mean log quality over all training problems, (tiles,)."""
    problems: Indices = np.unique(train.problem)
    log_quality = np.log(train.table.best_s() / train.measured_s)
    total = np.bincount(train.tile, log_quality, minlength=tiles)
    offered = np.bincount(train.tile, minlength=tiles)
    missing = (len(problems) - offered) * np.log(NOT_OFFERED)
    return np.asarray((total + missing) / len(problems))
