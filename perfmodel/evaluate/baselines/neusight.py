"""NeuSight's form: waves of tiles at the roofline times a utilisation gamma - alpha / waves.

Lee, Phanishayee and Mahajan, "Forecasting GPU Performance for Deep Learning Training and
Inference", ASPLOS 2025 (doi 10.1145/3669940.3707265): waves = ceil(CTAs / SMs), and the rate of a
wave is the roofline's, min(peak, intensity x bandwidth), times the utilisation. There a network
gives gamma and alpha; here they are fitted per data type and tile on the training rows, so it
answers for devices never seen as theirs does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfmodel.evaluate.answers import Answer
from perfmodel.evaluate.baselines.groups import dense, enough, extremes, fit_groups
from perfmodel.evaluate.metrics import Floats, Indices
from perfmodel.evaluate.rows import GemmRows, Launched

ROWS_MIN = 4
REWEIGHTINGS = 4


@dataclass(frozen=True)
class NeuSight:
    """Utilisation of the roofline per data type and tile."""

    name: str = "neusight-form"

    def answer(self, train: GemmRows, test: GemmRows) -> Answer | None:
        """Fit utilisations on ``train``, then predict ``test``."""
        learnt = len(train)
        wave_count = np.concatenate([_waves(train.launched), _waves(test.launched)])
        columns = np.stack([np.ones_like(wave_count), 1.0 / wave_count], axis=1)
        used, ideal_test = _ideal_s(train.launched) / train.measured_s, _ideal_s(test.launched)
        dtype = np.unique(
            np.concatenate([train.dtype, test.dtype]).astype(str), return_inverse=True
        )[1]
        tile = np.concatenate([train.tile, test.tile])
        utilisation = np.full(len(test), np.nan)
        for keys in ((dtype, tile), (tile,), (np.zeros_like(tile),)):
            group, groups = dense(*keys)
            found, rows = _fit(group[:learnt], columns[:learnt], used, groups)
            mine = group[learnt:]
            fits = np.isnan(utilisation) & enough(rows, mine, ROWS_MIN)
            utilisation[fits] = found(columns[learnt:], mine)[fits]
        seconds = ideal_test / utilisation
        return Answer(seconds=seconds, score=seconds)


def _fit(
    group: Indices, columns: Floats, used: Floats, groups: int
) -> tuple[Callable[[Floats, Indices], Floats], Indices]:
    """Return how to predict utilisations, and training rows per group.

    Weighed anew by the prediction each round, so that relative errors of the time count. Never
    beyond what training saw of the tile: the line in 1 / waves may turn negative.
    """
    low, high = extremes(group, used, groups)
    weight = np.ones(len(used))
    for _ in range(REWEIGHTINGS):
        found, rows = fit_groups(group, columns * weight[:, None], used * weight, groups)
        predicted = np.einsum("nc,nc->n", columns, found[group])
        weight = 1.0 / np.clip(predicted, low[group], high[group])
    return (
        lambda asked, mine: np.clip(
            np.einsum("nc,nc->n", asked, found[mine]), low[mine], high[mine]
        ),
        rows,
    )


def _waves(x: Launched) -> Floats:
    return np.maximum(np.ceil(x.ctas / x.sm_count), 1.0)


def _ideal_s(x: Launched) -> Floats:
    """Return the time of the waves at the roofline's rate, seconds."""
    padded = 2.0 * x.block_m * x.block_n * x.block_k * x.iterations
    rows, depth = np.ceil(x.m / x.block_m) * x.block_m, x.block_k * x.iterations
    columns = np.ceil(x.n / x.block_n) * x.block_n
    intensity = 2.0 * rows * columns * depth / np.maximum(x.compulsory_bytes, 1.0)
    rate = np.minimum(x.peak_flops_per_s, intensity * x.dram_bytes_per_s)
    return _waves(x) * padded * x.sm_count / rate
