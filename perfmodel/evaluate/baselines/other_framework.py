"""What the other frameworks measured for the same launch on the same GPU: how well a time repeats.

No model, and not one to be beaten by much: where frameworks call the same library, their figures
for one product differ by clocks, by the version of the library and by the way they time. A
prediction that knows none of them can hardly be nearer to each than they are to one another.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

OTHER_FRAMEWORK = "other-framework"


def other_framework_s(frame: pd.DataFrame, problem: list[str]) -> NDArray[np.float64]:
    """Return the geometric mean of what other frameworks measured, seconds, NaN where none did.

    Args:
        frame: rows with ``gpu``, ``library``, ``latency_us`` and the columns of ``problem``.
        problem: the columns that describe a launch.
    """
    launch = frame.groupby(["gpu", *problem], dropna=False, sort=False).ngroup()
    own = frame.groupby([launch, frame["library"]], dropna=False, sort=False).ngroup()
    log_s = pd.Series(np.log(frame["latency_us"].to_numpy(dtype=np.float64) * 1e-6), frame.index)
    total, mine = (log_s.groupby(key).transform("sum") for key in (launch, own))
    count, of_mine = (log_s.groupby(key).transform("count") for key in (launch, own))
    others = (count - of_mine).to_numpy(dtype=np.float64)
    mean = (total - mine).to_numpy(dtype=np.float64) / np.where(others > 0, others, np.nan)
    return np.asarray(np.exp(mean), dtype=np.float64)
