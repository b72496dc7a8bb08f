"""One score to order the configurations of a problem by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

ANALYTIC_WEIGHT_UNSEEN = 0.5
"""On a device or type that no training row has, half the say goes to the physics: what trees
learned elsewhere is right about some effects and wrong about others, and the two err apart."""


def rank_score(
    log_analytic: Floats, log_seconds: Floats, log_relative: Floats, known: bool | Mask = True
) -> Floats:
    """Return the score to order configurations by: lower is better, log units, shape (N,).

    The mean of predicted log time and predicted log time relative to the problem's best. Within a
    problem the two differ by a constant and an error; averaging two models halves the latter's
    variance.

    Args:
        log_analytic: log of the analytic estimate.
        log_seconds: log of the predicted time.
        log_relative: predicted log of time over the problem's best.
        known: whether the training data has the row's device and type.
    """
    learned = 0.5 * (log_seconds + log_relative)
    mixed = ANALYTIC_WEIGHT_UNSEEN * log_analytic + (1.0 - ANALYTIC_WEIGHT_UNSEEN) * learned
    return np.where(known, learned, mixed)
