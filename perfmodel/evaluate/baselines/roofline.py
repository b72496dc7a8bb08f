"""The roofline: operations at peak or compulsory bytes at full bandwidth, whichever is longer.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009. It knows nothing of tiles, so it predicts times and orders none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.evaluate.answers import Answer
from perfmodel.evaluate.metrics import Floats
from perfmodel.evaluate.rows import GemmRows, Launched


@dataclass(frozen=True)
class Roofline:
    """Dense peak and full DRAM bandwidth, with the launch overhead of the timing protocol."""

    name: str = "roofline"

    def answer(self, train: GemmRows, test: GemmRows) -> Answer | None:  # noqa: ARG002 - learns nothing
        """Return the times of the roofline."""
        return Answer(seconds=test.launched.launch_s + roofline_s(test.launched))


def roofline_s(launched: Launched) -> Floats:
    """Return max(operations / peak, compulsory bytes / bandwidth), seconds."""
    return np.maximum(
        launched.flops / launched.peak_flops_per_s,
        launched.compulsory_bytes / launched.dram_bytes_per_s,
    )
