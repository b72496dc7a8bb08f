"""``perfmodel evaluate replay``: the tuner's policies, and others, on recorded tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.errors import NotInstalledError
from perfmodel.evaluate import replay
from perfmodel.evaluate.baselines.autoheuristic import AutoHeuristic
from perfmodel.evaluate.baselines.optuna_tpe import NAME as OPTUNA
from perfmodel.evaluate.baselines.optuna_tpe import OptunaTpe
from perfmodel.evaluate.protocols import PROTOCOLS, Protocol
from perfmodel.evaluate.records import ALL, Record, with_all
from perfmodel.evaluate.replay import Cells, FirstOfOrder, Played, Policy, Session
from perfmodel.evaluate.run import GRID, MM, Run
from tuner.measure.device import DeviceIdentity, Trial
from tuner.measure.replay import ReplayDevice
from tuner.search.search import search
from tuner.search.tunables import ONE_CALL

EXHAUSTIVE = "exhaustive"
BUDGETS = (0, 4, 10)
"""Configurations timed: none (``model``), the model's first three and the user's first
(``verify``), and ten in all."""

DRAWS, SLOW_PROBLEMS = 20, 500
"""How many sessions optuna plays: a table of few problems is played so often, and of one of many
about so many are taken, evenly. It takes 5 ms a trial, the others microseconds."""

RECORDED = DeviceIdentity(name="recorded", architecture="recorded")


@dataclass(frozen=True)
class Searched:
    """The tuner's own search: the user's first configuration, then the model's order.

    ``budget`` configurations are timed; 0 takes the model's first untimed, ``None`` times all in
    the user's order.
    """

    budget: int | None

    def play(self, session: Session, seed: int) -> Played:  # noqa: ARG002 - draws nothing
        """Run the search on the recorded times."""
        if self.budget == 0:
            return Played(int(session.order[0]), 0)
        names = [str(i) for i in range(len(session))]
        table = dict(zip(names, session.measured_us.tolist(), strict=True))
        expected = [float(t) if np.isfinite(t) else None for t in session.expected_us]
        trials = [Trial(name, expected_us=t) for name, t in zip(names, expected, strict=True)]
        order = range(len(session)) if self.budget is None else session.order[: self.budget - 1]
        result = search(
            ReplayDevice(table, RECORDED), trials, baseline=0, order=[int(i) for i in order],
            tunables=ONE_CALL,
        )  # fmt: skip
        return Played(int(result.require_best()), result.timed)


def sessions(run: Run) -> list[Record]:
    """Whole tuning sessions on recorded tables; ``budget`` is how many configurations are timed.

    As ``gemm-kfold`` (cells are devices) and as ``grid-loso`` (cells are sizes). The user's first
    configuration is the one that most problems were given.
    """
    records: list[Record] = []
    for what in (replay.kfold_cells(run), replay.grid_cells(run)):
        if what.cells:
            records += _renamed(with_all(_played(run, what)), what)
    return records + run.gates(replay.NAME, MM, GRID)


PROTOCOLS_HERE: Mapping[str, Protocol] = {
    replay.NAME: Protocol(replay.NAME, sessions, (MM, GRID)),
}
ALL_PROTOCOLS: Mapping[str, Protocol] = {**PROTOCOLS, **PROTOCOLS_HERE}
"""Those of `perfmodel.evaluate`, and those that need the tuner."""


def _played(run: Run, what: Cells) -> list[Record]:
    label = replay.NAME if what.all_name == ALL else f"{replay.NAME} grid"
    contenders = replace(run, baselines=(AutoHeuristic(),))
    answers = replay.answers_of(contenders, what, label)
    ours = [who for who, _ in run.trainer.specs]
    common = replay.offered(what.rows)
    records = []
    for cell, here in what.cells.items():
        for who, answer in answers.items():
            if np.isnan(answer.score[here]).any():  # type: ignore[index]  # all of them order
                continue
            mine = replay.sessions(what.rows, here, answer, common)
            for budget in BUDGETS:
                policy: Policy = Searched(budget) if who in ours else FirstOfOrder(budget)
                records += _records(run, who, cell, policy, mine)
        plain = replay.sessions(what.rows, here, None, common)
        records += _records(run, EXHAUSTIVE, cell, Searched(None), plain)
        records += replay.random_records(cell, BUDGETS, plain)
        for budget in BUDGETS[1:]:
            records += _records(run, OPTUNA, cell, OptunaTpe(budget), _some(plain))
    return records


def _some(plain: list[Session]) -> list[Session]:
    if len(plain) < DRAWS:
        return plain * DRAWS
    return plain[:: max(len(plain) // SLOW_PROBLEMS, 1)]


def _records(run: Run, who: str, cell: str, policy: Policy, mine: list[Session]) -> list[Record]:
    """Play every session; a contender that lacks its package is left out with a note."""
    played = []
    try:
        for i, session in enumerate(mine):
            if i % 50 == 0:
                run.trainer.tell(f"{replay.NAME} {cell} ({who}, {policy.budget})", i / len(mine))
            played.append(policy.play(session, seed=i))
    except NotInstalledError as error:
        run.say(f"left out {who}: {error}")
        return []
    return list(replay.scored(who, cell, policy.budget, mine, played))


def _renamed(records: list[Record], what: Cells) -> list[Record]:
    return [replace(r, cell=what.all_name) if r.cell == ALL else r for r in records]
