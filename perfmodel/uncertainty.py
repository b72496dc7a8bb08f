"""How far an answer may be off: intervals by basis, and the error to expect."""

from __future__ import annotations

import math

from perfmodel.launches import Launches
from perfmodel.learned.correction import Correction
from perfmodel.prediction import Basis, Prediction

COVERAGE = 0.9
"""Nominal coverage of every interval."""

ANALYTIC_LOG_INTERVAL = (-0.02, 0.93)
"""5 % and 95 % quantiles of log(measured / estimate), AutoHeuristic mm rows, A100 and H100."""

ATTENTION_LOG_INTERVAL = (-0.22, 0.93)
"""Below: the 5 % quantile of log(measured / estimate) of tuned flash attention on an H100 (tokamax;
95 %: 0.31). Above: as for products, since no other device or untuned tile was compared."""

SHAPE_LOG_INTERVAL = (-0.2, 1.2)
"""For kernels of unknown tile before any model: libraries leave up to a factor of three of what the
hardware allows, and beat the estimate where caches are warm. Wide until a model narrows it."""

MEASURED_LOG_INTERVAL = (-0.02, 0.02)
"""Another session repeats a measured time within 1 to 2 %."""


def log_interval(model: Correction | None, found: Launches, basis: Basis) -> tuple[float, float]:
    """Return what to add to the log of a single launch's latency for the interval's ends."""
    if basis == "measured":
        return MEASURED_LOG_INTERVAL
    if basis == "analytic" or model is None or found.features is None:
        return ATTENTION_LOG_INTERVAL if found.family == "attention" else ANALYTIC_LOG_INTERVAL
    low, high = model.log_interval(found.features, basis == "interpolated")
    return float(low[0]), float(high[0])


def expected_error(model: Correction | None, found: Launches) -> float | None:
    """Return the mean relative error on held-out measurements of that type, or of the device."""
    if model is None:
        return None
    name = found.gpu.name
    entry = model.accuracy.get(f"{name}/{found.dtype}") or model.accuracy.get(name) or {}
    return entry.get("error_mean")


def typical_error(prediction: Prediction) -> float:
    """Return the error to expect when configurations are compared, in log units.

    That on held-out problems; else half of the interval's half-width: for normal errors the mean
    is 0.80 deviations and the half-width of a 90 % interval 1.64.
    """
    if prediction.expected_error is not None:
        return prediction.expected_error
    if prediction.basis == "analytic":
        return (ANALYTIC_LOG_INTERVAL[1] - ANALYTIC_LOG_INTERVAL[0]) / 4
    return math.log(prediction.interval_us[1] / prediction.latency_us) / 2
