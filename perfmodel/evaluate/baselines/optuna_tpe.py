"""A search without a model: optuna's tree-structured Parzen estimator, where it is installed.

Each tile parameter is a number to suggest, on the scale of the values that occur. A table holds
far fewer configurations than the product of its values, so a suggestion is taken as the nearest
configuration that was not timed yet: it never wastes a trial on one that cannot run. The first
trials are drawn evenly from the table: nearest to even draws of the parameters are mostly those at
the table's rim, which do worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.errors import NotInstalledError
from perfmodel.evaluate.replay import Floats, Played, Session

NAME = "optuna-tpe"

DRAWN_SHARE = 2
"""One trial in so many is drawn before the estimator has its say: optuna's own default of ten would
leave nothing to the estimator at these budgets."""


@dataclass(frozen=True)
class OptunaTpe:
    """Asks optuna for every configuration to time and tells it what came out."""

    budget: int

    def play(self, session: Session, seed: int) -> Played:
        """Time ``budget`` configurations and take the best.

        Raises:
            NotInstalledError: optuna is missing.
        """
        study = _study(seed)
        places = _places(session.parameters)
        columns = np.flatnonzero(places.max(axis=0) > 0)
        trials = min(self.budget, len(session))
        drawn = np.random.default_rng(seed).permutation(len(session))[: -(-trials // DRAWN_SHARE)]
        for row in drawn:
            study.enqueue_trial({f"p{c}": float(places[row, c]) for c in columns})
        left = np.ones(len(session), dtype=bool)
        best, best_us = 0, np.inf
        for _ in range(trials):
            trial = study.ask()
            wanted = np.array(
                [trial.suggest_float(f"p{c}", 0.0, float(places[:, c].max())) for c in columns]
            )
            distance = np.abs(places[:, columns] - wanted).sum(axis=1)
            pick = int(np.argmin(np.where(left, distance, np.inf)))
            left[pick] = False
            study.tell(trial, float(session.measured_us[pick]))
            if session.measured_us[pick] < best_us:
                best, best_us = pick, float(session.measured_us[pick])
        return Played(best, trials)


def _study(seed: int) -> Any:
    try:
        import optuna  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise NotInstalledError(
            f"the {NAME} baseline needs optuna; install it with: pip install 'perfmodel[bench]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0)
    return optuna.create_study(sampler=sampler)


def _places(parameters: Floats) -> Floats:
    """Return each value's place among those of its column that occur, (N, P)."""
    return np.stack(
        [np.unique(column, return_inverse=True)[1].reshape(-1) for column in parameters.T], axis=1
    ).astype(np.float64)
