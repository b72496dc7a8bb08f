"""WaveTune's bilinear model: at one tile and wave count T = a G L + b G + c L + d.

Zhang et al., "WaveTune: Wave-aware Bilinear Modeling for Efficient GPU Kernel Auto-tuning",
arXiv:2604.10187, 2026: G CTAs, L main-loop iterations. Our reading of the formula, fitted on the
training rows by relative least squares; the paper profiles its own sparse samples instead. Groups
with fewer than six rows use the same tile's rows at any wave count, then every tile's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.evaluate.answers import Answer
from perfmodel.evaluate.baselines.groups import dense, enough, fit_groups
from perfmodel.evaluate.baselines.roofline import roofline_s
from perfmodel.evaluate.baselines.wave_and_tile import waves
from perfmodel.evaluate.metrics import Floats, Indices
from perfmodel.evaluate.rows import GemmRows, Launched

ROWS_MIN = 6


@dataclass(frozen=True)
class WaveTune:
    """Tables of coefficients per device, data type, tile and wave count.

    It measures the device it is for, so it says nothing of one without training rows.
    """

    name: str = "wavetune"

    def answer(self, train: GemmRows, test: GemmRows) -> Answer | None:
        """Fit the tables on ``train`` and look ``test`` up in them."""
        if not set(test.gpu) <= set(train.gpu):
            return None
        learnt = len(train)
        columns = np.concatenate([_columns(train.launched), _columns(test.launched)])
        kinds = _kinds(train, test)
        seconds = np.full(len(test), np.nan)
        shortest = np.maximum(roofline_s(test.launched), test.launched.launch_s)
        for keys in ((0, 1, 2), (0, 1), (0,)):
            group, groups = dense(*(kinds[i] for i in keys))
            weighed = columns[:learnt] / train.measured_s[:, None]
            found, rows = fit_groups(group[:learnt], weighed, np.ones(learnt), groups)
            mine = group[learnt:]
            fits = np.isnan(seconds) & enough(rows, mine, ROWS_MIN)
            predicted = np.einsum("nc,nc->n", columns[learnt:], found[mine])
            # Beyond its samples the formula may fall below nothing.
            seconds[fits] = np.maximum(predicted, shortest)[fits]
        return Answer(seconds=seconds, score=seconds)


def _columns(x: Launched) -> Floats:
    return np.stack([x.ctas * x.iterations, x.ctas, x.iterations, np.ones_like(x.ctas)], axis=1)


def _kinds(train: GemmRows, test: GemmRows) -> tuple[Indices, Indices, Indices]:
    """Return device and data type, tile, and wave count of all rows, training rows first."""
    names = [
        [f"{g} {d} {s:.1e}" for g, d, s in zip(r.gpu, r.dtype, r.launched.launch_s, strict=True)]
        for r in (train, test)
    ]
    device = np.unique(np.array([*names[0], *names[1]]), return_inverse=True)[1].reshape(-1)
    wave = np.concatenate([waves(train.launched), waves(test.launched)]).astype(np.int64)
    return device, np.concatenate([train.tile, test.tile]), wave
