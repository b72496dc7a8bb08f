"""One score to order the configurations of a problem by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

PREFERENCE_WEIGHT = 0.1
"""Log units of time that one unit of preference is worth. Held-out picks are best from 0.05 to
0.15, and hardly change in between."""

ANALYTIC_WEIGHT_UNSEEN = 0.6
"""On a device or type that no training row has, most of the say goes to the physics: what trees
learned elsewhere is right about some effects and wrong about others, and the two err apart."""

PREFERENCE_SHARE_UNSEEN = 0.2
"""What preference counts there: which of two near-equal tiles wins is mostly a device's own. (Set
with both directions of A100 and H100 in sight; from 0.1 to 0.3 the picks hardly change.)"""


def rank_score(
    log_analytic: Floats, log_seconds: Floats, preference: Floats, known: bool | Mask = True
) -> Floats:
    """Return the score to order configurations by: lower is better, log units, shape (N,).

    One model learned how long a configuration takes, the other which of two is faster; they err
    apart, and the second spends all its trees near the best.

    Args:
        log_analytic: log of the analytic estimate.
        log_seconds: log of the predicted time.
        preference: what the pairwise trees say; higher is better.
        known: whether the training data has the row's device and type.
    """
    learned = log_seconds - PREFERENCE_WEIGHT * preference
    carried_over = log_seconds - PREFERENCE_SHARE_UNSEEN * PREFERENCE_WEIGHT * preference
    share = ANALYTIC_WEIGHT_UNSEEN
    mixed = share * log_analytic + (1.0 - share) * carried_over
    return np.where(known, learned, mixed)
