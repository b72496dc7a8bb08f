"""Tuning sessions on recorded tables: budgets are kept, policies agree with the other protocols."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfmodel.cli.app import main
from perfmodel.errors import NotInstalledError
from perfmodel.evaluate import protocols, replay
from perfmodel.evaluate.baselines.optuna_tpe import OptunaTpe
from perfmodel.evaluate.records import OURS, Record
from perfmodel.evaluate.replay import FirstOfOrder, Session
from perfmodel.evaluate.rows import Tables
from perfmodel.learned.booster import TrainSpec
from tuner.search.replay_protocol import ALL_PROTOCOLS, BUDGETS, Searched, sessions

pytest.importorskip("xgboost")
pytest.importorskip("sklearn")

TINY = TrainSpec("tiny", 12, 8, depth=3, learning_rate=0.3)
A100, H100 = "a100-sxm4-80gb", "h100-sxm5"


@pytest.fixture(scope="module")
def records(tables: Tables) -> list[Record]:
    run = protocols.new_run(tables, ((OURS, TINY),))
    with pytest.MonkeyPatch.context() as patched:  # trees this small are grown fastest by one
        patched.setattr("tuner.search.replay_protocol.DRAWS", 2)
        patched.setattr("os.sched_getaffinity", lambda _pid: {0}, raising=False)
        return sessions(run)


def find(records: Sequence[Record], metric: str, cell: str, who: str, budget: int | None) -> Record:
    found = [
        r for r in records
        if (r.metric, r.cell, r.who, r.budget) == (metric, cell, who, budget)
    ]  # fmt: skip
    assert len(found) == 1, f"{metric} {cell} {who} {budget}: {len(found)} records"
    return found[0]


def test_no_policy_times_more_than_its_budget(records: list[Record]) -> None:
    timed = [r for r in records if r.metric == "timed_max" and r.budget is not None]
    assert {r.who for r in timed} >= {OURS}
    for record in timed:
        assert record.budget is not None
        assert record.value <= record.budget


def test_model_times_nothing_and_picks_what_gemm_kfold_picks(
    records: list[Record], tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    kfold = protocols.PROTOCOLS["gemm-kfold"].run(
        replace(protocols.new_run(tables, ((OURS, TINY),)), baselines=())
    )
    for cell in (A100, H100, "all"):
        mine = find(records, "pick_mean", cell, OURS, 0).value
        theirs = next(
            r.value for r in kfold
            if (r.metric, r.cell, r.k, r.dtype) == ("pick_mean", cell, 1, None)
        )  # fmt: skip
        assert mine == pytest.approx(theirs, abs=1e-12)
        assert find(records, "timed_mean", cell, OURS, 0).value == 0


def test_timing_more_never_picks_worse_beyond_noise(records: list[Record]) -> None:
    for cell in (A100, H100, "all", "512", "1024", "2048", "all sizes"):
        quality = [find(records, "pick_mean", cell, OURS, b).value for b in BUDGETS]
        assert quality[0] <= quality[1] + 0.005
        assert quality[1] <= quality[2] + 0.005
        assert find(records, "pick_min", cell, "exhaustive", None).value >= 1 / 1.0051
        random = find(records, "pick_mean", cell, "random", 4).value
        assert quality[1] > random


def test_peers_play_the_same_problems(records: list[Record]) -> None:
    for cell in (A100, H100):
        mine = [r for r in records if r.cell == cell and r.metric == "pick_mean"]
        assert len({r.n for r in mine}) == 1
        assert {r.who for r in mine} >= {OURS, "random", "exhaustive"}


def session(times: Sequence[float], score: Sequence[float] | None = None) -> Session:
    count = len(times)
    given = np.full(count, np.nan) if score is None else np.array(score, dtype=float)
    return Session(
        np.array(times, dtype=float), given, given, np.arange(2.0 * count).reshape(count, 2)
    )


def test_verify_times_the_users_first_configuration_and_the_models_first_three() -> None:
    best_last = session([50, 40, 30, 20, 10], [9, 1, 2, 3, 4])
    played = Searched(4).play(best_last, seed=0)
    assert (played.pick, played.timed) == (3, 4)  # 10 was not timed
    users_first = session([10, 40, 30, 20, 50], [9, 1, 2, 3, 4])
    assert Searched(4).play(users_first, seed=0).pick == 0


def test_a_pick_that_is_not_better_beyond_noise_stays_with_the_users_first() -> None:
    assert Searched(4).play(session([100.15, 100.0], [2, 1]), seed=0).pick == 0
    assert Searched(4).play(session([100.5, 100.0], [2, 1]), seed=0).pick == 1


def test_an_order_alone_takes_the_best_of_its_first() -> None:
    played = FirstOfOrder(2).play(session([30, 10, 20], [1, 3, 2]), seed=0)
    assert (played.pick, played.timed) == (2, 2)
    assert FirstOfOrder(0).play(session([30, 10, 20], [1, 3, 2]), seed=0).timed == 0


def test_the_users_list_begins_with_the_most_common_configuration(tables: Tables) -> None:
    run = protocols.new_run(tables, ((OURS, TINY),))
    rows = run.mm
    common = replay.offered(rows)
    here = np.asarray(rows.gpu == A100)
    found = replay.sessions(rows, here, None, common)
    assert sum(len(s) for s in found) == here.sum()
    assert len(found) == len(np.unique(rows.problem[here]))
    for one in found[:3]:
        assert len(np.unique(one.parameters, axis=0)) == len(one)


def test_optuna_times_as_many_as_asked_and_learns() -> None:
    pytest.importorskip("optuna")
    rng = np.random.default_rng(0)
    parameters = rng.integers(0, 6, (200, 3)).astype(float)
    times = 1.0 + np.abs(parameters - 3).sum(axis=1)
    one = Session(times, times * np.nan, times * np.nan, parameters)
    few = [OptunaTpe(4).play(one, seed=s) for s in range(8)]
    many = [OptunaTpe(40).play(one, seed=s) for s in range(8)]
    assert {p.timed for p in few} == {4}
    assert np.mean(times[[p.pick for p in many]]) < np.mean(times[[p.pick for p in few]])
    assert OptunaTpe(4).play(one, seed=1) == OptunaTpe(4).play(one, seed=1)
    assert OptunaTpe(10).play(session([3.0, 1.0]), seed=0).pick == 1


def test_without_optuna_it_is_left_out(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(NotInstalledError, match=r"perfmodel\[bench\]"):
        OptunaTpe(4).play(session([1.0, 2.0]), seed=0)


def test_it_is_listed_and_run_like_the_other_protocols(
    imported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["evaluate"]) == 0
    assert "replay" in capsys.readouterr().out
    assert "replay" in ALL_PROTOCOLS
    monkeypatch.setattr("perfmodel.evaluate.protocols.SHIPPED", TINY)
    monkeypatch.setattr("tuner.search.replay_protocol.DRAWS", 2)
    assert main(["evaluate", "replay", "--only", H100, "--json", "--cache", str(imported)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {r["protocol"] for r in found} == {"replay"}
    assert {r["budget"] for r in found if r["who"] == OURS} == set(BUDGETS)
