from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from perfmodel.errors import NotInstalledError
from perfmodel.evaluate.baselines import gemm_baselines
from perfmodel.evaluate.baselines.autoheuristic import AutoHeuristic
from perfmodel.evaluate.baselines.best_single import BestSingle
from perfmodel.evaluate.baselines.groups import fit_groups
from perfmodel.evaluate.baselines.neusight import NeuSight
from perfmodel.evaluate.baselines.other_framework import other_framework_s
from perfmodel.evaluate.baselines.roofline import Roofline
from perfmodel.evaluate.baselines.triton_perf_model import TritonPerfModel
from perfmodel.evaluate.baselines.wave_and_tile import WaveAndTile
from perfmodel.evaluate.baselines.wavetune import WaveTune
from perfmodel.evaluate.metrics import in_order, relative_error
from perfmodel.evaluate.rows import GemmRows, Tables, candidate_rows
from perfmodel.evaluate.run import MM


@pytest.fixture(scope="module")
def rows(tables: Tables) -> GemmRows:
    return candidate_rows(tables.labels(MM))


@pytest.fixture(scope="module")
def halves(rows: GemmRows) -> tuple[GemmRows, GemmRows]:
    odd = rows.problem % 2 == 1
    return rows.take(~odd), rows.take(odd)


@pytest.mark.parametrize("baseline", gemm_baselines(), ids=lambda b: b.name)
def test_times_are_positive_and_orders_are_numbers(
    baseline: object, halves: tuple[GemmRows, GemmRows]
) -> None:
    train, test = halves
    try:
        answer = baseline.answer(train, test)  # type: ignore[attr-defined]
    except NotInstalledError as error:
        pytest.skip(str(error))
    assert answer is not None
    if answer.seconds is not None:
        assert answer.seconds.shape == (len(test),)
        assert (np.isfinite(answer.seconds) & (answer.seconds > 0)).all()
    if answer.score is not None:
        assert answer.score.shape == (len(test),)
        assert not np.isnan(answer.score).any()
    assert answer.seconds is not None or answer.score is not None or answer.is_random


def test_names_are_distinct() -> None:
    names = [baseline.name for baseline in gemm_baselines()]
    assert len(set(names)) == len(names)


def test_the_roofline_is_never_slower_than_what_ran(rows: GemmRows) -> None:
    answer = Roofline().answer(rows, rows)
    assert answer is not None
    assert answer.seconds is not None
    assert answer.score is None  # it cannot tell tiles apart
    # The habit of a tile makes it up to 30 % faster than the analytic time, noise some more.
    assert (answer.seconds <= 1.6 * rows.measured_s).all()


def test_waves_of_tiles_take_no_less_than_the_roofline(rows: GemmRows) -> None:
    whole, bare = WaveAndTile().answer(rows, rows), Roofline().answer(rows, rows)
    assert whole is not None
    assert whole.seconds is not None
    assert bare is not None
    assert bare.seconds is not None
    assert (whole.seconds >= bare.seconds * (1 - 1e-12)).all()


def test_the_best_single_config_is_the_one_that_did_best_in_training(
    halves: tuple[GemmRows, GemmRows],
) -> None:
    train, test = halves
    answer = BestSingle().answer(train, test)
    assert answer is not None
    assert answer.score is not None
    quality = train.table.best_s() / train.measured_s
    for gpu in set(test.gpu):
        learnt = (train.gpu == gpu) & (train.dtype == "fp16")
        here = (test.gpu == gpu) & (test.dtype == "fp16")
        offered = np.bincount(train.tile[learnt])
        merit = np.bincount(train.tile[learnt], np.log(quality[learnt])) / np.maximum(offered, 1)
        everywhere = offered == len(set(train.problem[learnt]))
        favourite = np.argmax(np.where(everywhere, merit, -np.inf))
        assert test.tile[here][np.argmin(answer.score[here])] == favourite


def test_wavetune_learns_what_is_bilinear_exactly(rows: GemmRows) -> None:
    x = rows.launched
    exact = 1e-9 * x.ctas * x.iterations + 2e-8 * x.ctas + 3e-7 * x.iterations + 1e-5
    told = _with_times(rows, exact)
    answer = WaveTune().answer(told, told)
    assert answer is not None
    assert answer.seconds is not None
    assert relative_error(answer.seconds, exact).max() < 0.01


def test_wavetune_says_nothing_of_a_device_it_never_saw(rows: GemmRows) -> None:
    a100, h100 = rows.take(rows.gpu == "a100-sxm4-80gb"), rows.take(rows.gpu == "h100-sxm5")
    assert WaveTune().answer(a100, h100) is None
    assert NeuSight().answer(a100, h100) is not None


def test_neusight_predicts_within_the_utilisations_seen(rows: GemmRows) -> None:
    answer = NeuSight().answer(rows, rows)
    assert answer is not None
    assert answer.seconds is not None
    assert np.median(relative_error(answer.seconds, rows.measured_s)) < 0.5


def test_tritons_old_model_knows_nothing_of_block_k_and_stages(rows: GemmRows) -> None:
    answer = TritonPerfModel().answer(rows, rows)
    assert answer is not None
    assert answer.seconds is not None
    one = rows.problem == rows.problem[0]
    keys = rows.labels.loc[one, ["block_m", "block_n", "num_warps"]].apply(tuple, axis=1)
    by_key = {key: set(answer.seconds[one][(keys == key).to_numpy()]) for key in set(keys)}
    assert all(len(times) == 1 for times in by_key.values())


def test_inductors_heuristic_orders_what_it_lists_before_the_rest(rows: GemmRows) -> None:
    pytest.importorskip("torch")
    answer = AutoHeuristic().answer(rows, rows)
    assert answer is not None
    assert answer.score is not None
    listed = np.isfinite(answer.score)
    assert 0 < listed.sum() < len(rows)
    order = in_order(rows.problem, answer.score, rows.measured_s)
    first = order.rows[order.start]
    has_listed = np.isin(rows.problem[first], rows.problem[listed])
    assert listed[first][has_listed].all()


def test_group_fits_solve_each_group_by_itself() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1, 3], 20)
    columns = rng.uniform(1.0, 1000.0, size=(60, 3)) * [1e-2, 1.0, 1e2]
    truth = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [0, 0, 0], [7.0, 8.0, 9.0]])
    target = np.einsum("nc,nc->n", columns, truth[group])
    found, rows = fit_groups(group, columns, target, 4, ridge=1e-12)
    assert found[[0, 1, 3]] == pytest.approx(truth[[0, 1, 3]], rel=1e-3)
    assert found[2] == pytest.approx(0.0)
    assert rows.tolist() == [20, 20, 0, 20]


def _with_times(rows: GemmRows, seconds: np.ndarray) -> GemmRows:
    return replace(rows, table=replace(rows.table, latency_s=seconds))


def test_another_framework_is_asked_about_the_same_launch_on_the_same_gpu() -> None:
    frame = pd.DataFrame(
        [
            ("h100-sxm5", "vllm", 64, 10.0),
            ("h100-sxm5", "vllm", 64, 40.0),  # timed twice: no other framework
            ("h100-sxm5", "trtllm", 64, 12.0),
            ("h100-sxm5", "sglang", 64, 48.0),
            ("h100-sxm5", "sglang", 65, 7.0),
            ("b200", "sglang", 64, 5.0),
        ],
        columns=["gpu", "library", "m", "latency_us"],
    )
    found = other_framework_s(frame, ["m"]) * 1e6
    vllm = (12.0 * 48.0) ** 0.5
    trtllm, sglang = (10.0 * 40.0 * 48.0) ** (1 / 3), (10.0 * 40.0 * 12.0) ** (1 / 3)
    np.testing.assert_allclose(found, [vllm, vllm, trtllm, sglang, np.nan, np.nan])
