"""Wave and tile quantisation alone: whole waves of whole tiles at peak.

NVIDIA, "Matrix Multiplication Background User's Guide" (Deep Learning Performance documentation):
a grid runs in ceil(CTAs / slots) waves, each as long as its tile takes, full or not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.evaluate.answers import Answer
from perfmodel.evaluate.metrics import Floats
from perfmodel.evaluate.rows import GemmRows, Launched


@dataclass(frozen=True)
class WaveAndTile:
    """Waves of padded tiles at the dense peak, or the compulsory bytes at full bandwidth."""

    name: str = "wave-and-tile"

    def answer(self, train: GemmRows, test: GemmRows) -> Answer | None:  # noqa: ARG002 - learns nothing
        """Return launch overhead plus the longer of the two."""
        launched = test.launched
        seconds = launched.launch_s + np.maximum(
            waves(launched) * wave_s(launched),
            launched.compulsory_bytes / launched.dram_bytes_per_s,
        )
        return Answer(seconds=seconds, score=seconds)


def waves(launched: Launched) -> Floats:
    """Return ceil(CTAs / (SMs x CTAs per SM)), at least 1."""
    slots = launched.sm_count * launched.occupancy
    return np.maximum(np.ceil(launched.ctas / slots), 1.0)


def wave_s(launched: Launched) -> Floats:
    """Return the time of one full wave at the dense peak, seconds."""
    padded = launched.block_m * launched.block_n * launched.block_k * launched.iterations
    per_sm = launched.peak_flops_per_s / launched.sm_count
    return launched.occupancy * 2.0 * padded / per_sm
