"""Training on a small world whose truth is known: analytic time times a rule."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from perfmodel.errors import DataError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.launches import gemm_launches
from perfmodel.learned.artifact import load_model, save_model
from perfmodel.learned.booster import (
    TrainSpec,
    fit_heads,
    fit_trees,
    near_best_weight,
    scaled,
)
from perfmodel.learned.coverage import TRUST_PER_STEP, Coverage
from perfmodel.learned.feature_table import FeatureTable
from perfmodel.learned.features import gemm_columns
from perfmodel.learned.model import GemmModel
from perfmodel.learned.training import HeldOut, cross_fit, fit_gemm
from perfmodel.problems import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig

pytest.importorskip("xgboost")

TINY = TrainSpec("tiny", 30, 10, depth=4, learning_rate=0.3)
CONFIGS = ConfigTable.of(
    TileConfig(m, n, 32, num_warps=w, num_stages=s)
    for m, n, w in ((16, 64, 2), (64, 64, 4), (128, 64, 4), (128, 128, 8))
    for s in (2, 4)
)
DTYPE = "fp16"


def launches(problem: Gemm, gpu: str) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Names, features and analytic seconds of all configurations."""
    found = gemm_launches(GemmTable.of(problem), CONFIGS, load_gpu(gpu), with_features=True)
    assert found.features is not None
    names = tuple(
        gemm_columns(GemmTable.of(problem), CONFIGS, found.gpu, found.work, found.estimate)
    )
    return names, found.features, found.estimate.seconds


def rule() -> np.ndarray:
    """What the analytic model does not know here: 8 warps are fast, 2 stages are slow."""
    return np.asarray(-0.4 * (CONFIGS.num_warps == 8) + 0.3 * (CONFIGS.num_stages == 2))


@cache
def world(problems: int = 40, *, largest: int = 4096, seed: int = 0) -> FeatureTable:
    """Measured rows of two devices: each problem's configurations, 1 % noise."""
    rng = np.random.default_rng(seed)
    parts = []
    for number in range(problems):
        m, n, k = (int(2 ** rng.uniform(4, np.log2(largest))) for _ in range(3))
        gpu = ("a100-sxm4-80gb", "h100-sxm5")[number % 2]
        names, features, analytic = launches(Gemm(m, n, k, a_dtype=DTYPE), gpu)
        noise = rng.normal(scale=0.01, size=len(CONFIGS))
        parts.append(
            FeatureTable(
                features=features,
                names=names,
                analytic_s=analytic,
                latency_s=analytic * np.exp(rule() + noise),
                gpu=np.full(len(CONFIGS), gpu, dtype=object),
                dtype=np.full(len(CONFIGS), DTYPE, dtype=object),
                problem=np.full(len(CONFIGS), number),
            )
        )
    joined = {
        name: np.concatenate([getattr(p, name) for p in parts])
        for name in ("features", "analytic_s", "latency_s", "gpu", "dtype", "problem")
    }
    return FeatureTable(names=parts[0].names, **joined)


def folds(table: FeatureTable, parts: int = 2) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(table.problem % parts != i, table.problem % parts == i) for i in range(parts)]


@cache
def trained() -> tuple[GemmModel, HeldOut]:
    table = world()
    return fit_gemm(table, folds(table, 4), TINY, sources=({"name": "made up", "rows": 320},))


# --- what it learns ---------------------------------------------------------------------------


def test_what_the_analytic_model_misses_is_learned_and_holds_on_new_problems() -> None:
    model, _ = trained()
    new = world(10, seed=1)
    error = np.abs(model.log_correction(new.features) - new.target)
    assert np.median(error) < 0.03 < np.median(np.abs(new.target))


def test_the_faster_of_two_configurations_is_preferred() -> None:
    table = world()
    heads = fit_heads(table, TINY)
    agree = []
    for problem in np.unique(table.problem):
        rows = table.take(table.problem == problem)
        preference = heads.rank.predict(rows.features)
        agree.append(rows.latency_s[preference.argmax()] / rows.latency_s.min())
    assert np.mean(agree) < 1.1


def test_beyond_the_training_sizes_time_grows_with_the_work_and_stays_positive() -> None:
    """Trees are flat outside their data; the analytic part carries the prediction."""
    model, _ = trained()
    for gpu in ("a100-sxm4-80gb", "h100-sxm5"):
        times = []
        for m in (4096, 8192, 65536, 10**6):
            _, features, analytic = launches(Gemm(m, 4096, 4096, a_dtype=DTYPE), gpu)
            times.append(analytic * np.exp(model.log_correction(features)))
        for before, after, factor in zip(times, times[1:], (2, 8, 15.26), strict=False):
            ratio = after / before
            assert (ratio > 0.7 * factor).all()
            assert (ratio < 1.5 * factor).all()
    for m in (1, 3, 16):
        _, features, analytic = launches(Gemm(m, 5, 7, a_dtype=DTYPE), "a100-sxm4-80gb")
        assert (analytic * np.exp(model.log_correction(features)) > 1e-6).all()


def test_a_launch_far_outside_the_data_is_known_to_be() -> None:
    model, _ = trained()
    assert model.covers(world().features).all()
    _, far, _ = launches(Gemm(2**22, 2**20, 2**20, a_dtype=DTYPE), "a100-sxm4-80gb")
    assert not model.covers(far).any()


# --- what it is told --------------------------------------------------------------------------


def test_rows_weigh_by_their_nearness_to_the_best_of_their_problem() -> None:
    table = world(3)
    times = table.latency_s.copy()
    times[: len(CONFIGS)] = np.array([2.0, 1.0, 4.0, 100.0, 1.25, 1.0, 8.0, 10.0]) * 1e-5
    weights = near_best_weight(replace(table, latency_s=times), floor=0.2)
    assert weights[: len(CONFIGS)].tolist() == [0.5, 1, 0.25, 0.2, 0.8, 1, 0.2, 0.2]
    for problem in range(3):
        assert weights[table.problem == problem].max() == 1.0


def test_the_best_time_is_that_of_the_same_problem() -> None:
    table = world(6)
    for problem in range(6):
        rows = table.problem == problem
        assert (table.best_s()[rows] == table.latency_s[rows].min()).all()


def test_wild_timings_move_trees_of_hubers_loss_less() -> None:
    features = np.zeros((1000, 1), dtype=np.float32)
    target = np.where(np.arange(1000) % 10 == 0, 3.0, 0.1)  # one in ten
    answers = {}
    for huber in (None, 0.05):
        spec = TrainSpec("t", 200, 0, depth=2, learning_rate=0.3, subsample=1.0, huber=huber)
        forest = fit_trees(features, target, np.ones(1000), spec, spec.time_trees)
        answers[huber] = float(forest.predict(features[:1])[0])
    assert answers[None] == pytest.approx(np.mean(target), abs=0.01)
    assert answers[0.05] == pytest.approx(np.median(target), abs=0.05)


def test_a_rough_look_has_at_least_one_tree_of_each_kind() -> None:
    assert (scaled(TINY, 0.5).time_trees, scaled(TINY, 0.5).rank_trees) == (15, 5)
    assert (scaled(TINY, 1e-9).time_trees, scaled(TINY, 1e-9).rank_trees) == (1, 1)


def test_progress_grows_to_the_whole() -> None:
    table, told = world(8), []
    fit_gemm(
        table, folds(table), scaled(TINY, 0.2), tell=lambda what, share: told.append((what, share))
    )
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5
    assert shares[-1] == pytest.approx(1.0)
    assert len({what for what, _ in told}) >= 3


def test_without_rows_the_error_says_what_to_do() -> None:
    table = world(2)
    with pytest.raises(DataError, match="perfmodel data pull"):
        fit_heads(table.take(np.zeros(len(table), dtype=bool)), TINY)


# --- held out ---------------------------------------------------------------------------------


def test_no_row_is_predicted_by_a_model_that_saw_its_problem() -> None:
    """Each problem errs by its own random factor: only a model that saw it could tell."""
    table = world()
    rng = np.random.default_rng(3)
    secret = rng.choice([-0.5, 0.5], size=40)[table.problem]
    marked = replace(
        table,
        features=np.column_stack([table.features, table.problem]).astype(np.float32),
        names=(*table.names, "mark"),
        latency_s=table.analytic_s * np.exp(secret),
    )
    spec = replace(TINY, depth=8, columns_per_tree=1.0, subsample=1.0)
    everything = np.ones(len(table), dtype=bool)
    leaky = cross_fit(marked, [(everything, everything)], spec)
    assert np.corrcoef(leaky.log_correction, secret)[0, 1] > 0.9
    honest = cross_fit(marked, folds(marked, 5), spec)
    assert np.corrcoef(honest.log_correction, secret)[0, 1] < 0.4


def test_rows_that_no_fold_holds_out_are_not_predicted() -> None:
    table = world(10)
    (train, test), _ = folds(table)
    found = cross_fit(table, [(train, test)], scaled(TINY, 0.2))
    assert np.isfinite(found.log_correction[test]).all()
    assert np.isfinite(found.rank[test]).all()
    assert np.isnan(found.log_correction[~test]).all()
    assert np.isnan(found.rank[~test]).all()


def test_held_out_figures_are_the_manifests() -> None:
    model, held_out = trained()
    table = world()
    error = np.abs(held_out.seconds(table) / table.latency_s - 1)
    for gpu in ("a100-sxm4-80gb", "h100-sxm5"):
        figures = model.accuracy[gpu]
        assert figures["error_mean"] == pytest.approx(error[table.gpu == gpu].mean(), abs=1e-4)
        assert figures["rows"] == (table.gpu == gpu).sum()
        assert f"{gpu}/{DTYPE}" in model.accuracy
        assert model.knows(gpu, DTYPE)
        assert not model.knows(gpu, "bf16")
    assert model.manifest.sources[0]["name"] == "made up"


def test_intervals_hold_nine_in_ten_of_new_problems_and_more_where_nothing_was_measured() -> None:
    model, _ = trained()
    new = world(120, seed=5)
    error = np.abs(new.target - model.log_correction(new.features))
    _, high = model.log_interval(new.features, known=True)
    assert 0.8 <= (error <= high).mean() <= 1.0  # the multiple comes from 40 problems
    _, wider = model.log_interval(new.features, known=False)
    assert (wider > high).all()


def test_contributions_are_by_name_and_add_up() -> None:
    model, _ = trained()
    row = world().features[0]
    found = model.contributions(row)
    assert tuple(found) == model.manifest.features
    expectation = model.time.base + model.time.expected[model.time.roots].sum()
    total = model.log_correction(row[None])[0] - expectation
    assert sum(found.values()) == pytest.approx(total, abs=0.02)


# --- the same again ---------------------------------------------------------------------------


def test_the_same_rows_make_the_same_files(tmp_path: Path) -> None:
    table = world(12)
    spec = scaled(TINY, 0.3)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        model, _ = fit_gemm(table, folds(table), spec)
        save_model(model, tmp_path / name / "gemm.json")
    for suffix in ("json", "npz"):
        one, two = (tmp_path / name / f"gemm.{suffix}" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_another_seed_makes_other_trees() -> None:
    table = world(12)
    weight = np.ones(len(table))
    first, second = (
        fit_trees(table.features, table.target, weight, replace(TINY, seed=seed), 5)
        for seed in (1, 2)
    )
    assert not np.array_equal(first.predict(table.features), second.predict(table.features))


def test_a_trained_model_answers_the_same_from_its_files(tmp_path: Path) -> None:
    model, _ = trained()
    save_model(model, tmp_path / "gemm.json")
    again = load_model(tmp_path / "gemm.json")
    rows = world().features
    np.testing.assert_array_equal(again.log_correction(rows), model.log_correction(rows))
    np.testing.assert_array_equal(again.log_interval(rows, True), model.log_interval(rows, True))
    assert again.manifest.features == model.manifest.features
    assert again.accuracy == model.accuracy


def test_a_correction_fades_beyond_the_trained_sizes() -> None:
    coverage = Coverage(
        names=("waves", "block_m", "iterations"),
        low=np.array([0.0, 4.0, 2.0]),
        high=np.array([10.0, 8.0, 6.0]),
        tiles=np.array([], dtype=np.int64),
    )
    rows = np.array([[5, 6, 4], [12, 6, 4], [5, 20, 4], [5, 6, -1]], dtype=np.float32)
    trust = coverage.trust(rows)
    assert trust == pytest.approx([1.0, TRUST_PER_STEP**2, 1.0, TRUST_PER_STEP**3])
    assert coverage.trust(np.array([[400, 6, 4]], dtype=np.float32))[0] < 1e-6
