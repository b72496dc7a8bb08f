"""Measure one problem with a configuration or several, with the model's prediction beside it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import (
    InvalidProblemError,
    MissingDataError,
    PerfmodelError,
    RunFailedError,
    UsageError,
)
from perfmodel.hardware.gpu import Gpu
from perfmodel.prediction import Prediction
from perfmodel.predictor import Predictor
from perfmodel.tiling.config import TileConfig
from tuner.benchmark.rig import Rig
from tuner.collect.families import FAMILIES, Family
from tuner.collect.keys import measurement_text
from tuner.kernels import catalog
from tuner.measure.check import row_floor_us
from tuner.measure.device import Timing, Trial
from tuner.measure.failures import failure_of
from tuner.measure.interleave import Standing, race
from tuner.measure.measurement import Measurement, bare

if TYPE_CHECKING:
    from perfmodel.families import TileProblem
    from tuner.kernels.catalog import ReferenceKernel

NOT_IN_TABLE = "not in the table"
"""What `tuner.measure.replay` says of what was never tried."""

_FAMILY_OF = {
    "attention": "attention",
    "attention_backward": "attention-backward",
    "attention_decode": "decode",
    "grouped_gemm": "moe",
}


@dataclass(frozen=True)
class Subject:
    """What is measured: a problem by one of the reference kernels, on a device.

    ``columns`` are the problem's in the measurement table, ``None`` where it has none for it.
    """

    problem: TileProblem
    kernel: ReferenceKernel
    gpu: Gpu

    @property
    def family(self) -> Family:
        """What collecting knows of the kernel's family."""
        return FAMILIES[_FAMILY_OF.get(self.kernel.name, "gemm")]

    @property
    def columns(self) -> Mapping[str, Any] | None:
        """The problem as a row of the measurement table; ``None`` where it has no columns."""
        try:
            return self.family.columns(self.problem)
        except InvalidProblemError:
            return None

    def text(self, config: TileConfig) -> str:
        """Return the canonical text of the problem with a configuration."""
        columns = self.columns
        if columns is None:
            return f"{self.kernel.name} {self.problem} {config}"
        values = {name: getattr(config, name) for name in self.family.parameters}
        row = {**columns, **values}
        return measurement_text(self.family.table, row, dict(config.extras))

    def floor_us(self, *, cold: bool) -> float:
        """Return the shortest time that the device allows, 0 where it cannot be told."""
        columns = self.columns
        if columns is None:
            return 0.0
        return row_floor_us(self.family.table, columns, self.gpu, cold=cold)


@dataclass(frozen=True)
class Benched:
    """A measurement of a configuration and what the model had said of it.

    ``checked`` is what a comparison with a float64 reference found: empty for a right result,
    ``None`` where there was no comparison. ``standings`` compares several configurations, timed by
    turns; ``configs`` and ``predictions`` are theirs, by the same text, and ``unsure`` of them may
    be the best.
    """

    subject: Subject
    config: TileConfig
    measurement: Measurement
    prediction: Prediction
    checked: str | None = None
    standings: tuple[Standing, ...] = ()
    configs: Mapping[str, TileConfig] = field(default_factory=dict)
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    unsure: int = 1

    @property
    def ratio(self) -> float | None:
        """Measured over predicted, ``None`` unless it ran."""
        measured = self.measurement.latency_us
        return None if measured is None else measured / self.prediction.latency_us

    @property
    def tflops(self) -> float | None:
        """Useful operations per second, without padding, in 10^12; ``None`` unless it ran."""
        measured = self.measurement.latency_us
        return None if measured is None else self.subject.problem.flops / measured / 1e6

    @property
    def gb_per_s(self) -> float | None:
        """Compulsory bytes per second, in 10^9; ``None`` unless it ran."""
        measured = self.measurement.latency_us
        if measured is None:
            return None
        return self.subject.problem.compulsory_bytes / measured / 1e3


def choose_kernel(
    problem: TileProblem, name: str | None = None, config: TileConfig | None = None
) -> ReferenceKernel:
    """Return the reference kernel for a problem: the named one, or the usual.

    Raises:
        UsageError: no kernel has that name.
        InvalidProblemError: it does not compute the problem, or none does.
    """
    if name is not None:
        kernel = catalog.find(name)
        kernel.require(problem)
        return kernel
    for usual in _usual(problem, config):
        kernel = catalog.find(usual)
        if kernel.family == problem.family and kernel.refuses(problem) is None:
            return kernel
    mine = [k for k in catalog.KERNELS if k.family == problem.family]
    reasons = "; ".join(f"{k.name}: {k.refuses(problem)}" for k in mine)
    raise InvalidProblemError(f"no reference kernel computes {problem}: {reasons}")


def bench(
    subject: Subject,
    rig: Rig,
    predictor: Predictor,
    configs: Sequence[TileConfig] = (),
    *,
    limit_s: float = 10.0,
    check: bool = False,
) -> Benched:
    """Measure a configuration, by default the model's pick; of several the best, after a race.

    Raises:
        UsageError: a configuration is given twice.
        IllegalConfigError, InvalidConfigError: a configuration that the device cannot run, or one
            that the kernel would not obey.
        MissingDataError: a recorded table has nothing of this problem.
        RunFailedError: the result could not be compared.
        DeviceLostError: the device can time nothing more.
    """
    given = list(configs) or [_pick(subject, rig, predictor)]
    predictions = {
        subject.text(c): predictor.predict(subject.problem, subject.gpu, c) for c in given
    }
    floor_us = subject.floor_us(cold=rig.cold)
    by_text: dict[str, TileConfig] = {}
    for config in given:
        if by_text.setdefault(subject.text(config), config) is not config:
            raise UsageError(f"configuration {config} is given twice; keep one")
    made = {text: _trial(subject, rig, c, predictions[text]) for text, c in by_text.items()}
    trials = [trial for trial in made.values() if isinstance(trial, Trial)]
    refused = {text: failure for text, failure in made.items() if isinstance(failure, Timing)}
    if not trials:
        text, failure = next(iter(refused.items()))
        return Benched(subject, by_text[text], bare(failure), predictions[text])
    standings, unsure, best = tuple[Standing, ...](), 1, trials[0]
    if len(given) > 1:
        raced = race(
            rig.device, trials, floor_us=floor_us, limit_s=limit_s * len(given), clock=rig.clock
        )
        unsure = raced.unsure
        standings = (
            *raced.standings,
            *(Standing(text, f.outcome, reason=f.reason) for text, f in refused.items()),
        )
        best = next(trial for trial in trials if trial.config == standings[0].config)
    config = by_text[best.config]
    wrong = _verify(subject, rig, config) if check else None
    if wrong:
        found = bare(Timing(Outcome.WRONG_RESULT, rig.device.protocol, reason=wrong))
    else:
        found = rig.measure(best, floor_us=floor_us, limit_s=limit_s)
    return Benched(
        subject, config, found, predictions[best.config], wrong, standings, by_text, predictions,
        unsure,
    )  # fmt: skip


def _usual(problem: Any, config: TileConfig | None) -> list[str]:
    """Names of kernels in the order in which they are tried."""
    if problem.family == "attention":
        if problem.backward:
            return ["attention_backward"]
        decode = problem.page_size is not None or all(q <= 1 for q, _ in problem.items)
        return ["attention_decode", "attention"] if decode else ["attention", "attention_decode"]
    if problem.family == "grouped_gemm":
        return ["grouped_gemm"]
    if config is not None and config.split_k > 1:
        return ["gemm_split_k"]
    first = []
    if problem.a_dtype.bits == 8:
        first = ["gemm_row_scaled"]
    elif problem.b_dtype.bits < problem.a_dtype.bits:
        first = ["gemm_weight_only"]
    return [*first, "gemm", "gemm_weight_only"]


def _pick(subject: Subject, rig: Rig, predictor: Predictor) -> TileConfig:
    """The model's pick of what the kernel may run; of what was recorded, if a table answers."""
    space = subject.kernel.space(subject.problem, subject.gpu)
    ranking = predictor.rank(subject.problem, subject.gpu, space, with_rejected=False)
    if not rig.is_table:
        return ranking.best
    for candidate in ranking.candidates:
        trial = Trial(subject.text(candidate.config))
        found = rig.device.time(trial, samples=1, limit_s=1.0)
        if found.reason != NOT_IN_TABLE:
            return candidate.config
    raise MissingDataError(
        f"the table has no time of {subject.problem} on {subject.gpu.name} with any of the "
        f"{len(ranking.candidates):,} configurations that are worth it; give one with --config"
    )


def _trial(
    subject: Subject, rig: Rig, config: TileConfig, prediction: Prediction
) -> Trial | Timing:
    """A trial, or what came of making its inputs: they may not fit."""
    text, expected = subject.text(config), prediction.latency_us
    try:
        launch = rig.launch(subject.kernel, subject.problem, config)
    except PerfmodelError:
        raise
    except Exception as error:
        failure = failure_of(error, rig.device.protocol)
        if failure is None:
            raise
        return failure
    if rig.pretend is not None:
        # Around the prediction, the same for the same configuration.
        seed = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
        rig.pretend[text] = expected * random.Random(seed).uniform(1.0, 1.2)
    return Trial(text, launch=launch, expected_us=expected)


def _verify(subject: Subject, rig: Rig, config: TileConfig) -> str:
    """What is wrong with one run's result; empty for nothing.

    Raises:
        RunFailedError: it could not be compared: a float64 reference may not fit.
    """
    try:
        return rig.verify(subject.kernel, subject.problem, config) or ""
    except PerfmodelError:
        raise
    except Exception as error:
        failure = failure_of(error, rig.device.protocol)
        if failure is None:
            raise
        raise RunFailedError(
            f"the result cannot be compared ({failure.reason}); leave --check out"
        ) from error


__all__ = ["Benched", "Subject", "bench", "choose_kernel"]
