"""One score to order the configurations of a problem by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def rank_score(log_seconds: Floats, log_relative: Floats) -> Floats:
    """Return the score to order configurations by: lower is better, log units, shape (N,).

    The mean of predicted log time and predicted log time relative to the problem's best. Within a
    problem the two differ by a constant and an error; averaging two models halves the latter's
    variance.
    """
    return 0.5 * (log_seconds + log_relative)
