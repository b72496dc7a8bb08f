"""The one door: how long will this take on that device, why, and which tile is best."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.answers import answer, basis_of, ranking
from perfmodel.errors import (
    IllegalConfigError,
    InvalidConfigError,
    ModelUnavailableWarning,
    UnknownGpuError,
)
from perfmodel.families import TileProblem, family_of
from perfmodel.families.legality import none_usable, require_legal
from perfmodel.families.library import has_tile, library_prediction, require_tile
from perfmodel.families.tile_model import TileOrder
from perfmodel.hardware.catalog import load_gpu
from perfmodel.hardware.gpu import Gpu
from perfmodel.launches import Launches, gemm_launches
from perfmodel.learned.correction import Correction
from perfmodel.learned.coverage import SHARE_FAMILIAR
from perfmodel.learned.ranking import rank_score
from perfmodel.many import latencies_us, table_latencies_us
from perfmodel.prediction import Prediction, Ranking
from perfmodel.problems import Problem
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import Rejection

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.explanation import Explanation
    from perfmodel.learned.adapt import Gain

Array = NDArray[np.float64]

SHORTLIST = 0.2
"""Log units past the best rough time that all trees never make up for: three standard deviations
of what they still correct."""

FINALISTS = 0.15
"""Log units past the best predicted time that no preference makes up for."""


class MeasuredLookup(Protocol):
    """A table of measured times to answer from where it has an answer."""

    def find(self, problem: TileProblem, config: TileConfig, gpu: str) -> float | None:
        """Return the measured latency in microseconds, ``None`` where there is none."""


@dataclass(frozen=True)
class _Standing:
    """How N configurations stand: what orders them, the least first, and their log seconds."""

    score: Array
    log_s: Array
    order: TileOrder | None = None
    """Trees that know winners and no times, where they made the order."""


class Predictor:
    """Answers questions about kernels: predicts, ranks, explains; one or many at a time.

    Args:
        model: a learned correction, or the file of one. By default the shipped one, and the
            analytic estimate with one warning should that fail to load.
        analytic_only: use no learned correction at all.
        measured: a table of measured times that is asked first.

    Raises:
        ModelFileError, SchemaMismatchError: the file given cannot be used.
    """

    def __init__(
        self,
        model: Correction | Path | str | None = None,
        *,
        analytic_only: bool = False,
        measured: MeasuredLookup | None = None,
    ) -> None:
        self.model = None if analytic_only else _resolve(model)
        self.measured = measured

    def predict(
        self, problem: Problem, gpu: Gpu | str | Path, config: TileConfig | None = None
    ) -> Prediction:
        """Predict one launch; without ``config``, that of the best configuration found.

        A library kernel's tile is its own: it takes no ``config``.

        Raises:
            InvalidConfigError: ``config`` is given for a kernel whose tile cannot be chosen.
            IllegalConfigError: the device cannot run ``config``; the message offers one it can.
            UnknownGpuError, AmbiguousGpuError, InvalidGpuSpecError: from `load_gpu`.
            UnsupportedDtypeError: the device has no arithmetic for the problem's type.
        """
        device = as_gpu(gpu)
        if not has_tile(problem):
            if config is not None:
                require_tile(problem)
            return library_prediction(problem, device, learned=self.model is not None)
        family = family_of(problem)
        if config is not None:
            require_legal(family, problem, config, device)
            return self._answer(problem, config, self._launch(problem, config, device))
        space = family.candidates(problem, device)
        found = self.launches_of(problem, space, device)
        chosen = self._standing(problem, space, found, shortlist=True)
        config = _row(space, int(chosen.score.argmin())).configs[0]
        told = self._answer(problem, config, self._launch(problem, config, device))
        return (
            told if chosen.order is None else replace(told, notes=(*told.notes, chosen.order.note))
        )

    def rank(
        self,
        problem: TileProblem,
        gpu: Gpu | str | Path,
        configs: ConfigTable | Iterable[TileConfig] | None = None,
        *,
        top: int | None = None,
        with_rejected: bool = True,
    ) -> Ranking:
        """Order configurations by predicted time; by default all candidates of the device.

        Args:
            problem, gpu: as in `predict`.
            configs: the configurations to order; those that cannot run are listed with reasons.
            top: keep only that many of the fastest in the answer.
            with_rejected: say of each configuration that cannot run why not.

        Raises:
            IllegalConfigError: none can run; the message gives the reasons.
            InvalidConfigError: ``configs`` is empty, or ``top`` is less than 1.
        """
        if top is not None and top < 1:
            raise InvalidConfigError(f"top is {top!r}; use a whole number of at least 1")
        device = as_gpu(gpu)
        require_tile(problem)
        family = family_of(problem)
        table = family.candidates(problem, device) if configs is None else _as_table(configs)
        found = self.launches_of(problem, table, device)
        log_s, measured, standing = self._ordered_log_seconds(problem, table, found)
        # Trees that know winners and no times leave times as they are; elsewhere those follow.
        taught = standing.order is not None
        by_time = np.lexsort((log_s, standing.score) if taught else (standing.score, log_s))
        best = table.configs[int(by_time[0])]
        launch = self._launch(problem, best, device)
        refused: list[tuple[TileConfig, tuple[Rejection, ...]]] = []
        if with_rejected and configs is None:
            refused = family.rejected(problem, device)
        elif with_rejected:
            refused = list(zip(table.configs, family.check(problem, table, device), strict=True))
        return ranking(
            table,
            found,
            log_s,
            by_time,
            self._answer(problem, best, launch),
            basis=np.where(measured, "measured", basis_of(self.model_for(device), launch)),
            refused=refused,
            top=top,
            order=standing.order,
        )

    def decide(self, problem: TileProblem, gpu: Gpu | str | Path, configs: ConfigTable) -> int:
        """Return the index of the configuration predicted to be the fastest that can run.

        The lean path: arrays only.

        Raises:
            IllegalConfigError, InvalidConfigError: as in `rank`.
        """
        return int(self.scores(problem, gpu, configs, shortlist=True).argmin())

    def scores(
        self,
        problem: TileProblem,
        gpu: Gpu | str | Path,
        configs: ConfigTable,
        *,
        shortlist: bool = False,
    ) -> Array:
        """Return what configurations are ordered by, shape (n,): the least is the best.

        ``inf`` marks what cannot run. With ``shortlist`` only those that may be the best are told
        apart precisely, at a fraction of the cost.

        Raises:
            IllegalConfigError, InvalidConfigError: as in `rank`.
        """
        found = self.launches_of(problem, configs, as_gpu(gpu))
        if self.measured is None:
            return self._standing(problem, configs, found, shortlist=shortlist).score
        return self._ordered_log_seconds(problem, configs, found)[0]

    def latency_us(
        self,
        problems: Problem | Sequence[Problem] | GemmTable,
        gpu: Gpu | str | Path,
        configs: ConfigTable | TileConfig | None = None,
    ) -> Array:
        """Predict many launches at once, microseconds, shape (N,).

        Problems and configurations are paired row by row; a single one of either goes with all of
        the other. Without configurations every problem gets its best one. ``inf`` marks launches
        that cannot run. A measured table is not asked.

        Raises:
            InvalidConfigError: the numbers of problems and configurations do not match.
        """
        device = as_gpu(gpu)
        table = ConfigTable.of([configs]) if isinstance(configs, TileConfig) else configs
        if not isinstance(problems, GemmTable):
            listed = problems if isinstance(problems, Sequence) else [problems]
            return latencies_us(self, listed, device, table)
        if table is None:
            raise InvalidConfigError("a GemmTable needs configs; give problems one by one")
        return table_latencies_us(self, problems, table, device)

    def explain(
        self, problem: TileProblem, gpu: Gpu | str | Path, config: TileConfig | None = None
    ) -> Explanation:
        """Predict one launch and say where its time goes and what to change first.

        Raises: as `predict`.
        """
        from perfmodel.explanation import explain  # noqa: PLC0415 - it builds on this module

        return explain(self, problem, as_gpu(gpu), config)

    def model_for(self, gpu: Gpu) -> Correction | None:
        """Return the learned correction as it answers for ``gpu``, if there is one."""
        return None if self.model is None else self.model.for_device(gpu.name)

    def adapt(self, table: pd.DataFrame) -> tuple[Predictor, Mapping[str, Gain]]:
        """Return a predictor corrected by a few measured problems, and what they gained by device.

        Answers for devices that are not in ``table`` stay as they are. Takes seconds.

        Args:
            table: measured GEMM rows in the columns of `perfmodel.dataset.schema`.

        Raises:
            DataError: no row can be used, or a device has fewer than two problems.
            ModelFileError: there is no model of ours to adapt.
            NotInstalledError: xgboost is missing.
        """
        from perfmodel.adaptation import adapt_to_table  # noqa: PLC0415 - reads tables, trains

        adapted, gains = adapt_to_table(self.model, table)
        return Predictor(adapted, measured=self.measured), gains

    def launches(self, problems: GemmTable, configs: ConfigTable, gpu: Gpu) -> Launches:
        """Describe launches as this predictor's model wants them."""
        return gemm_launches(problems, configs, gpu, with_features=self.model is not None)

    def launches_of(self, problem: TileProblem, configs: ConfigTable, gpu: Gpu) -> Launches:
        """Describe the launches of one problem under many configurations, of whichever family."""
        require_tile(problem)
        return family_of(problem).launches(
            problem, configs, gpu, with_features=self.model is not None
        )

    def log_seconds(self, found: Launches) -> Array:
        """Return the log of the predicted seconds of each launch, never below its floor."""
        log_s = np.log(found.estimate.seconds)
        model = self.model_for(found.gpu)
        if model is not None and found.features is not None:
            log_s = log_s + _where_work(found, model.log_correction(found.features))
        return np.maximum(log_s, np.log(found.floor_s))

    def _launch(self, problem: TileProblem, config: TileConfig, gpu: Gpu) -> Launches:
        return self.launches_of(problem, ConfigTable.of([config]), gpu)

    def _standing(
        self, problem: TileProblem, configs: ConfigTable, found: Launches, *, shortlist: bool
    ) -> _Standing:
        """Score configurations, ``inf`` for what cannot run.

        With ``shortlist`` only the few that can still win are asked of all trees, at a fraction
        of the cost; the others' log seconds are rough.
        """
        if not len(configs):
            raise InvalidConfigError("the list of configs is empty; give at least one")
        family = family_of(problem)
        legal = family.legal(problem, configs, found)
        if not legal.any():
            raise IllegalConfigError(none_usable(family, problem, configs, found.gpu))
        analytic = np.log(found.estimate.seconds)
        model = self.model_for(found.gpu)
        if model is None or found.features is None or not found.work.flops.any():
            log_s = np.where(legal, analytic, np.inf)
            order = None if self.model is None else family.order(problem, configs, found, legal)
            score = log_s if order is None else np.where(legal, order.score, np.inf)
            return _Standing(score, log_s, order)
        log_s = analytic + model.rough_correction(found.features)
        close = np.flatnonzero(legal)
        if shortlist:
            close = close[log_s[close] <= log_s[close].min() + SHORTLIST]
        log_s[close] += model.remaining_correction(found.features[close])
        if shortlist:
            close = close[log_s[close] <= log_s[close].min() + FINALISTS]
        features = found.features[close]
        preference = np.zeros(len(log_s))
        if model.familiar(found.features[legal]).mean() >= SHARE_FAMILIAR:
            preferred = model.preference(features)
            preference[:] = preferred.min()
            preference[close] = preferred
        known = model.knows(found.gpu.name, found.dtype)
        score = rank_score(analytic, log_s, preference, known)
        return _Standing(np.where(legal, score, np.inf), np.where(legal, log_s, np.inf))

    def _ordered_log_seconds(
        self, problem: TileProblem, configs: ConfigTable, found: Launches
    ) -> tuple[Array, NDArray[np.bool_], _Standing]:
        """Log seconds of a ranking, which of them were measured, and how all stand.

        Where the ordering overrules the predicted times, a place takes at least the time of the
        place before it, so that a list in order never shows times out of order; equal times then
        come by the score. An order that winners taught leaves the estimate's times alone.
        """
        standing = self._standing(problem, configs, found, shortlist=False)
        score, log_s = standing.score, standing.log_s
        if standing.order is None:
            order = np.argsort(score, kind="stable")
            log_s[order] = np.maximum.accumulate(log_s[order])
        log_s = np.maximum(log_s, np.log(found.floor_s))
        measured = np.zeros(len(configs), dtype=np.bool_)
        if self.measured is not None:
            for row in np.flatnonzero(np.isfinite(score)):
                known_us = self._measured_us(problem, configs.configs[row], found.gpu)
                if known_us is not None:
                    log_s[row], measured[row] = np.log(known_us * 1e-6), True
        return log_s, measured, standing

    def _measured_us(self, problem: TileProblem, config: TileConfig, gpu: Gpu) -> float | None:
        """Ask the measured table, which knows matrix products."""
        if self.measured is None or not isinstance(problem, Gemm):
            return None
        return self.measured.find(problem, config, gpu.name)

    def _answer(self, problem: TileProblem, config: TileConfig, found: Launches) -> Prediction:
        """Fill in the answer for the single launch of ``found``."""
        return answer(
            problem,
            config,
            found,
            self.model_for(found.gpu),
            predicted_us=float(np.exp(self.log_seconds(found)[0])) * 1e6,
            measured_us=self._measured_us(problem, config, found.gpu),
        )


def predict(
    problem: Problem, *, gpu: Gpu | str | Path, config: TileConfig | None = None
) -> Prediction:
    """Predict one launch with the shipped model; see `Predictor.predict`."""
    return Predictor().predict(problem, gpu, config)


def rank(
    problem: TileProblem,
    *,
    gpu: Gpu | str | Path,
    configs: ConfigTable | Iterable[TileConfig] | None = None,
    top: int | None = None,
) -> Ranking:
    """Order configurations with the shipped model; see `Predictor.rank`."""
    return Predictor().rank(problem, gpu, configs, top=top)


def explain(
    problem: TileProblem, *, gpu: Gpu | str | Path, config: TileConfig | None = None
) -> Explanation:
    """Explain one launch with the shipped model; see `Predictor.explain`."""
    return Predictor().explain(problem, gpu, config)


def as_gpu(gpu: Gpu | str | Path) -> Gpu:
    """Return the device itself, or the one of that name or file.

    Raises:
        UnknownGpuError: neither a device, nor a name, nor a file.
    """
    if isinstance(gpu, Gpu):
        return gpu
    if not isinstance(gpu, str | Path):
        raise UnknownGpuError(
            f"gpu is {gpu!r}; give a name (see: perfmodel gpus), a .toml file or a Gpu"
        )
    return load_gpu(gpu)


def _resolve(model: Correction | Path | str | None) -> Correction | None:
    if model is None:
        return _shipped()
    if isinstance(model, str | Path):
        from perfmodel.learned.artifact import load_model  # noqa: PLC0415 - needs an engine

        return load_model(Path(model))
    return model


@lru_cache(maxsize=1)
def _shipped() -> Correction | None:
    """Load the shipped model once a process; should that fail, warn once."""
    try:
        from perfmodel.learned.artifact import load_model  # noqa: PLC0415 - needs an engine

        model = load_model()
        # The engine starts with the first answer; what keeps it from starting must show here.
        model.log_correction(np.zeros((1, len(model.manifest.features)), dtype=np.float32))
    except Exception as error:  # whatever is wrong with it, the analytic answer stands
        warnings.warn(
            f"the shipped model cannot be used, so answers are analytic: {error}",
            ModelUnavailableWarning,
            stacklevel=4,
        )
        return None
    return model


def _where_work(found: Launches, correction: Array) -> Array:
    """A launch without products is no case that was learned: the estimate stands."""
    return np.where(found.work.flops > 0, correction, 0.0)


def _as_table(configs: ConfigTable | Iterable[TileConfig]) -> ConfigTable:
    return configs if isinstance(configs, ConfigTable) else ConfigTable.of(configs)


def _row(configs: ConfigTable, row: int) -> ConfigTable:
    return configs.take(np.array([row]))
