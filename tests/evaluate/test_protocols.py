from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfmodel.dataset import splits
from perfmodel.errors import NotInstalledError, UsageError
from perfmodel.evaluate import library, near_best, protocols, winners
from perfmodel.evaluate.answers import Answer, Trainer
from perfmodel.evaluate.baselines.random_order import RandomOrder
from perfmodel.evaluate.baselines.roofline import Roofline
from perfmodel.evaluate.records import ALL, GATES, OURS, Record
from perfmodel.evaluate.rows import Tables, candidate_rows
from perfmodel.evaluate.run import GRID, MM, Run
from perfmodel.learned.booster import TrainSpec

pytest.importorskip("xgboost")
pytest.importorskip("sklearn")

A100, H100 = "a100-sxm4-80gb", "h100-sxm5"
TINY = TrainSpec("tiny", 12, 8, depth=3, learning_rate=0.3)

MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tables: Tables) -> MakeRun:
    def make(**changes: Any) -> Run:
        run = protocols.new_run(tables, ((OURS, TINY),))
        return replace(run, baselines=(Roofline(), RandomOrder()), **changes)

    return make


def find(records: Sequence[Record], metric: str, cell: str, **more: Any) -> Record:
    wanted = {"who": OURS, "metric": metric, "cell": cell, "dtype": None} | more
    found = [r for r in records if all(getattr(r, k) == v for k, v in wanted.items())]
    assert len(found) == 1, f"{wanted}: {len(found)} records"
    return found[0]


def test_every_protocol_describes_itself_and_names_its_tables() -> None:
    for name, protocol in protocols.PROTOCOLS.items():
        assert protocol.name == name
        assert protocol.about
        loads_its_own_rows = name in (*library.PROTOCOLS, *near_best.PROTOCOLS, *winners.PROTOCOLS)
        assert bool(protocol.tables) != loads_its_own_rows


def test_an_unknown_protocol_is_an_error_that_offers_the_closest() -> None:
    with pytest.raises(UsageError, match=r"'gemm-kfolds'.*did you mean 'gemm-kfold'"):
        protocols.find_protocols(["gemm-kfolds"])


def test_folds_report_errors_and_picks_of_every_contender_on_the_same_rows(
    make_run: MakeRun,
) -> None:
    records = protocols.PROTOCOLS["gemm-kfold"].run(make_run())
    rows = {who: find(records, "error_mean", A100, who=who).n for who in (OURS, "roofline")}
    assert rows[OURS] == rows["roofline"] > 0
    assert (
        find(records, "pick_mean", A100, k=1).n
        == find(records, "pick_mean", A100, k=1, who="random").n
    )
    assert {r.cell for r in records if r.who == OURS} == {A100, H100, ALL}
    assert find(records, "error_mean", A100).value < 0.5 * (
        find(records, "error_mean", A100, who="roofline").value
    )
    for record in records:
        if record.metric.startswith("pick_"):
            assert 0 < record.value <= 1
            assert record.k in (1, 3, 5, 10)
    picks = [find(records, "pick_mean", A100, k=k).value for k in (1, 3, 5, 10)]
    assert picks == sorted(picks)


def test_library_kernels_are_never_candidates(make_run: MakeRun) -> None:
    # The library's call of the synthetic table takes 1 us, faster than any tile.
    assert not make_run().mm.labels["is_library"].any()
    assert make_run().mm.measured_s.min() > 1.5e-6


def test_only_reports_the_devices_asked_for(make_run: MakeRun) -> None:
    records = protocols.PROTOCOLS["gemm-kfold"].run(make_run(only=frozenset({H100})))
    assert {r.cell for r in records} == {H100}


def test_data_types_are_reported_when_asked_for(make_run: MakeRun) -> None:
    records = protocols.PROTOCOLS["gemm-kfold"].run(make_run(by_dtype=True))
    parts = [find(records, "error_mean", A100, dtype=d) for d in ("fp16", "bf16")]
    whole = find(records, "error_mean", A100)
    assert sum(p.n or 0 for p in parts) == whole.n
    mean = np.average([p.value for p in parts], weights=[p.n or 0 for p in parts])
    assert whole.value == pytest.approx(mean)


def test_a_protocol_gives_the_same_figures_twice(make_run: MakeRun) -> None:
    first, second = (protocols.PROTOCOLS["gemm-kfold"].run(make_run()) for _ in range(2))
    assert first == second


def test_suites_leave_each_out_without_the_problems_that_training_saw(make_run: MakeRun) -> None:
    run = make_run()
    records = protocols.PROTOCOLS["gemm-suites"].run(run)
    cells = {f"{gpu}/{suite}" for gpu in (A100, H100) for suite in ("hf", "timm", "mm")}
    assert {r.cell for r in records if r.who == OURS} == {*cells, ALL}
    apart = run.suites()
    held = splits.suite_of(apart.labels["source_file"]) == "hf"
    expected = int((held & (apart.gpu == A100)).sum())
    assert find(records, "error_mean", f"{A100}/hf").n == expected


def test_transfer_goes_both_ways(make_run: MakeRun) -> None:
    records = protocols.PROTOCOLS["gemm-transfer"].run(make_run())
    assert {r.cell for r in records if r.who == OURS} == {f"{A100}->{H100}", f"{H100}->{A100}", ALL}


def test_few_shots_adapt_with_the_drawn_problems_and_average_the_draws(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfmodel.evaluate.gemm.FEW_SHOTS", (3,))
    seen = []

    def adapt(heads: Any, measured: Any) -> Any:
        seen.append((set(measured.gpu), len(set(measured.problem))))
        return heads

    run = make_run(adapt=adapt, quick=True)
    monkeypatch.setattr("perfmodel.evaluate.run.QUICK_PROBLEMS", 1)
    records = protocols.PROTOCOLS["gemm-fewshot"].run(run)
    assert seen == [({H100}, 3)] * 2 + [({A100}, 3)] * 2
    found = find(records, "error_mean", f"{A100}->{H100}", budget=3)
    # Three of 18 problems were drawn, and none shares their sizes on the same device.
    assert found.n == pytest.approx(15 / 18 * (run.mm.gpu == H100).sum(), abs=54)


def test_the_grid_leaves_one_size_out_at_a_time(make_run: MakeRun) -> None:
    records = protocols.PROTOCOLS["grid-loso"].run(make_run())
    assert {r.cell for r in records if r.who == OURS} == {"512", "1024", "2048", ALL}
    assert find(records, "pick_mean", "512", k=1).n == 1
    worst = max(find(records, "trials99", c).value for c in ("512", "1024", "2048"))
    assert find(records, "trials99_max", ALL).value == worst


def test_the_grid_is_predicted_from_the_other_table_alone_with_three_seeds(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []

    def answer(
        self: Trainer, rows: Any, train: Any, test: Any, spec: TrainSpec, what: str
    ) -> Answer:
        del self, what
        trained.append((set(rows.labels["source"][train]), set(rows.gpu[train]), spec.seed))
        assert set(rows.labels["source"][test]) == {GRID}
        return Answer(score=np.random.default_rng(spec.seed).uniform(size=int(test.sum())))

    monkeypatch.setattr(Trainer, "answer", answer)
    records = protocols.PROTOCOLS["grid-zero"].run(make_run())
    assert [t[:2] for t in trained] == [({MM}, {A100})] * 3
    assert len({t[2] for t in trained}) == 3
    seeds = [find(records, "pick_mean", f"seed {i}", k=1).value for i in (1, 2, 3)]
    assert find(records, "pick_mean", ALL, k=1).value == pytest.approx(np.mean(seeds))
    minima = [find(records, "pick_min", f"seed {i}", k=1).value for i in (1, 2, 3)]
    assert find(records, "pick_min", ALL, k=1).value == min(minima)


def test_legality_counts_failures_and_successes(tables: Tables) -> None:
    grid = tables.raw[GRID].copy()
    failed = grid.index[grid["outcome"] == "ok"][:10]
    huge = grid.loc[failed].assign(
        block_m=512, block_n=512, block_k=512, outcome="compile_failed", latency_us=np.nan
    )
    huge["distinct_us"] = [[] for _ in range(len(huge))]
    run = Run(Tables({GRID: pd.concat([grid, huge])}), Trainer(()), lambda heads, _: heads)
    records = protocols.PROTOCOLS["legality"].run(run)
    assert find(records, "illegal_rejected", "512").value == 1.0
    for cell in ("512", "1024", "2048"):
        assert find(records, "legal_rejected", cell).value == 0.0


def test_intervals_hold_about_what_they_state(make_run: MakeRun) -> None:
    records = protocols.PROTOCOLS["intervals"].run(make_run())
    everything = find(records, "coverage90", ALL)
    assert everything.value == pytest.approx(0.9, abs=0.08)
    assert everything.n == sum(find(records, "coverage90", c).n or 0 for c in (A100, H100))
    assert 0 < find(records, "width90", ALL).value < 3
    for cell in (f"{A100}->{H100}", f"{H100}->{A100}"):
        assert 0 < find(records, "coverage90", cell).value <= 1
        assert find(records, "unseen_over_seen", cell).value > 0


def test_cost_measures_decisions_sizes_training_and_starting(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfmodel.evaluate.cost.REPEATS", 3)
    monkeypatch.setattr("perfmodel.evaluate.cost.STARTS", 1)
    records = protocols.PROTOCOLS["cost"].run(make_run())
    found = {(r.metric, r.n): r.value for r in records}
    assert 0 < found["decision_us", 30] < found["decision_us", 1000] * 3
    assert 0 < found["artifact_mb", None] < 1
    assert found["train_s", None] > 0
    assert 0.1 < found["cli_start_ratio", 1] < 100


def test_a_model_trained_for_one_protocol_serves_the_next(make_run: MakeRun) -> None:
    told: list[str] = []
    run = make_run()
    run.trainer.tell = lambda what, share: told.append(what) if share == 0.0 else None
    protocols.PROTOCOLS["gemm-kfold"].run(run)
    before = sum("tiny" in what for what in told)
    protocols.PROTOCOLS["gemm-kfold"].run(run)
    assert before == 5
    assert sum("tiny" in what for what in told) == 5


def test_a_baseline_without_its_package_is_left_out_with_one_note(make_run: MakeRun) -> None:
    class Absent:
        name = "absent"

        def answer(self, train: Any, test: Any) -> Answer:
            raise NotInstalledError("absent needs a package; install it with: pip install x")

    notes: list[str] = []
    run = replace(make_run(), baselines=(Absent(), Roofline()), say=notes.append)
    records = protocols.PROTOCOLS["gemm-kfold"].run(run)
    assert "absent" not in {r.who for r in records}
    assert notes == ["left out absent: absent needs a package; install it with: pip install x"]


def test_gate_counts_of_the_tables_are_reported(tables: Tables) -> None:
    grid = tables.raw[GRID].copy()
    grid.attrs["info"] = SimpleNamespace(gates={"rows": 50, "rows_dropped": {"above_peak": 2}})
    run = Run(Tables({GRID: grid}), Trainer(()), lambda heads, _: heads)
    records = protocols.PROTOCOLS["legality"].run(run)
    (gate,) = [r for r in records if r.who == GATES]
    assert (gate.cell, gate.metric, gate.value, gate.n) == (GRID, "dropped_above_peak", 2.0, 50)


def test_problems_of_different_sources_are_not_compared(tables: Tables) -> None:
    both = candidate_rows(tables.labels(MM), tables.labels(GRID))
    for problem in np.unique(both.problem):
        assert both.labels["source"][both.problem == problem].nunique() == 1
