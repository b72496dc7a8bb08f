"""One fifth of the sites held out, for pictures: what models without them say of kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.evaluate.library import load_library, site_folds, site_widths
from perfmodel.evaluate.run import Run
from perfmodel.evaluate.selection import Selection
from perfmodel.learned.shape_table import ShapeRows
from perfmodel.learned.shape_training import any_spec, device_spec, fit_shape_heads

Floats = NDArray[np.float64]

ROWS = 60_000
"""So many measurements, drawn at random, show where a model errs; all of them take minutes."""


@dataclass(frozen=True)
class HeldOut:
    """Rows that the trees did not see, their predicted seconds and half widths in logs, (N,)."""

    rows: ShapeRows
    predicted_s: Floats
    half: Floats

    def by_gpu(self) -> dict[str, tuple[Floats, Floats, Floats]]:
        """Return measured and predicted seconds and half widths of each device."""
        found = {}
        for gpu in sorted(set(map(str, self.rows.gpu))):
            here = np.asarray(self.rows.gpu == gpu, dtype=np.bool_)
            found[gpu] = (self.rows.latency_s[here], self.predicted_s[here], self.half[here])
        return found


def held_out_fifth(run: Run, chosen: Selection, most: int = ROWS) -> HeldOut:
    """Train on four fifths of the sites of at most ``most`` rows and ask about the fifth left out.

    Intervals of one half of the sites come from what goes wrong on the other.

    Raises:
        MissingDataError: the table is not imported; the message is the command to run.
    """
    found = load_library(run, chosen, most=most)
    rows, label = found.rows, f"{chosen.family} {chosen.dtype}"
    held = site_folds(rows.site) == 0
    heads = fit_shape_heads(
        rows.take(~held & found.train),
        run.scaled(any_spec(chosen.family)),
        run.scaled(device_spec(chosen.family, chosen.dtype)),
        lambda share: run.trainer.tell(label, share),
    )
    asked = rows.take(held & found.test)
    correction = heads.log_correction(asked)
    return HeldOut(asked, asked.analytic_s * np.exp(correction), site_widths(asked, correction))
